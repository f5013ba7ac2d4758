"""Programs of crates and of Python's packages that the tests run: tests/run gets them once, in a folder outside of the checkout."""

import hashlib
import os
import shutil
import subprocess
import sys

from .report import Skip

FOLDER = os.environ.get("STAG_TOOLS") or os.path.expanduser("~/.cache/stag-tools")
REQUIREMENTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "requirements.txt")


def find(name):
    """The program's path. None: it is not there."""
    built = os.path.join(FOLDER, "bin", name)
    return shutil.which(name) or (built if os.path.exists(built) else None)


def python_folder():
    """Where the packages of requirements.txt are, or will be: others have another place."""
    with open(REQUIREMENTS, "rb") as file:
        version = hashlib.sha256(file.read()).hexdigest()[:12]
    return os.path.join(FOLDER, f"python{sys.version_info.major}.{sys.version_info.minor}-{version}")


def install_python(run):
    """Installs them if they are missing. `run`: runs a command, and returns its exit code."""
    folder = python_folder()
    if os.path.isdir(folder):
        return 0
    new = folder + ".new"
    shutil.rmtree(new, ignore_errors=True)
    code = run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action", "ignore", "--no-deps",
                "--target", new, "-r", REQUIREMENTS])
    if code == 0:
        os.rename(new, folder)
    return code


def python(name, *words):
    """A command that runs the program `name` of these packages, and the environment that it needs."""
    folder = python_folder()
    program = os.path.join(folder, "bin", name)
    if not os.path.exists(program):
        raise Skip(f"no {program}: tests/run installs it")
    return [program, *words], {"PYTHONPATH": folder}


def python_package(name):
    """A package of these, as a module."""
    folder = python_folder()
    if not os.path.isdir(folder):
        raise Skip(f"no {folder}: tests/run installs it")
    if folder not in sys.path:
        sys.path.append(folder)
    return __import__(name)
