"""`stag serve` with NFS exports, for clients that we did not write."""

import contextlib
import os
import subprocess
import threading

from . import proc
from .report import Failed, Skip, expect, tell
from .target import Stag


class Share:
    """A running server. `exports`: what each name shows (a directory, or mem:SIZE)."""

    def __init__(self, folder, exports, host, port, config=""):
        self.folder, self.exports, self.host, self.port, self.config = folder, exports, host, port, config
        self.process = None
        self.log_path = os.path.join(folder, "share.log")
        self.control = os.path.join(folder, "control.sock")

    def command(self):
        words = [Stag.binary, "serve", "--control", self.control, "--nfs", f"{self.host}:{self.port}"]
        for name, path in self.exports.items():
            words += ["--export", f"{name}={path}"]
        if self.config:
            path = os.path.join(self.folder, "share.toml")
            with open(path, "w") as file:
                file.write(self.config)
            words += ["--config", path]
        return words

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
        if not Stag.binary:
            raise Skip("no stag binary: set STAG_BIN")
        log, ready, listens = open(self.log_path, "ab"), threading.Event(), []
        self.process = subprocess.Popen(self.command() + list(words), stdout=subprocess.PIPE, stderr=log, text=True)

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
def share(lab, exports, host="127.0.0.1", port=None, config=""):
    """A running server with these exports; ended, and looked at for its health, when the block ends."""
    one = Share(lab.new_folder("share"), exports, host, port or proc.free_port(host), config)
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


def folder(lab, name="tree"):
    """A new directory that everybody may write to, and whose parents everybody may enter."""
    path = lab.new_folder(name)
    os.chmod(path, 0o777)
    return path
