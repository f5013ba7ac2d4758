"""OSD attributes: lists, pages, one in the CDB, embedded in other commands; the standard pages, quotas and timestamps."""

import time

from lab import osd
from lab.osd import ALL, C, CURRENT_COMMAND, P, R, U
from lab.osd_session import Device, Request, read_attribute
from lab.report import expect
from peers.osd_data import FORMS, Bench, in_all_forms, length_of, new_object, new_partition, number, read, write

OURS = 0x10000  # An application's page of a user object.


def set_and_got(device):
    """Values of every length, set and got by lists; none where nothing is; length 0 deletes."""
    partition = new_partition(device)
    object_ = new_object(device, partition)
    what = {"partition": partition, "object": object_}
    values = [(OURS, length + 1, bytes([length & 255]) * length) for length in (1, 7, 8, 9, 100, 1000)]
    device.good("SET ATTRIBUTES", **what, set_=values)
    wanted = [(page, number_) for page, number_, _ in values] + [(OURS, 0x7777)]
    kind, found = device.good("GET ATTRIBUTES", **what, get=wanted).attribute_list
    expect(kind == 9, f"a list of type {kind}")
    expect([entry[:2] for entry in found] == wanted, "attributes come in another order than they were asked for")
    expect([entry[2] for entry in found[:-1]] == [value for _, _, value in values], "values")
    expect(found[-1][2] == (None if device.version == 200 else b""), f"an attribute that is not there is {found[-1][2]}")
    device.good("SET ATTRIBUTES", **what, set_=[(OURS, 9, b""), (OURS, 2, b"other")])
    expect(not read_attribute(device, partition, object_, OURS, 9), "an attribute of length 0 is still there")
    expect(read_attribute(device, partition, object_, OURS, 2) == b"other", "an attribute set again")
    # All of a page; with the page's own name if it was set.
    found = device.good("GET ATTRIBUTES", **what, get=[(OURS, ALL)], room=8192).attributes
    expect({number_ for page, number_ in found if page == OURS and number_} == {2, 8, 10, 101, 1001}, f"all attributes: {sorted(found)}")
    # In every object alone, partitions and the root too.
    other = new_object(device, partition)
    expect(not read_attribute(device, partition, other, OURS, 2), "another object has the attribute")
    device.good("SET ATTRIBUTES", partition=partition, object=0, set_=[(P + OURS, 1, b"of the partition")])
    expect(read_attribute(device, partition, 0, P + OURS, 1) == b"of the partition", "an attribute of a partition")
    device.good("SET ATTRIBUTES", partition=0, object=0, set_=[(R + OURS, 1, b"of the root")])
    expect(read_attribute(device, 0, 0, R + OURS, 1) == b"of the root", "an attribute of the root")
    device.fails("GET ATTRIBUTES", 5, 0x2400, 24, partition=partition, object=other + 99, get=[(OURS, 1)])
    # A page of another type of object is none of this one's.
    answer = device.run("SET ATTRIBUTES", **what, set_=[(P + OURS, 1, b"x")])
    expect(answer.status == 2 and answer.code[0] == 5, f"a partition's page set in an object: {answer}")


