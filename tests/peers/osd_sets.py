"""OSD: collections, queries, members, snapshots and clones, maps, copies, checks, tunnelled commands, keys."""

import struct

from lab import osd
from lab.osd import C, P, R, U
from lab.osd_session import CHECK_CONDITION, GOOD, Request, read_attribute
from lab.report import expect
from peers.osd_data import (IDS, Bench, created, ids, in_all_forms, length_of, new_object, new_partition, number, read, write)

OURS = 0x10000


def new_collection(device, partition, **what):
    return created(device.good("CREATE COLLECTION", partition=partition, object=0, get=IDS, **what))[1]


def join(device, partition, collection, *objects, slot=1):
    """Make objects members of a linked collection, by a pointer in their collections page."""
    for object_ in objects:
        device.good("SET ATTRIBUTES", partition=partition, object=object_, set_=[(U + 4, slot, collection.to_bytes(8, "big"))])


def collections(device):
    """Linked collections: made, joined, left, listed, removed empty or by force."""
    partition = new_partition(device)
    objects = [new_object(device, partition) for _ in range(12)]
    one, two = new_collection(device, partition), new_collection(device, partition)
    expect(one >= osd.FIRST_ID and one not in objects, f"collection {one:#x}")
    # One namespace: an object's id is not free for a collection.
    device.fails("CREATE COLLECTION", 5, 0x2400, 24, partition=partition, object=objects[0])
    device.fails("CREATE", 5, 0x2400, 24, partition=partition, object=one, count=1)
    join(device, partition, one, *objects[:10])
    join(device, partition, two, *objects[5:], slot=2)
    listed = ids(device, partition, "LIST COLLECTION", object=one)
    expect(listed == sorted(objects[:10]), f"members: {[hex(entry) for entry in listed]}")
    expect(ids(device, partition, "LIST COLLECTION", object=two) == sorted(objects[5:]), "members of the other collection")
    expect(ids(device, partition, "LIST COLLECTION", object=0) == sorted([one, two]), "the partition's collections")
    expect(ids(device, partition) == sorted(objects), "LIST has user objects only")
    expect(number(read_attribute(device, partition, objects[7], U + 4, 2)) == two, "the pointer in the collections page")
    device.fails("REMOVE COLLECTION", 5, 0x2C0A, partition=partition, object=one, force=0)
    # An object leaves when its pointer is deleted, and when it is removed.
    device.good("SET ATTRIBUTES", partition=partition, object=objects[0], set_=[(U + 4, 1, b"")])
    device.good("REMOVE", partition=partition, object=objects[1])
    expect(ids(device, partition, "LIST COLLECTION", object=one) == sorted(objects[2:10]), "members after two have left")
    device.good("REMOVE COLLECTION", partition=partition, object=one, force=1)
    device.fails("REMOVE COLLECTION", 5, 0x2400, 24, partition=partition, object=one, force=0)
    expect(not read_attribute(device, partition, objects[7], U + 4, 1), "a pointer to a collection that is gone")
    for object_ in objects[5:]:
        device.good("SET ATTRIBUTES", partition=partition, object=object_, set_=[(U + 4, 2, b"")])
    device.good("REMOVE COLLECTION", partition=partition, object=two, force=0)
    answer = device.run("SET ATTRIBUTES", partition=partition, object=objects[3], set_=[(U + 4, 1, two.to_bytes(8, "big"))])
    expect(answer.status == CHECK_CONDITION and answer.code[0] == 5, f"a pointer to no collection: {answer}")
    for scope in (0, 1, 2):
        device.good("FLUSH COLLECTION", partition=partition, object=new_collection(device, partition), scope=scope)
        device.good("FLUSH PARTITION", partition=partition, scope=scope)
        device.good("FLUSH OSD", scope=scope)


