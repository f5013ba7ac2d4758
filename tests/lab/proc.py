"""Programs, run with a time limit and ended by their own process id, never by name."""

import errno
import os
import random
import shutil
import signal
import socket
import subprocess
import time

from .report import Failed, Skip

# Debian keeps some of the peers where an ordinary user's PATH does not look.
os.environ["PATH"] += ":/usr/local/sbin:/usr/sbin:/sbin"


def need(*programs):
    """Skip the case unless every program is installed."""
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        raise Skip(f"{', '.join(missing)} not installed (tests/install-peers installs it)")


def tail(text, lines=12):
    return "\n".join(text.strip().splitlines()[-lines:])


class Output(str):
    """What a program printed (standard output and error in order), with its exit code."""

    code = 0


def run(*command, timeout=180, ok=(0,), stdin=None, env=None):
    """Run a program to its end and return its Output. `ok`: the exit codes that are not a failure; None: any."""
    command = [str(word) for word in command]
    environment = {**os.environ, **env} if env else None
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env=environment, start_new_session=True)
    try:
        printed, _ = process.communicate(stdin, timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        raise Failed(f"{' '.join(command)}: not done after {timeout} s\n"
                     f"{tail(printed.decode(errors='replace'))}") from None
    except BaseException:  # Ctrl-C, which a program in a session of its own does not get.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    output = Output(printed.decode(errors="replace"))
    output.code = process.returncode
    if ok is not None and process.returncode not in ok:
        raise Failed(f"{' '.join(command)}: exit code {process.returncode}\n{tail(output)}")
    return output


def end(process, timeout=30):
    """SIGTERM, and SIGKILL if that does not end it in time. Returns the exit code; None: it had to be killed."""
    if process.poll() is None:
        process.terminate()
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def freeze(process):
    """SIGSTOP, and waits until all threads of the process have stopped: those on other cores go on for a moment."""
    process.send_signal(signal.SIGSTOP)

    def state(thread):
        with open(f"/proc/{process.pid}/task/{thread}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    wait_until(lambda: all(state(thread) == "T" for thread in os.listdir(f"/proc/{process.pid}/task")), 10, "it stops", step=0.001)


def wait_until(condition, timeout, what, step=0.05):
    """Poll `condition` until it is true; its value is returned."""
    limit = time.monotonic() + timeout
    while True:
        if value := condition():
            return value
        if time.monotonic() > limit:
            raise Failed(f"{what}: not within {timeout} s")
        time.sleep(step)


def is_busy(pid):
    """Whether a process has anything to do, or to wait for that is not its own fault: a thread of it runs, waits for a processor or in
    the kernel, or a disk of this machine is at work."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in "RD":
                    return True
        for disk in os.listdir("/sys/block"):
            with open(f"/sys/block/{disk}/inflight") as file:
                if any(int(count) for count in file.read().split()):
                    return True
    except OSError:
        pass
    return False


class Patience:
    """What is waited for beyond a time limit: for as long as process `pid` is busy, and a minute at most. A machine that is slow, or was
    stopped for seconds, has not made a target late; one that has nothing to do and does not answer is."""

    LOOK, LOOKS, MOST = 0.1, 15, 60

    def __init__(self, pid):
        self.pid, self.idle, self.end = pid, 0, time.monotonic() + self.MOST

    def lasts(self):
        """To be asked once each LOOK seconds."""
        self.idle = 0 if self.pid and is_busy(self.pid) else self.idle + 1
        return self.idle < self.LOOKS and time.monotonic() < self.end


def receive(connected, count, pid):
    """`connected.recv(count)`, which may take as long as the socket's time limit, and longer with Patience."""
    try:
        return connected.recv(count)
    except TimeoutError:
        limit, patience = connected.gettimeout(), Patience(pid)
    connected.settimeout(patience.LOOK)
    try:
        while True:
            try:
                return connected.recv(count)
            except TimeoutError:
                if not patience.lasts():
                    raise
    finally:
        connected.settimeout(limit)


def idle_seconds(cpu_seconds, seconds, most):
    """The least of some measurements of the CPU time that passes by `cpu_seconds` in that time, until one is below `most`: what a busy
    machine delays is done in one of them, and what is done again and again shows in all."""
    least = None
    for _ in range(4):
        before = cpu_seconds()
        time.sleep(seconds)
        used = cpu_seconds() - before
        least = used if least is None else min(least, used)
        if least < most:
            break
    return least


def free_port(host="127.0.0.1"):
    """A TCP port that nobody listens on now, and that no connection is given for its own end before somebody does: those are
    above 32767."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(1000):
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((host, random.randrange(12000, 32000)))
                return listener.getsockname()[1]
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
    raise Failed(f"no free port at {host}")
