"""Programs of crates, of Python's packages and of npm's that the tests run: tests/run gets them once, in a folder outside of the checkout."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile

from .report import Skip

FOLDER = os.environ.get("STAG_TOOLS") or os.path.expanduser("~/.cache/stag-tools")
REQUIREMENTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "requirements.txt")

# What checks pages for WCAG: a package of npm's, its version, and the SHA-256 of its file.
AXE = ("axe-core", "4.14.1", "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745")


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


def history():
    """The program that judges histories (tests/history), built when it is not there. Go's modules have to be fetched for it once."""
    sources = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "history")
    with open(os.path.join(sources, "main.go"), "rb") as file:
        version = hashlib.sha256(file.read()).hexdigest()[:12]
    program = os.path.join(FOLDER, f"history-{version}")
    if not os.path.exists(program):
        go = shutil.which("go")
        if not go:
            raise Skip("go not installed (tests/install-peers installs it)")
        done = subprocess.run([go, "build", "-o", program, "."], cwd=sources, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Skip(f"tests/history cannot be built here: {done.stderr[-500:]}")
    return program


def axe_folder():
    """Where axe is, or will be."""
    return os.path.join(FOLDER, "-".join([*AXE[:2], AXE[2][:12]]))


def install_axe(run):
    """Installs it if it is missing. npm only fetches the file: no script of the package runs."""
    name, version, wanted = AXE
    folder = axe_folder()
    if os.path.isdir(folder):
        return 0
    new = folder + ".new"
    shutil.rmtree(new, ignore_errors=True)
    os.makedirs(new)
    code = run(["npm", "pack", "--silent", "--ignore-scripts", "--cache", os.path.join(new, "cache"), "--pack-destination", new, f"{name}@{version}"])
    if code != 0:
        return code
    path = os.path.join(new, f"{name}-{version}.tgz")
    with open(path, "rb") as file:
        found = hashlib.sha256(file.read()).hexdigest()
    if found != wanted:
        print(f"{name} {version}: its SHA-256 is {found} instead of {wanted}", flush=True)
        return 1
    with tarfile.open(path) as packed:
        for member in ("axe.min.js", "LICENSE"):
            with open(os.path.join(new, member), "wb") as file:
                file.write(packed.extractfile(f"package/{member}").read())
    os.remove(path)
    shutil.rmtree(os.path.join(new, "cache"), ignore_errors=True)
    os.rename(new, folder)
    return 0


def axe():
    """The script, as text."""
    path = os.path.join(axe_folder(), "axe.min.js")
    if not os.path.exists(path):
        raise Skip(f"no {path}: tests/run installs it")
    with open(path, encoding="utf-8") as file:
        return file.read()