def standard_pages(lab):
    """The information pages of root, partition, collection and object; directories; names that may be set; what may not be."""
    with Bench(lab) as device:
        partition = new_partition(device)
        object_ = new_object(device, partition)
        collection = number(device.good("CREATE COLLECTION", partition=partition, object=0, get=[(CURRENT_COMMAND, 4)]).attributes[CURRENT_COMMAND, 4])
        write(device, partition, object_, bytes(10_000))
        lengths = {(0, 0): {3: 20, 4: 8, 5: 16, 6: 32, 7: 4, 0x80: 8, 0x81: 8, 0xC0: 8, 0x100: 6, 0x110: 1, 0x111: 32},
                   (partition, 0): {1: 8, 0x81: 8, 0xC1: 8}, (partition, collection): {1: 8, 2: 8, 0xA: 1, 0x81: 8},
                   (partition, object_): {1: 8, 2: 8, 0x81: 8, 0x82: 8}}
        page_of = {(0, 0): R, (partition, 0): P, (partition, collection): C, (partition, object_): U}
        for where, wanted in lengths.items():
            page = page_of[where] + 1
            found = device.good("GET ATTRIBUTES", partition=where[0], object=where[1], get=[(page, 0), *((page, at) for at in wanted)]).attributes
            expect({at: len(found[page, at]) for at in wanted} == wanted, f"lengths in page {page:x}: "
                   f"{ {hex(at): len(found[page, at]) for at in wanted} }")
            expect(len(found[page, 0]) == 40 and found[page, 0].startswith(b"INCITS  "), f"the id of page {page:x}: {found[page, 0]}")
            # A directory page names it.
            directory = device.good("GET ATTRIBUTES", partition=where[0], object=where[1], get=[(page_of[where], page)]).attributes
            expect(directory[page_of[where], page] == found[page, 0], f"the directory's entry of page {page:x}")
            device.good("SET ATTRIBUTES", partition=where[0], object=where[1], set_=[(page, 9, "Námě".encode())])
            expect(read_attribute(device, *where, page, 9) == "Námě".encode(), f"the name in page {page:x}")
            # Ids are not for us to set.
            answer = device.fails("SET ATTRIBUTES", 5, 0x2600, partition=where[0], object=where[1], set_=[(page, 1 if where[0] else 5, bytes(8))])
            expect((page, 1 if where[0] else 5) in answer.sense["attributes"], f"the sense does not name the attribute: {answer.sense}")
        get = lambda where, at: number(read_attribute(device, *where, page_of[where] + 1, at))  # noqa: E731
        expect(get((partition, object_), 1) == partition and get((partition, object_), 2) == object_, "an object's own ids")
        expect(get((partition, object_), 0x82) == 10_000 and get((partition, object_), 0x81) >= 10_000, "an object's length and capacity")
        expect(get((partition, 0), 0xC1) in (1, 2), f"objects of the partition: {get((partition, 0), 0xC1)}")
        expect(get((0, 0), 0xC0) == 1, "partitions of the root")
        expect(get((0, 0), 0x80) >= get((0, 0), 0x81) > 0, "capacity of the root")
        clock = get((0, 0), 0x100)
        expect(abs(clock / 1000 - time.time()) < 60, f"the clock is {clock} ms")
        # Every page that the wildcard shows can be read by name.
        for where in lengths:
            found = device.good("GET ATTRIBUTES", partition=where[0], object=where[1], get=[(ALL, ALL)], room=65536).attributes
            expect(len(found) >= len(lengths[where]), f"all attributes of {where}: {len(found)}")
            for page, at in lengths[where].items():
                expect((page_of[where] + 1, page) in found, f"attribute {page:x} is not among all of {where}")


def formats(lab):
    """The page format, and one attribute in the CDB."""
    with Bench(lab) as device:
        partition = new_partition(device)
        object_ = new_object(device, partition)
        what = {"partition": partition, "object": object_}
        device.good("SET ATTRIBUTES", **what, in_cdb=(OURS, 5, b"eighteen bytes now"))
        expect(read_attribute(device, partition, object_, OURS, 5) == b"eighteen bytes now", "an attribute set in the CDB")
        write(device, partition, object_, b"data", in_cdb=(OURS, 6, b"with data"))
        expect(read_attribute(device, partition, object_, OURS, 6) == b"with data", "an attribute set by a WRITE, in the CDB")
        device.good("SET ATTRIBUTES", **what, in_cdb=(OURS, 5, b""))
        expect(not read_attribute(device, partition, object_, OURS, 5), "an attribute deleted in the CDB")
        cdb = bytearray(Request("SET ATTRIBUTES", **what, in_cdb=(OURS, 5, b"x")).cdb)
        cdb[60:62] = (19).to_bytes(2, "big")
        answer = device.send(Request("SET ATTRIBUTES", **what, in_cdb=(OURS, 5, b"x")), cdb=bytes(cdb))
        expect(answer.code == (5, 0x2400), f"19 bytes in the CDB: {answer}")
        for version in FORMS:
            speaking = Device(device.session, version)
            answer = speaking.good("SET ATTRIBUTES", **what, set_one=(OURS, 7, b"page format"), get_page=(CURRENT_COMMAND, 512))
            page = answer.page
            expect(number(page[:4]) == CURRENT_COMMAND, f"a page begins with {page[:8].hex()}")
            expect(number(page[4:8]) + 8 <= 512, f"a page of {number(page[4:8])} bytes")
            expect(read_attribute(speaking, partition, object_, OURS, 7) == b"page format", "an attribute set by the page format")
            # Pages of fixed places: how long each is, and the first bytes of those that say who may do what.
            tagged = b"\0\1\2\3"
            policy = 0x40000001
            device.good("SET ATTRIBUTES", **what, in_cdb=(U + 5, policy, tagged))
            device.good("SET ATTRIBUTES", partition=partition, in_cdb=(P + 5, policy, tagged))
            for named, page, length in (
                ({}, R + 2, 0x24), ({}, R + 3, 0x0D), ({"partition": partition}, P + 2, 0x1C), ({"partition": partition}, P + 3, 0x1F),
                ({"partition": partition}, P + 5, 0x96), (what, U + 2, 8), (what, U + 3, 0x1E), (what, U + 4, 0), (what, U + 5, 4),
            ):
                found = speaking.good("GET ATTRIBUTES", **named, get_page=(page, 512)).page
                expect(number(found[:4]) == page and number(found[4:8]) == length, f"page {page:X}h begins with {found[:8].hex()}")
                expect(len(found) == 8 + length, f"page {page:X}h has {len(found)} bytes")
                if page in (P + 5, U + 5):
                    at = 28 if page == P + 5 else 8
                    expect(found[at:at + 4] == tagged, f"the policy access tag in page {page:X}h: {found.hex()}")
            # Data before the page: it lies behind them.
            answer = speaking.good("READ", **what, length=4, data_in=4, get_page=(CURRENT_COMMAND, 512))
            expect(answer.data == b"data" and number(answer.page[:4]) == CURRENT_COMMAND, f"READ with a page: {answer.everything[:20].hex()}")
            expect(not any(answer.everything[4:answer.request.retrieved_at]), "the gap before retrieved attributes is not zeros")


