"""Gateways that act as one: three daemons serve the images of a real cluster, and initiators cannot tell which of them owns a unit.

QEMU, iscsi-test-cu and a second reading of the protocol (`lab/wire.py`) come through all of them; owners are moved, stopped, frozen and
killed under verified I/O.
"""

import contextlib
import json
import os
import random
import re
import signal
import socket
import struct
import subprocess
import threading
import time

from lab import history, proc, tools, wire
from lab import reservations as oracle
from lab.gateways import NUMBERS, Group
from lab.report import Failed, expect
from lab.target import IQN, Chap, Unit
from peers import cu, dashboard, qemu
from peers.api import Api, happened
from peers.metrics import fetch, value

MIB = 1 << 20
OPTIMIZED, NON_OPTIMIZED, UNAVAILABLE = 0, 1, 3
RESERVATION_CONFLICT = 0x18
ALL_TG_PT = 4
RETRIES = 60


def states(daemon, unit=0):
    """REPORT TARGET PORT GROUPS: the state of each group, by its number; and its ports."""
    with wire.session(daemon) as session:
        session.test_unit_ready(lun=unit)
        data = session.run(struct.pack(">BB4xIxx", 0xA3, 0x0A, 1024), 1024, lun=unit)[2]
    length, at, found, ports = struct.unpack(">I", data[:4])[0], 4, {}, {}
    while at < 4 + length:
        state, _, group, _, _, _, count = struct.unpack(">BBHBBBB", data[at:at + 8])
        found[group] = state & 15
        ports[group] = [struct.unpack(">H", data[at + 10 + 4 * port:at + 12 + 4 * port])[0] for port in range(count)]
        at += 8 + 4 * count
    return found, ports


def inquiry(daemon, page, unit=0):
    with wire.session(daemon) as session:
        return session.run(struct.pack(">BBBHB", 0x12, 1, page, 255, 0), 255, lun=unit)[2]


def paths(lab):
    """Each gateway tells all portals; each path leads to the same disk and says which one is optimized."""
    proc.need("iscsi-ls", "qemu-img", "qemu-io")
    with Group(lab, 64, 64, thin=True) as group:
        group.move(group.images[0], 1)
        group.move(group.images[1], 2)
        owners = group.settled()
        expect(list(owners.values()) == [1, 2], f"two units have two owners: {owners}")
        for number, daemon in group.daemons.items():
            listed = proc.run("iscsi-ls", f"iscsi://{daemon.portal}")
            for other in NUMBERS:
                expect(f"127.0.0.1:{group.ports[other]},{other}" in listed, f"gateway {number} tells {other}'s portal: {listed}")
        for unit, image in enumerate(group.images):
            told = {number: states(daemon, unit) for number, daemon in group.daemons.items()}
            wanted = {number: OPTIMIZED if number == owners[image] else NON_OPTIMIZED for number in NUMBERS}
            for number, (found, ports) in told.items():
                expect(found == wanted, f"through {number}: {found}, owner {owners[image]}")
                expect(ports == {number: [number] for number in NUMBERS}, f"relative ports: {ports}")
            pages = [inquiry(daemon, 0x83, unit) for daemon in group.daemons.values()]
            units = [[part for part in designators(page) if part[0] == 0] for page in pages]
            expect(units[0] == units[1] == units[2], "one disk through all gateways")
            serials = {bytes(inquiry(daemon, 0x80, unit)) for daemon in group.daemons.values()}
            expect(len(serials) == 1, f"one serial number: {serials}")
        expect(inquiry(group.daemons[1], 0x83, 0) != inquiry(group.daemons[1], 0x83, 1), "two units are two disks")
        source = os.path.join(lab.new_folder("source"), "raw")
        qemu.random_image(source, 64)
        for unit, image in enumerate(group.images):
            far = group.other(owners[image])
            proc.run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, group.daemons[far].url(unit))
            for daemon in group.daemons.values():
                same = proc.run("qemu-img", "compare", "-f", "raw", "-F", "raw", source, daemon.url(unit))
                expect("identical" in same, same)
                qemu.io(daemon.url(unit), "write -P 9 5M 64k", "read -P 9 5M 64k", "discard 8M 8M", "read -P 0 8M 8M", "flush")
                proc.run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, daemon.url(unit))
        exported = os.path.join(lab.new_folder("export"), "image")
        group.cluster.rbd("export", group.images[0], exported)
        proc.run("cmp", source, exported)


def designators(page):
    """VPD page 83h: (association, type, bytes) of each."""
    at, found = 4, []
    while at < 4 + struct.unpack(">H", page[2:4])[0]:
        length = page[at + 3]
        found.append((page[at + 1] >> 4 & 3, page[at + 1] & 15, bytes(page[at + 4:at + 4 + length])))
        at += 4 + length
    return found


