"""`stag serve` with NFS exports, for clients that we did not write."""

import contextlib
import json
import os
import shutil
import subprocess
import threading

from . import proc
from .report import Failed, Skip, expect, tell
from .target import Stag


class Share:
    """A running server. `exports`: what each name shows (a directory, or mem:SIZE). `ports`: others that it listens at, or whole addresses."""

    def __init__(self, folder, exports, host, port, ports=(), config="", groups=None, user=None):
        self.folder, self.exports, self.host, self.port, self.ports, self.config = folder, exports, host, port, ports, config
        self.within, self.binary = self.users(groups) if groups else [], Stag.binary
        if user is not None:
            self.become(user)
        self.process = None
        self.log_path = os.path.join(folder, "share.log")
        self.control = os.path.join(folder, "control.sock")

    def command(self):
        words = [*self.within, self.binary, "serve", "--control", self.control]
        for port in (self.port, *self.ports):
            words += ["--nfs", port if ":" in str(port) else f"{self.host}:{port}"]
        for name, path in self.exports.items():
            words += ["--export", f"{name}={path}"]
        if self.config:
            path = os.path.join(self.folder, "share.toml")
            with open(path, "w") as file:
                file.write(self.config)
            words += ["--config", path]
        return words

    def users(self, groups):
        """What a command begins with that sees users of its own: user 2000 of these groups, and nobody else new."""
        paths = {}
        for name, own in (("passwd", "member:x:2000:2000::/:/bin/sh\n"),
                          ("group", "".join(f"lab{group}:x:{group}:member\n" for group in groups))):
            paths[name] = os.path.join(self.folder, name)
            with open(f"/etc/{name}") as file, open(paths[name], "w") as copy:
                copy.write(file.read() + own)
        script = "".join(f"mount --bind {path} /etc/{name} && " for name, path in paths.items()) + 'exec "$@"'
        return ["unshare", "-m", "--propagation", "private", "bash", "-c", script, "bash"]

    def become(self, user):
        """The server is to run as that user, without privileges and groups. The program may lie where that user cannot go."""
        proc.need("setpriv")
        self.binary = os.path.join(self.folder, "stag")
        shutil.copy(Stag.binary, self.binary)
        os.chown(self.folder, user, user)
        self.within = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]

    def url(self, name, path="", **options):
        """A URL as libnfs reads it: all programs at the one port, a user without rights."""
        options = {"nfsport": self.port, "mountport": self.port, "version": 3, "uid": 1000, "gid": 1000, **options}
        return f"nfs://{self.host}{name}{path}?" + "&".join(f"{key}={value}" for key, value in options.items())

    def log(self, lines=15):
        with open(self.log_path, errors="replace") as file:
            return proc.tail(file.read(), lines)

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def start(self, *words, timeout=60):
        log, ready, listens = open(self.log_path, "ab"), threading.Event(), []
        # One of its own: no grace period for clients of other cases.
        state = {**os.environ, "STATE_DIRECTORY": os.path.join(self.folder, "state")}
        self.process = subprocess.Popen(self.command() + list(words), env=state, stdout=subprocess.PIPE, stderr=log, text=True)

        def read(stream):
            for line in stream:
                if line.startswith("nfs://"):
                    listens.append(line)
                    ready.set()
            ready.set()

        threading.Thread(target=read, args=(self.process.stdout,), daemon=True).start()
        ready.wait(timeout)
        if not listens:
            raise Failed(f"stag serve exports nothing, exit code {proc.end(self.process)}:\n{self.log()}")

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        """SIGTERM must end it cleanly."""
        if not self.alive():
            raise Failed(f"the server ended by itself with exit code {self.process.returncode}; its log:\n{self.log()}")
        code = proc.end(self.process, 30)
        expect(code == 0, f"stag serve ended with {'SIGKILL' if code is None else code} on SIGTERM:\n{self.log()}")

    def take_over(self, timeout=60):
        """A new daemon in the place of the running one, which must end cleanly."""
        old = self.process
        self.start("--takeover")
        try:
            code = old.wait(timeout)
        except subprocess.TimeoutExpired:
            proc.end(old)
            raise Failed(f"the old daemon was there after {timeout} s:\n{self.log()}") from None
        expect(code == 0, f"the old daemon ended with {code}:\n{self.log()}")