def embedded(device):
    """Attributes set and got in the same command as data, in the standard's order: command, set, get."""
    partition = new_partition(device)
    object_ = new_object(device, partition, set_=[(OURS, 1, b"at birth")])
    expect(read_attribute(device, partition, object_, OURS, 1) == b"at birth", "an attribute set by CREATE")
    answer = write(device, partition, object_, b"x" * 300, set_=[(OURS, 1, b"written"), (OURS, 2, b"two")], get=[(U + 1, 0x82), (OURS, 1)])
    found = answer.attributes
    expect(number(found[U + 1, 0x82]) == 300 and found[OURS, 1] == b"written", f"got by a WRITE: {found}")
    answer = device.good("READ", partition=partition, object=object_, length=300, data_in=300, get=[(OURS, 2), (OURS, 1)])
    expect(answer.data == b"x" * 300 and answer.attributes == {(OURS, 2): b"two", (OURS, 1): b"written"}, f"got by a READ: {answer}")
    expect(not any(answer.everything[300:answer.request.retrieved_at]), "the gap before retrieved attributes is not zeros")
    # GET ATTRIBUTES gets before it sets; SET ATTRIBUTES sets before it gets.
    what = {"partition": partition, "object": object_}
    answer = device.good("GET ATTRIBUTES", **what, get=[(OURS, 1)], set_=[(OURS, 1, b"later")])
    expect(answer.attributes[OURS, 1] == b"written", f"GET ATTRIBUTES got {answer.attributes}")
    answer = device.good("SET ATTRIBUTES", **what, get=[(OURS, 1)], set_=[(OURS, 1, b"now")])
    expect(answer.attributes[OURS, 1] == b"now", f"SET ATTRIBUTES got {answer.attributes}")
    # A removal sets and gets while the object is still there.
    answer = device.good("REMOVE", **what, get=[(OURS, 1), (U + 1, 0x82)], set_=[(OURS, 1, b"last words")])
    expect(answer.attributes[OURS, 1] == b"last words" and number(answer.attributes[U + 1, 0x82]) == 300, f"REMOVE got {answer.attributes}")
    # Many created: each has what was set.
    many = device.good("CREATE", partition=partition, object=0, count=4, set_=[(OURS, 3, b"each")], get=[(OURS, 3), (U + 1, 2)]).objects
    expect(len(many) == 4 and all(found == {(OURS, 3): b"each", (U + 1, 2): one.to_bytes(8, "big")} for one, found in many.items()),
           f"attributes of many that are created: {many}")
    highest = max(many)
    expect(read_attribute(device, partition, highest, OURS, 3) == b"each", "an attribute of one of many")
    # Lists that lie beyond Data-Out, or are no lists.
    request = Request("SET ATTRIBUTES", device.version, partition=partition, object=highest, set_=[(OURS, 1, b"x")])
    for name, value in (("set_list_offset", 1 << 20), ("set_list_length", 1 << 20), ("set_list_length", 3)):
        view = {**request.view, "attributes": {**request.view["attributes"], name: value}}
        answer = device.send(request, cdb=osd.encode(view))
        expect(answer.status == 2 and answer.code[0] == 5, f"{name} {value:#x}: {answer}")
    request.out = b"\x05" + request.out[1:]
    answer = device.send(request)
    expect(answer.status == 2 and answer.code[0] == 5, f"a list of type 5: {answer}")
    expect(not read_attribute(device, partition, highest, OURS, 1), "a refused list has set an attribute")


