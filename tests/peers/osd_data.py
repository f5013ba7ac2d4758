"""OSD: partitions and objects made, written, read, listed, removed, by each form of the CDB; and the errors of it."""

import random
import struct

from lab import iser, osd, wire
from lab.osd import CURRENT_COMMAND, R, U
from lab.osd_session import CHECK_CONDITION, GOOD, Device, Request, check_sense, read_attribute
from lab.report import expect
from lab.target import Unit

FORMS = (236, 224, 200)
FIRST = osd.FIRST_ID


def number(value):
    return int.from_bytes(value, "big")


def created(answer):
    """The ids that the Current Command page tells: (partition, object)."""
    found = answer.attributes
    return number(found[CURRENT_COMMAND, 3]), number(found[CURRENT_COMMAND, 4])


IDS = [(CURRENT_COMMAND, 3), (CURRENT_COMMAND, 4)]


def new_partition(device):
    """A partition of the target's choice."""
    answer = device.good("CREATE PARTITION", partition=0, get=IDS)
    return created(answer)[0]


def new_object(device, partition, **what):
    return created(device.good("CREATE", partition=partition, object=0, count=1, get=IDS, **what))[1]


def write(device, partition, object_, data, start=0, **what):
    return device.good("WRITE", partition=partition, object=object_, data=data, length=len(data), start=start, **what)


def read(device, partition, object_, length, start=0, **what):
    return device.good("READ", partition=partition, object=object_, data_in=length, length=length, start=start, **what).data


def length_of(device, partition, object_):
    return number(read_attribute(device, partition, object_, U + 1, 0x82))


def ids(device, partition, action="LIST", **what):
    """All ids that a list has, taken in pieces that are told to be continued."""
    found, initial, list_id = [], 0, 0
    for _ in range(1000):
        answer = device.good(action, partition=partition, allocation=24 + 8 * 7, data_in=24 + 8 * 7, initial=initial, list_id=list_id, **what)
        reply = osd.decode_id_list(answer.data, osd.VERSIONS[device.version].generation)
        found += reply["entries"]
        if not reply["continuation"]:
            expect(not reply["list_id"], f"a list that is complete has the list identifier {reply['list_id']}")
            return found
        expect(reply["entries"] and reply["continuation"] > reply["entries"][-1], f"a list does not get on: {reply}")
        initial, list_id = reply["continuation"], reply["list_id"]
    raise AssertionError("a list of a few objects has no end")


class Bench:
    """A unit that is served, a session with it over TCP (`wire`) or iSER (`iser`), and a device that speaks one form of CDB."""

    def __init__(self, lab, version=236, way=wire, **unit):
        self.lab, self.version, self.way, self.unit = lab, version, way, unit

    def __enter__(self):
        self.serving = self.lab.serve(Unit(objects=True, **self.unit))
        self.target = self.serving.__enter__()
        self.session = self.way.session(self.target)
        device = Device(self.session, self.version)
        device.target = self.target
        return device

    def __exit__(self, kind, value, trace):
        self.session.close()
        return self.serving.__exit__(kind, value, trace)


def in_all_forms(function):
    """A case that runs once for each form of the CDB, on one unit."""
    def case(lab):
        with Bench(lab) as device:
            for version in FORMS:
                function(Device(device.session, version))
    case.__doc__ = function.__doc__
    return case


def over_iser(lab):
    """The same over iSER: buffers of both directions advertised with one command, extended CDBs in the Send's header segments."""
    if lab.kind != "stag":
        return
    with Bench(lab, way=iser) as device:
        for version in FORMS:
            for function in (partitions, objects, data):
                function(Device(device.session, version))
        partition = new_partition(device)
        object_ = new_object(device, partition)
        body = random.Random(5).randbytes(300_000)
        write(device, partition, object_, body, set_=[(0x10000, 1, b"with it")])
        answer = device.good("READ", partition=partition, object=object_, data_in=len(body), length=len(body), get=[(0x10000, 1), (U + 1, 0x82)])
        expect(answer.data == body, "300,000 bytes read over iSER")
        expect(answer.attributes[0x10000, 1] == b"with it" and number(answer.attributes[U + 1, 0x82]) == len(body), "attributes behind them")


