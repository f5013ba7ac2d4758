"""Network namespaces for gateways, so that each of their links can be cut by itself, in both directions or one.

    cluster 10.77.0.254  <-- 10.77.0.N --  gateway N  -- 10.77.N.1 -->  initiators 10.77.N.254

The cluster and the initiators are in the namespace of the run. Gateways reach each other through the cluster's side. A link is cut at its
far end: its gateway keeps the address, and sees silence rather than an error. Everything ends with the run.
"""

import os
import subprocess

from . import proc

CLUSTER = "10.77.0.254"


class Net:
    def __init__(self, numbers):
        self.holders = {}
        proc.run("ip", "link", "add", "cluster", "type", "bridge")
        proc.run("ip", "address", "add", f"{CLUSTER}/24", "dev", "cluster")
        proc.run("ip", "link", "set", "cluster", "up")
        for number in numbers:
            self.add(number)

    def add(self, number):
        """A gateway's namespace, which lives as long as a process in it."""
        holder = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sleep", "infinity"], stdin=subprocess.DEVNULL)
        self.holders[number] = holder
        own = os.readlink("/proc/self/ns/net")
        proc.wait_until(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != own, 10, "a network namespace", 0.01)
        for far, near, address, here in (("cluster", f"gw{number}", self.link(number), None),
                                         ("clients", f"clients{number}", self.portal(number), f"10.77.{number}.254")):
            proc.run("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", holder.pid)
            if here:
                proc.run("ip", "address", "add", f"{here}/24", "dev", near)
            else:
                proc.run("ip", "link", "set", near, "master", "cluster")
            proc.run("ip", "link", "set", near, "up")
            self.run(number, "ip", "address", "add", f"{address}/24", "dev", far)
            self.run(number, "ip", "link", "set", far, "up")
        self.run(number, "ip", "link", "set", "lo", "up")
        self.run(number, "ip", "route", "add", "default", "via", f"10.77.{number}.254")

    @staticmethod
    def link(number):
        """A gateway's address on the cluster's side."""
        return f"10.77.0.{number}"

    @staticmethod
    def portal(number):
        """Its address for initiators."""
        return f"10.77.{number}.1"

    def inside(self, number):
        """Words before a command that runs with this gateway's network."""
        return ["nsenter", "--net", "-t", str(self.holders[number].pid), "--"]

    def run(self, number, *command):
        return proc.run(*self.inside(number), *command)

    # Faults. Each returns what mends it.
    def cut(self, number, side):
        """Cuts a gateway from `cluster` (and from the other gateways) or from `clients`."""
        link = {"cluster": f"gw{number}", "clients": f"clients{number}"}[side]
        proc.run("ip", "link", "set", link, "down")
        return lambda: proc.run("ip", "link", "set", link, "up")

    def deafen(self, number, side):
        """What a gateway sends arrives; what `cluster` or `clients` send to it does not."""
        to = {"cluster": self.link, "clients": self.portal}[side](number)
        return self.swallow([], to)

    def mute(self, number, side):
        """What `cluster` or the initiators of this namespace send arrives; what the gateway answers does not."""
        to = {"cluster": CLUSTER, "clients": f"10.77.{number}.254"}[side]
        return self.swallow(self.inside(number), to)

    def part(self, one, other):
        """Two gateways do not reach each other."""
        mends = [self.swallow(self.inside(one), self.link(other)), self.swallow(self.inside(other), self.link(one))]
        return lambda: [mend() for mend in mends]

    @staticmethod
    def swallow(inside, to):
        proc.run(*inside, "ip", "route", "add", "blackhole", f"{to}/32")
        return lambda: proc.run(*inside, "ip", "route", "del", "blackhole", f"{to}/32")

    def down(self):
        for holder in self.holders.values():
            holder.kill()
            holder.wait()
        proc.run("ip", "link", "del", "cluster", ok=None)
