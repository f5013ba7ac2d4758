"""Gateways that act as one: three processes over a real cluster, each a gateway of one group (`ceph`'s example `gateway`), without a server.

Each unit's image has a number that all gateways increment while the unit is theirs: two owners at a time, or a late write, would lose
increments.
"""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time

from lab import ceph, proc
from lab.report import Failed, Skip, expect
from lab.target import Stag

UNITS = (1, 2, 3)
COUNTED, HAMMERED = 0, 1  # Blocks of each unit.
ESHUTDOWN = 108


def program():
    if not Stag.binary:
        raise Skip("no stag binary: set STAG_BIN")
    path = os.path.join(os.path.dirname(os.path.abspath(Stag.binary)), "examples", "gateway")
    if not os.path.exists(path):
        raise Skip(f"{path} is missing: cargo build -p ceph --examples")
    return path


class Gateway:
    """A process; what it prints, as (time, object)."""

    def __init__(self, group, number):
        self.group, self.number, self.lines, self.news = group, number, [], threading.Condition()
        self.stopped = False
        with open(os.path.join(group.folder, f"gateway.{number}"), "ab") as log:
            self.process = subprocess.Popen(group.command(number), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        for unit in UNITS:
            self.say("count", unit, COUNTED)

    def read(self):
        for line in self.process.stdout:
            with self.news:
                self.lines.append((time.monotonic(), json.loads(line)))
                self.news.notify_all()

    def say(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def until(self, what, key, since, timeout=60, **values):
        """The first line with this key and these values behind line number `since`, as (time, object)."""
        limit = time.monotonic() + timeout
        fits = lambda line: key in line and all(line.get(name) == value for name, value in values.items())
        with self.news:
            while True:
                found = next((line for line in self.lines[since:] if fits(line[1])), None)
                if found:
                    return found
                if not self.news.wait(limit - time.monotonic()) and time.monotonic() >= limit:
                    said = "\n".join(json.dumps(line) for _, line in self.lines if "counted" not in line and "counting" not in line)
                    raise Failed(f"gateway {self.number}: {what}: not within {timeout} s; it said:\n{proc.tail(said, 20)}")

    def mark(self):
        with self.news:
            return len(self.lines)

    def asks(self, *words):
        """Says a command whose answer comes at once."""
        since = self.mark()
        self.say(*words)
        return self.until(f"an answer to {words}", "did", since)[1]["did"]

    def view(self):
        since = self.mark()
        self.say("view")
        return self.until("its view", "view", since, timeout=30)[1]["view"]

    def count(self, key, unit):
        with self.news:
            return sum(line.get(key) == unit for _, line in self.lines)

    def send(self, which):
        self.process.send_signal(which)
        self.stopped = which == signal.SIGSTOP

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()


class Group:
    """Three gateways and what they serve."""

    made = 0

    def __init__(self, lab, cluster):
        Group.made += 1
        self.cluster, self.folder, self.name = cluster, lab.new_folder("gateways"), f"group{Group.made}"
        self.conf = cluster.user("gateway")
        self.images = {unit: f"{self.name}.{unit}" for unit in UNITS}
        for image in self.images.values():
            cluster.image(image, 16)
        self.gateways, self.gone = {}, []

    def command(self, number):
        units = [f"{unit}={image}" for unit, image in self.images.items()]
        return [program(), self.conf, "gateway", ceph.POOL, self.name, str(number), *units]

    def start(self, *numbers):
        for number in numbers:
            if number in self.gateways:
                self.gone.append(self.gateways[number])
            self.gateways[number] = Gateway(self, number)

    def alive(self):
        return [gateway for gateway in self.gateways.values() if gateway.process.poll() is None and not gateway.stopped]

    def settled(self, members, timeout=60):
        """Until these are all members and agree on who owns what, and each unit is where they say. Returns the owners."""
        def agreed():
            views = {gateway.number: gateway.view() for gateway in self.alive()}
            told = [view and (view["members"], view["owners"]) for view in views.values()]
            if not told or not told[0] or any(one != told[0] for one in told) or told[0][0] != sorted(members):
                return None
            owners = {int(unit): owner for unit, owner in told[0][1].items()}
            here = {unit: [number for number, view in views.items() if unit in view["here"]] for unit in UNITS}
            return owners if set(owners) == set(UNITS) and all(here[unit] == [owners[unit]] for unit in UNITS) else None
        return proc.wait_until(agreed, timeout, f"gateways {members} agree", 0.1)

    def spread(self, members=(1, 2, 3)):
        """Until each of three gateways owns one unit."""
        owners = self.settled(members)
        if len(set(owners.values())) < 3:
            self.gateways[members[0]].say("spread")
            owners = proc.wait_until(lambda: (found := self.settled(members)) and len(set(found.values())) == 3 and found, 60, "one unit each")
        return owners

    def counts(self):
        """Until all gateways that have a unit increment it; nothing stands still."""
        before = {unit: self.acknowledged(unit) for unit in UNITS}
        proc.wait_until(lambda: all(self.acknowledged(unit) > before[unit] + 3 for unit in UNITS), 60, "each unit is incremented")

    def acknowledged(self, unit):
        return sum(gateway.count("counted", unit) for gateway in [*self.gateways.values(), *self.gone])

    def begun(self, unit):
        return sum(gateway.count("counting", unit) for gateway in [*self.gateways.values(), *self.gone])

    def verify(self):
        """Ends all gateways. Each number is at least what was acknowledged, and at most what was begun."""
        for gateway in self.gateways.values():
            gateway.process.send_signal(signal.SIGCONT)
            gateway.kill()
        # The dead have the images open until they are no watchers any more; reading needs no lock.
        for unit, image in self.images.items():
            path = os.path.join(self.folder, f"unit{unit}")
            self.cluster.rbd("export", f"{ceph.POOL}/{image}", path)
            with open(path, "rb") as file:
                found = int.from_bytes(file.read(8), "big")
            least, most = self.acknowledged(unit), self.begun(unit)
            expect(least <= found <= most, f"unit {unit} was incremented {found} times; {least} were acknowledged, {most} begun")
            print(f"       unit {unit}: {found} increments, {least} acknowledged, {most} begun")


@contextlib.contextmanager
def group(lab, *numbers):
    program()
    made = Group(lab, ceph.cluster(lab))
    try:
        made.start(*(numbers or (1, 2, 3)))
        yield made
        made.verify()
    finally:
        for gateway in made.gateways.values():
            if gateway.process.poll() is None:
                gateway.process.kill()
                gateway.process.wait()


def taken_over(group, lost, owners, marks, start):
    """The units of lost gateways are served by others; the longest time that took."""
    others = [number for number in group.gateways if number not in lost]
    after = group.settled(others)
    longest = 0
    for unit in (unit for unit, owner in owners.items() if owner in lost):
        owner = after[unit]
        served, _ = group.gateways[owner].until(f"serves unit {unit}", "serve", marks[owner], serve=unit)
        longest = max(longest, served - start)
    return longest


def marks(group):
    return {number: gateway.mark() for number, gateway in group.gateways.items()}


def undisturbed(members, what, act):
    """Does what must take no gateway out and move no unit. A busy machine may starve a process for longer than `silent`: so it has three
    tries."""
    for _ in range(3):
        owners = members.settled((1, 2, 3))
        fences = members.gateways[1].view()["fences"]
        act()
        after = members.settled((1, 2, 3))
        members.counts()
        if (after, members.gateways[1].view()["fences"]) == (owners, fences):
            return
    raise Failed(f"{what}: three times a gateway was taken out, or a unit has moved: {owners} became {after}")


def one_owner(lab):
    """Each unit has one owner; a gateway that leaves hands its units over without a fence."""
    with group(lab) as members:
        owners = members.spread()
        members.counts()
        gateway = members.gateways[owners[1]]
        since = gateway.mark()
        gateway.say("leave")
        gateway.until("it has left", "over", since, over="this gateway has left the group")
        rest = [number for number in members.gateways if number != gateway.number]
        gateway.kill()
        members.gone.append(members.gateways.pop(gateway.number))
        members.settled(rest)
        own = gateway.until("its addresses", "addresses", 0)[1]["addresses"]
        fenced = [entry for entry in members.cluster.blocklist() if any(address in entry for address in own)]
        expect(not fenced, f"a gateway left, and was fenced: {fenced}")
        members.counts()


def moves(lab):
    """Planned moves under load: no write fails."""
    with group(lab) as members:
        owners, took = members.spread(), []
        members.counts()
        for _ in range(10):
            source, target = owners[1], owners[1] % 3 + 1
            seen, start = marks(members), time.monotonic()
            members.gateways[source].say("move", 1, target)
            served, _ = members.gateways[target].until("serves unit 1", "serve", seen[target], serve=1)
            took.append(served - start)
            owners = members.settled((1, 2, 3))
            expect(owners[1] == target, f"unit 1 is at {owners[1]}, not {target}")
        members.counts()
        failed = [line for gateway in members.gateways.values() for _, line in gateway.lines if "failed" in line]
        expect(not failed or members.gateways[1].view()["fences"], f"writes failed, and no one was fenced: {failed[:3]}")
        print(f"       10 moves: {1000 * min(took):.0f} to {1000 * max(took):.0f} ms")


def killed(lab):
    """kill -9 of an owner: its units have another one, and its next life comes back after the last one is fenced."""
    with group(lab) as members:
        for _ in range(3):
            owners = members.spread()
            members.counts()
            lost, seen, start = owners[1], marks(members), time.monotonic()
            members.gateways[lost].kill()
            took = taken_over(members, [lost], owners, seen, start)
            members.counts()
            members.start(lost)
            print(f"       gateway {lost} killed: its units are served after {took:.1f} s")


def paused(lab):
    """An owner that is stopped for 3, 12 and 30 s is fenced; what it writes when it wakes is refused, and it begins a new life."""
    with group(lab) as members:
        for seconds in (3, 12, 30):
            owners = members.spread()
            members.counts()
            lost = owners[2]
            owner = members.gateways[lost]
            owner.say("hammer", 2, HAMMERED, 1)
            proc.wait_until(lambda: members.acknowledged(2) and owner.view(), 30, "it writes")
            time.sleep(0.5)
            seen, start = marks(members), time.monotonic()
            owner.send(signal.SIGSTOP)
            try:
                if seconds > 3:
                    took = taken_over(members, [lost], owners, seen, start)
                    after = members.settled([number for number in (1, 2, 3) if number != lost])
                    expect(members.gateways[after[2]].asks("write", 2, HAMMERED, 1 << 40) == 1 << 40, "the next owner writes")
                time.sleep(max(0, start + seconds - time.monotonic()))
            finally:
                owner.send(signal.SIGCONT)
            if seconds == 3:
                # On the edge of `silent`: taken out or not, but one of both.
                after = members.settled((1, 2, 3))
                print(f"       stopped for {seconds} s: unit 2 was at {lost} and is at {after[2]}")
                if owner.view()["life"] == 1:
                    continue
            else:
                _, refused = owner.until("its late write is refused", "hammered", seen[lost], hammered=2)
                expect(refused["errno"] == ESHUTDOWN, f"the late write: {refused}")
                after = members.settled((1, 2, 3))
                found = members.gateways[after[2]].asks("read", 2, HAMMERED)
                expect(found == 1 << 40, f"block {HAMMERED} has {found}, and the next owner wrote {1 << 40}")
                print(f"       stopped for {seconds} s: served after {took:.1f} s; {refused['last']} writes before, none after")


def two_at_once(lab):
    """Two of three gateways die at once: the third serves all."""
    with group(lab) as members:
        owners = members.spread()
        members.counts()
        lost, seen, start = [owners[1], owners[3]], marks(members), time.monotonic()
        for number in lost:
            members.gateways[number].kill()
        took = taken_over(members, lost, owners, seen, start)
        members.counts()
        print(f"       two killed: all units are served after {took:.1f} s")
        members.start(*lost)
        members.spread()


def silent_cluster(lab):
    """A monitor, an OSD, and all OSDs that are stopped take no gateway out; everything goes on afterwards."""
    with group(lab) as members:
        members.spread()
        members.counts()
        for names, seconds in ((["mon.a"], 6), (["osd.0"], 12), (["osd.0", "osd.1", "osd.2"], 5)):
            def stopped():
                with ceph.silent(members.cluster, *names):
                    time.sleep(seconds)
                members.cluster.wait_up()
            undisturbed(members, f"{names} stopped for {seconds} s", stopped)


def all_stopped(lab):
    """All gateways are stopped for longer than `silent`, and go on: no one is taken out, since no one heard Ceph meanwhile."""
    with group(lab) as members:
        members.spread()

        def all_of_them():
            for which, seconds in ((signal.SIGSTOP, 8), (signal.SIGCONT, 0)):
                for gateway in members.gateways.values():
                    gateway.send(which)
                time.sleep(seconds)
        undisturbed(members, "all gateways stopped for 8 s", all_of_them)


def twins(lab):
    """A second daemon by the number of one that lives is refused, and takes nothing from it."""
    with group(lab, 1) as members:
        members.settled((1,))
        first = members.gateways[1]
        members.start(1)
        twin = members.gateways[1]
        _, over = twin.until("it is refused", "over", 0)
        expect("another daemon is this gateway" in over["over"], over)
        twin.kill()
        members.gateways[1] = first
        members.gone = [twin]
        expect(members.settled((1,)) and first.view()["life"] == 1, "the first one goes on")
        members.counts()


def damaged(lab):
    """A record that is damaged ends lives with what to do; done so, the group begins anew."""
    with group(lab, 1, 2) as members:
        members.settled((1, 2))
        path = os.path.join(members.folder, "record")
        rados = lambda *words: proc.run("rados", "-p", ceph.POOL, *words, env=members.cluster.env)
        rados("get", members.name, path)
        with open(path, "r+b") as file:
            file.seek(30)
            file.write(b"\xff\xff")
        seen = marks(members)
        rados("put", members.name, path)
        for number, gateway in members.gateways.items():
            _, over = gateway.until("its life ends", "over", seen[number])
            expect("damaged at byte" in over["over"] and "remove the object" in over["over"], over)
        rados("rm", members.name)
        members.settled((1, 2))
        members.counts()


CASES = [
    ("each unit has one owner, and one that leaves hands its units over", one_owner),
    ("planned moves under load lose nothing and fail nothing", moves),
    ("kill -9 of an owner: another one serves, and it comes back", killed),
    ("an owner that was stopped is fenced, and its late writes are refused", paused),
    ("two gateways that die at once leave the third one everything", two_at_once),
    ("a silent monitor or OSD takes no gateway out", silent_cluster),
    ("gateways that were all stopped go on where they were", all_stopped),
    ("a second daemon by one number is refused", twins),
    ("a damaged record ends lives with advice that works", damaged),
]
