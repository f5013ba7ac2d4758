"""The Debian package on a fresh Debian: a root of debootstrap's with nothing else in it, booted by systemd-nspawn. Clients are outside,
in the same network namespace."""

import contextlib
import glob
import hashlib
import os
import re
import subprocess
import threading

from lab import proc, sbom, uml
from lab.report import Skip, expect
from lab.target import Stag

from .dashboard import CLIENT, OWN, Browser, make_disk

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
IQN = "iqn.2026-01.org.example:disks"
PORTAL = "127.0.0.1:3260"
URL = f"iscsi://{PORTAL}/{IQN}/0"
CONFIG = "/etc/stag/stag.toml"
DISK = "/var/lib/stag/disk.img"
with open(os.path.join(ROOT, "dist/stag.toml"), encoding="utf-8") as file:
    SHIPPED = file.read()
DOCUMENT = SHIPPED + f"""
[[target]]
iqn = "{IQN}"
[[target.unit]]
lun = 0
path = "{DISK}"
size = "64M"
[[target.unit]]
lun = 1
path = "/var/lib/stag/more.img"
size = "32M"
"""
# What udev does for a new disk comes with the login; there is no sudo in the lab's guest, and none is needed.
LINUX = r"""
by_id() { wait_disks 1 && mkdir -p /dev/disk/by-id && ln -sf "${disks[0]}" "/dev/disk/by-id/wwn-0x$(sed s/naa.// "/sys/block/${disks[0]#/dev/}/device/wwid")"; }
sudo() { "$@" || return; case " $* " in *" --login "*) by_id ;; esac; }
initiator_up || exit 1
pasted() { printf '%s' "$COMMANDS" >/tmp/pasted && set -e && . /tmp/pasted && set +e && grep -q ' /mnt/stag ext4 ' /proc/mounts; }
case_ "Linux attaches the disk by the page's commands, makes a file system and mounts it" pasted
filled() { for n in $(seq 40); do head -c 64k /dev/urandom >/mnt/stag/$n; done; cat /mnt/stag/* | sha256sum >/tmp/sum; }
case_ "files are written to it" filled
again() { umount /mnt/stag && fresh "${disks[0]}" && mount "${disks[0]}" /mnt/stag && [ "$(cat /mnt/stag/* | sha256sum)" = "$(cat /tmp/sum)" ]; }
case_ "after a new mount they are the same" again
"""


def build(program, folder, revision):
    """A package of the program; its path. Weak compression, because nobody downloads it."""
    quick = {"DPKG_DEB_COMPRESSOR_TYPE": "gzip", "DPKG_DEB_COMPRESSOR_LEVEL": "1"}
    proc.run(os.path.join(ROOT, "dist/deb"), "--program", program, "--revision", revision, folder, env=quick, timeout=300)
    return glob.glob(os.path.join(folder, f"stag_*-{revision}_*.deb"))[0]