@contextlib.contextmanager
def share(lab, exports, host="127.0.0.1", port=None, ports=(), config="", groups=None, user=None):
    """A running server with these exports; ended, and looked at for its health, when the block ends. `user`: whom it runs as."""
    if not Stag.binary:
        raise Skip("no stag binary: set STAG_BIN")
    one = Share(lab.new_folder("share"), exports, host, port or proc.free_port(host), ports, config, groups, user)
    try:
        one.start()
        yield one
    except BaseException as reason:
        if os.path.exists(one.log_path):
            tell(reason, f"the last of the server's log:\n{one.log()}")
        if one.alive():
            one.kill()
        raise
    one.stop()


def tree(lab):
    """A directory with files of many sizes, a hole, links, and directories in directories."""
    top = lab.new_folder("source")
    os.makedirs(os.path.join(top, "deep/er/empty"))
    for number in range(60):
        with open(os.path.join(top, "deep/er", f"file {number} %?"), "wb") as file:
            file.write(os.urandom(number * 7919))
    with open(os.path.join(top, "big"), "wb") as file:
        file.write(os.urandom((12 << 20) + 4321))
    with open(os.path.join(top, "hole"), "wb") as file:
        file.truncate(3 << 20)
    os.symlink("deep/er/file 1 %?", os.path.join(top, "link"))
    os.chmod(os.path.join(top, "big"), 0o640)
    return top


def same(one, other):
    """Both directories have the same files with the same contents, permissions and links."""
    proc.run("diff", "-r", "--no-dereference", one, other)
    for place, folders, files in os.walk(one):
        for name in folders + files:
            here = os.path.join(place, name)
            there = os.path.join(other, os.path.relpath(here, one))
            modes = [os.lstat(path).st_mode for path in (here, there)]
            expect(modes[0] == modes[1], f"{there} has mode {modes[1]:o}, not {modes[0]:o}")


def round_trip(lab, base, settings):
    """`stag` copies a tree to the directory `base` and back, lists it, prints a file of it, and removes it."""
    def stag(*words, **options):
        if not Stag.binary:
            raise Skip("no stag binary: set STAG_BIN")
        return proc.run(Stag.binary, *words, **options)

    def at(path=""):
        return f"{base}{path}?{settings}"

    source = tree(lab)
    stag("cp", "-r", source, at("/copy"))
    back = os.path.join(lab.new_folder("back"), "copy")
    stag("cp", "-r", at("/copy"), back)
    same(source, back)
    stag("cp", os.path.join(source, "big"), at())
    one = os.path.join(lab.new_folder("one"), "one")
    stag("cp", "--verify", at("/big"), one)
    proc.run("cmp", os.path.join(source, "big"), one)
    stag("cp", "--check", at("/big"), one)
    with open(one, "r+b") as file:
        file.seek(1 << 20)
        there = file.read(5)
        file.seek(1 << 20)
        file.write(bytes(byte ^ 0xFF for byte in there))  # random bytes may be those of any text
        file.seek(0, os.SEEK_END)
        file.write(b"longer")
    found = stag("cp", "--check", one, at("/big"), ok=None)
    expect(found.code == 1 and "first at byte 1048576" in found, f"a file that is longer, and other: {found}")
    stag("cp", "--differing", one, at("/big"))
    stag("cp", "--check", at("/big"), one)
    stag("cp", "--differing", os.path.join(source, "big"), at("/big"))
    stag("cp", "--check", os.path.join(source, "big"), at("/big"))
    listed = stag("ls", at("/copy"))
    expect([line.split()[7] for line in listed.splitlines()] == ["big", "deep", "hole", "link"], f"stag ls lists:\n{listed}")
    expect("rw-r-----" in listed and "-> deep/er/file" in listed and f" {(12 << 20) + 4321} " in listed,
           f"stag ls shows:\n{listed}")
    told = json.loads(stag("info", "--json", at("/copy/big")))
    expect(told["bytes"] == (12 << 20) + 4321 and f"vers={told['version']}" in settings, f"stag info tells {told}")
    stag("write", at("/note"), stdin=b"0123456789")
    stag("write", "--offset", "3", at("/note"), stdin=b"abc")
    expect(stag("cat", at("/note"), at("/note")) == "012abc6789" * 2, "stag cat prints another text")
    expect(stag("read", "--offset", "2", "--length", "3", at("/note")) == "2ab", "stag read reads other bytes")
    refused = stag("rm", at("/copy"), ok=None)
    expect(refused.code == 1 and "is a directory" in refused, f"a directory without -r: {refused}")
    stag("rm", "-r", at("/copy"))
    stag("rm", at("/note"), at("/big"))
    refused = stag("cat", at("/note"), ok=None)
    expect(refused.code == 1 and "no such file" in refused, f"a file that is not there: {refused}")