def partitions(device):
    """Partitions: assigned and requested ids, duplicates, lists, removal."""
    before = ids(device, 0)
    first = new_partition(device)
    expect(first >= FIRST, f"partition {first:#x} is below {FIRST:#x}")
    wanted = 0x7FFF_0000_0000 + device.version
    answer = device.good("CREATE PARTITION", partition=wanted, get=IDS)
    expect(created(answer) == (wanted, 0), f"asked for {wanted:#x}, got {created(answer)}")
    device.fails("CREATE PARTITION", 5, 0x2400, 16, partition=wanted)
    for low in (1, FIRST - 1):
        device.fails("CREATE PARTITION", 5, 0x2400, 16, partition=low)
    expect(ids(device, 0) == sorted([*before, first, wanted]), f"LIST of partitions: {[hex(entry) for entry in ids(device, 0)]}")
    object_ = new_object(device, wanted)
    device.fails("REMOVE PARTITION", 5, 0x2C0A, partition=wanted, **({"remove_scope": 0} if device.version != 200 else {}))
    if device.version == 200:
        device.good("REMOVE", partition=wanted, object=object_)
        device.good("REMOVE PARTITION", partition=wanted)
    else:
        device.good("REMOVE PARTITION", partition=wanted, remove_scope=1)
    device.good("REMOVE PARTITION", partition=first)
    device.fails("REMOVE PARTITION", 5, 0x2400, 16, partition=first)
    device.fails("READ", 5, 0x2400, partition=wanted, object=object_, length=1, data_in=1)
    expect(ids(device, 0) == before, "removed partitions are listed")


def objects(device):
    """Objects: assigned, requested and many at once; duplicates; what is refused leaves nothing."""
    partition = new_partition(device)
    one = new_object(device, partition)
    expect(one >= FIRST, f"object {one:#x} is below {FIRST:#x}")
    answer = device.good("CREATE", partition=partition, object=0x1234_5678_9ABC, count=1,
                         get=[(CURRENT_COMMAND, 2), *IDS])
    expect(created(answer) == (partition, 0x1234_5678_9ABC), f"the Current Command page says {created(answer)}")
    expect(answer.attributes[CURRENT_COMMAND, 2] == bytes([osd.USER]), f"object type {answer.attributes[CURRENT_COMMAND, 2]}")
    device.fails("CREATE", 5, 0x2400, 24, partition=partition, object=0x1234_5678_9ABC, count=1)
    device.fails("CREATE", 5, 0x2400, 24, partition=partition, object=FIRST - 1, count=1)
    device.fails("CREATE", 5, 0x2400, 16, partition=partition + 1000, object=0, count=1)
    device.fails("CREATE", 5, 0x2400, partition=partition, object=0x2000_0000, count=2)
    device.fails("CREATE", 5, 0x2400, 16, partition=0, object=0, count=1)
    many = device.good("CREATE", partition=partition, object=0, count=20, get=IDS).objects
    highest = max(many)
    expect(sorted(many) == list(range(highest - 19, highest + 1)), f"twenty objects: {[hex(one) for one in many]}")
    for found in many.values():
        expect([number(found[one]) for one in IDS] == [partition, highest], f"the Current Command page of twenty: {found}")
    listed = ids(device, partition)
    expect(len(listed) == 22 and listed == sorted(set(listed)) and one in listed and 0x1234_5678_9ABC in listed,
           f"LIST: {[hex(entry) for entry in listed]}")
    expect(highest in listed, f"the highest of twenty, {highest:#x}, is not listed")
    # A create whose attribute step fails is undone: attribute 1 of the information page cannot be set.
    device.fails("CREATE", 5, 0x2600, partition=partition, object=0x55_0000, count=1, set_=[(U + 1, 1, bytes(8))])
    expect(ids(device, partition) == listed, "a create that failed left an object")
    for object_ in listed[:5]:
        device.good("REMOVE", partition=partition, object=object_)
        device.fails("REMOVE", 5, 0x2400, 24, partition=partition, object=object_)
        device.fails("READ", 5, 0x2400, 24, partition=partition, object=object_, length=8, data_in=8)
    expect(ids(device, partition) == listed[5:], "LIST after removals")
    # A list that begins at an id.
    answer = device.good("LIST", partition=partition, allocation=1000, data_in=1000, initial=listed[7])
    expect(osd.decode_id_list(answer.data, osd.VERSIONS[device.version].generation)["entries"] == listed[7:], "LIST from an initial id")
    # Its additional length is that of the whole list, however little is asked for.
    answer = device.good("LIST", partition=partition, allocation=8, data_in=8)
    expect(number(answer.data) >= 16, f"additional length {number(answer.data)}")