def listed_with_attributes(lab):
    """LIST and LIST COLLECTION with attributes of each object."""
    with Bench(lab) as device:
        partition = new_partition(device)
        collection = new_collection(device, partition)
        objects = [new_object(device, partition, set_=[(OURS, 1, f"object {at}".encode())]) for at in range(9)]
        join(device, partition, collection, *objects)
        device.good("SET ATTRIBUTES", partition=partition, object=0, set_=[(P + OURS, 1, b"the partition")])
        device.good("SET ATTRIBUTES", partition=partition, object=collection, set_=[(C + OURS, 1, b"the collection")])
        for action, where, wanted in (
            ("LIST", {"partition": partition}, {object_: f"object {at}".encode() for at, object_ in enumerate(objects)}),
            ("LIST COLLECTION", {"partition": partition, "object": collection}, {object_: f"object {at}".encode() for at, object_ in enumerate(objects)}),
            ("LIST COLLECTION", {"partition": partition, "object": 0}, {collection: b"the collection"}),
            ("LIST", {"partition": 0}, {partition: b"the partition"}),
        ):
            page = OURS if len(wanted) > 1 else C + OURS if action == "LIST COLLECTION" else P + OURS
            found, initial, list_id = {}, 0, 0
            for _ in range(20):
                # The retrieved attributes come with their objects: none lie apart.
                request = dict(allocation=200, data_in=200, initial=initial, list_id=list_id, list_attr=1)
                answer = device.send(listing(device, action, page, **where, **request))
                expect(answer.status == GOOD, f"{action} with attributes: {answer}")
                reply = osd.decode_id_list(answer.everything)
                expect(reply["format"] & 3 == 2, f"{action}: descriptor format {reply['format']:#x}")
                for object_, _, attributes in reply["entries"]:
                    found[object_] = {(page, at): value for page, at, value in attributes}.get((page, 1))
                initial, list_id = reply["continuation"], reply["list_id"]
                if not initial:
                    break
            expect(found == wanted, f"{action} {where}: {found}")


def listing(device, action, page, **what):
    """A list command with LIST_ATTR: a get list, and no room for attributes apart."""
    request = Request(action, device.version, get=[(page, 1)], **what)
    view = {**request.view, "attributes": {**request.view["attributes"], "get_length": 0, "retrieved_offset": None}}
    request.cdb, request.in_length, request.retrieved_at = osd.encode(view), what["data_in"], None
    return request


def query(lab):
    """QUERY by ranges of attributes, any or all of them; matches put into a collection."""
    with Bench(lab) as device:
        partition = new_partition(device)
        collection = new_collection(device, partition)
        objects = [new_object(device, partition, set_=[(OURS, 1, struct.pack(">I", at)), (OURS, 2, b"even" if at % 2 == 0 else b"odd")])
                   for at in range(20)]
        join(device, partition, collection, *objects)
        four = lambda value: struct.pack(">I", value)  # noqa: E731

        def ask(criteria, all_=True, **what):
            answer = device.good("QUERY", partition=partition, object=collection, allocation=1000, data_in=1000,
                                 pieces=[osd.query_list(criteria, all_)], **what)
            return osd.decode_query(answer.data)["entries"]

        expect(ask([(OURS, 1, four(5), four(8))]) == sorted(objects[5:9]), "a range")
        expect(ask([(OURS, 1, four(5), four(8)), (OURS, 2, b"even", b"even")]) == sorted([objects[6], objects[8]]), "both of two ranges")
        expect(ask([(OURS, 1, four(18), b""), (OURS, 1, b"", four(1))], all_=False) == sorted([*objects[:2], *objects[18:]]), "either of two")
        expect(ask([(OURS, 1, four(100), b"")]) == [], "nothing matches")
        expect(ask([(OURS, 99, b"", b"")]) == [], "an attribute that none has")
        matches = new_collection(device, partition)
        device.good("QUERY", partition=partition, object=collection, allocation=0, matches=matches,
                    pieces=[osd.query_list([(OURS, 2, b"odd", b"odd")])])
        expect(ids(device, partition, "LIST COLLECTION", object=matches) == sorted(objects[1::2]), "the matches' collection")
        device.fails("QUERY", 5, 0x2400, 24, partition=partition, object=matches + 1000, allocation=100, data_in=100,
                     pieces=[osd.query_list([(OURS, 1, b"", b"")])])
        answer = device.run("QUERY", partition=partition, object=collection, allocation=100, data_in=100)
        expect(answer.status == CHECK_CONDITION and answer.code[0] == 5, f"QUERY without a query: {answer}")