def users(lab):
    """A CHAP user is the same at all gateways: what it registers with ALL_TG_PT at one holds at the others, and for no other initiator."""
    chap = Chap("alice", "a secret of 16 ch")
    with Group(lab, chap=chap) as group:
        session = lambda number, host: wire.session(group.daemons[number], chap=chap, initiator=f"iqn.2026-01.example.lab:{host}")
        group.move(group.images[0], 3)
        with session(1, "mine") as first, session(2, "mine") as second, session(2, "other") as other:
            for one in (first, second, other):
                ready(one)
            expect(reserve(first, 0, new=0xA, aptpl=ALL_TG_PT) == 0, "it registers at all ports")
            expect(reserve(first, 1, key=0xA) == 0, "it reserves")
            for one in (second, other):
                ready(one)
            expect(keys(first)[1] == [0xA] * 3, f"a registration at each gateway: {keys(first)}")
            expect(written(second, 1) == 0, "its session through another gateway is registered")
            expect(written(other, 2) == RESERVATION_CONFLICT, "another initiator's is not")
            group.move(group.images[0], 2)
            for one in (first, second, other):
                ready(one)
            after = [written(one, 3) for one in (first, second, other)]
            expect(after == [0, 0, RESERVATION_CONFLICT], f"so it is after a move: {after}")


def reserve(session, action, key=0, new=0, kind=5, aptpl=0):
    """PERSISTENT RESERVE OUT; its status. Kind 5: Write Exclusive - Registrants Only."""
    cdb = struct.pack(">BBB2xIB", 0x5F, action, kind, 24, 0)
    return session.run(cdb, out=struct.pack(">QQ4xB3x", key, new, aptpl))[0]


def keys(session):
    data = session.run(struct.pack(">BB5xHB", 0x5E, 0, 256, 0), 256)[2]
    generation, length = struct.unpack(">II", data[:8])
    return generation, sorted(struct.unpack(f">{length // 8}Q", data[8:8 + length]))


def written(session, byte):
    """The status of a WRITE of the first block."""
    return session.run(struct.pack(">BBIBHB", 0x2A, 0, 0, 0, 1, 0), out=bytes([byte]) * 512)[0]


def ready(session):
    """Takes pending unit attentions, as long as another gateway may need to take the unit over."""
    answer = None
    for _ in range(RETRIES):
        answer = session.run(struct.pack(">BBIBHB", 0x28, 0, 0, 0, 1, 0), 512)
        if answer[0] == 0:
            return
        time.sleep(0.1)
    raise Failed(f"the unit cannot be read: {answer}")


def reservations(lab):
    """A reservation through one gateway holds at all of them, and outlives its owner, APTPL or not. PREEMPT AND ABORT reaches them all."""
    with Group(lab) as group:
        image = group.images[0]
        owner = group.settled()[image]
        first, second = group.other(owner), group.other(owner, group.other(owner))
        name = "iqn.2026-01.example.lab:host{}".format
        with wire.session(group.daemons[first], initiator=name(1)) as one, wire.session(group.daemons[second], initiator=name(2)) as two, \
                wire.session(group.daemons[owner], initiator=name(3)) as three:
            for session in (one, two, three):
                ready(session)
            expect(reserve(one, 0, new=0x11) == 0, "host 1 registers")
            expect(reserve(one, 1, key=0x11) == 0, "host 1 reserves")
            expect(keys(two) == (1, [0x11]) == keys(three), f"all see the registration: {keys(two)}")
            for session in (two, three):
                expect(written(session, 0) == RESERVATION_CONFLICT, "others may not write")
            expect(written(one, 1) == 0, "the holder may")
            group.move(image, second)
            group.settled()
            ready(one)
            for session in (two, three):
                ready(session)
                expect(written(session, 0) == RESERVATION_CONFLICT, "nor after a move")
            expect(keys(two) == (1, [0x11]), f"the generation too: {keys(two)}")
            expect(reserve(three, 6, new=0x33) == 0, "host 3 registers")
            expect(reserve(three, 5, key=0x33, new=0x11) == 0, "host 3 preempts, and aborts")
            ready(one)
            expect(keys(one)[1] == [0x33], f"host 1 has lost its registration: {keys(one)}")
            expect(written(one, 0) == RESERVATION_CONFLICT, "host 1 may not write any more")
            group.daemons[second].kill()
            left = [number for number in NUMBERS if number != second]
            group.settled(left)
            ready(one)
            expect(written(one, 0) == RESERVATION_CONFLICT, "nor when the owner has died")
            ready(three)
            expect(written(three, 3) == 0, "the holder may")
            expect(keys(three) == (3, [0x33]), f"nothing is lost: {keys(three)}")
        group.daemons[second].restart()
        group.settled()


