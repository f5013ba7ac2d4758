"""Targets under test: `stag serve`, and tgt, which serves to prove that the tests themselves are right.

Both are described by the same words: a list of Units, perhaps CHAP credentials. `Lab.serve` starts one and ends it.
"""

import contextlib
import dataclasses
import itertools
import json
import os
import re
import subprocess
import threading

from . import proc
from .report import Failed, Skip, expect, tell

IQN = "iqn.2026-01.example.lab:disks"


@dataclasses.dataclass
class Unit:
    """A logical unit to serve. `memory`: kept in memory, where the target knows how; else a file in the lab's folder."""

    mib: int = 64
    block_bytes: int = 512
    physical_exponent: int = 0  # Logical blocks per physical block, as the power of two of READ CAPACITY (16).
    thin: bool = False
    read_only: bool = False
    removable: bool = False
    memory: bool = False
    cache: str = ""  # "", "writeback", "writethrough" or "direct".
    serial: str = ""
    sanitize_rate: str = ""  # Bytes a second that SANITIZE may write at most.
    path: str = ""  # Given: this file, block device, rbd:POOL/IMAGE, URI of NBD or URL of a far unit, as it is.
    objects: bool = False  # An object store (OSD) in a folder, not a disk.
    options: str = ""  # Further options of Stag's, as its command line takes them.


@dataclasses.dataclass
class Chap:
    """One-way CHAP, or mutual with the target's own name and secret too. A secret has 12 to 16 characters."""

    name: str
    secret: str
    target_name: str = ""
    target_secret: str = ""
    hashes: list = dataclasses.field(default_factory=list)  # Which hashes the target may use; empty: all it knows.