def members(lab):
    """Attributes of all members got and set, members removed, tracking collections."""
    with Bench(lab) as device:
        partition = new_partition(device)
        collection = new_collection(device, partition)
        objects = [new_object(device, partition, set_=[(OURS, 1, bytes([at]))]) for at in range(6)]
        outside = new_object(device, partition)
        join(device, partition, collection, *objects)
        what = {"partition": partition, "object": collection}
        kind, found = device.good("GET MEMBER ATTRIBUTES", **what, get=[(OURS, 1), (U + 1, 2)]).attribute_list
        expect(kind == 14, f"a list of type {kind}")
        expect({object_: entries for object_, _, entries in found} ==
               {object_: [(OURS, 1, bytes([at])), (U + 1, 2, object_.to_bytes(8, "big"))] for at, object_ in enumerate(objects)}, f"{found}")
        device.good("SET MEMBER ATTRIBUTES", **what, set_=[(OURS, 2, b"all of you")])
        expect(all(read_attribute(device, partition, object_, OURS, 2) == b"all of you" for object_ in objects), "SET MEMBER ATTRIBUTES")
        expect(not read_attribute(device, partition, outside, OURS, 2), "an object that is no member was set")
        tracking = created(device.good("CREATE USER TRACKING COLLECTION", partition=partition, object=0, source=collection, get=IDS))[1]
        expect(ids(device, partition, "LIST COLLECTION", object=tracking) == sorted(objects), "the source's members are tracked")
        expect(read_attribute(device, partition, tracking, C + 1, 0xA) == b"\1", "the type of a tracking collection")
        expect(read_attribute(device, partition, collection, C + 1, 0xA) == b"\0", "the type of a linked collection")
        empty = created(device.good("CREATE USER TRACKING COLLECTION", partition=partition, object=0, source=0, get=IDS))[1]
        expect(ids(device, partition, "LIST COLLECTION", object=empty) == [], "a new tracking collection is not empty")
        device.good("REMOVE MEMBER OBJECTS", **what)
        expect(ids(device, partition) == [outside], "objects after REMOVE MEMBER OBJECTS")
        expect(ids(device, partition, "LIST COLLECTION", object=collection) == [], "members after REMOVE MEMBER OBJECTS")
        # How it went is in the command tracking page, where the members were tracked.
        percent = read_attribute(device, partition, tracking, C + 4, 1)
        expect(percent is None or percent == bytes([100]) or percent == b"\0", f"command tracking: {percent}")


