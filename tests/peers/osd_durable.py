"""OSD: what was acknowledged with FUA, or before a FLUSH, is there after kill -9; creates are whole or not at all; full media."""

import contextlib
import os
import random
import struct
import threading

from lab import osd, proc, wire
from lab.osd import U
from lab.osd_session import CHECK_CONDITION, GOOD, Device, check_sense
from lab.report import Failed, Skip, expect
from lab.target import Stag, Unit
from peers.durable import kill_later
from peers.osd_data import ids, new_object, new_partition, read, write

OURS = 0x10000
BYTES = 6000  # Of an object: not a multiple of anything.
WRITERS = 4


def content(object_, version):
    return (struct.pack(">QQ", object_, version) * (BYTES // 16 + 1))[:BYTES]


class Writer(threading.Thread):
    """One session that makes, changes and removes objects of its own, and keeps a book of what was promised.

    `book[id]` = [the version promised, the version sent last, whether its removal was promised, whether it was asked for]"""

    def __init__(self, target, partition, number, seed):
        super().__init__()
        self.partition, self.number = partition, number
        self.chance = random.Random(seed)
        self.book, self.version, self.commands, self.failure = {}, 0, 0, None
        self.session = wire.session(target, f"iqn.2026-01.example.lab:writer{number}", isid=bytes([0x40, 0, 0, 8, number, 0]))
        self.device = Device(self.session)
        self.made = 0

    def run(self):
        try:
            with contextlib.suppress(wire.Closed, OSError):
                while True:
                    self.step()
        except Exception as why:  # The thread that waits says it.
            self.failure = why

    def put(self, action, object_, fua, data_only=False):
        self.version += 1
        entry = self.book.setdefault(object_, [0, 0, False, False])
        entry[1] = self.version
        self.device.good(action, partition=self.partition, object=object_, data=content(object_, self.version), length=BYTES, fua=fua,
                         **({} if data_only else {"set_": [(OURS, 1, struct.pack(">Q", self.version))]}))
        self.commands += 1
        return self.version

    def step(self):
        alive = [object_ for object_, entry in self.book.items() if not entry[3]]
        do = self.chance.random()
        if not alive or do < 0.35:
            object_ = (self.number + 1 << 32) + (self.made << 8) + 0x10000
            self.made += 1
            self.book[object_] = [0, 0, False, False]
            self.book[object_][0] = self.put("CREATE AND WRITE", object_, 1)
        elif do < 0.55:
            object_ = self.chance.choice(alive)
            self.book[object_][0] = self.put("WRITE", object_, 1)
        elif do < 0.70:
            # Several without FUA: the flush behind them promises all.
            some = self.chance.sample(alive, min(3, len(alive)))
            versions = {object_: self.put("WRITE", object_, 0) for object_ in some}
            scope = self.chance.choice(["FLUSH", "FLUSH PARTITION", "FLUSH OSD"])
            if scope == "FLUSH":
                for object_ in some:
                    self.device.good("FLUSH", partition=self.partition, object=object_, scope=0)
            elif scope == "FLUSH PARTITION":
                self.device.good("FLUSH PARTITION", partition=self.partition, scope=2)
            else:
                self.device.good("FLUSH OSD", scope=2)
            for object_, version in versions.items():
                self.book[object_][0] = version
        elif do < 0.80:
            self.version += 1
            object_ = self.chance.choice(alive)
            entry = self.book[object_]
            entry[1] = self.version
            self.device.good("SET ATTRIBUTES", partition=self.partition, object=object_, fua=1, set_=[(OURS, 2, struct.pack(">Q", self.version))])
            self.commands += 1
        elif len(alive) > 5:
            object_ = self.chance.choice(alive)
            self.book[object_][3] = True
            self.device.good("REMOVE", partition=self.partition, object=object_, fua=1)
            self.book[object_][2] = True
            self.commands += 1

    def verify(self, device, listed):
        """Hold what is there against the book."""
        for object_, (promised, sent, gone, asked) in self.book.items():
            there = object_ in listed
            if gone:
                expect(not there, f"object {object_:#x}, whose removal was acknowledged, is there")
                continue
            if promised and not asked:
                expect(there, f"object {object_:#x}, acknowledged at version {promised}, is gone")
            if not there:
                continue
            answer = device.good("READ", partition=self.partition, object=object_, length=BYTES, data_in=BYTES, get=[(OURS, 1), (U + 1, 0x82)])
            found = struct.unpack_from(">QQ", answer.data)
            expect(answer.attributes[U + 1, 0x82] == BYTES.to_bytes(8, "big"), f"object {object_:#x} has {answer.attributes[U + 1, 0x82].hex()} bytes")
            expect(found[0] == object_ and promised <= found[1] <= sent, f"object {object_:#x}: version {found[1]}, promised {promised}, sent {sent}")
            value = answer.attributes[OURS, 1]
            expect(len(value) == 8 and promised <= struct.unpack(">Q", value)[0] <= sent,
                   f"object {object_:#x}: attribute {value.hex()}, promised {promised}, sent {sent}")
            if not promised:
                # A create that nobody heard of is whole if it is there at all.
                expect(answer.data == content(object_, found[1]), f"object {object_:#x} is half of what was created")


def killed(lab, rounds=4):
    """Four sessions load; kill -9; restart; everything promised is there, and the store is sound. Again, on what was left."""
    chance = random.Random(29)
    with lab.serve(Unit(objects=True)) as target:
        with wire.session(target) as session:
            partition = new_partition(Device(session))
            Device(session).good("FLUSH OSD", scope=2)
        books, commands = [], 0
        for round_ in range(rounds):
            writers = [Writer(target, partition, round_ * WRITERS + number, chance.random()) for number in range(WRITERS)]
            killer = threading.Thread(target=kill_later, daemon=True, args=(
                target, chance.uniform(0.2, 0.7), lambda writers=writers: sum(writer.commands for writer in writers) > 80))
            for writer in writers:
                writer.start()
            killer.start()
            for writer in writers:
                writer.join(120)
            killer.join()
            target.process.wait()
            for writer in writers:
                if writer.failure:
                    raise Failed(f"before the kill: {writer.failure}")
                writer.session.close()
                commands += writer.commands
            books += writers
            sound(target)
            target.restart()
            with wire.session(target) as session:
                device = Device(session)
                listed = set(all_ids(device, partition))
                for writer in books:
                    writer.verify(device, listed)
                known = {object_ for writer in books for object_ in writer.book}
                expect(listed <= known, f"objects that nobody made: {[hex(object_) for object_ in listed - known][:5]}")
                device.good("OBJECT STRUCTURE CHECK", partition=0)
                if round_ == rounds - 2:
                    # The next round's beginning is what the check left.
                    expect(len(listed) > 10, f"only {len(listed)} objects: the test tests nothing")
        expect(commands > 200, f"only {commands} commands: the test tests nothing")
        print(f"       {commands} commands acknowledged, {rounds} kills, {len(listed)} objects left")


def all_ids(device, partition):
    """The ids of a partition in a few commands."""
    found, initial = [], 0
    while True:
        answer = device.good("LIST", partition=partition, allocation=60_000, data_in=60_000, initial=initial)
        reply = osd.decode_id_list(answer.data)
        found += reply["entries"]
        if not reply["continuation"]:
            return found
        initial = reply["continuation"]


def sound(target):
    """`stag osd check` finds nothing wrong with a store that nobody serves."""
    proc.run(Stag.binary, "osd", "check", target.units[0].path, timeout=60)


def relaxed(lab):
    """Without FUA and FLUSH nothing is promised; after kill -9 the store is sound all the same, and objects are whole."""
    with lab.serve(Unit(objects=True)) as target:
        with wire.session(target) as session:
            device = Device(session)
            partition = new_partition(device)
            device.good("FLUSH OSD", scope=2)
            for number in range(150):
                object_ = 0x20000 + number
                device.good("CREATE AND WRITE", partition=partition, object=object_, data=content(object_, 1), length=BYTES,
                            set_=[(OURS, 1, b"with it")])
            target.kill()
        sound(target)
        target.restart()
        with wire.session(target) as session:
            device = Device(session)
            left = ids(device, partition)
            for object_ in left:
                answer = device.good("READ", partition=partition, object=object_, length=BYTES, data_in=BYTES, get=[(OURS, 1)])
                expect(answer.data == content(object_, 1) and answer.attributes[OURS, 1] == b"with it", f"object {object_:#x} is half there")
            print(f"       {len(left)} of 150 objects without FUA are there after kill -9")


def clean_end(lab):
    """SIGTERM keeps all, promised or not."""
    with lab.serve(Unit(objects=True)) as target:
        with wire.session(target) as session:
            device = Device(session)
            partition = new_partition(device)
            objects = [new_object(device, partition, set_=[(OURS, 1, bytes([at]))]) for at in range(20)]
            for object_ in objects:
                write(device, partition, object_, content(object_, 1))
        target.stop()
        sound(target)
        target.restart()
        with wire.session(target) as session:
            device = Device(session)
            expect(ids(device, partition) == sorted(objects), "objects after a clean end")
            for object_ in objects:
                expect(read(device, partition, object_, BYTES) == content(object_, 1), f"object {object_:#x} after a clean end")


def full_medium(lab):
    """A file system without room: writes and creates fail with sense, what was acknowledged stays, and with room again it goes on."""
    if os.geteuid() != 0:
        raise Skip("mounting a small file system needs root")
    folder = lab.new_folder("small")
    proc.run("mount", "-t", "tmpfs", "-o", "size=96M", "tmpfs", folder)
    try:
        ballast = os.path.join(folder, "ballast")
        with open(ballast, "wb") as file:
            file.write(bytes(24 << 20))
        with lab.serve(Unit(objects=True, path=os.path.join(folder, "store"))) as target, wire.session(target, timeout=30) as session:
            device = Device(session)
            partition = new_partition(device)
            part = random.Random(4).randbytes(1 << 20)
            written, failed = [], None
            for number in range(120):
                answer = device.run("CREATE AND WRITE", partition=partition, object=0x30000 + number, data=part, length=len(part), fua=1)
                if answer.status != GOOD:
                    failed = answer
                    break
                written.append(0x30000 + number)
            expect(failed is not None, "120 MiB fit into 96 MiB")
            expect(failed.status == CHECK_CONDITION and failed.code[0] in (3, 4, 7), f"a full medium: {failed}")
            check_sense(failed)
            expect(len(written) > 5, f"only {len(written)} MiB fit")
            for object_ in written:
                expect(read(device, partition, object_, 1000, 5000) == part[5000:6000], "what was written before is lost")
            expect(ids(device, partition) == written, "a create that failed left an object")
            os.remove(ballast)
            for object_ in written[:3]:
                device.good("REMOVE", partition=partition, object=object_, fua=1)
            device.good("CREATE AND WRITE", partition=partition, object=0x40000, data=part, length=len(part), fua=1)
            expect(read(device, partition, 0x40000, len(part)) == part, "no write with room again")
            target.check_alive()
            session.close()
            target.stop()
            sound(target)
            target.restart()
    finally:
        proc.run("umount", "-l", folder, ok=None)


CASES = [
    ("kill -9 under creates, writes, attributes, removals of four sessions: nothing acknowledged is lost", killed),
    ("kill -9 without FUA: the store is sound, objects are whole", relaxed),
    ("a clean end keeps everything", clean_end),
    ("a full medium", full_medium),
]
