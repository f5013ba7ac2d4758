"""Storms: three gateways serve images of one cluster, each with links of its own, while they, their links and the cluster fail in all ways.

Initiators read and write shared blocks through all gateways and keep a history, which must be linearizable: porcupine judges it. Beside
them Linux's multipathd and dm-multipath carry fio's verified load. STORM=N: N turns of every fault instead of a few; STORM_SEED: which
gateway fails, and in what order.
"""

import contextlib
import os
import random
import signal
import time

from kernel import multipath
from lab import ceph, gateways, history, proc, tools, uml
from lab.net import Net
from lab.report import Failed, expect
from lab.target import Tgt, Unit

BLOCKS = 8
CLIENTS = 3
# Units: that of the history, and Linux's.
SHARED, LINUX = 0, 1
# Seconds that a link is cut for, and after which all is served again.
CUT, WHOLE = 15, 90

GUEST = multipath.MULTIPATHD + r"""
ip route add default via $HOST
initiator_up node.session.timeo.replacement_timeout=5 || exit 1
# The paths to the unit: its disks.
paths() { for disk in /sys/block/sd*; do [ "$(readlink -f $disk/device | sed 's/.*://')" = $LUN ] && basename $disk; done; }
login_all() {
  timeout 90 iscsiadm -m discovery -t sendtargets -p $PORTAL && timeout 90 iscsiadm -m node -T $IQN -l || return
  for _ in $(seq 400); do [ $(paths | wc -l) = 3 ] && return; sleep 0.1; done; paths; return 1
}
device() { for _ in $(seq 400); do m=$(ls /sys/block/$(paths | head -1)/holders 2>/dev/null) && [ -n "$m" ] && m=/dev/$m && [ -b $m ] && return; sleep 0.1; done; return 1; }
groups() { timeout 10 multipathd show topology; }
whole() { for _ in $(seq 600); do groups >/tmp/topology; [ $(grep -c "active ready running" /tmp/topology) -ge 6 ] && return; sleep 0.1; done; cat /tmp/topology; tail -5 /tmp/multipathd; return 1; }
over() { ls /mnt | grep -qx "answer.$((asked - 1))"; }
load() {
  rounds=0
  until over; do verify_fio $m --size=16m --rate=4m --randseed=$RANDOM >/tmp/round 2>&1 || { cat /tmp/round; return 1; }; rounds=$((rounds + 1)); done
  [ $rounds -gt 0 ]
}
case_ "login through one gateway's discovery, three paths" login_all
multipathd_up
case_ "multipathd makes a device of them" device
case_ "all paths are good" whole
ask storm
case_ "fio's load is verified in every storm" load
echo "fio: $rounds rounds of 16 MiB"
case_ "all paths are good again" whole
case_ "the device is sound" same_file_system $m
kill $daemon
"""


class Storm:
    def __init__(self, lab, net, group, chance, folder):
        self.lab, self.net, self.group, self.random, self.folder = lab, net, group, chance, folder
        self.faults, self.clients = [], None

    def owner(self):
        """The gateway that owns the history's unit."""
        return self.group.settled(gateways.NUMBERS, WHOLE)[self.group.images[SHARED]]

    def some(self):
        """Mostly the owner, since more can go wrong there."""
        owner = self.owner()
        return owner if self.random.random() < 0.7 else self.group.other(owner)

    # Faults: each is over when it returns.
    def kill(self, *numbers):
        numbers = numbers or (self.some(),)
        for number in numbers:
            self.group.daemons[number].kill()
        time.sleep(8)
        for number in numbers:
            self.group.daemons[number].restart()
        return numbers

    def two_killed(self):
        owner = self.owner()
        return self.kill(owner, self.group.other(owner))

    def pause(self, seconds):
        number = self.some()
        process = self.group.daemons[number].process
        proc.freeze(process)
        time.sleep(seconds)
        process.send_signal(signal.SIGCONT)
        return number

    def killed_and_paused(self):
        owner = self.owner()
        other = self.group.daemons[self.group.other(owner)].process
        proc.freeze(other)
        self.kill(owner)
        other.send_signal(signal.SIGCONT)
        return owner

    def link(self, fault, *arguments):
        number = self.some()
        mend = fault(number, *arguments)
        time.sleep(CUT)
        mend()
        return number

    def parted(self):
        owner = self.owner()
        other = self.group.other(owner)
        mend = self.net.part(owner, other)
        time.sleep(CUT)
        mend()
        return owner, other

    def osd_killed(self):
        name = f"osd.{self.random.randrange(3)}"
        self.group.cluster.kill(name)
        time.sleep(8)
        self.group.cluster.revive(name)
        return name

    def silent(self, *names):
        with ceph.silent(self.group.cluster, *names):
            time.sleep(10)
        return names

    def moved(self):
        number = self.group.other(self.owner())
        self.group.move(self.group.images[SHARED], number)
        return number

    def all_faults(self):
        net = self.net
        return {
            "killed": self.kill,
            "two killed": self.two_killed,
            **{f"paused for {seconds} s": lambda seconds=seconds: self.pause(seconds) for seconds in (3, 12, 30, 60)},
            "one killed, one paused": self.killed_and_paused,
            **{f"cut from {side}": lambda side=side: self.link(net.cut, side) for side in ("cluster", "clients")},
            **{f"does not hear {side}": lambda side=side: self.link(net.deafen, side) for side in ("cluster", "clients")},
            **{f"is not heard by {side}": lambda side=side: self.link(net.mute, side) for side in ("cluster", "clients")},
            "two gateways cut from each other": self.parted,
            "an OSD killed": self.osd_killed,
            "all OSDs silent": lambda: self.silent("osd.0", "osd.1", "osd.2"),
            "the monitor silent": lambda: self.silent("mon.a"),
            "moved": self.moved,
        }

    def play(self, names):
        """These faults, one after the other; after each all is served again, to every initiator."""
        faults = self.all_faults()
        for number, name in enumerate(names, 1):
            self.all_progress()
            time.sleep(2 + 2 * self.random.random())
            began = time.monotonic_ns()
            who = faults[name]()
            self.faults.append((name, who, began, time.monotonic_ns()))
            self.group.settled(gateways.NUMBERS, WHOLE)
            if "STORM" in os.environ:
                print(f"  {number} of {len(names)}: {name} ({who}), all is served again", flush=True)

    def all_progress(self):
        """Every initiator gets answers."""
        before = self.clients.size()

        def more():
            self.clients.check()
            return all(now > then for now, then in zip(self.clients.size(), before))
        proc.wait_until(more, WHOLE, f"every initiator gets answers after {self.faults[-1:]}: {before}")

    def judge(self):
        """The history, by porcupine. Tells how long initiators waited around each fault."""
        operations, good, said = self.clients.judged(os.path.join(self.folder, "history"))
        for name, who, began, ended in self.faults:
            print(f"  {name} ({who}), {(ended - began) / 1e9:.0f} s: nobody was answered for {longest(operations, began, ended):.1f} s", flush=True)
        maybe = sum(bool(one.get("maybe")) for one in operations)
        print(f"  {said}, {maybe} of unknown outcome", flush=True)
        expect(not any(one.get("torn") for one in operations), "no block is torn")
        expect(good, f"the history is not linearizable:\n{said}")
        return operations