def snapshots(lab):
    """A snapshot keeps what was, a clone goes its own way, a partition is restored and refreshed."""
    with Bench(lab) as device:
        source = new_partition(device)
        objects = [new_object(device, source, set_=[(OURS, 1, b"before")]) for _ in range(3)]
        for at, object_ in enumerate(objects):
            write(device, source, object_, bytes([at]) * 100_000)
        snapshot = created(device.good("CREATE SNAPSHOT", **second(source, 0), get=IDS))[0]
        expect(snapshot not in (0, source), f"a snapshot {snapshot:#x} of {source:#x}")
        write(device, source, objects[0], b"changed", 50_000)
        device.good("SET ATTRIBUTES", partition=source, object=objects[1], set_=[(OURS, 1, b"after")])
        device.good("REMOVE", partition=source, object=objects[2])
        expect(ids(device, snapshot) == sorted(objects), "the snapshot's objects")
        expect(read(device, snapshot, objects[0], 100_000) == bytes(100_000), "the snapshot's data")
        expect(read_attribute(device, snapshot, objects[1], OURS, 1) == b"before", "the snapshot's attributes")
        answer = device.run("WRITE", partition=snapshot, object=objects[0], data=b"x", length=1)
        expect(answer.status == CHECK_CONDITION, f"a write into a snapshot: {answer}")
        clone = created(device.good("CREATE CLONE", **second(snapshot, 0), get=IDS))[0]
        write(device, clone, objects[1], b"of the clone")
        new_object(device, clone)
        expect(read(device, clone, objects[1], 12) == b"of the clone" and read(device, snapshot, objects[1], 12) == b"\1" * 12, "a clone's write")
        expect(len(ids(device, clone)) == 4 and len(ids(device, snapshot)) == 3, "a clone's objects")
        device.good("RESTORE PARTITION FROM SNAPSHOT", **second(snapshot, source))
        expect(ids(device, source) == sorted(objects) and read(device, source, objects[0], 100_000) == bytes(100_000), "the partition restored")
        write(device, source, objects[0], b"newer")
        device.good("REFRESH SNAPSHOT OR CLONE", partition=snapshot)
        expect(read(device, snapshot, objects[0], 5) == b"newer", "the snapshot refreshed")
        device.good("DETACH CLONE", partition=clone)
        device.good("REMOVE PARTITION", partition=snapshot, remove_scope=1)
        expect(read(device, clone, objects[1], 12) == b"of the clone", "a detached clone whose source is gone")
        device.fails("CREATE SNAPSHOT", 5, 0x2400, **second(source + 12345, 0))


def second(source, made):
    """The fields of a command that has two partitions: what is made or changed, and where from."""
    return {"partition": made, "source": source}


def maps(lab):
    """READ MAP tells what is written and what is a hole; READ MAPS AND COMPARE what has changed since a snapshot."""
    with Bench(lab) as device:
        partition = new_partition(device)
        object_ = new_object(device, partition)
        what = {"partition": partition, "object": object_}
        write(device, partition, object_, bytes([7]) * 65536)
        write(device, partition, object_, bytes([7]) * 65536, 1 << 20)
        answer = device.good("READ MAP", **what, allocation=4096, data_in=4096, start=0, map_type=0)
        length, pieces = osd.decode_map(answer.data)
        expect(length == 16 * len(pieces), f"additional length {length} of {len(pieces)} descriptors")
        written = bytearray((1 << 20) + 65536)
        for kind, count, at in pieces:
            expect(kind in (1, 2), f"extent of type {kind:#x}")
            if kind == 1:
                written[at:at + count] = b"\1" * min(count, len(written) - at)
        expect(all(written[:65536]) and all(written[1 << 20:]), f"what was written is not in the map: {pieces}")
        expect(not all(written[65536:1 << 20]), f"the hole is not in the map: {pieces}")
        _, holes = osd.decode_map(device.good("READ MAP", **what, allocation=4096, data_in=4096, start=0, map_type=2).data)
        expect(holes and all(kind == 2 for kind, _, _ in holes), f"holes alone: {holes}")
        _, late = osd.decode_map(device.good("READ MAP", **what, allocation=4096, data_in=4096, start=1 << 20, map_type=1).data)
        expect(late and all(kind == 1 and at + count > 1 << 20 for kind, count, at in late), f"from 1 MiB: {late}")
        answer = device.good("READ MAP", **what, allocation=8, data_in=8, start=0, map_type=0)
        expect(number(answer.data) == length, "the additional length of a map that is cut off")


