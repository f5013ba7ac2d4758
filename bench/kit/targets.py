"""The programs measured: each started on its core with one unit of the size asked for, and ended.

Every starter is a context manager that yields a `Running`. Stag keeps its unit in memory; tgt and istgt, which have no such
unit, keep theirs in a file on tmpfs, which is memory too. All units are written once before anything is measured.
"""

import contextlib
import dataclasses
import json
import mmap
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

IQN = "iqn.2026-01.org.stag"
SHM = Path("/dev/shm")


class Unable(Exception):
    """This target cannot do that; the message is for the reader of the report."""


class Nothing(Unable):
    """No I/O ended: the machine had no time for it, perhaps."""


@dataclasses.dataclass
class Running:
    name: str
    process: subprocess.Popen  # None: it is started for each run
    urls: dict  # "memory", "file" and "disk"
    pings_after_s: float = 0  # seconds of silence after which it pings a session; 0: it is not waited for its pings
    has_held: bool = False  # whether it was asked to hold idle sessions since its start

    @property
    def pid(self):
        return self.process.pid

    def check(self):
        if self.process and self.process.poll() is not None:
            raise Unable(f"{self.name} ended by itself with exit code {self.process.returncode}")

    def cpu_seconds(self):
        """Processor time of each thread, in seconds."""
        found = {}
        for thread in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found[thread.name] = int((thread / "schedstat").read_text().split()[0]) / 1e9
        return found

    def memory_bytes(self):
        """Memory that is its own: resident, without the pages that it shares with files."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
        raise Unable(f"no RssAnon of {self.name}")


def need(program, package):
    """The path of a program; where it is missing, the reader is told what to install."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin:/usr/local/sbin")
    if not path:
        raise Unable(f"{program} is not installed (on Debian: apt-get install {package})")
    return path


def pinned(options, core, *command):
    first = [need("chrt", "util-linux"), "--fifo", "50"] if options.realtime else []
    return [*first, need("taskset", "util-linux"), "-c", str(core), *map(str, command)]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def _process(options, name, command, **more):
    """A program on the target's core; its words go to a log beside the report."""
    with open(options.out / f"{name}.log", "ab") as log:
        child = subprocess.Popen(pinned(options, options.target_core, *command), stdin=subprocess.DEVNULL, stderr=log,
                                 start_new_session=True, bufsize=0, **more)
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGCONT)
        child.terminate()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def read_line(child, seconds=30):
    """One line of what a program prints, or nothing after so long."""
    ready, _, _ = select.select([child.stdout], [], [], seconds)
    return child.stdout.readline().decode().strip() if ready else ""


def _url(child, name, scheme="iscsi://"):
    line = read_line(child)
    if not line.startswith(scheme):
        raise Unable(f"{name} said {line!r} instead of a URL")
    return line


@contextlib.contextmanager
def _file(options):
    """A file on tmpfs, all of it there: nothing that is measured allocates a page."""
    with tempfile.NamedTemporaryFile(dir=SHM, prefix="stag-peers-") as file:
        chunk = b"\xa5" * (1 << 20)
        for _ in range(options.unit_bytes >> 20):
            file.write(chunk)
        file.flush()
        yield file.name


def _direct_problem(path):
    """Why a file cannot be read past the page cache; nothing if it can."""
    system = file_system(path)
    if system in ("tmpfs", "ramfs"):
        return f"{system} keeps its files in memory"
    buffer = mmap.mmap(-1, 4096)
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            os.preadv(file, [buffer], 0)
        finally:
            os.close(file)
    except OSError as error:
        return f"{system or 'the file system'} does not do O_DIRECT: {error.strerror}"
    return ""