def data(device):
    """WRITE, READ, APPEND, CREATE AND WRITE, lengths, holes and short reads, against bytes in memory."""
    partition = new_partition(device)
    object_ = new_object(device, partition)
    expect(length_of(device, partition, object_) == 0, "a new object is not empty")
    write(device, partition, object_, b"hello, objects")
    expect(read(device, partition, object_, 14) == b"hello, objects", "READ of what was written")
    write(device, partition, object_, b"far", 100_000)
    expect(length_of(device, partition, object_) == 100_003, "the logical length after a write behind the end")
    whole = read(device, partition, object_, 100_003)
    expect(whole == b"hello, objects" + bytes(100_000 - 14) + b"far", "what was never written is not zeros")
    # A read over the end gives what is there and says how much (3B17h).
    answer = device.fails("READ", 1, 0x3B17, partition=partition, object=object_, start=100_000, length=50, data_in=50)
    expect(answer.everything[:3] == b"far" and answer.sense.get("information") == 3, f"a short read: {answer.sense}, {answer.everything[:8]}")
    start = 40 if device.version != 200 else 44
    device.fails("READ", 5, 0x2400, start, partition=partition, object=object_, start=200_000, length=50, data_in=50)
    answer = device.good("APPEND", partition=partition, object=object_, data=b"tail", length=4, get=[(CURRENT_COMMAND, 5)])
    expect(number(answer.attributes[CURRENT_COMMAND, 5]) == 100_003, "the address of an append")
    expect(read(device, partition, object_, 7, 100_000) == b"fartail", "READ after APPEND")
    answer = device.good("CREATE AND WRITE", partition=partition, object=0, data=b"both", length=4, start=6, get=IDS)
    other = created(answer)[1]
    expect(read(device, partition, other, 10) == bytes(6) + b"both", "READ after CREATE AND WRITE")
    device.fails("CREATE AND WRITE", 5, 0x2400, 24, partition=partition, object=other, data=b"x", length=1)
    device.fails("WRITE", 5, 0x2400, 24, partition=partition, object=other + 12345, data=b"x", length=1)
    device.good("SET ATTRIBUTES", partition=partition, object=other, set_=[(U + 1, 0x82, (5).to_bytes(8, "big"))])
    device.good("SET ATTRIBUTES", partition=partition, object=other, set_=[(U + 1, 0x82, (10).to_bytes(8, "big"))])
    expect(read(device, partition, other, 10) == bytes(10), "what was cut off has come back")
    # The end of the address space.
    device.fails("WRITE", 5, 0x2400, partition=partition, object=other, data=b"xy", length=2, start=(1 << 64) - 1)
    for scope in (0, 1, 2):
        device.good("FLUSH", partition=partition, object=object_, scope=scope, length=10, start=0)
        device.good("FLUSH PARTITION", partition=partition, scope=scope)
        device.good("FLUSH OSD", scope=scope)
    for fua, dpo in ((1, 0), (1, 1), (0, 1)):
        write(device, partition, object_, b"fua", 1, fua=fua, dpo=dpo)
    expect(read(device, partition, object_, 5) == b"hfuao", "READ after writes with FUA")