def copies(lab):
    """COPY USER OBJECTS: one object's data and attributes, from a source that the continuation names."""
    with Bench(lab) as device:
        partition, other = new_partition(device), new_partition(device)
        object_ = new_object(device, partition, set_=[(OURS, 1, b"comes along")])
        write(device, partition, object_, b"data of the source" * 1000)
        answer = device.good("COPY USER OBJECTS", partition=other, object=0, pieces=[osd.copy_source(partition, object_)], get=IDS)
        where, copy = created(answer)
        expect(where == other, f"the copy is in partition {where:#x}")
        expect(read(device, other, copy, 18_000) == b"data of the source" * 1000, "the copy's data")
        expect(read_attribute(device, other, copy, OURS, 1) == b"comes along", "the copy's attribute")
        bare = created(device.good("COPY USER OBJECTS", partition=other, object=0, get=IDS,
                                   pieces=[osd.copy_source(partition, object_, attributes=False)]))[1]
        expect(not read_attribute(device, other, bare, OURS, 1) and length_of(device, other, bare) == 18_000, "a copy without attributes")
        device.good("REMOVE", partition=other, object=bare)
        write(device, other, copy, b"DATA")
        expect(read(device, partition, object_, 4) == b"data", "a write into the copy shows in its source")
        answer = device.run("COPY USER OBJECTS", partition=other, object=0, pieces=[osd.copy_source(partition, object_ + 999)], get=IDS)
        expect(answer.status == CHECK_CONDITION and answer.code[0] == 5, f"a copy of nothing: {answer}")
        expect(len(ids(device, other)) == 1, "a copy that failed left an object")


def checks(lab):
    """OBJECT STRUCTURE CHECK of the root and of a partition."""
    with Bench(lab) as device:
        partition = new_partition(device)
        write(device, partition, new_object(device, partition), bytes(100_000))
        device.good("OBJECT STRUCTURE CHECK", partition=0)
        device.good("OBJECT STRUCTURE CHECK", partition=partition)
        device.fails("OBJECT STRUCTURE CHECK", 5, 0x2400, 16, partition=partition + 777)


def tunnels(lab):
    """Commands and task management functions inside OSD commands."""
    with Bench(lab) as device:
        answer = device.good("PERFORM SCSI COMMAND", scsi_cdb="12000000ff00", data_in=255)
        expect(answer.data[:1] == b"\x11", f"a tunnelled INQUIRY: {answer.data[:8].hex()}")
        device.good("PERFORM SCSI COMMAND", scsi_cdb="00")
        answer = device.run("PERFORM SCSI COMMAND", scsi_cdb="7f")
        expect(answer.status == CHECK_CONDITION and answer.code[0] == 5, f"an OSD command in an OSD command: {answer}")
        answer = device.run("PERFORM SCSI COMMAND", scsi_cdb="2800000000000000010000", data_in=512)
        expect(answer.status == CHECK_CONDITION and answer.code[0] == 5, f"a tunnelled READ (10): {answer}")
        # Of tasks there are none but these commands themselves, which are no task that they are about.
        for function, name, response in (
            (1, "ABORT TASK", 0), (2, "ABORT TASK SET", 0), (0x40, "CLEAR ACA", 8), (0x80, "QUERY TASK", 0), (0x81, "QUERY TASK SET", 0),
            (0x82, "QUERY ASYNCHRONOUS EVENT", 0), (0x10, "I_T NEXUS RESET", 0),
        ):
            answer = device.good("PERFORM TASK MANAGEMENT FUNCTION", function=function, tag=0x7FFF1234, tmf_allocation=8, data_in=8)
            expect(answer.data == bytes((0, 6, 0, 0, response, 0, 0, 0)), f"the response of {name}: {answer.data.hex()}")
        answer = device.run("GET ATTRIBUTES", get=[(R + 1, 4)])
        expect(answer.status == CHECK_CONDITION and answer.code == (6, 0x2907), f"I_T NEXUS LOSS OCCURRED is not told: {answer}")
        answer = device.run("PERFORM TASK MANAGEMENT FUNCTION", function=0x77, tag=0, tmf_allocation=8, data_in=8)
        expect(answer.status == CHECK_CONDITION or any(answer.data), f"function 77h: {answer} {answer.data.hex()}")
        device.session.test_unit_ready()


CASES = [
    ("linked collections, in every form of the CDB", in_all_forms(collections)),
    ("lists with attributes", listed_with_attributes),
    ("QUERY", query),
    ("members: their attributes, their removal, tracking collections", members),
    ("snapshots, clones, restoring, refreshing, detaching", snapshots),
    ("maps of extents", maps),
    ("COPY USER OBJECTS", copies),
    ("OBJECT STRUCTURE CHECK", checks),
    ("tunnelled commands and functions", tunnels),
]