def kept(lab, base, settings, links=True):
    """`stag cp -r --preserve` keeps times, modes and owners both ways, goes on after errors, and --resume does not copy again.
    `links`: the server sets times of symbolic links."""
    def stag(*words, ok=(0,)):
        return proc.run(Stag.binary, *words, ok=ok)

    source = tree(lab)
    top_name = os.path.basename(source)
    # A copy to a directory that is there goes into it, under its own name: each time to the same place.
    url, above, back = f"{base}/{top_name}?{settings}", f"{base}?{settings}", lab.new_folder("back")
    for number, (place, folders, files) in enumerate(os.walk(source, topdown=False)):
        for at, name in enumerate(files + folders):
            path = os.path.join(place, name)
            os.lchown(path, 1000 + at % 3, 2000)
            os.utime(path, ns=(0, (1_000_000_000 + number) * 10**9 + 123_456_789 + at), follow_symlinks=False)
    os.chmod(os.path.join(source, "deep"), 0o2751)

    def attributes(top):
        found = {}
        for place, folders, files in os.walk(top):
            for name in files + folders:
                about = os.lstat(os.path.join(place, name))
                found[os.path.relpath(os.path.join(place, name), top)] = (about.st_mode, about.st_uid, about.st_gid, about.st_mtime_ns)
        return found

    stag("cp", "-rp", source, above)
    stag("cp", "-rp", url, back)
    came = os.path.join(back, top_name)
    same(source, came)
    there, here = attributes(source), attributes(came)
    different = {name: (there[name], here.get(name)) for name in there
                 if there[name] != here.get(name) and (links or name != "link")}
    expect(not different, f"not kept: {different}")
    # What is there already is not sent again; what has changed is.
    again = stag("cp", "-r", "--resume", source, above)
    expect(f"{63 if links else 62} files were copied before" in again, f"--resume says: {again}")
    with open(os.path.join(source, "deep/er/file 3 %?"), "a") as file:
        file.write("more")
    os.remove(os.path.join(came, "big"))
    stag("cp", "-r", "--resume", source, above)
    stag("cp", "-r", "--resume", url, back)
    same(source, came)
    # Two of all files cannot be copied: a directory is in the way of each.
    into = lab.new_folder("other")
    other = os.path.join(into, top_name)
    for file in ("big", "deep/er/file 7 %?"):
        os.makedirs(os.path.join(other, file, "x"))
    failed = stag("cp", "-r", url, into, ok=None)
    expect(failed.code == 1 and "2 files or directories were not copied" in failed and failed.count("file 7") == 1, f"it says: {failed}")
    count = sum(len(files) for _, _, files in os.walk(other))
    expect(count == sum(len(files) for _, _, files in os.walk(source)) - 2, f"{count} files were copied")
    stag("rm", "-r", url)


def loaded(base, settings):
    """`stag bench` loads a file in the directory `base`, finds in it what it wrote, and `stag rm` removes it."""
    file = f"{base}/load?{settings}"
    load = ("--span", "1M", "--count", "300", "--depth", "8", "--pattern", "randrw", "--fill", "--verify", "--destroy")
    run = json.loads(proc.run(Stag.binary, "bench", *load, "--json", file))["runs"][0]
    expect((run["ios"], run["errors"]) == (300, 0) and run["verified_blocks"] >= 2048, f"stag bench found {run}")
    proc.run(Stag.binary, "rm", file)


def content(lab, size):
    """A file of so many random bytes."""
    path = os.path.join(lab.new_folder("content"), "content")
    with open(path, "wb") as file:
        file.write(os.urandom(size))
    return path


def folder(lab, name="tree"):
    """A new directory that everybody may write to, and whose parents everybody may enter."""
    path = lab.new_folder(name)
    os.chmod(path, 0o777)
    return path


@contextlib.contextmanager
def mounted(lab, source, *options):
    """A file system at such a directory, until the block ends."""
    at = folder(lab, "mounted")
    made = proc.run("mount", *options, source, at, ok=None)
    if made.code != 0:
        raise Skip(f"{source} cannot be mounted: {made}")
    try:
        os.chmod(at, 0o777)
        yield at
    finally:
        proc.run("umount", "-l", at, ok=None)


@contextlib.contextmanager
def xfs(lab):
    """Such a directory on XFS, which shares blocks between files."""
    proc.need("mkfs.xfs", "mount")
    image = os.path.join(lab.new_folder("xfs"), "image")
    with open(image, "wb") as file:
        file.truncate(400 << 20)
    proc.run("mkfs.xfs", "-q", "-m", "reflink=1", image)
    with mounted(lab, image, "-o", "loop") as path:
        yield path