def longest(operations, began, ended):
    """Seconds: the longest time during a fault and 5 s after it in which no initiator had an answer."""
    times = sorted(one["ret"] for one in operations if not one.get("maybe"))
    inside = [began, *(at for at in times if began <= at <= ended + 5 * 10**9)]
    return max((b - a for a, b in zip(inside, inside[1:])), default=0) / 1e9


def chosen(chance, everything):
    """The faults of this run, in what order: a short storm has those by which a write comes late most easily."""
    turns = int(os.environ.get("STORM", "0"))
    names = list(everything) * turns if turns else ["killed", "paused for 12 s", "cut from cluster", "is not heard by clients", "all OSDs silent"]
    chance.shuffle(names)
    return names


def storm(lab):
    if lab.kind != "stag":
        return
    proc.need("multipathd", "ceph-osd", "nsenter")
    tools.history()
    seed = int(os.environ.get("STORM_SEED") or time.time())
    print(f"  STORM_SEED={seed}", flush=True)
    uml.network_up()
    with open("/proc/sys/net/ipv4/ip_forward", "w") as file:
        file.write("1\n")
    with contextlib.ExitStack() as stack:
        net = Net(gateways.NUMBERS)
        stack.callback(net.down)
        group = stack.enter_context(gateways.Group(lab, 32, 64, net=net))
        one = Storm(lab, net, group, random.Random(seed), lab.new_folder("history"))
        portals = [group.portal(number) for number in gateways.NUMBERS]
        one.clients = history.Clients(one.folder, CLIENTS, seed, SHARED, BLOCKS, portals)
        names = chosen(one.random, one.all_faults())
        uml.run_cases(lab, "storm", GUEST, 300 + 150 * len(names), {"storm": lambda: one.play(names)},
                      PORTAL=portals[0], IQN=gateways.IQN, LUN=LINUX)
        operations = one.judge()
        expect(len(operations) > 100, f"only {len(operations)} operations")


def without_a_group(lab):
    """Two tgt daemons serve one file. As long as nothing fails their history is linearizable. One that is paused writes late: this is found."""
    if lab.kind != "stag":
        return
    proc.need("tgtd", "tgtadm")
    tools.history()
    image = os.path.join(lab.new_folder("shared"), "image")
    with open(image, "wb") as file:
        file.truncate(1 << 20)
    with contextlib.ExitStack() as stack:
        daemons = []
        for _ in range(2):
            daemon = Tgt(lab.new_folder(), [Unit(path=image)], gateways.HOST, proc.free_port(), None, {})
            daemon.start()
            stack.callback(daemon.stop)
            daemons.append(daemon)

        def found(pauses):
            folder = lab.new_folder("history")
            clients = history.Clients(folder, 8, 1, 1, 8, [daemon.portal for daemon in daemons], ("read", "write"))
            time.sleep(3)
            for _ in range(pauses):
                proc.freeze(daemons[0].process)
                time.sleep(history.GIVE_UP + 3)
                daemons[0].process.send_signal(signal.SIGCONT)
                time.sleep(1)
            operations, good, said = clients.judged(os.path.join(folder, "history"))
            expect(len(operations) > 100, f"only {len(operations)} operations")
            return not good, said
        wrong, said = found(0)
        expect(not wrong, f"nothing failed, and its history is not linearizable: {said}")
        for _ in range(8):
            proc.run("fallocate", "--zero-range", "--length", 1 << 20, image)
            wrong, said = found(1)
            if wrong:
                return
        raise Failed(f"eight pauses, and no late write was found: {said}")


CASES = [("a write that comes late is found, with two tgt daemons on one file", without_a_group),
         ("gateways and their links fail: every initiator is served again, and the history is linearizable", storm)]
