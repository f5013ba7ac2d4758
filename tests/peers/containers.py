"""Stag under what container engines' default seccomp profile refuses, io_uring among it: suites of disks and files again, on epoll."""

import atexit
import functools
import os
import shutil
import tempfile

from lab import proc
from lab.report import expect
from lab.target import Stag, Unit
from peers import durable, libiscsi, nfs, nfs_wire, qemu, recovery, session

FILTERED = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lab", "forbidden")
SUITES = [libiscsi, qemu, session, recovery, durable, nfs, nfs_wire]
# Cases that take most of the time, and need nothing of the kernel that the others do not: with
# STAG_RUNTIME=epoll they run by themselves.
LONG = ["rpcbind lists", "Ganesha", "stag conform", "RDMA", "dies and comes back", "stag tune"]


@functools.cache
def for_anybody(binary):
    """A copy of the program that all users may run: cases that copy the wrapper do not copy what it runs."""
    folder = tempfile.mkdtemp(prefix="stag-filtered-", dir="/var/tmp")
    atexit.register(shutil.rmtree, folder)
    os.chmod(folder, 0o755)
    return shutil.copy(binary, folder)


def forbidden(function):
    """The case with a daemon, and commands, that have no io_uring."""
    def case(lab):
        binary = Stag.binary
        os.environ["STAG_FILTERED"] = for_anybody(binary)
        Stag.binary = FILTERED
        try:
            function(lab)
        finally:
            Stag.binary = binary
            del os.environ["STAG_FILTERED"]
    return case


def says_so(lab):
    with lab.serve(Unit(memory=True)) as target:
        told = proc.run(Stag.binary, "status", "--control", target.control)
        expect("runs on epoll instead of io_uring" in told, f"stag status:\n{told}")
        expect("seccomp filter" in target.log(), f"the log does not say why:\n{target.log()}")


CASES = [("a daemon that has no io_uring says so", forbidden(says_so))]
for suite in SUITES:
    CASES += [(f"{suite.__name__.split('.')[-1]}: {name}", forbidden(function)) for name, function in suite.CASES
              if not getattr(function, "adds_its_own", False) and not any(word in name for word in LONG)]