def punch_and_clear(lab):
    """PUNCH and CLEAR, which OSD-1 has not."""
    with Bench(lab) as device:
        partition = new_partition(device)
        object_ = new_object(device, partition)
        write(device, partition, object_, bytes(range(100)))
        device.good("PUNCH", partition=partition, object=object_, start=10, length=20)
        want = bytes(range(10)) + bytes(range(30, 100))
        expect(length_of(device, partition, object_) == 80, "the length after PUNCH")
        expect(read(device, partition, object_, 80) == want, "READ after PUNCH")
        device.fails("PUNCH", 5, 0x2400, 40, partition=partition, object=object_, start=81, length=1)
        device.good("PUNCH", partition=partition, object=object_, start=70, length=1000)
        expect(length_of(device, partition, object_) == 70, "PUNCH over the end cuts the object")
        device.good("CLEAR", partition=partition, object=object_, start=5, length=10)
        expect(read(device, partition, object_, 70) == want[:5] + bytes(10) + want[15:70], "READ after CLEAR")
        device.good("CLEAR", partition=partition, object=object_, start=60, length=100)
        expect(length_of(device, partition, object_) == 160, "CLEAR over the end extends the object")
        expect(read(device, partition, object_, 100, 60) == bytes(100), "what CLEAR extended is not zeros")
        for action in ("PUNCH", "CLEAR"):
            device.fails(action, 5, 0x2400, 24, partition=partition, object=object_ + 1000, start=0, length=1)


def against_a_model(lab):
    """Hundreds of writes, appends, punches, clears, truncations and reads of several objects, beside bytes in memory."""
    chance = random.Random(17)
    with Bench(lab) as device:
        partition = new_partition(device)
        model = {}
        for step in range(400):
            do = chance.random()
            if not model or do < 0.05 and len(model) < 6:
                model[new_object(device, partition)] = bytearray()
                continue
            object_ = chance.choice(sorted(model))
            have = model[object_]
            what = {"partition": partition, "object": object_}
            start = chance.randrange(len(have) + 1)
            length = chance.choice([1, 7, 100, 4096, 5000, 40_000])
            part = chance.randbytes(length)
            if do < 0.40:
                unit = chance.choice([1, 4096])
                start = chance.randrange(len(have) + 10_000) // unit * unit
                write(device, partition, object_, part, start)
                have.extend(bytes(max(0, start + length - len(have))))
                have[start:start + length] = part
            elif do < 0.50:
                answer = device.good("APPEND", **what, data=part, length=length, get=[(CURRENT_COMMAND, 5)])
                expect(number(answer.attributes[CURRENT_COMMAND, 5]) == len(have), f"step {step}: the address of an append")
                have += part
            elif do < 0.58:
                device.good("PUNCH", **what, start=start, length=length)
                del have[start:start + length]
            elif do < 0.66:
                device.good("CLEAR", **what, start=start, length=length)
                have.extend(bytes(max(0, start + length - len(have))))
                have[start:start + length] = bytes(length)
            elif do < 0.72:
                device.good("SET ATTRIBUTES", **what, set_=[(U + 1, 0x82, start.to_bytes(8, "big"))])
                del have[start:]
            elif do < 0.76:
                pieces = sorted(chance.sample(range(0, 50_000, 500), 5))
                lengths = [chance.randrange(1, 400) for _ in pieces]
                body = chance.randbytes(sum(lengths))
                device.good("WRITE", **what, data=body, length=len(body), pieces=[osd.scatter_gather(list(zip(pieces, lengths)))])
                at = 0
                for start, length in zip(pieces, lengths):
                    have.extend(bytes(max(0, start + length - len(have))))
                    have[start:start + length] = body[at:at + length]
                    at += length
            elif do < 0.80 and len(model) > 2:
                device.good("REMOVE", **what)
                del model[object_]
                continue
            elif have:
                start = chance.randrange(len(have))
                length = min(length, len(have) - start)
                expect(read(device, partition, object_, length, start) == have[start:start + length], f"step {step}: READ of {length} at {start}")
        expect(ids(device, partition) == sorted(model), "LIST at the end")
        for object_, have in model.items():
            expect(length_of(device, partition, object_) == len(have), f"the length of {object_:#x}")
            if have:
                expect(read(device, partition, object_, len(have)) == have, f"all of {object_:#x}")