class Target:
    """A running target. `urls[n]` is the URL of unit n."""

    def __init__(self, folder, units, host, port, chap, extra):
        self.folder, self.units, self.host, self.port, self.chap = folder, units, host, port, chap
        self.extra = extra
        self.process, self.urls = None, []
        self.log_path = os.path.join(folder, "target.log")
        for number, unit in enumerate(units):
            if not unit.memory and not unit.path:
                unit.path = os.path.join(folder, f"unit{number}.osd" if unit.objects else f"unit{number}.img")

    @property
    def portal(self):
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def pid(self):
        return self.process.pid

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def status(self, field):
        """A figure of /proc/PID/status, such as VmRSS (KiB) or Threads."""
        with open(f"/proc/{self.pid}/status") as file:
            for line in file:
                if line.startswith(field + ":"):
                    return int(line.split()[1])
        raise Failed(f"no {field} in /proc/{self.pid}/status")

    def cpu_seconds(self):
        with open(f"/proc/{self.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log(self, lines=15):
        try:
            with open(self.log_path, errors="replace") as file:
                return proc.tail(file.read(), lines)
        except OSError:
            return ""

    def last_words(self):
        """For whoever looks for the cause of a failure."""
        state = "alive" if self.alive() else "not started" if not self.process else f"ended with {self.process.returncode}"
        return f"the target is {state}; the last of its log:\n{self.log(10)}"

    def url(self, number=0, chap=None, **arguments):
        """Unit's URL as libiscsi reads it, with credentials and arguments (header_digest="crc32c")."""
        url = self.urls[number]
        chap = chap or self.chap
        if chap:
            url = url.replace("iscsi://", f"iscsi://{chap.name}%{chap.secret}@", 1)
            if chap.target_name:
                arguments = {"target_user": chap.target_name, "target_password": chap.target_secret, **arguments}
        return url + ("?" + "&".join(f"{key}={value}" for key, value in arguments.items()) if arguments else "")

    def kill(self):
        """The end that no program can prepare for."""
        self.process.kill()
        self.process.wait()

    def restart(self):
        self.start()

    def check_alive(self):
        if not self.alive():
            raise Failed(f"the target ended by itself with exit code {self.process.returncode}; its log:\n{self.log()}")


class Stag(Target):
    binary = os.environ.get("STAG_BIN", "")

    @property
    def control(self):
        """Its control socket."""
        return os.path.join(self.folder, "control.sock")

    def command(self):
        words = [*self.extra.get("inside", []), self.binary, "serve", "--control", self.control]
        if self.chap or self.extra:
            path = os.path.join(self.folder, "stag.toml")
            with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(self.config())
            return words + ["--config", path]
        return words + ["--listen", self.portal, "--iqn", IQN] + [self.operand(unit) for unit in self.units]

    @staticmethod
    def operand(unit):
        if unit.objects:
            where = f"mem:{unit.mib}M" if unit.memory or os.environ.get("STAG_LAB_OSD") == "mem" else unit.path
            return ",".join([f"osd:{where}"] + ([unit.options] if unit.options else []))
        words = [f"mem:{unit.mib}M" if unit.memory else unit.path]
        elsewhere = unit.path.startswith(("rbd:", "nbd:", "nbd+unix:", "iscsi:", "iser:"))
        if not unit.memory and not elsewhere and not os.path.exists(unit.path):
            if unit.read_only:  # What may not be written is not made either.
                with open(unit.path, "wb") as file:
                    file.truncate(unit.mib << 20)
            else:
                words.append(f"size={unit.mib}M")
        if unit.block_bytes != 512:
            words.append(f"bs={unit.block_bytes}")
        if unit.physical_exponent:
            words.append(f"pbe={unit.physical_exponent}")
        words += [word for word, on in (("thin", unit.thin), ("ro", unit.read_only), ("removable", unit.removable)) if on]
        words += [f"{key}={value}" for key, value in (("cache", unit.cache), ("serial", unit.serial),
                                                      ("sanitize-rate", unit.sanitize_rate)) if value]
        words += [unit.options] if unit.options else []
        return ",".join(words)

    def config(self):
        """The same, as a configuration file with credentials, limits and ACLs."""
        lines = [f"{key} = {json.dumps(value)}" for key, value in self.extra.get("top", {}).items()]
        lines += ["[[portal]]", f'listen = "{self.portal}"']
        for number, portal in enumerate(self.extra.get("portals", []), 2):
            lines += ["[[portal]]", f'listen = "{portal}"', f"group = {number}"]
        if self.extra.get("limits"):
            lines += ["[limits]"] + [f"{key} = {value}" for key, value in self.extra["limits"].items()]
        if self.extra.get("iser"):
            lines += ["[iser]"] + [f"{key} = {json.dumps(value)}" for key, value in self.extra["iser"].items()]
        lines += ["[[target]]", f'iqn = "{IQN}"']
        if self.chap:
            lines += ["[target.auth]", f'users = [{{ name = "{self.chap.name}", secret = "{self.chap.secret}" }}]']
            if self.chap.target_name:
                lines += [f'mutual = {{ name = "{self.chap.target_name}", secret = "{self.chap.target_secret}" }}']
            if self.chap.hashes:
                lines += [f"hashes = {json.dumps(self.chap.hashes)}"]
        lines += self.extra.get("target", [])
        for number, unit in enumerate(self.units):
            path, *options = self.operand(unit).split(",")
            lines += ["[[target.unit]]", f"lun = {number}", f'path = "{path}"']
            for option in options:
                key, _, value = option.partition("=")
                lines.append(f"{key} = " + ("true" if not value else value if value.isdigit() else f'"{value}"'))
        for initiator, luns in self.extra.get("acls", {}).items():
            lines += ["[[target.acl]]", f'initiator = "{initiator}"'] + ([] if luns is None else [f"luns = {luns}"])
        lines += self.extra.get("more", [])
        return "\n".join(lines) + "\n"

    def start(self, timeout=60):
        if not self.binary:
            raise Skip("no stag binary: set STAG_BIN")
        log = open(self.log_path, "ab")
        self.process = subprocess.Popen(self.command(), stdout=subprocess.PIPE, stderr=log, text=True)
        self.urls = []
        complete = threading.Event()

        def read(stream, urls):
            for line in stream:
                if line.startswith("iscsi://"):
                    urls.append(line.strip())
                    if len(urls) == len(self.units):
                        complete.set()
            complete.set()

        threading.Thread(target=read, args=(self.process.stdout, self.urls), daemon=True).start()
        complete.wait(timeout)
        if len(self.urls) < len(self.units):  # Further targets have units besides.
            code = self.process.poll()
            proc.end(self.process)
            raise Failed(f"stag serve printed {len(self.urls)} of {len(self.units)} URLs in {timeout} s, exit code {code}"
                         f"\n{' '.join(self.command())}\n{self.log()}")

    def take_over(self, *words, timeout=60):
        """A new daemon in the place of the running one, which must end cleanly."""
        old, log = self.process, open(self.log_path, "ab")
        self.process = subprocess.Popen(self.command() + ["--takeover", *words], stdout=subprocess.PIPE, stderr=log, text=True)
        threading.Thread(target=lambda stream: [None for _ in stream], args=(self.process.stdout,), daemon=True).start()
        try:
            code = old.wait(timeout)
        except subprocess.TimeoutExpired:
            proc.end(old)
            raise Failed(f"the old daemon was there after {timeout} s:\n{self.log()}") from None
        expect(code == 0, f"the old daemon ended with {code}:\n{self.log()}")
        self.check_alive()

    def stop(self):
        """SIGTERM must end it cleanly: exit code 0, within half a minute, however busy the machine."""
        self.check_alive()
        code = proc.end(self.process, 30)
        expect(code == 0, f"stag serve ended with {'SIGKILL' if code is None else code} on SIGTERM:\n{self.log()}")


class Tgt(Target):
    """tgtd on a control channel of its own."""

    # Up to 8 at a time in one process. tgtd takes channels below 32768.
    channels = itertools.cycle(range(8))

    def admin(self, *words):
        return proc.run("tgtadm", "-C", self.channel, "--lld", "iscsi", *words, timeout=60)

    def start(self):
        proc.need("tgtd", "tgtadm")
        self.channel = 100 + os.getpid() % 4000 * 8 + next(Tgt.channels)
        os.makedirs("/var/run/tgtd", exist_ok=True)
        log = open(self.log_path, "ab")
        self.process = subprocess.Popen(
            ["tgtd", "-f", "-C", str(self.channel), "--iscsi", f"portal={self.portal}"], stdout=log, stderr=log)

        def ready():
            self.check_alive()
            return proc.run("tgtadm", "-C", self.channel, "--mode", "sys", "--op", "show", ok=None).code == 0

        proc.wait_until(ready, 60, "tgtd answers")
        self.admin("--mode", "target", "--op", "new", "--tid", 1, "-T", IQN)
        for key, value in (("HeaderDigest", "CRC32C,None"), ("DataDigest", "CRC32C,None"), ("InitialR2T", "No")):
            self.admin("--mode", "target", "--op", "update", "--tid", 1, "--name", key, "--value", value)
        for number, unit in enumerate(self.units):
            path = unit.path or os.path.join(self.folder, f"memory{number}.img")
            if not os.path.exists(path):
                with open(path, "wb") as file:
                    file.truncate(unit.mib << 20)
            self.admin("--mode", "logicalunit", "--op", "new", "--tid", 1, "--lun", number + 1, "-b", path,
                       "--blocksize", unit.block_bytes)
            wanted = {"lbppbe": unit.physical_exponent, "thin_provisioning": int(unit.thin),
                      "readonly": int(unit.read_only), "removable": int(unit.removable),
                      "scsi_sn": unit.serial or f"lab{number}"}
            for key, value in wanted.items():
                if value:
                    self.admin("--mode", "logicalunit", "--op", "update", "--tid", 1, "--lun", number + 1,
                               "--params", f"{key}={value}")
        if self.chap:
            accounts = [(self.chap.name, self.chap.secret, [])]
            if self.chap.target_name:
                accounts.append((self.chap.target_name, self.chap.target_secret, ["--outgoing"]))
            for name, secret, direction in accounts:
                self.admin("--mode", "account", "--op", "new", "--user", name, "--password", secret)
                self.admin("--mode", "account", "--op", "bind", "--tid", 1, "--user", name, *direction)
        self.admin("--mode", "target", "--op", "bind", "--tid", 1, "-I", "ALL")
        self.urls = [f"iscsi://{self.portal}/{IQN}/{number + 1}" for number in range(len(self.units))]

    def stop(self):
        """tgtd ignores SIGTERM while its target exists: it is told to go first."""
        self.check_alive()
        proc.run("tgtadm", "-C", self.channel, "--lld", "iscsi", "--mode", "target", "--op", "delete", "--force",
                 "--tid", 1, ok=None, timeout=60)
        proc.run("tgtadm", "-C", self.channel, "--mode", "system", "--op", "delete", ok=None, timeout=60)
        proc.end(self.process, 3)


class Lab:
    """Where a suite runs: its folder, which target, and the ways to start one."""

    def __init__(self, report, folder, kind):
        self.report, self.folder, self.kind = report, folder, kind
        self.count = itertools.count(1)
        self.ends = contextlib.ExitStack()  # What ends with the run.
        self.running = []  # Targets that go on after a case.

    @property
    def ci(self):
        return os.environ.get("CI") == "true"

    def case(self, name, function, *arguments):
        return self.report.case(name, function, *arguments, more=lambda: [target.last_words() for target in self.running])

    def new_folder(self, name="run"):
        folder = os.path.join(self.folder, f"{next(self.count):03}-{re.sub('[^a-z0-9]+', '-', name.lower())}")
        os.makedirs(folder)
        return folder

    @contextlib.contextmanager
    def serve(self, *units, host="127.0.0.1", port=None, chap=None, **extra):
        """A running target with these units; ended, and looked at for its health, when the block ends.

        `extra`, for Stag's configuration file only: `top`, `limits` and `iser` (keys and values), `acls` (initiator:
        LUNs), `portals` (further ones, in the groups 2 and on), `target` (lines of the target's own), `more` (lines behind all). `inside`: words before its command."""
        kind = {"stag": Stag, "tgt": Tgt}[self.kind]
        target = kind(self.new_folder(), list(units) or [Unit()], host, port or proc.free_port(host), chap, extra)
        self.running.append(target)
        try:
            target.start()
            yield target
        except BaseException as reason:
            tell(reason, target.last_words())
            if target.process and target.alive():
                target.kill()
            raise
        finally:
            self.running.remove(target)
        target.stop()
