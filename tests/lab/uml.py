"""A guest machine: the lab's User Mode Linux kernel (tests/kernel/build makes it), joined to this side by tap0.

It needs root and a network namespace of its own: tests/run gives it both. This side is HOST, the guest is GUEST.
"""

import ipaddress
import json
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


def neighbour(address):
    """The guest will be a neighbour, by this address, in the network of an interface of this namespace: an end of the lab's emulated
    link, say. Returns this side's address there, and the interface's MTU. This side answers ARP for the guest there, and for that
    network at tap0, which has no address itself."""
    for device in json.loads(proc.run("ip", "-json", "address")):
        own = [ipaddress.ip_interface(f"{found['local']}/{found['prefixlen']}") for found in device["addr_info"]]
        here = [one for one in own if device["ifname"] != "tap0" and ipaddress.ip_address(address) in one.network]
        if here:
            break
    else:
        raise Failed(f"{address} is in the network of no interface here")
    name, mtu = device["ifname"], device["mtu"]
    if proc.run("ip", "link", "show", "tap0", ok=None).code != 0:
        proc.run("ip", "tuntap", "add", "tap0", "mode", "tap")
    proc.run("ip", "link", "set", "tap0", "mtu", str(mtu), "up")
    proc.run("ip", "route", "replace", f"{address}/32", "dev", "tap0", "src", str(here[0].ip))
    for setting in ("ip_forward", f"conf/{name}/proxy_arp", "conf/tap0/proxy_arp"):
        with open(f"/proc/sys/net/ipv4/{setting}", "w") as file:
            file.write("1\n")
    return str(here[0].ip), mtu


class Guest:
    """One boot of the guest, running `script` (bash, with the functions of tests/kernel/guest.sh). `programs`: a folder of this
    side's that the guest finds at PROGRAMS, wherever it lies. `address`: its address, and the interface that it is a `neighbour`
    at; else it is GUEST, and this side HOST."""

    def __init__(self, folder, script, memory_mib=256, programs=None, address=None, **values):
        kernel = proc.run(os.path.join(KERNEL_FOLDER, "build"), "--where").strip()
        if not os.path.exists(kernel):
            raise Skip(f"no kernel {kernel}: tests/kernel/build makes it")
        host, mtu = neighbour(address) if address else (HOST, 1500)
        if not address:
            network_up()
        self.share = os.path.join(folder, "share")
        os.makedirs(self.share)
        shutil.copy(os.path.join(KERNEL_FOLDER, "guest.sh"), self.share)
        with open(os.path.join(self.share, "script"), "w") as file:
            values = {"HOST": host, "GUEST": address or GUEST, **values}
            file.write("".join(f"{key}={shlex.quote(str(value))}\n" for key, value in values.items()))
            file.write(f". /mnt/guest.sh\n{script}")
        self.command = [
            kernel, f"mem={memory_mib}M", "root=none", "rootfstype=hostfs", "rootflags=/", "ro", "quiet",
            f"init={os.path.join(KERNEL_FOLDER, 'init')}", "con=null", "con0=null,fd:1", "con1=null",
            f"uml_dir={folder}", f"lab.share={self.share}", f"lab.ip={address or GUEST}/24", "panic=1",
            f"vec0:transport=tap,ifname=tap0,depth=64,gro=1,mtu={mtu}", *([f"lab.programs={programs}"] if programs else [])]
        self.console = os.path.join(folder, "console")

    def read(self, name):
        try:
            with open(os.path.join(self.share, name), errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def run(self, timeout, requests=None, killed_when=lambda: False, printed=None):
        """Boot, run the script, and return (exit code, what it printed). `requests`: functions by name; the guest calls
        one by `ask NAME` and goes on at once, or waits for it by `ask_and_wait NAME`. `killed_when`: asked all the time; from
        when it is true, the machine is gone, without a word to anybody, and there is no exit code. `printed`: called with all
        that the script has printed, again and again."""
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
                if printed:
                    printed(self.read("output"))
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
            _, outcome, milliseconds, name = line.split(" ", 3)
            cases[name] = [outcome, "", int(milliseconds) / 1000]
        elif name and line.startswith("  | "):
            cases[name][1] += line[4:] + "\n"
    for name, (outcome, why, seconds) in cases.items():
        lab.report.add("passed" if outcome == "ok" else "failed", f"{prefix}: {name}", why, seconds)
    if code != 0 or not cases:
        raise Failed(f"the guest's script ended with {code} after {len(cases)} cases:\n"
                     + "\n".join(output.splitlines()[-15:]))