def scatter_gather(lab):
    """Several ranges of an object in one command, both ways, and continuations that are wrong."""
    with Bench(lab) as device:
        partition = new_partition(device)
        object_ = new_object(device, partition)
        what = {"partition": partition, "object": object_}
        ranges = [(1000, 100), (0, 50), (70_000, 3)]
        body = random.Random(1).randbytes(153)
        device.good("WRITE", **what, data=body, length=153, pieces=[osd.scatter_gather(ranges)], fua=1)
        expect(length_of(device, partition, object_) == 70_003, "the length after a scattered write")
        want = bytearray(70_003)
        want[1000:1100], want[:50], want[70_000:] = body[:100], body[100:150], body[150:]
        expect(read(device, partition, object_, 70_003) == want, "READ after a scattered write")
        answer = device.good("READ", **what, length=153, data_in=153, pieces=[osd.scatter_gather(ranges)])
        expect(answer.data == body, "a gathering READ")
        answer = device.good("READ", **what, length=153, data_in=153, pieces=[osd.scatter_gather(ranges)], get=[(U + 1, 0x82)])
        expect(answer.data == body and number(answer.attributes[U + 1, 0x82]) == 70_003, "a gathering READ with attributes")
        # Wrong in one way each; nothing of it is done.
        good = osd.continuation("WRITE", [osd.scatter_gather([(0, 8)])], end=False)
        for wrong, why in (
            (b"\2" + good[1:], "another format"),
            (good[:2] + b"\x88\x85" + good[4:], "another service action"),
            (good[:40], "no descriptor"),
            (good[:40] + struct.pack(">HxBI", 1, 0, 1 << 31) + good[48:], "a descriptor longer than the segment"),
            (good[:40] + struct.pack(">HxBI", 1, 3, 16) + good[48:], "padding that does not fit"),
            (good[:40] + struct.pack(">HxBI", 0x77, 0, 16) + good[48:], "an unknown descriptor"),
            (good[:40] + struct.pack(">HxBI", 1, 0, 8) + good[48:56], "half a range"),
        ):
            answer = device.run("WRITE", **what, data=wrong + b"evil-run", length=8, continuation=len(wrong))
            expect(answer.status == CHECK_CONDITION and answer.code[0] == 5, f"{why}: {answer}")
            check_sense(answer)
        answer = device.run("WRITE", **what, data=good, length=8, continuation=1 << 20)
        expect(answer.status == CHECK_CONDITION and answer.code[0] == 5, f"a continuation longer than Data-Out: {answer}")
        expect(read(device, partition, object_, 70_003) == want, "a refused write has written")


def isolation(lab):
    """Levels that the root page names are taken, others refused."""
    with Bench(lab) as device:
        partition = new_partition(device)
        object_ = new_object(device, partition)
        supported = read_attribute(device, 0, 0, R + 1, 0x111)
        expect(supported and len(supported) == 32, f"supported isolation: {supported}")
        default = read_attribute(device, 0, 0, R + 1, 0x110)
        expect(default and len(default) == 1, f"default isolation: {default}")
        taken = []
        for level in range(8):
            answer = device.run("WRITE", partition=partition, object=object_, data=b"x", length=1, isolation=level)
            if answer.status == GOOD:
                taken.append(level)
            else:
                expect(answer.code == (5, 0x2400) and answer.sense.get("field") == 10, f"isolation {level}: {answer}")
        expect({0, 1, 2, 4, 5} <= set(taken), f"isolation levels that are taken: {taken}")
        # A bit for each, that of level 0 the highest.
        told = [level for level in range(8) if supported[0] & 0x80 >> level]
        expect(told == [level for level in taken if level], f"isolation levels that the root tells of: {told}, taken: {taken}")
        expect(3 not in taken and 6 not in taken, f"reserved levels are taken: {taken}")