def digest(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def fresh_root():
    """A Debian of this machine's release with systemd, and no other package than it needs."""
    root = proc.run(os.path.join(ROOT, "tests/service/debian"), "--where").strip()
    if not os.path.isdir(root):
        raise Skip(f"no {root}: tests/service/debian makes it")
    return root


class Machine:
    """A booted root. What it writes is forgotten when it ends."""

    def __init__(self, root, packages, log, *options):
        self.log = open(log, "wb")
        self.process = subprocess.Popen(
            ["systemd-nspawn", "--quiet", f"--directory={root}", "--volatile=overlay", "--register=no", "--keep-unit",
             # The container's own filter knows no Landlock.
             "--system-call-filter=landlock_create_ruleset landlock_add_rule landlock_restrict_self",
             "--boot", "--console=pipe", f"--bind-ro={packages}:/packages", *options, "systemd.mask=systemd-networkd-wait-online.service"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self.first = None
        try:
            proc.wait_until(self.is_up, 120, "the machine boots")
        except BaseException:
            proc.end(self.process)
            raise

    def is_up(self):
        """Whether it has booted. The first process inside is looked for anew: before it, systemd-nspawn has other children, which see
        this machine's own files."""
        expect(self.process.poll() is None, "systemd-nspawn has ended")
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as file:
            children = file.read().split()
        self.first = children[0] if children else None
        if not self.first or self.run("test", "-d", "/packages", ok=None).code != 0:
            return False
        return self.run("systemctl", "is-system-running", ok=None).strip() in ("running", "degraded")

    def run(self, *command, **options):
        """A command inside."""
        return proc.run("nsenter", "--target", self.first, "--all", "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
                        "DEBIAN_FRONTEND=noninteractive", *command, **options)

    def write(self, path, text):
        self.run("tee", path, stdin=text.encode())

    def property(self, name):
        return self.run("systemctl", "show", "-p", name, "--value", "stag").strip()

    def end(self):
        self.run("systemctl", "poweroff", "--force", ok=None)
        proc.end(self.process, 60)
        self.log.close()


@contextlib.contextmanager
def foreign_load():
    """QEMU writes and reads back until the block ends; each answer has to be right."""
    enough, rounds = threading.Event(), []
    client = subprocess.Popen(["qemu-io", "-f", "raw", URL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def feed():
        while not enough.wait(0.02):
            number = len(rounds)
            client.stdin.write(f"write -P {number % 255 + 1} {number % 8}M 1M\nread -P {number % 255 + 1} {number % 8}M 1M\n")
            client.stdin.flush()
            rounds.append(number)
        client.stdin.close()

    said = []
    threads = [threading.Thread(target=feed), threading.Thread(target=lambda: said.append(client.stdout.read()))]
    for thread in threads:
        thread.start()
    try:
        yield rounds
    finally:
        enough.set()
        for thread in threads:
            thread.join()
        client.wait()
    text = said[0]
    right = text.count("wrote 1048576/1048576"), text.count("read 1048576/1048576")
    wrong = [line for line in text.splitlines() if "fail" in line.lower() or "error" in line.lower()]
    expect(right == (len(rounds), len(rounds)) and not wrong, f"{len(rounds)} rounds, right: {right}\n{proc.tail(text)}")


def on_a_fresh_debian(lab):
    """Each step counts as a case; the machine is one."""
    folder = os.path.join(lab.folder, "package")
    packages = os.path.join(folder, "packages")
    os.makedirs(packages)
    state = {}

    def prepare():
        if lab.kind != "stag":
            raise Skip("stag's own package")
        proc.need("dh", "lintian", "debootstrap", "systemd-nspawn", "qemu-io", "iscsi-inq", "objcopy", "chromedriver")
        program = os.path.join(folder, "stag")
        # Without symbols, a tenth of the size.
        subprocess.run(["objcopy", "--strip-debug", Stag.binary, program], check=True)
        state["first"], state["second"] = build(program, packages, 1), build(program, packages, 2)
        state["again"] = build(program, os.path.join(folder, "again"), 1)

    def reproducible():
        expect(digest(state["first"]) == digest(state["again"]), "two packages of one program differ")

    def lintian():
        said = proc.run("lintian", "--allow-root", "--fail-on", "error,warning", state["first"], ok=None)
        expect(said.code == 0, said)

    def install():
        machine = state["machine"] = Machine(fresh_root(), packages, os.path.join(folder, "machine.log"))
        machine.run("dpkg", "-i", "/packages/" + os.path.basename(state["first"]))
        expect(machine.property("ActiveState") == "active", machine.run("systemctl", "status", "stag", ok=None))
        expect(machine.run("systemctl", "is-enabled", "stag").strip() == "enabled", "not enabled")
        expect(machine.run("stat", "-c", "%U", f"/proc/{machine.property('MainPID')}").strip() == "stag", "another user's process")
        expect(machine.run("stat", "-c", "%U:%G %a", CONFIG).strip() == "root:stag 640", "owner or mode of the configuration")
        for page in ("man1/stag.1.gz", "man1/stag-serve.1.gz", "man5/stag.toml.5.gz", "man7/stag.7.gz"):
            machine.run("test", "-s", f"/usr/share/man/{page}")
        machine.run("stag", "status")

    def parts():
        sbom.check(proc.run("sh", "-c", f"dpkg-deb --fsys-tarfile {state['first']} | tar -xO ./usr/share/doc/stag/stag.spdx.json"))

    def newcomer():
        """Nothing but what README says: the token, the page by a tunnel to the server itself, the disk, the commands for its client, which
        Linux in the lab's kernel types, and the times of its commands."""
        machine = state["machine"]
        uml.network_up()
        proc.run("ip", "route", "add", "default", "dev", "tap0")
        token = machine.run("stag", "token", "add", "newcomer", "--role", "admin").strip()
        with contextlib.closing(Browser("http://127.0.0.1:3261")) as browser:
            browser.log_in(token)
            said = make_disk(browser, "/var/lib/stag")
            lines = browser.run("return document.querySelector('pre[aria-label=\"Linux (open-iscsi)\"]').innerText")
            expect(f"{uml.HOST}:3260" in lines, f"another address than the one that its client reaches: {lines}\n{said[:500]}")
            uml.run_cases(lab, "a newcomer", LINUX, COMMANDS=lines, INITIATOR=CLIENT)
            browser.go("/slow")
            rows = browser.run("return [...document.querySelectorAll('table tr')].map(row => row.innerText)")
            for operation in ("read", "write"):
                times = [row for row in rows if re.search(rf"{operation}\s+medium\s+[\d.]+ (µs|ms)", row)]
                expect(times, f"no times of {operation}: {rows}")
            expect(not browser.console(), f"{browser.console()}")

    def first_write():
        machine = state["machine"]
        machine.write(CONFIG, DOCUMENT)
        machine.run("systemctl", "reload", "stag")
        proc.run("qemu-io", "-f", "raw", "-c", "write -P 7 0 1M", "-c", "read -P 7 0 1M", URL)
        proc.run("iscsi-inq", URL)

    def wrong_reload():
        machine = state["machine"]
        before = machine.property("MainPID")
        machine.write(CONFIG, DOCUMENT.replace('\nsize =', '\nsise =', 1))
        said = machine.run("systemctl", "reload", "stag", ok=None)
        expect(said.code != 0, "a wrong configuration was accepted")
        expect("sise" in machine.run("journalctl", "-u", "stag", "--no-pager"), "the journal does not name the mistake")
        expect(machine.property("MainPID") == before, "another process serves")
        proc.run("iscsi-inq", URL)

    def wrong_restart():
        machine = state["machine"]
        machine.run("systemctl", "restart", "stag", ok=None)
        proc.wait_until(lambda: machine.property("ActiveState") == "failed", 60, "the service is failed")
        expect(machine.property("NRestarts") == "0", f"restarted {machine.property('NRestarts')} times")
        machine.write(CONFIG, DOCUMENT)
        machine.run("systemctl", "start", "stag")
        proc.run("qemu-io", "-f", "raw", "-c", "read -P 7 0 1M", URL)

    def killed():
        machine = state["machine"]
        before = machine.property("MainPID")
        machine.run("systemctl", "kill", "--kill-who=main", "-s", "KILL", "stag")
        proc.wait_until(lambda: machine.property("MainPID") not in ("0", before), 60, "it is restarted")
        proc.run("qemu-io", "-f", "raw", "-c", "read -P 7 0 1M", URL)

    def upgrade():
        machine = state["machine"]
        before, restarts = machine.property("MainPID"), machine.property("NRestarts")
        bench = subprocess.Popen([Stag.binary, "bench", URL[:-1] + "1", "--bs", "4K", "--depth", "4", "--time", "8", "--pattern", "randrw", "--verify",
                                  "--destroy", "--reconnect", "30"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            with foreign_load() as rounds:
                proc.wait_until(lambda: len(rounds) > 20, 30, "QEMU writes")
                said = machine.run("dpkg", "-i", "/packages/" + os.path.basename(state["second"]))
                expect("still serves" not in said, said)
                proc.wait_until(lambda: machine.property("MainPID") not in ("0", before), 60, "the new program serves")
                after = len(rounds)
                proc.wait_until(lambda: len(rounds) > after + 20, 30, "QEMU goes on")
            told, _ = bench.communicate(timeout=120)
            expect(bench.returncode == 0, proc.tail(told))
        finally:
            proc.end(bench)
        expect(machine.property("NRestarts") == restarts and machine.property("ActiveState") == "active", "systemd restarted it")
        expect("-2" in machine.run("dpkg-query", "-W", "stag"), "not the second package")
        expect(machine.run("cat", CONFIG) == DOCUMENT, "the configuration was changed")

    def without_configuration():
        """The administrator has removed the file: dpkg does not bring it back, and what serves goes on."""
        machine = state["machine"]
        before = machine.property("MainPID")
        machine.run("rm", CONFIG)
        said = machine.run("dpkg", "-i", "/packages/" + os.path.basename(state["second"]))
        expect("still serves" in said, said)
        machine.run("test", "!", "-e", CONFIG)
        expect(machine.property("MainPID") == before, "another process serves")
        proc.run("iscsi-inq", URL)
        machine.write(CONFIG, DOCUMENT)

    def removed():
        machine = state["machine"]
        machine.run("dpkg", "-r", "stag")
        expect(machine.property("ActiveState") != "active", "it still serves")
        machine.run("test", "-s", CONFIG)
        machine.run("test", "-s", DISK)

    def purged():
        machine = state["machine"]
        machine.run("dpkg", "-P", "stag")
        machine.run("test", "!", "-e", CONFIG)
        machine.run("test", "-s", DISK)

    try:
        if lab.case("dist/deb packs the program", prepare):
            lab.case("two packages of one program are the same bytes", reproducible)
            lab.case("lintian finds no error and no warning", lintian)
            lab.case("its list of parts is SPDX, and names what Cargo.lock has", parts)
            if lab.case("on a fresh Debian it installs, starts as its own user, and is managed", install):
                lab.case("a newcomer makes a disk on the page, Linux attaches it, and the page tells its times by stage", newcomer)
                lab.case("QEMU writes to a disk of a changed configuration", first_write)
                lab.case("a reload with a mistake fails, and what was served still is", wrong_reload)
                lab.case("a start with a mistake fails once, and is not tried again", wrong_restart)
                lab.case("kill -9 has it restarted", killed)
                lab.case("a new package takes over under verified load, without an error", upgrade)
                lab.case("a package is configured though the configuration was removed", without_configuration)
                lab.case("removing it stops it, and leaves configuration and data", removed)
                lab.case("purging it leaves the data", purged)
    finally:
        if "machine" in state:
            state["machine"].end()


on_a_fresh_debian.adds_its_own = True

CASES = [("the package on a fresh Debian", on_a_fresh_debian)]