class Load:
    """Verified I/O of `stag bench` through some gateways, one session each."""

    def __init__(self, group, *through, seconds=20, unit=0):
        daemon = group.daemons[through[0]]
        urls = [group.daemons[number].url(unit) for number in through]
        self.log = os.path.join(daemon.folder, f"load{time.monotonic_ns()}")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [daemon.binary, "bench", *urls, "-p", "randrw", "--bs", "4k", "--depth", "8", "--time", str(seconds), "--verify", "--destroy"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def ends_well(self, aborted=False, timeout=120):
        """Waits for its end, without an error. `aborted`: writes of which nobody knows the outcome may end as ABORTED COMMAND."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = None
        with open(self.log, errors="replace") as file:
            said = file.read()
        errors = [line for line in said.splitlines() if line.startswith("stag: ")]
        unknown = aborted and errors and all("ABORTED COMMAND" in line and "write of" in line for line in errors)
        expect(code == 0 or code == 1 and unknown, f"the load ended with {code}:\n{proc.tail(said, 12)}")
        expect(re.search(r"blocks verified: [1-9]", said), f"nothing was verified:\n{said}")


def moves(lab):
    """A unit goes from gateway to gateway under verified I/O, without an error."""
    with Group(lab) as group:
        image = group.images[0]
        owner = group.settled()[image]
        load = Load(group, group.other(owner), seconds=15)
        for turn in range(9):
            time.sleep(1)
            group.move(image, NUMBERS[turn % 3])
        load.ends_well()
        expect(group.settled()[image] == NUMBERS[8 % 3], "it is where it was moved to")


def ends(lab):
    """An owner that is ended hands its units over; one that is killed or frozen is taken out. Verified I/O through another gateway goes on."""
    with Group(lab) as group:
        image = group.images[0]

        def trial(what, end, back, aborted=True):
            owner = group.settled()[image]
            load = Load(group, group.other(owner), seconds=20)
            time.sleep(3)
            end(group.daemons[owner])
            left = [number for number in NUMBERS if number != owner]
            proc.wait_until(lambda: group.owners(left[0])[image] in left, 30, f"{what}: another gateway owns the unit", 0.05)
            load.ends_well(aborted)
            back(group.daemons[owner])
            group.settled()
        trial("ended", lambda daemon: daemon.stop(), lambda daemon: daemon.restart(), aborted=False)
        trial("killed", lambda daemon: daemon.kill(), lambda daemon: daemon.restart())
        trial("frozen", lambda daemon: daemon.process.send_signal(signal.SIGSTOP),
              lambda daemon: daemon.process.send_signal(signal.SIGCONT))


def late(lab):
    """A WRITE that comes late, over a path that its initiator has given up to write through another one, changes nothing: neither at the
    owner nor at a gateway that forwards, whether the network has delayed it or a gateway was frozen."""
    with Group(lab) as group:
        image = group.images[0]
        cdb = struct.pack(">BBIBHB", 0x2A, 0, 0, 0, 1, 0)
        for turn, (frozen, through_owner) in enumerate([(False, False), (False, True), (True, False), (True, True)]):
            owner = group.settled(NUMBERS)[image]
            path = owner if through_owner else group.other(owner)
            with wire.session(group.daemons[group.other(owner, path)]) as session:
                ready(session)
                given_up = wire.session(group.daemons[path], isid=b"\x40\0\0\2\0\0", ImmediateData="Yes")
                ready(given_up)
                late_write = given_up.command_pdu(cdb, 512, True, given_up.tag(), data=b"\1" * 512)
                if frozen:
                    proc.freeze(group.daemons[path].process)
                    given_up.send(*late_write)
                time.sleep(6)  # What an initiator must wait at least.
                ready(session)
                expect(written(session, 0x20 + turn) == 0, "the WRITE through another gateway")
                if frozen:
                    group.daemons[path].process.send_signal(signal.SIGCONT)
                    group.settled(NUMBERS)
                else:
                    given_up.send(*late_write)
                # Its initiator is out of reach: nothing ends the connection, and nobody answers a ping.
                time.sleep(4)
                ready(session)
                data = session.read(0, 1)
                expect(data == bytes([0x20 + turn]) * 512, f"turn {turn}: a late WRITE has changed the block: {data[:4].hex()}")
                given_up.close()


def conformance(lab):
    """iscsi-test-cu through a gateway that forwards, and with paths through two gateways."""
    proc.need("iscsi-test-cu")
    with Group(lab, 256, thin=True) as group:
        owner = group.settled()[group.images[0]]
        far, farther = group.other(owner), group.other(owner, group.other(owner))
        results = cu.Results()
        target = group.daemons[far]
        for suite in cu.all_tests():
            urls = [target.url(), group.daemons[farther].url()]
            log = os.path.join(target.folder, "iscsi-test-cu.log")
            for of, test, outcome, why in cu.play(f"ALL.{suite}", urls, cu.SUITE_SECONDS, log):
                results.add(f"{of}.{test}", "forwarded", outcome, why)
        failed = {test: results.why[test, "forwarded"] for test, outcomes in results.outcomes.items() if outcomes["forwarded"] == "failed"}
        # Sanitize.Reset needs a unit that is slow on purpose.
        excused = set(cu.ONLY_ON) | {test for test, entry in cu.exceptions().items() if "thin" in entry.get("units", cu.UNITS)}
        failed = {test: why for test, why in failed.items() if test not in excused}
        expect(not failed, f"{len(failed)} of {len(results.outcomes)} failed: " + "\n".join(f"{test}: {why}" for test, why in failed.items()))
        expect(len(results.outcomes) > 200, f"only {len(results.outcomes)} tests ran")


class Hosts:
    """I_T nexuses: sessions of some initiators through all gateways, opened when they are needed."""

    def __init__(self, group, count):
        self.group, self.sessions = group, {}
        self.names = [(host, number) for host in range(count) for number in NUMBERS]

    def session(self, name):
        host, number = name
        if name not in self.sessions:
            self.sessions[name] = wire.session(self.group.daemons[number], initiator=f"iqn.2026-01.example.lab:host{host}")
        return self.sessions[name]

    def run(self, name, cdb, length=0, out=None):
        """What a command ends as, and its data. None: nobody knows, or its gateway has gone."""
        for _ in range(RETRIES * 10):
            try:
                status, sense, data = self.session(name).run(cdb, length, out)
            except (OSError, wire.Closed, Failed):
                if lost := self.sessions.pop(name, None):
                    lost.close()
                return None, b""
            key = history.sense_key(sense) if status == 2 else None
            if status == 0 or status == RESERVATION_CONFLICT:
                return (oracle.CONFLICT if status else oracle.GOOD), data
            if key == history.ILLEGAL_REQUEST:
                return oracle.ILLEGAL, b""
            if key in (history.ABORTED, history.NOT_READY):
                return None, b""
            time.sleep(0 if key == history.UNIT_ATTENTION else 0.05)
        raise Failed(f"{name}: no end of unit attentions and BUSY")

    def out(self, name, action, key, new, kind):
        cdb = struct.pack(">BBB2xIB", 0x5F, action, kind, 24, 0)
        return self.run(name, cdb, out=struct.pack(">QQ8x", key, new))[0]

    def told(self, failed=None):
        """PERSISTENT RESERVE IN by some nexus: generation, keys, and the reservation's key and type. Not through the gateway that has failed:
        a frozen one answers after the patience of a session only."""
        names = [name for name in self.names if name[1] != failed]
        names.sort(key=lambda name: (name not in self.sessions, random.random()))
        # Twice: while this process waited for a frozen gateway it answered no NOP-Ins, and the
        # others dropped its sessions.
        for name in names + names:
            outcomes, answers = zip(*[self.run(name, struct.pack(">BB5xHB", 0x5E, action, 512, 0), 512) for action in (0, 1)])
            if outcomes == (oracle.GOOD, oracle.GOOD):
                generation, length = struct.unpack(">II", answers[0][:8])
                registered = sorted(struct.unpack(f">{length // 8}Q", answers[0][8:8 + length]))
                held = (struct.unpack(">Q", answers[1][8:16])[0], answers[1][21] & 15) if answers[1][7] else None
                return generation, registered, held
        raise Failed("no gateway tells of reservations")


def as_an_oracle_says(lab):
    """Service actions by chance through all gateways, while the unit moves and gateways die and freeze: each ends as in an oracle, and so
    are what PERSISTENT RESERVE IN tells and who may read and write. The state after an action of unknown outcome is one of two."""
    turns = 60 * max(1, int(os.environ.get("STORM", "0")))
    seed = int(os.environ.get("STORM_SEED") or time.time())
    random.seed(seed)
    print(f"  STORM_SEED={seed}", flush=True)
    with Group(lab) as group:
        image, states, unknown = group.images[0], [oracle.State()], 0
        hosts = Hosts(group, 2)
        # Gateway 3 lives; the others fail in turns, in the middle of an action.
        faults = [lambda number: group.move(image, number, through=3), lambda number: group.daemons[number].kill(),
                  lambda number: proc.freeze(group.daemons[number].process)]
        for turn in range(turns):
            timer = None
            if turn % 10 == 9:
                fault, number = faults[turn // 10 % 3], random.choice(NUMBERS[:2])
                timer = threading.Timer(random.random() * 0.03, fault, [number])
                timer.start()
            name, action, kind = random.choice(hosts.names), random.randrange(7), random.choice(oracle.TYPES)
            right = states[0].keys.get(name, 0)
            key, new = (right if random.random() < 0.9 else 0x99), random.choice([0x11, 0x22, 0x33, 0x33, right, 0])
            outcome = hosts.out(name, action, key, new, kind)
            unknown += outcome is None
            after = []
            for state in states:
                says, then = state.after(name, action, key, new, kind)
                after += [then] * (outcome in (None, says)) + [state] * (outcome is None)
            what = f"turn {turn}: {name} {oracle.NAMES[action]} {key:#x} {new:#x} type {kind}: {outcome}"
            expect(after, f"{what}; the oracle says otherwise of {states}")
            if timer:
                timer.join()
            told = hosts.told(number if timer else None)
            states = [state for state in after if state.told() == told]
            expect(states, f"{what}; told {told}; the oracle has {[state.told() for state in after]}")
            name, write = random.choice(hosts.names), random.random() < 0.5
            cdb = struct.pack(">BBIBHB", 0x2A if write else 0x28, 0, 0, 0, 1, 0)
            outcome = hosts.run(name, cdb, 0 if write else 512, bytes(512) if write else None)[0]
            if outcome is not None:
                states = [state for state in states if state.may(name, write) == (outcome == oracle.GOOD)]
                expect(states, f"turn {turn}: {name} {'writes' if write else 'reads'}: {outcome}; {after}")
            if timer and fault is not faults[0]:
                daemon = group.daemons[number]
                if daemon.alive():
                    daemon.process.send_signal(signal.SIGCONT)
                else:
                    daemon.restart()
                group.settled(NUMBERS)
        print(f"  {turns} actions, {unknown} of unknown outcome", flush=True)


def preempted_writers(lab):
    """After PREEMPT AND ABORT has ended GOOD the preempted writer changes nothing, whichever gateways he, the preemptor and the owner have, and
    whether his gateway was frozen."""
    with Group(lab) as group:
        hosts = Hosts(group, 2)
        for turn, freezes in enumerate([False, False, True, True]):
            owner = group.settled(NUMBERS)[group.images[0]]
            # The writer goes through the owner in every second turn.
            through = owner if turn % 2 else group.other(owner)
            writer, preemptor = (0, through), (1, group.other(through))
            for name, key in ((writer, 0xA), (preemptor, 0xB)):
                expect(hosts.out(name, oracle.REGISTER_AND_IGNORE, 0, key, 0) == oracle.GOOD, f"{name} registers")
            expect(hosts.out(preemptor, oracle.RESERVE, 0xB, 0, oracle.WRITE_REGISTRANTS) == oracle.GOOD, "the other reserves")
            ends = []

            def write():
                number, outcome = 0, oracle.GOOD
                while outcome == oracle.GOOD:
                    number += 1
                    outcome = hosts.run(writer, struct.pack(">BBIBHB", 0x2A, 0, 0, 0, 1, 0), out=struct.pack(">Q", number) * 64)[0]
                ends.append((outcome, number))
            thread = threading.Thread(target=write)
            thread.start()
            time.sleep(0.5)
            if freezes:
                proc.freeze(group.daemons[through].process)
            # Where nobody knows its end, since an owner was fenced, it is done once the key is gone.
            while (outcome := hosts.out(preemptor, oracle.PREEMPT_AND_ABORT, 0xB, 0xA, oracle.WRITE_REGISTRANTS)) is None:
                if 0xA not in hosts.told(through if freezes else None)[1]:
                    outcome = oracle.GOOD
                    break
            expect(outcome == oracle.GOOD, f"he preempts: {outcome}")
            read = struct.pack(">BBIBHB", 0x28, 0, 0, 0, 1, 0)
            after = hosts.run(preemptor, read, 512)[1]
            if freezes:
                time.sleep(3)
                group.daemons[through].process.send_signal(signal.SIGCONT)
            # A command that was aborted for another nexus has no answer.
            thread.join(2)
            if thread.is_alive():
                hosts.sessions[writer].socket.shutdown(socket.SHUT_RDWR)
            thread.join()
            group.settled(NUMBERS)
            expect(ends[0][1] > 1, f"the writer wrote: {ends}")
            expect(ends[0][0] != oracle.GOOD, f"he was stopped: {ends}")
            now = hosts.run(preemptor, read, 512)[1]
            expect(len(after) == 512 and now == after, f"turn {turn}: what was {after[:8].hex()} after the preemption is {now[:8].hex()} later")
            expect(hosts.out(preemptor, oracle.CLEAR, 0xB, 0, 0) == oracle.GOOD, "he clears")


def status(daemon):
    return json.loads(proc.run(daemon.binary, "status", "--json", "--control", daemon.control))


def administered(lab):
    """Status, metrics and API of each gateway tell the same owners and sizes. The API plans moves and makes them; a killed owner is told of."""
    with Group(lab, 64, 48, http=True) as group:
        first, second = group.images
        group.move(first, 1)
        group.move(second, 2)
        owners = group.settled()

        def sizes(number):
            units = status(group.daemons[number])["targets"][0]["units"]
            expect({unit["shared"]["image"]: unit["shared"]["owner"] for unit in units} == owners, f"owners through {number}: {units}")
            return [(unit["size"] // MIB, unit["block"]) for unit in units]

        def metric(number, name, **labels):
            return value(fetch(group.http[number])[0], name, **labels)

        def together(name, numbers=NUMBERS):
            time.sleep(1.1)  # Metrics are gathered once a second at most.
            return sum(metric(number, f"stag_gateway_{name}_total") for number in numbers)
        for number in NUMBERS:
            expect(sizes(number) == [(64, 512), (48, 512)], f"sizes through {number}: {sizes(number)}")
            text = fetch(group.http[number])[0]
            expect(value(text, "stag_unit_owner_info", lun="0", gateway="1") == value(text, "stag_unit_owner_info", lun="1", gateway="2") == 1, text)
            expect(all(value(text, "stag_gateway_member_state", gateway=str(member)) == 0 for member in NUMBERS), text)
            expect(value(text, "stag_gateway_info", gateway=str(number)) == 1, text)
            said = proc.run(group.daemons[number].binary, "status", "--control", group.daemons[number].control)
            expect("64M, 512-byte blocks" in said and "owner: gateway 2" in said, said)
            expect("link_up" not in "".join(line for line in text.splitlines() if line[0] != "#"), "nothing is forwarded yet")
        with wire.session(group.daemons[3]) as session:
            ready(session)
            session.write(0, b"\x5a" * 4096)
            expect(together("forwarded_commands", [3]) >= 2 and together("forwarded_commands", [1, 2]) == 0, "commands were forwarded by one")
            expect(metric(3, "stag_gateway_forwarded_bytes_total", direction="write") == 4096, "what was forwarded")
            expect(metric(3, "stag_gateway_link_up", gateway="1") == 1, "by a link")
            # Its owner tells of another size.
            group.cluster.rbd("resize", first, "--size", "96M")
            proc.wait_until(lambda: sizes(3) == [(96, 512), (48, 512)], 60, "the image has grown")
        api = Api(group.http[3], group.token(3, "operate"))
        expect(api.done("GET", "/gateways")["units"] == group.view(3)["units"], "the API tells what `stag gateways` does")
        wanted, before = {"unit": first, "gateway": 3}, together("moves")
        code, fields, plan = api.ask("POST", "/gateways/move?plan=1", wanted)
        expect(code == 200 and not plan["applied"] and [one["what"] for one in plan["plan"]["changes"]] == [f"{first}: from gateway 1 to gateway 3"], plan)
        two = group.daemons[2]
        dry = ("--dry-run", "--control", two.control)
        said = proc.run(two.binary, "move", *dry, first, 3)
        expect(f"{first}: from gateway 1 to gateway 3" in said and "this is what would be done" in said, said)
        said = proc.run(two.binary, "gateways", "spread", *dry)
        expect(said == "nothing to change\n", said)
        expect(group.settled() == owners and together("moves") == before, "the plan has moved it")
        expect(Api(group.http[3], group.token(3, "read")).ask("POST", "/gateways/move", wanted)[0] == 403, "who may only read moves units")
        stream = api.follow()
        done = api.done("POST", "/gateways/move", wanted, **{"If-Match": fields["ETag"]})
        expect(done["applied"] and done["plan"] == plan["plan"], f"{done}")
        owners = group.settled()
        expect(owners == {first: 3, second: 2} and together("moves") == before + 1, f"{owners}")
        told = [one for one in api.done("GET", "/audit") if one["what"] == "POST /api/v1/gateways/move"]
        expect(len(told) == 1 and told[0]["result"] == "done" and told[0]["plan"] == plan["plan"], f"{told}")
        happened(stream, what="owner", image=first, gateway=3)
        expect(api.done("POST", "/gateways/move", wanted)["plan"]["changes"] == [], "it is there already")
        for body, code in [({"unit": first, "gateway": 9}, 409), ({"unit": "rbd/none", "gateway": 1}, 404), ({"unit": first}, 400)]:
            expect(api.ask("POST", "/gateways/move", body)[0] == code, f"{body}")
        api.done("POST", "/gateways/move", {"unit": second, "gateway": 3})
        spread = api.done("POST", "/gateways/spread?plan=1")
        expect(len(spread["plan"]["changes"]) == 1 and set(group.settled().values()) == {3}, f"{spread}")
        api.done("POST", "/gateways/spread")
        owners = proc.wait_until(lambda: (now := group.settled()) and len(set(now.values())) == 2 and now, 30, "the units are spread")
        # The owner of one dies: the others say so.
        lost = next(number for number in owners.values() if number != 3)
        before = together("takeovers", [3]), together("fences", [3])
        group.daemons[lost].kill()
        left = [number for number in NUMBERS if number != lost]
        owners = group.settled(left)
        counted = {name: together(name, left) for name in ("takeovers", "fences")}
        expect(counted["takeovers"] >= 1 and counted["fences"] >= 1, f"{counted}, of gateway 3 {before} before")
        for number in left:
            expect(metric(number, "stag_gateway_member_state", gateway=str(lost)) == 2, f"gateway {lost} is missing")
            said = proc.run(group.daemons[number].binary, "status", "--check", "--control", group.daemons[number].control, ok=None)
            expect(said.code == 1 and f"WARNING: gateway {lost} is not in the group" in said, f"{said.code}: {said}")
            sizes(number)
        expect(api.done("GET", "/gateways")["fences"][0]["gateway"] == lost, "the fence is told")
        happened(stream, what="gateway-out", gateway=lost, fenced=True)
        group.daemons[lost].restart()
        group.settled(NUMBERS)
        happened(stream, what="gateway-in", gateway=lost)
        said = proc.run(group.daemons[3].binary, "status", "--check", "--control", group.daemons[3].control)
        expect(said.startswith("OK"), f"all are there again: {said}")


def changed_units(lab):
    """`stag apply` at one gateway after the other brings images in and takes them out, while a unit that was there before is written."""
    with Group(lab, 32) as group:
        first, second = group.images[0], group.cluster.image(f"{group.name}.second", 48)

        def apply(number, *images):
            daemon = group.daemons[number]
            daemon.units = [Unit(path=f"rbd:{image}") for image in images]
            daemon.command()  # It writes the file.
            return proc.run(daemon.binary, "apply", "--control", daemon.control, os.path.join(daemon.folder, "stag.toml"))

        def block(number, unit):
            with wire.session(group.daemons[number]) as session:
                session.test_unit_ready(lun=unit)
                for _ in range(RETRIES):
                    status, _, data = session.run(struct.pack(">BBIBHB", 0x28, 0, 0, 0, 1, 0), 512, lun=unit)[:3]
                    if status == 0:
                        return data[:1]
                    time.sleep(0.1)
            raise Failed(f"unit {unit} cannot be read through gateway {number}: {status}")
        group.move(first, 1)
        group.settled()
        with wire.session(group.daemons[3], initiator="iqn.2026-01.example.lab:writer") as session:
            ready(session)
            written(session, 7)
            # The gateway that knows it first owns it, though it has as many as others.
            apply(2, first, second)
            group.images.append(second)
            proc.wait_until(lambda: group.view(2)["units"] and group.owners(2) == {first: 1, second: 2}, 30, "gateway 2 owns the new unit")
            with wire.session(group.daemons[2]) as there:
                there.test_unit_ready(lun=1)
                proc.wait_until(lambda: there.run(struct.pack(">BBIBHB", 0x2A, 0, 0, 0, 1, 0), out=b"\x55" * 512, lun=1)[0] == 0, 30, "it is written")
            expect(written(session, 8) == 0, "the other unit goes on")
            # A gateway that does not know it gives it to the next one, until one does.
            two = group.daemons[2]
            proc.run(two.binary, "move", "--control", two.control, second, 3, ok=None)  # It is there for a moment.
            proc.wait_until(lambda: group.owners(2) == {first: 1, second: 2}, 30, "the unit has come back")
            expect(block(2, 1) == b"\x55", "it is served again")
            for number in (1, 3):
                apply(number, first, second)
                expect(block(number, 1) == b"\x55", f"the new unit through gateway {number}")
            group.settled()
            found, ports = states(group.daemons[3], 1)
            expect(found == {1: NON_OPTIMIZED, 2: OPTIMIZED, 3: NON_OPTIMIZED}, f"{found}, {ports}")
            group.move(second, 1)
            group.settled()
            expect(block(2, 1) == b"\x55", "it has moved")
            # Taken out at any gateway, it is taken out.
            said = apply(3, first)
            expect(f"- image {second} of the group\n    its initiators lose it at all gateways" in said, said)
            proc.wait_until(lambda: second not in group.owners(1), 30, "the group serves it no more")
            proc.wait_until(lambda: not group.cluster.watchers(second), 30, "its image is closed")
            for number in (1, 2):
                apply(number, first)
            group.images.remove(second)
            group.settled()
            # It comes back, as it was; while one gateway alone knows it, it stays at no other one.
            group.images.append(second)
            apply(1, first, second)
            proc.wait_until(lambda: group.owners(1) == {first: 1, second: 1}, 30, "the unit is back")
            expect(block(1, 1) == b"\x55", "it is served again")
            proc.run(group.daemons[1].binary, "move", "--control", group.daemons[1].control, second, 3, ok=None)
            proc.wait_until(lambda: group.owners(1) == {first: 1, second: 1}, 30, "the unit has come back")
            for number in (1, 2, 3):
                apply(number, first, second)
                expect(block(number, 1) == b"\x55", f"the unit is back through gateway {number}")
            expect(group.settled() == {first: 1, second: 1}, f"{group.owners(1)}")
            expect(written(session, 9) == 0, "the other unit goes on")
        apply(2, second)
        proc.wait_until(lambda: first not in group.owners(3), 30, "a unit of another gateway is taken out")


def pages(lab):
    """The page of the group in a browser: a unit is moved and all are spread, each after its plan; axe finds nothing, the console is empty."""
    axe = tools.axe()
    with Group(lab, 32, 32, http=True) as group:
        first, second = group.images
        for image in group.images:
            group.move(image, 1)
        group.settled()
        token = group.token(2, "operate")
        for width, dark in dashboard.WINDOWS:
            with contextlib.closing(dashboard.Browser(f"http://127.0.0.1:{group.http[2]}", width=width, dark=dark)) as browser:
                browser.log_in(token)
                for path in ["/gateways", f"/change/move?unit={first}", "/change/spread"]:
                    browser.go(path)
                    found = browser.run(axe + "; return axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']}).then(said => said.violations)")
                    expect(not found, f"{path} at {width} px: {[(one['id'], [node['html'] for node in one['nodes']]) for one in found]}")
                    wide = browser.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
                    expect(wide <= 0, f"{path} is {wide} px too wide at {width} px")
                expect(not browser.console(), f"{browser.console()}")
        with contextlib.closing(dashboard.Browser(f"http://127.0.0.1:{group.http[2]}", script=False)) as browser:
            browser.log_in(token)
            browser.go("/gateways")
            said = browser.text()
            expect(first in said and second in said and "serving, this one" in said, said)
            browser.follow(browser.one(f"a[aria-label='Move {first}']"))
            browser.click("option[value='2']")
            browser.press("Show what would change")
            expect(f"{first}: from gateway 1 to gateway 2" in browser.text(), browser.text()[:500])
            expect(group.settled()[first] == 1, "the plan has moved it")
            browser.press("Move it")
            expect("It has been done" in browser.text() and group.settled() == {first: 2, second: 1}, browser.text()[:500])
            group.move(first, 1)
            group.settled()
            browser.go("/gateways")
            browser.press("Spread the units")
            browser.press("Show what would change")
            expect("from gateway 1 to gateway 2" in browser.text(), browser.text()[:500])
            browser.press("Spread them")
            expect("It has been done" in browser.text(), browser.text()[:500])
            proc.wait_until(lambda: set(group.settled().values()) == {1, 2}, 30, "the units are spread")
            browser.go("/targets/" + IQN + "/units/0")
            expect("OWNER" in browser.text().upper() and "gateway" in browser.text(), browser.text()[:500])


CASES = [("three gateways show one disk, and forward", paths),
         ("reservations hold at all gateways", reservations),
         ("reservations by chance end as an oracle says, while gateways fail", as_an_oracle_says),
         ("a preempted writer changes nothing", preempted_writers),
         ("a CHAP user is the same at all gateways", users),
         ("units move under load without an error", moves),
         ("owners end, die and freeze under load", ends),
         ("a late write over a path that was given up changes nothing", late),
         ("status, metrics and the API tell of the group, and move units", administered),
         ("images come and go by stag apply", changed_units),
         ("the page of the group moves units and spreads them", pages),
         ("iscsi-test-cu through other gateways than the owner", conformance)]
