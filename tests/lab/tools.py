"""Programs of crates that the tests run: tests/run builds them once, in a folder outside of the checkout."""

import os
import shutil

FOLDER = os.environ.get("STAG_TOOLS") or os.path.expanduser("~/.cache/stag-tools")


def find(name):
    """The program's path. None: it is not there."""
    built = os.path.join(FOLDER, "bin", name)
    return shutil.which(name) or (built if os.path.exists(built) else None)
