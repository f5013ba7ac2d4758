"""A guest machine: the lab's User Mode Linux kernel (tests/kernel/build makes it), joined to this side by tap0.

It needs root and a network namespace of its own: tests/run gives it both. This side is HOST, the guest is GUEST.
"""

import os
import shlex
import shutil
import signal
import subprocess
import threading
import time

from . import proc
from .report import Failed, Skip

HOST, GUEST = "10.99.0.1", "10.99.0.2"
PROGRAMS = "/srv"
KERNEL_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "kernel")


def network_up():
    """tap0 with HOST's address, made once in this namespace."""
    if proc.run("ip", "link", "show", "tap0", ok=None).code == 0:
        return
    if os.geteuid() != 0:
        raise Skip("the kernel lab needs root (a tap device, a network namespace)")
    for words in (["tuntap", "add", "tap0", "mode", "tap"], ["address", "add", f"{HOST}/24", "dev", "tap0"],
                  ["link", "set", "tap0", "up"]):
        proc.run("ip", *words)


class Guest:
    """One boot of the guest, running `script` (bash, with the functions of tests/kernel/guest.sh). `programs`: a folder of this
    side's that the guest finds at PROGRAMS, wherever it lies."""

    def __init__(self, folder, script, memory_mib=256, programs=None, **values):
        kernel = proc.run(os.path.join(KERNEL_FOLDER, "build"), "--where").strip()
        if not os.path.exists(kernel):
            raise Skip(f"no kernel {kernel}: tests/kernel/build makes it")
        network_up()
        self.share = os.path.join(folder, "share")
        os.makedirs(self.share)
        shutil.copy(os.path.join(KERNEL_FOLDER, "guest.sh"), self.share)
        with open(os.path.join(self.share, "script"), "w") as file:
            values = {"HOST": HOST, "GUEST": GUEST, **values}
            file.write("".join(f"{key}={shlex.quote(str(value))}\n" for key, value in values.items()))
            file.write(f". /mnt/guest.sh\n{script}")
        self.command = [
            kernel, f"mem={memory_mib}M", "root=none", "rootfstype=hostfs", "rootflags=/", "ro", "quiet",
            f"init={os.path.join(KERNEL_FOLDER, 'init')}", "con=null", "con0=null,fd:1", "con1=null",
            f"uml_dir={folder}", f"lab.share={self.share}", f"lab.ip={GUEST}/24", "panic=1",
            "vec0:transport=tap,ifname=tap0,depth=64,gro=1", *([f"lab.programs={programs}"] if programs else [])]
        self.console = os.path.join(folder, "console")

    def read(self, name):
        try:
            with open(os.path.join(self.share, name), errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def run(self, timeout, requests=None, killed_when=lambda: False):
        """Boot, run the script, and return (exit code, what it printed). `requests`: functions by name; the guest calls
        one by `ask NAME` and goes on at once, or waits for it by `ask_and_wait NAME`. `killed_when`: asked all the time; from
        when it is true, the machine is gone, without a word to anybody, and there is no exit code."""
        with open(self.console, "wb") as console:
            process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=console,
                                       stderr=subprocess.STDOUT, start_new_session=True)
        limit, errors, threads = time.monotonic() + timeout, [], []

        def answer(number, name):
            try:
                requests[name]()
            except Exception as error:
                errors.append(error)
            with open(os.path.join(self.share, f"answer.{number}"), "w") as file:
                file.write("done\n")

        try:
            seen = 0
            while process.poll() is None:
                if killed_when():
                    return None, self.read("output")
                if time.monotonic() > limit:
                    raise Failed(f"the guest was not done after {timeout} s\n{proc.tail(self.read('output'), 20)}")
                if requests:
                    asked = self.read("asked").split()
                    for name in asked[seen:]:
                        thread = threading.Thread(target=answer, args=(seen, name))
                        thread.start()
                        threads.append(thread)
                        seen += 1
                time.sleep(0.03)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            for thread in threads:
                thread.join(30)
        if errors:
            raise errors[0]
        code = self.read("exit-code").strip()
        if not code:
            with open(self.console, errors="replace") as file:
                raise Failed(f"the guest did not finish; its console:\n{proc.tail(file.read(), 20)}")
        return int(code), self.read("output")


def run_cases(lab, prefix, script, timeout=400, requests=None, **values):
    """Run a script in the guest and count each of its cases, named `PREFIX: …`."""
    guest = Guest(lab.new_folder("guest"), script, **values)
    code, output = guest.run(timeout, requests)
    cases, name = {}, None
    for line in output.splitlines():
        if line.startswith("CASE "):
            _, outcome, name = line.split(" ", 2)
            cases[name] = [outcome, ""]
        elif name and line.startswith("  | "):
            cases[name][1] += line[4:] + "\n"
    for name, (outcome, why) in cases.items():
        lab.report.add("passed" if outcome == "ok" else "failed", f"{prefix}: {name}", why)
    if code != 0 or not cases:
        raise Failed(f"the guest's script ended with {code} after {len(cases)} cases:\n"
                     + "\n".join(output.splitlines()[-15:]))