def file_system(path):
    """The type of the file system that a path is on; empty where nobody knows."""
    done = subprocess.run(["df", "--output=fstype", str(path)], capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[1].strip() if done.returncode == 0 and "\n" in done.stdout else ""


@contextlib.contextmanager
def disk_file(options):
    """A file for the time of the run whose every block is written on its medium, and not in the page cache. Yields its path, or
    nothing and why that cannot be."""
    with contextlib.ExitStack() as stack:
        try:
            options.disk.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(tempfile.NamedTemporaryFile(dir=options.disk, prefix="stag-peers-"))
            chunk = os.urandom(1 << 20)
            for _ in range(min(options.unit_bytes, options.disk_bytes) >> 20):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            problem = _direct_problem(file.name)
        except OSError as error:
            problem = f"no file in {options.disk}: {error.strerror}"
        yield (None, problem) if problem else (file.name, "")


@contextlib.contextmanager
def fio(options):
    need("fio", "fio")
    yield Running("fio", None, {"disk": options.disk_path} if options.disk_path else {})


@contextlib.contextmanager
def stag(options):
    with _file(options) as path:
        config = options.out / "stag.toml"
        lines = ['[[portal]]', 'listen = "127.0.0.1:0"', "[limits]", "sessions = 20000", "[[target]]", f'iqn = "{IQN}:disk"',
                 "[[target.unit]]", "lun = 0", f'path = "mem:{options.unit_bytes >> 20}M"',
                 "[[target.unit]]", "lun = 1", f"path = {json.dumps(path)}"]
        lines += ["[[target.unit]]", "lun = 2", f"path = {json.dumps(options.disk_path)}", 'cache = "direct"'] if options.disk_path else []
        config.write_text("\n".join(lines) + "\n")
        command = [options.stag, "--log", "warn", "serve", "--config", config, *options.stag_option]
        with _process(options, "stag", command, stdout=subprocess.PIPE) as child:
            kinds = ("memory", "file", "disk") if options.disk_path else ("memory", "file")
            yield Running("stag", child, {kind: _url(child, "stag") for kind in kinds}, pings_after_s=10)


@contextlib.contextmanager
def floor(options):
    command = [options.load, "--floor-target", "127.0.0.1:0", "--floor-mib", options.unit_bytes >> 20]
    with _process(options, "floor", command, stdout=subprocess.PIPE) as child:
        yield Running("floor", child, {"memory": _url(child, "the floor", "tcp://")})


@contextlib.contextmanager
def null(options):
    command = [options.load, "--null-target", "127.0.0.1:0"]
    with _process(options, "null", command, stdout=subprocess.PIPE) as child:
        yield Running("null", child, {"memory": _url(child, "the null target")})


@contextlib.contextmanager
def tgt(options):
    tgtd, tgtadm = need("tgtd", "tgt"), need("tgtadm", "tgt")
    port, control = free_port(), str(os.getpid() % 30000 + 100)
    os.makedirs("/var/run/tgtd", exist_ok=True)

    def admin(*words):
        return subprocess.run([tgtadm, "-C", control, "--lld", "iscsi", *words], capture_output=True, text=True, timeout=20)

    with _file(options) as path:
        command = [tgtd, "-f", "-C", control, "--iscsi", f"portal=127.0.0.1:{port}"]
        with _process(options, "tgt", command, stdout=subprocess.DEVNULL) as child:
            for words in (
                ("--op", "new", "--mode", "target", "--tid", "1", "-T", f"{IQN}:tgt"),
                ("--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", path),
                ("--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"),
            ):
                for _ in range(50):
                    done = admin(*words)
                    if done.returncode == 0 or child.poll() is not None:
                        break
                    time.sleep(0.1)
                if done.returncode != 0:
                    raise Unable(f"tgtadm {' '.join(words)}: {done.stderr.strip() or 'tgtd ended'}")
            url = f"iscsi://127.0.0.1:{port}/{IQN}:tgt/1"
            try:
                yield Running("tgt", child, {"memory": url, "file": url})
            finally:
                # It does not end while it has a target.
                with contextlib.suppress(subprocess.SubprocessError):
                    admin("--op", "unbind", "--mode", "target", "--tid", "1", "-I", "ALL")
                    admin("--op", "delete", "--mode", "target", "--force", "--tid", "1")
                    admin("--op", "delete", "--mode", "system")


# It starts with no more than some thousand sessions.
ISTGT = """\
[Global]
  NodeBase "{iqn}"
  PidFile {out}/istgt.pid
  AuthFile {out}/istgt-auth.conf
  MediaDirectory {out}
  LogFacility "local7"
  Timeout 30
  NopInInterval 20
  DiscoveryAuthMethod None
  MaxSessions 1024
  MaxConnections 8
  MaxR2T 32
  MaxOutstandingR2T 16
  DefaultTime2Wait 2
  DefaultTime2Retain 0
  FirstBurstLength 262144
  MaxBurstLength 1048576
  MaxRecvDataSegmentLength 262144
  InitialR2T Yes
  ImmediateData Yes
  DataPDUInOrder Yes
  DataSequenceInOrder Yes
  ErrorRecoveryLevel 0
[UnitControl]
  AuthMethod None
  Portal UC1 127.0.0.1:{control}
  Netmask 127.0.0.1
[PortalGroup1]
  Portal DA1 127.0.0.1:{port}
[InitiatorGroup1]
  InitiatorName "ALL"
  Netmask 127.0.0.0/8
[LogicalUnit1]
  TargetName istgt
  Mapping PortalGroup1 InitiatorGroup1
  AuthMethod None
  UseDigest Auto
  UnitType Disk
  QueueDepth 128
  LUN0 Storage {path} {mib}MB
"""


@contextlib.contextmanager
def istgt(options):
    program = need("istgt", "istgt")
    port, control = free_port(), free_port()
    with _file(options) as path:
        config = options.out / "istgt.conf"
        config.write_text(ISTGT.format(iqn=IQN, out=options.out, control=control, port=port, path=path,
                                       mib=options.unit_bytes >> 20))
        (options.out / "istgt-auth.conf").write_text("")
        with _process(options, "istgt", [program, "-D", "-c", config], stdout=subprocess.DEVNULL) as child:
            limit = time.monotonic() + 10
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                if child.poll() is not None or time.monotonic() > limit:
                    raise Unable("istgt does not listen")
                time.sleep(0.1)
            url = f"iscsi://127.0.0.1:{port}/{IQN}:istgt/0"
            yield Running("istgt", child, {"memory": url, "file": url})


STARTERS = {"stag": stag, "tgt": tgt, "istgt": istgt, "floor": floor, "null": null, "fio": fio}
NAMES = {"stag": "Stag", "tgt": "tgt", "istgt": "istgt", "floor": "raw TCP", "null": "null target", "fio": "fio, local"}
# What has no sessions.
SESSIONLESS = ("floor", "null", "fio")
