"""The RPM package: the same bytes twice, what rpm and rpmlint say of it, and its scriptlets under a booted systemd.

No root of a distribution with RPM is to be had here. It is installed into the fresh Debian of peers.package, by this machine's rpm
(the same release) and without a look at dependencies, since Debian's libraries are in no database of RPM's.
"""

import glob
import os
import subprocess

from lab import proc, sbom
from lab.report import Skip, expect
from lab.target import Stag
from peers.package import CONFIG, DISK, DOCUMENT, ROOT, URL, Machine, digest, foreign_load, fresh_root

LINT = os.path.join(ROOT, "dist/fedora/rpmlint.toml")


def build(program, folder, revision):
    """A package of the program; its path. Weak compression, because nobody downloads it."""
    proc.run(os.path.join(ROOT, "dist/rpm"), "--program", program, "--revision", revision, folder, env={"RPM_PAYLOAD": "w1.gzdio"}, timeout=300)
    return glob.glob(os.path.join(folder, f"stag-*-{revision}.*.rpm"))[0]


class RpmMachine(Machine):
    """The fresh Debian, with this machine's /usr beside its own."""

    def __init__(self, root, packages, log):
        super().__init__(root, packages, log, "--bind-ro=/usr:/host")

    def rpm(self, *words, **options):
        libraries = ":".join(["/host/lib", *(path.replace("/usr", "/host", 1) for path in glob.glob("/usr/lib/*-linux-gnu"))])
        return self.run("env", f"LD_LIBRARY_PATH={libraries}", "RPM_CONFIGDIR=/host/lib/rpm", "/host/bin/rpm", *words, **options)

    def install(self, package):
        return self.rpm("-U", "--nodeps", "--force-debian", "/packages/" + os.path.basename(package))


def on_a_booted_machine(lab):
    """Each step counts as a case."""
    folder = os.path.join(lab.folder, "rpm")
    packages = os.path.join(folder, "packages")
    os.makedirs(packages)
    state = {}

    def prepare():
        if lab.kind != "stag":
            raise Skip("stag's own package")
        proc.need("rpmbuild", "rpmlint", "debootstrap", "systemd-nspawn", "qemu-io", "objcopy")
        program = os.path.join(folder, "stag")
        subprocess.run(["objcopy", "--strip-debug", Stag.binary, program], check=True)
        state["first"], state["second"] = build(program, packages, 1), build(program, packages, 2)
        state["again"] = build(program, os.path.join(folder, "again"), 1)

    def reproducible():
        expect(digest(state["first"]) == digest(state["again"]), "two packages of one program differ")

    def lint():
        said = proc.run("rpmlint", "--config", LINT, state["first"], ok=None)
        expect(said.code == 0 and " 0 errors, 0 warnings" in said, said)

    def contents():
        database = ("--dbpath", os.path.join(folder, "database"))
        needed = proc.run("rpm", *database, "-qp", "--requires", state["first"])
        for one in ("libc.so.6(GLIBC_2.34)(64bit)", "libgcc_s.so.1()(64bit)", "systemd"):
            expect(one in needed.splitlines(), f"it does not require {one}:\n{needed}")
        files = proc.run("rpm", *database, "-qp", "--queryformat", "[%{FILEMODES:perms} %{FILEUSERNAME}:%{FILEGROUPNAME} %{FILENAMES}\\n]",
                         state["first"]).splitlines()
        for one in ("-rwxr-xr-x root:root /usr/bin/stag", f"-rw-r----- root:stag {CONFIG}", "-rw-r--r-- root:root /usr/share/man/man1/stag.1.gz",
                    "-rw-r--r-- root:root /usr/share/man/man5/stag.toml.5.gz", "-rw-r--r-- root:root /usr/share/man/man7/stag.7.gz"):
            expect(one in files, f"no {one}")

    def parts():
        sbom.check(proc.run("sh", "-c", f"rpm2cpio {state['first']} | cpio --quiet -i --to-stdout ./usr/share/doc/stag/stag.spdx.json"))

    def install():
        machine = state["machine"] = RpmMachine(fresh_root(), packages, os.path.join(folder, "machine.log"))
        machine.install(state["first"])
        # Of Debian's presets: all services are. RPM starts none.
        expect(machine.run("systemctl", "is-enabled", "stag").strip() == "enabled", "not enabled")
        expect(machine.property("ActiveState") == "inactive", "started by the installation")
        expect(machine.run("stat", "-c", "%U:%G %a", CONFIG).strip() == "root:stag 640", "owner or mode of the configuration")
        machine.write(CONFIG, DOCUMENT)
        machine.run("systemctl", "start", "stag")
        expect(machine.run("stat", "-c", "%U", f"/proc/{machine.property('MainPID')}").strip() == "stag", "another user's process")
        proc.run("qemu-io", "-f", "raw", "-c", "write -P 7 0 1M", "-c", "read -P 7 0 1M", URL)

    def upgrade():
        machine = state["machine"]
        before, restarts = machine.property("MainPID"), machine.property("NRestarts")
        with foreign_load() as rounds:
            proc.wait_until(lambda: len(rounds) > 20, 30, "QEMU writes")
            said = machine.install(state["second"])
            expect("still serves" not in said, said)
            proc.wait_until(lambda: machine.property("MainPID") not in ("0", before), 60, "the new program serves")
            after = len(rounds)
            proc.wait_until(lambda: len(rounds) > after + 20, 30, "QEMU goes on")
        expect(machine.property("NRestarts") == restarts and machine.property("ActiveState") == "active", "systemd restarted it")
        expect(machine.run("systemctl", "is-enabled", "stag").strip() == "enabled", "the upgrade disabled it")
        expect(machine.rpm("-q", "stag").strip().rsplit(".", 1)[0].endswith("-2"), "not the second package")
        expect(machine.run("cat", CONFIG) == DOCUMENT, "the configuration was changed")

    def removed():
        machine = state["machine"]
        machine.rpm("-e", "--force-debian", "stag")
        expect(machine.property("ActiveState") != "active", "it still serves")
        machine.run("test", "!", "-e", "/usr/bin/stag")
        machine.run("test", "!", "-e", "/etc/systemd/system/multi-user.target.wants/stag.service")
        machine.run("test", "-s", CONFIG + ".rpmsave")
        machine.run("test", "-s", DISK)

    try:
        if lab.case("dist/rpm packs the program", prepare):
            lab.case("two packages of one program are the same bytes", reproducible)
            lab.case("rpmlint finds no error and no warning", lint)
            lab.case("it requires its libraries; owners, modes, man pages", contents)
            lab.case("its list of parts is SPDX, and names what Cargo.lock has", parts)
            if lab.case("it installs, is enabled, and its service serves QEMU as its own user", install):
                lab.case("a new package takes over while QEMU writes and reads back", upgrade)
                lab.case("removing it stops it, and leaves configuration and data", removed)
    finally:
        if "machine" in state:
            state["machine"].end()


on_a_booted_machine.adds_its_own = True

CASES = [("the package on a booted machine", on_a_booted_machine)]