def timestamps(lab):
    """Times of creation, access and change; the bypass of them."""
    with Bench(lab) as device:
        partition = new_partition(device)
        object_ = new_object(device, partition)
        what = {"partition": partition, "object": object_}

        def times():
            answer = device.good("GET ATTRIBUTES", **what, get=[(U + 3, at) for at in range(1, 6)], timestamps=0x7F)
            found = {at: value for (_, at), value in answer.attributes.items()}
            expect(all(len(value) == 6 for value in found.values()), f"timestamps of other lengths than 6: {found}")
            return {at: number(value) for at, value in found.items()}

        first = times()
        expect(abs(first[1] / 1000 - time.time()) < 60, f"created at {first[1]} ms")
        time.sleep(0.02)
        write(device, partition, object_, b"x", timestamps=0x7F)
        expect(times()[5] == first[5], "a write that bypasses timestamps has changed one")
        write(device, partition, object_, b"x")
        second = times()
        expect(second[5] > first[5] and second[1] == first[1], f"after a write: {first} {second}")
        time.sleep(0.02)
        device.good("SET ATTRIBUTES", **what, set_=[(OURS, 1, b"x")])
        third = times()
        expect(third[3] > second[3] and third[5] == second[5], f"after SET ATTRIBUTES: {second} {third}")
        time.sleep(0.02)
        read(device, partition, object_, 1)
        expect(times()[4] > third[4], f"after a read: {third} {times()}")
        cdb = bytearray(Request("GET ATTRIBUTES", **what, get=[(U + 3, 1)]).cdb)
        cdb[12] = 0x33
        answer = device.send(Request("GET ATTRIBUTES", **what, get=[(U + 3, 1)]), cdb=bytes(cdb))
        expect(answer.code == (5, 0x2400) and answer.sense.get("field") == 12, f"timestamps control 33h: {answer}")
        # The others have pages of their own; the root's has fewer.
        collection = number(device.good("CREATE COLLECTION", partition=partition, object=0, get=[(CURRENT_COMMAND, 4)]).attributes[CURRENT_COMMAND, 4])
        lists = {P: lambda: device.good("LIST", partition=partition, allocation=100, data_in=100),
                 C: lambda: device.good("LIST COLLECTION", partition=partition, object=collection, allocation=100, data_in=100)}
        for base, where, defined in ((R, (0, 0), {2, 3}), (P, (partition, 0), set(range(1, 6))), (C, (partition, collection), set(range(1, 6)))):
            names = {"partition": where[0], "object": where[1]}

            def now():
                found = device.good("GET ATTRIBUTES", **names, get=[(base + 3, at) for at in range(1, 6)], timestamps=0x7F).attributes
                return {at: number(value) for (_, at), value in found.items() if value}

            before = now()
            expect(set(before) == defined, f"the times of {base:x}: {before}")
            time.sleep(0.02)
            device.good("SET ATTRIBUTES", **names, set_=[(base + 1, 9, b"a name")])
            changed = now()
            expect(changed[3] > before[3], f"{base:x} after SET ATTRIBUTES: {before} {changed}")
            time.sleep(0.02)
            device.good("GET ATTRIBUTES", **names, get=[(base + 1, 9)])
            lists.get(base, lambda: None)()
            seen = now()
            expect(seen[2] > changed[3] and seen[3] == changed[3], f"{base:x} after GET ATTRIBUTES: {changed} {seen}")
            expect(base == R or seen[4] > changed[3], f"{base:x} after a list: {changed} {seen}")
        # The partition, or the root for all that say nothing, leaves times alone.
        for base, where in ((P, partition), (R, 0)):
            device.good("SET ATTRIBUTES", partition=where, object=0, set_=[(base + 3, 0xFFFFFFFE, b"\x7F")])
            before = times()
            time.sleep(0.02)
            write(device, partition, object_, b"x")
            expect(times() == before, f"times were changed though {base:x} bypasses them: {before} {times()}")
            device.good("SET ATTRIBUTES", partition=where, object=0, set_=[(base + 3, 0xFFFFFFFE, b"")])
            write(device, partition, object_, b"x")
            expect(times()[5] > before[5], f"times after the bypass of {base:x} has ended: {before} {times()}")