def transport(lab):
    """Either order of the header segments; residuals of both directions, each in its own field."""
    with Bench(lab) as device:
        partition = new_partition(device)
        object_ = new_object(device, partition)
        write(device, partition, object_, b"x" * 1000)
        for first in ("cdb", "length"):
            request = Request("GET ATTRIBUTES", partition=partition, object=object_, get=[(U + 1, 0x82)], room=1000)
            answer = device.send(request, first=first)
            expect(answer.status == GOOD and number(answer.attributes[U + 1, 0x82]) == 1000, f"{first} first: {answer}")
            # A list of one entry: 8 + 24 bytes of 1000 are there.
            expect(len(answer.everything) + (answer.read_residual if answer.flags & 0x08 else 0) == 1000,
                   f"bidirectional residual {answer.read_residual}, flags {answer.flags:#x}, {len(answer.everything)} bytes in")
            expect(not answer.flags & 0x16, f"flags {answer.flags:#x}: the write side is told a residual that it has not")
        # Less room than is asked for: the length of the list stays true.
        request = Request("GET ATTRIBUTES", partition=partition, object=object_, get=[(U + 1, 0x82), (U + 1, 1), (U + 1, 2)], room=40)
        answer = device.send(request)
        expect(answer.status == GOOD and number(answer.everything[4:8]) == 72, f"a list cut off says it has {answer.everything[:8].hex()}")
        # A read by a command that only reads.
        answer = device.good("READ", partition=partition, object=object_, length=1000, data_in=1000)
        expect(answer.data == b"x" * 1000 and not answer.flags & 0x1E, f"a plain READ: {answer}")


def wrong_commands(lab):
    """CDBs that are no command: refused with sense, and the unit goes on."""
    with Bench(lab) as device:
        partition = new_partition(device)
        object_ = new_object(device, partition)
        good = Request("READ", partition=partition, object=object_, length=1, data_in=1)

        def refused(cdb, why, codes=((5, 0x2000), (5, 0x2400))):
            answer = device.send(good, cdb=bytes(cdb))
            expect(answer.status == CHECK_CONDITION and answer.code in codes, f"{why}: {answer}")

        cdb = bytearray(good.cdb)
        for action in (0x8804, 0x8800, 0x88FF, 0x0001, 0x8F7B, 0x888D):
            cdb[8:10] = action.to_bytes(2, "big")
            refused(cdb, f"service action {action:04x}")
        cdb = bytearray(good.cdb)
        for length in (0, 4, 100, 220, 255):
            cdb[7] = length
            refused(cdb, f"additional length {length}")
        refused(good.cdb[:100], "a CDB of 100 bytes that says 228 follow")
        refused(good.cdb[:16], "a CDB of 16 bytes that says 228 follow")
        # OSD-1 has no PUNCH.
        cdb = bytearray(osd.encode({"version": 200, "action": "READ", "partition": partition, "object": object_}))
        cdb[8:10] = b"\x88\x04"
        refused(cdb, "PUNCH as OSD-1")
        chance = random.Random(99)
        for _ in range(300):
            action = chance.choice([name for name in osd.ACTIONS if name not in ("FORMAT OSD", "SET MASTER KEY", "SET KEY")])
            request = Request(action, **({"partition": partition} if "partition" in osd.ACTIONS[action][2] else {}),
                              data=chance.randbytes(200), data_in=500)
            cdb = bytearray(request.cdb)
            for _ in range(chance.randrange(1, 6)):
                at = chance.choice([*range(10, 80), *range(7, 236)])
                if at not in (8, 9):
                    cdb[at] = chance.choice([0, 1, 0x10, 0x20, 0x30, 0x7F, 0x80, 0xFF])
            device.send(request, cdb=bytes(cdb))
        device.session.test_unit_ready()
        after = new_partition(device)
        expect(read(device, after, created(device.good("CREATE AND WRITE", partition=after, object=0, data=b"alive", length=5, get=IDS))[1], 5)
               == b"alive", "the unit does not go on")


def inquiry(lab):
    """What a unit of type 11h says of itself, and the commands that every unit has."""
    with Bench(lab) as device:
        session = device.session
        status, _, data = session.run(bytes([0x12, 0, 0, 1, 0, 0]), 256)
        expect(status == 0 and data[0] == 0x11, f"INQUIRY: status {status}, peripheral byte {data[:1].hex()}")
        expect(data[2] >= 5 and data[3] & 0x1F == 0x12 and data[7] & 2, f"version {data[2]}, byte 3 {data[3]:02x}, byte 7 {data[7]:02x}")
        versions = set(struct.unpack(">8H", data[58:74]))
        for name, wanted in (("OSD", {0x0340, 0x0341, 0x0355, 0x0356}), ("OSD-2", {0x0440, 0x0448}), ("iSCSI", {0x0960}), ("SPC", {0x0300, 0x0460, 0x046C, 0x04A3})):
            expect(versions & wanted, f"no version descriptor of {name}: {[hex(version) for version in versions]}")
        status, _, pages = session.run(bytes([0x12, 1, 0, 1, 0, 0]), 256)
        listed = list(pages[4:4 + pages[3]])
        expect(status == 0 and {0x00, 0x80, 0x83, 0xB0, 0xB1} <= set(listed), f"VPD pages: {[hex(page) for page in listed]}")
        for page in listed:
            status, _, data = session.run(bytes([0x12, 1, page, 1, 0, 0]), 256)
            expect(status == 0 and data[0] & 0x1F == 0x11 and data[1] == page, f"VPD {page:02x}: status {status}, {data[:4].hex()}")
            expect(len(data) == 4 + number(data[2:4]), f"VPD {page:02x}: {len(data)} bytes, says {number(data[2:4])}")
        _, _, serial = session.run(bytes([0x12, 1, 0x80, 1, 0, 0]), 256)
        expect(len(serial) > 4, "no serial number")
        expect(read_attribute(device, 0, 0, R + 1, 8), "no serial number in the root information page")
        _, _, token = session.run(bytes([0x12, 1, 0xB1, 1, 0, 0]), 256)
        expect(number(token[2:4]) >= 16, f"a security token of {number(token[2:4])} bytes")
        with wire.session(device.target, "iqn.2026-01.example.lab:other", isid=b"\x40\0\0\7\0\0") as other:
            _, _, theirs = other.run(bytes([0x12, 1, 0xB1, 1, 0, 0]), 256)
            expect(theirs[4:] != token[4:], "two nexuses have one security token")
        status, _, luns = session.run(bytes([0xA0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]), 256)
        expect(status == 0, "REPORT LUNS")
        status, response, _ = session.run(struct.pack(">BBIBHB", 0x28, 0, 0, 0, 8, 0), 4096)
        expect(status == CHECK_CONDITION, f"READ (10) of an OSD: status {status}")
        status, _, sense = session.run(bytes([0x03, 0, 0, 0, 252, 0]), 252)
        expect(status == 0, "REQUEST SENSE")


def formatted(lab):
    """FORMAT OSD: everything is gone, the root's attributes that it sets are there."""
    with Bench(lab) as device:
        for version in FORMS:
            speaking = Device(device.session, version)
            partition = new_partition(speaking)
            object_ = new_object(speaking, partition)
            write(speaking, partition, object_, b"soon gone")
            speaking.good("FORMAT OSD", capacity=0, set_=[(R + 1, 9, b"formatted")])
            expect(ids(speaking, 0) == [], "partitions after FORMAT OSD")
            speaking.fails("READ", 5, 0x2400, partition=partition, object=object_, length=4, data_in=4)
            expect(read_attribute(speaking, 0, 0, R + 1, 9) == b"formatted", "the name that FORMAT OSD set")
            expect(number(read_attribute(speaking, 0, 0, R + 1, 0xC0)) == 0, "the number of partitions")
        # A capacity that is there is taken, the store's own stays; more than there is is refused.
        device.good("FORMAT OSD", capacity=32 << 20)
        expect(number(read_attribute(device, 0, 0, R + 1, 0x80)) >= 32 << 20, "less than the capacity that was asked for")
        device.fails("FORMAT OSD", 5, 0x2400, 32, capacity=1 << 63)


CASES = [
    ("an OSD's INQUIRY, VPD pages, security token, and commands that it has not", inquiry),
    ("partitions: assigned, requested, listed, removed, in every form of the CDB", in_all_forms(partitions)),
    ("objects: one, many, requested, listed in pieces, removed; what fails leaves nothing", in_all_forms(objects)),
    ("data: write, read, append, create and write, holes, short reads, truncation, flushes", in_all_forms(data)),
    ("PUNCH and CLEAR", punch_and_clear),
    ("hundreds of commands beside bytes in memory", against_a_model),
    ("ranges scattered and gathered by a continuation; wrong continuations", scatter_gather),
    ("isolation levels", isolation),
    ("additional header segments in either order, residuals of both directions", transport),
    ("commands that are none, and spoilt ones", wrong_commands),
    ("the same over iSER", over_iser),
    ("FORMAT OSD", formatted),
]