def quotas(lab):
    """Quotas of an object's length, a partition's objects and capacity, the root's partitions: 5507h, and nothing is done."""
    with Bench(lab) as device:
        partition = new_partition(device)
        object_ = new_object(device, partition)
        what = {"partition": partition, "object": object_}
        eight = lambda value: value.to_bytes(8, "big")  # noqa: E731
        device.good("SET ATTRIBUTES", **what, set_=[(U + 2, 1, eight(1000))])
        write(device, partition, object_, bytes(1000))
        device.fails("WRITE", 7, 0x5507, **what, data=b"x", length=1, start=1000)
        device.fails("APPEND", 7, 0x5507, **what, data=b"x", length=1)
        device.fails("CLEAR", 7, 0x5507, **what, length=1, start=1000)
        expect(length_of(device, partition, object_) == 1000, "a write over the quota has extended the object")
        device.good("SET ATTRIBUTES", partition=partition, object=0, set_=[(P + 2, 0x10002, eight(3))])
        for _ in range(2):
            new_object(device, partition)
        device.fails("CREATE", 7, 0x5507, partition=partition, object=0, count=1)
        device.fails("CREATE AND WRITE", 7, 0x5507, partition=partition, object=0, data=b"x", length=1)
        device.good("SET ATTRIBUTES", partition=partition, object=0, set_=[(P + 2, 0x10002, eight(0xFFFFFFFFFFFFFFFF))])
        new_object(device, partition)
        small = new_partition(device)
        device.good("SET ATTRIBUTES", partition=small, object=0, set_=[(P + 2, 1, eight(500))])
        other = new_object(device, small)
        device.fails("WRITE", 7, 0x5507, partition=small, object=other, data=bytes(501), length=501)
        write(device, small, other, bytes(500))
        device.good("SET ATTRIBUTES", partition=small, object=0, set_=[(P + 2, 0x10001, eight(1 << 20)), (P + 2, 1, eight(1 << 40))])
        third = new_object(device, small)
        for at in range(8):
            answer = device.run("WRITE", partition=small, object=third, data=bytes(256 << 10), length=256 << 10, start=at * (256 << 10))
            if answer.status:
                break
        expect(answer.code == (7, 0x5507), f"2 MiB in a partition whose quota is 1 MiB: {answer}")
        device.good("SET ATTRIBUTES", partition=0, object=0, set_=[(R + 2, 0x20002, eight(2))])
        device.fails("CREATE PARTITION", 7, 0x5507, partition=0)
        device.good("SET ATTRIBUTES", partition=0, object=0, set_=[(R + 2, 0x20002, eight(0xFFFFFFFFFFFFFFFF))])
        new_partition(device)


def current_command(lab):
    """The Current Command page: what the command is about, and how much its capacity changed."""
    with Bench(lab) as device:
        partition = new_partition(device)
        object_ = new_object(device, partition)
        get = [(CURRENT_COMMAND, at) for at in range(1, 7)]
        found = write(device, partition, object_, bytes(8192), get=get).attributes
        expect(number(found[CURRENT_COMMAND, 3]) == partition and number(found[CURRENT_COMMAND, 4]) == object_, f"ids: {found}")
        expect(found[CURRENT_COMMAND, 2] == bytes([osd.USER]), f"type: {found}")
        found = device.good("GET ATTRIBUTES", partition=partition, object=0, get=get).attributes
        expect(found[CURRENT_COMMAND, 2] == bytes([osd.PARTITION]), f"type of a partition: {found}")
        found = device.good("GET ATTRIBUTES", partition=0, object=0, get=get).attributes
        expect(found[CURRENT_COMMAND, 2] == bytes([osd.ROOT]), f"type of the root: {found}")
        answer = device.run("SET ATTRIBUTES", partition=partition, object=object_, set_=[(CURRENT_COMMAND, 2, b"\1")])
        expect(answer.status == 2 and answer.code[0] == 5, f"the Current Command page set: {answer}")


CASES = [
    ("attributes of every length, set, got, deleted by lists, in every form of the CDB", in_all_forms(set_and_got)),
    ("the standard pages of root, partition, collection and object", standard_pages),
    ("the page format, and an attribute in the CDB", formats),
    ("attributes embedded in other commands, in every form of the CDB", in_all_forms(embedded)),
    ("timestamps and their bypass", timestamps),
    ("quotas", quotas),
    ("the Current Command page", current_command),
]
