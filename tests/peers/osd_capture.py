"""Wireshark's OSD dissector reads every command in every form, and its answers: nothing malformed, nothing lost, the same fields.

What the dissector (of Wireshark 4.0) does not know is written down here, so that nothing is looked away from by accident:

- It puts Data-Out of several PDUs together only if it is told to (`scsi.defragment`): lists of attributes are asked for one by one.
- It reads VPD pages B0h and B1h of any device as a disk's: they look malformed to it.
- It learns that a unit is an OSD from an INQUIRY's answer in the same connection: one must be in the capture.
- Of OSD-2 it takes apart the commands of `READ_WHOLE`; of the others it shows the service action alone (`Unknown` for some), and
  their data not at all. Of OSD-1 it takes apart all but SET MASTER KEY and the tunnelled commands.
- It reads OSD-2's capability only if it is marked as one of OSD-1, and its integrity check value as 20 bytes of 32: nonce and
  offsets behind it are shown from wrong places. The fields are compared where it is right.
- A get list of OSD-1 it reads to the end of Data-Out, whatever its length says; an attribute list of type Eh it does not know.
- It says of every attribute that is not in its small table that it cannot decode it, which is a note and no error.
- It remarks that a query's least and greatest value are the same, which is how equality is asked for.
- Parameter data that an allocation length cut off looks malformed to it, and is not: everything here has room.
- It knows iSER over InfiniBand only, and shows a Send of iWARP as bytes. So of a capture over iSER the PDUs are taken out of the Sends, and
  what RDMA Writes and Read Responses carried is put between them as the Data-In and Data-Out that it stands for (RFC 7145 §7.3).
"""

import collections
import os
import struct
import types
import xml.etree.ElementTree

from lab import iser, iwarp, osd, proc, wire
from lab.osd import CURRENT_COMMAND, P, R, U
from lab.osd_session import Device, Request
from lab.report import Skip, expect
from lab.target import Stag, Unit
from peers.capture import captured, whole
from peers.iser_capture import no_error, pdu_of, segments, sends, write_stream
from peers.osd_data import FORMS, IDS, created

OURS = 0x10000
READ_WHOLE = {0x8883, 0x888B, 0x888C, 0x888E, 0x888F, 0x8894, 0x8896, 0x8897, 0x88A0} | {
    first for first, _, _ in osd.ACTIONS.values() if first and first not in (0x8819, 0x8F7E, 0x8F7F)}
# Our names of fields, its, and how it shows them.
SAME = {"partition": ("scsi_osd.partition_id", 16), "length": ("scsi_osd.length", 10), "start": ("scsi_osd.starting_byte_address", 10),
        "allocation": ("scsi_osd.allocation_length", 10), "list_id": ("scsi_osd.list_identifier", 10), "sort": ("scsi_osd.sort_order", 10),
        "capacity": ("scsi_osd.formatted_capacity", 10), "count": ("scsi_osd.number_of_user_objects", 10),
        "continuation": ("scsi_osd2.cdb_continuation.length", 10), "remove_scope": ("scsi_osd2.remove_scope", 16),
        "timestamps": ("scsi_osd.timestamps_control", 16), "source": ("scsi_osd2.source_collection_object_id", "bytes"),
        "matches": ("scsi_osd2.matches_collection_object_id", "bytes"), "initial": ("scsi_osd.initial_object_id", "bytes"),
        "object": ("scsi_osd.user_object_id", "bytes"), "key_id": ("scsi_osd.key_identifier", "text"), "seed": ("scsi_osd.seed", "text")}
LISTS = {"get_list_length": "get_attributes_list_length", "get_length": "get_attributes_allocation_length",
         "set_list_length": "set_attributes_list_length", "get_list_offset": "get_attributes_list_offset",
         "retrieved_offset": "retrieved_attributes_offset", "set_list_offset": "set_attributes_list_offset"}


class Recorder(Device):
    """A device that keeps every CDB that it sends."""

    def __init__(self, session, version, cdbs):
        super().__init__(session, version)
        self.cdbs = cdbs

    def send(self, request, cdb=None, first="cdb"):
        self.cdbs.append(request.cdb if cdb is None else cdb)
        return super().send(request, cdb, first)

    def good(self, action, **what):
        # Lists with their lengths, which only Wireshark needs.
        return super().good(action, list_lengths=True, **what)


def all_commands(device):
    """Every service action of a form at least once, with attributes set and got where that makes sense."""
    second = device.version != 200
    got, put = [(U + 1, 0x82), (CURRENT_COMMAND, 4)], [(OURS, 1, b"attribute")]
    device.good("FORMAT OSD", capacity=0, set_=[(R + 1, 9, b"captured")], get=[(R + 1, 0xC0)])
    partition = created(device.good("CREATE PARTITION", partition=0, get=IDS, set_=[(P + OURS, 1, b"p")]))[0]
    what = {"partition": partition}
    object_ = created(device.good("CREATE", **what, object=0, count=1, get=IDS, set_=put))[1]
    device.good("CREATE", **what, object=0, count=3, get=IDS)
    this = {**what, "object": object_}
    device.good("WRITE", **this, data=bytes(3000), length=3000, get=got, set_=put)
    device.good("WRITE", **this, data=b"plain", length=5, start=10)
    device.good("READ", **this, data_in=3000, length=3000, get=got)
    device.good("READ", **this, data_in=5, length=5, start=10)
    device.good("APPEND", **this, data=b"more", length=4, get=[(CURRENT_COMMAND, 5)])
    device.good("CREATE AND WRITE", **what, object=0, data=b"both", length=4, get=IDS, set_=put)
    device.good("GET ATTRIBUTES", **this, get=[(U + 1, at) for at in (1, 2, 0x81, 0x82)] + [(OURS, 1), (OURS, 99)])
    device.good("GET ATTRIBUTES", partition=0, object=0, get=[(R + 1, at) for at in (3, 4, 5, 6, 7, 8, 0x80, 0x81, 0xC0, 0x100)])
    device.good("SET ATTRIBUTES", **this, set_=put, get=got)
    device.good("SET ATTRIBUTES", **this, set_one=(OURS, 2, b"by a page"), get_page=(CURRENT_COMMAND, 512))
    device.good("FLUSH", **this, scope=0)
    device.good("FLUSH PARTITION", **what, scope=2)
    device.good("FLUSH OSD", scope=1)
    collection = created(device.good("CREATE COLLECTION", **what, object=0, get=IDS))[1]
    device.good("SET ATTRIBUTES", **this, set_=[(U + 4, 1, collection.to_bytes(8, "big"))])
    device.good("LIST", partition=0, allocation=1000, data_in=1000)
    device.good("LIST", **what, allocation=1000, data_in=1000)
    device.good("LIST COLLECTION", **what, object=0, allocation=1000, data_in=1000)
    device.good("LIST COLLECTION", **what, object=collection, allocation=1000, data_in=1000)
    device.good("FLUSH COLLECTION", **what, object=collection, scope=2)
    device.run("SET KEY", **what, key_to_set=2, key_version=0, key_id="01020304050607", seed="00" * 20)
    device.run("SET MASTER KEY", dh_step=0, dh_group=0, key_id="01020304050607", parameters=0, dh_allocation=0)
    device.good("PERFORM SCSI COMMAND", scsi_cdb="00")
    device.run("PERFORM TASK MANAGEMENT FUNCTION", function=1, tag=1, tmf_allocation=8, data_in=8)
    if second:
        only_osd_2(device, partition, object_, collection)
    # Answers with sense.
    device.run("READ", **this, data_in=100, length=100, start=2990 if not second else 2950)
    device.run("REMOVE", **what, object=object_ + 4711)
    device.run("CREATE PARTITION", partition=partition)
    device.good("REMOVE COLLECTION", **what, object=collection, force=1)
    device.good("REMOVE", **this, get=got)
    if second:
        device.good("REMOVE PARTITION", **what, remove_scope=1)
    else:
        spare = created(device.good("CREATE PARTITION", partition=0, get=IDS, set_=[(P + OURS, 1, b"p")]))[0]
        device.good("REMOVE PARTITION", partition=spare)


def only_osd_2(device, partition, object_, collection):
    """What OSD-1 has not."""
    what = {"partition": partition, "object": object_}
    members = {"partition": partition, "object": collection}
    device.good("OBJECT STRUCTURE CHECK", partition=0)
    device.good("SET ATTRIBUTES", **what, in_cdb=(OURS, 3, b"in the CDB"))
    device.good("WRITE", **what, data=b"a" * 30, length=30, pieces=[osd.scatter_gather([(0, 10), (500, 20)])])
    device.good("READ", **what, data_in=30, length=30, pieces=[osd.scatter_gather([(0, 10), (500, 20)])], get=[(U + 1, 0x82)])
    device.good("PUNCH", **what, start=0, length=10)
    device.good("CLEAR", **what, start=0, length=10)
    device.good("COPY USER OBJECTS", partition=partition, object=0, pieces=[osd.copy_source(partition, object_)], get=IDS)
    tracking = created(device.good("CREATE USER TRACKING COLLECTION", partition=partition, object=0, source=collection, get=IDS))[1]
    device.good("REMOVE COLLECTION", partition=partition, object=tracking, force=1)
    device.good("QUERY", **members, allocation=1000, data_in=1000, pieces=[osd.query_list([(OURS, 1, b"a", b"z"), (U + 1, 0x82, b"", bytes([255]) * 8)])])
    device.good("GET MEMBER ATTRIBUTES", **members, get=[(OURS, 1)])
    device.good("SET MEMBER ATTRIBUTES", **members, set_=[(OURS, 5, b"members")])
    for where, page in (({"partition": partition}, OURS), ({"partition": 0}, P + OURS)):
        device.send(with_attributes(device, "LIST", page, **where))
    device.send(with_attributes(device, "LIST COLLECTION", OURS, partition=partition, object=collection))
    snapshot = created(device.good("CREATE SNAPSHOT", partition=0, source=partition, get=IDS))[0]
    clone = created(device.good("CREATE CLONE", partition=0, source=snapshot, get=IDS))[0]
    device.good("REFRESH SNAPSHOT OR CLONE", partition=snapshot)
    device.good("RESTORE PARTITION FROM SNAPSHOT", partition=partition, source=snapshot)
    device.good("READ MAP", **what, allocation=1000, data_in=1000, map_type=0)
    device.good("READ MAPS AND COMPARE", **what, source=snapshot, allocation=1000, data_in=1000, map_type=0)
    device.good("DETACH CLONE", partition=clone)
    device.good("REMOVE PARTITION", partition=clone, remove_scope=1)
    device.good("REMOVE PARTITION", partition=snapshot, remove_scope=1)
    device.good("REMOVE MEMBER OBJECTS", **members)
    device.good("CREATE", **what, count=1)


def with_attributes(device, action, page, **what):
    """A list command that asks for an attribute of each object."""
    request = Request(action, device.version, get=[(page, 1)], allocation=2000, data_in=2000, list_attr=1, list_lengths=True, **what)
    view = {**request.view, "attributes": {**request.view["attributes"], "get_length": 0, "retrieved_offset": None}}
    request.cdb, request.in_length, request.retrieved_at = osd.encode(view), 2000, None
    return request


def tshark(target, path, filter_, *more):
    printed = proc.run("tshark", "-r", path, "-d", f"tcp.port=={target.port},iscsi", "-o", "scsi.defragment:TRUE", "-Y", filter_, *more, timeout=120)
    return "\n".join(line for line in printed.splitlines() if line.strip() and "Running as user" not in line)


def commands_seen(target, path):
    """What Wireshark shows of every OSD command's CDB, in order: {field: shown value}."""
    printed = tshark(target, path, "scsi_osd.addcdblen", "-T", "pdml")
    root = xml.etree.ElementTree.fromstring(printed[printed.index("<?xml"):] if "<?xml" in printed else printed)
    found = []
    for protocol in root.iter("proto"):
        fields = {}
        for field in protocol.iter("field"):
            fields.setdefault(field.get("name"), (field.get("show"), field.get("value")))
        if "scsi_osd.addcdblen" in fields:
            found.append(fields)
    return found


EXPERTS = {"scsi_osd2.invalid_offset", "scsi_osd2.object_descriptor_format.invalid", "scsi_osd.attributes_list.type.invalid",
           "scsi_osd2.cdb_continuation.format.unknown", "scsi_osd2.cdb_continuation.sa.mismatch", "scsi_osd2.cdb_continuation.desc.type.unknown",
           "scsi_osd2.cdb_continuation.desc.length.invalid", "scsi_osd2.cdb_continuation.length.invalid", "scsi_osd.attribute_length.invalid"}


def faults(target, path):
    """Frames with an expert item of the OSD dissector's that is an error: (frame, service action, why)."""
    return tshark(target, path, " || ".join(sorted(EXPERTS)), "-T", "fields", "-e", "frame.number", "-e", "scsi_osd.svcaction",
                  "-e", "_ws.expert.message").splitlines()


def shown(field, base):
    show, value = field
    if base == "bytes":
        return int((value or show).replace(":", ""), 16)
    return show.replace(":", "") if base == "text" else int(show, 0)


def compare(cdb, fields):
    """Wireshark's view of one CDB beside ours, where it has one. Returns how many fields were compared."""
    view = osd.decode(cdb)
    action = int.from_bytes(cdb[8:10], "big")
    expect(int(fields["scsi_osd.svcaction"][0], 0) == action, f"Wireshark sees {fields['scsi_osd.svcaction'][0]}, {action:04x} was sent")
    if action not in READ_WHOLE:
        return 0
    compared = 0
    for ours, (theirs, base) in SAME.items():
        if ours in view and theirs in fields:
            expect(shown(fields[theirs], base) == view[ours], f"{view['action']} in {len(cdb)} bytes: {ours} is {view[ours]}, Wireshark's {theirs} {fields[theirs]}")
            compared += 1
    if view["attributes"]["format"] == 3:
        for ours, theirs in LISTS.items():
            want = view["attributes"][ours]
            found = int(fields[f"scsi_osd.{theirs}"][0], 0)
            expect(found == (osd.UNUSED if want is None else want), f"{view['action']} in {len(cdb)} bytes: {ours} is {want}, Wireshark's {found:#x}")
            compared += 1
    expect(compared >= 3, f"{view['action']} in {len(cdb)} bytes: only {compared} fields are shown: {sorted(fields)}")
    return compared


def every_form(session, cdbs):
    session.run(bytes([0x12, 0, 0, 0, 96, 0]), 96)
    for page in (0, 0x80, 0x83):
        session.run(bytes([0x12, 1, page, 1, 0, 0]), 256)
    for version in FORMS:
        all_commands(Recorder(session, version, cdbs))


def all_sent(cdbs):
    sent = {int.from_bytes(cdb[8:10], "big") for cdb in cdbs}
    missing = [f"{name} ({code:04x})" for name, (*codes, _) in osd.ACTIONS.items() for code in codes if code and code not in sent]
    expect(not missing, f"never sent: {', '.join(missing)}")


def by_hand(lab):
    """All service actions of all forms, sent by lab/osd.py."""
    proc.need("tshark")
    with lab.serve(Unit(objects=True)) as target:
        cdbs = []

        def traffic():
            with wire.session(target) as session:
                every_form(session, cdbs)

        path = captured(target, traffic)
        judge(target, path, cdbs)
        all_sent(cdbs)


def over_iser(lab):
    """The same over iSER: what Wireshark does not read of it is given to it as iSCSI."""
    proc.need("tshark")
    if lab.kind != "stag":
        raise Skip(f"{lab.kind} has no software iWARP")
    with lab.serve(Unit(objects=True)) as target:
        cdbs = []

        def traffic():
            with iser.session(target) as session:
                every_form(session, cdbs)
                session.logout()

        path = captured(target, traffic)
        no_error(path, "iWARP")
        out = os.path.join(target.folder, "iscsi.pcap")
        moved_in, moved_out = with_data(path, out, target.port)
        expect(moved_in > 10_000 and moved_out > 10_000, f"{moved_in} bytes were written by RDMA, {moved_out} read")
        judge(types.SimpleNamespace(port=3260), out, cdbs)
        all_sent(cdbs)


def with_data(path, out, port):
    """Write a session over iSER, whose commands come one after another, to a capture of iSCSI with the data of the commands;
    returns how many bytes were moved in and out."""
    found = list(segments(path))
    written, requests, answers = collections.defaultdict(bytearray), [], [bytearray()]
    for sender, segment in found:
        if segment.opcode == iwarp.WRITE:
            expect(sender == port, "an initiator's RDMA Write")
            place(written[segment.stag], segment.offset - iser.BASE, segment.payload)
        elif segment.opcode == iwarp.READ_REQUEST:
            requests.append(struct.unpack(">IQIIQ", segment.payload))
        elif segment.opcode == iwarp.READ_RESPONSE:
            answers[-1] += segment.payload
            if segment.last:
                answers.append(bytearray())
    fetched = collections.defaultdict(bytearray)
    expect(len(answers) == len(requests) + 1, f"{len(requests)} Read Requests, {len(answers) - 1} answers")
    for (_, _, size, stag, offset), answer in zip(requests, answers):
        expect(len(answer) == size, f"{size} bytes were asked for, {len(answer)} came")
        place(fetched[stag], offset - iser.BASE, answer)
    theirs, pdus = collections.defaultdict(list), []
    messages = list(sends(found))
    for sender, message in messages:
        if sender == port:
            pdu = pdu_of(message)
            theirs[pdu[16:20]].append(pdu)
    for sender, message in messages:
        if sender == port:
            continue
        pdu = pdu_of(message)
        pdus.append((False, pdu))
        write_stag, read_stag = struct.unpack(">I8xI", message[4:20])
        for stag, data, opcode, ours in ((write_stag, fetched, wire.DATA_OUT, False), (read_stag, written, wire.DATA_IN, True)):
            if stag and data[stag]:
                header = wire.bhs(opcode, wire.FINAL, len(data[stag]), 0, int.from_bytes(pdu[16:20], "big"),
                                  struct.pack(">I", wire.NO_TAG) + bytes(24))
                pdus.append((ours, header + bytes(data[stag]) + bytes(-len(data[stag]) % 4)))
        tag = pdu[16:20]
        if theirs[tag]:
            pdus.append((True, theirs[tag].pop(0)))
    left = [pdu for rest in theirs.values() for pdu in rest if pdu[0] & 0x3F != wire.NOP_IN]
    expect(not left, f"{len(left)} answers belong to no command")
    write_stream(out, pdus)
    return sum(map(len, written.values())), sum(map(len, fetched.values()))


def place(buffer, at, data):
    buffer.extend(bytes(max(0, at + len(data) - len(buffer))))
    buffer[at:at + len(data)] = data


def judge(target, path, cdbs=None):
    """Nothing malformed, no error of the dissector's, and each CDB that was sent, in order, with its fields."""
    malformed = [line for line in tshark(target, path, "_ws.malformed").splitlines() if "Inquiry Response Data" not in line]
    expect(not malformed, "malformed:\n" + "\n".join(malformed[:10]))
    wrong = faults(target, path)
    expect(not wrong, "Wireshark finds fault with (frame, service action, why):\n" + "\n".join(wrong[:10]))
    seen = commands_seen(target, path)
    if cdbs is not None:
        expect(len(seen) == len(cdbs), f"Wireshark sees {len(seen)} OSD commands, {len(cdbs)} were sent")
        compared = sum(compare(cdb, fields) for cdb, fields in zip(cdbs, seen))
        print(f"       {len(cdbs)} commands of {len({cdb[8:10] for cdb in cdbs})} service actions, {compared} fields compared")
    return seen


def by_stag(lab):
    """What `stag osd` sends and is answered: a tree put, listed, found, snapshotted, got back and removed, over TCP."""
    proc.need("tshark")
    if lab.kind != "stag" or not Stag.binary:
        raise Skip("needs stag on both sides")
    with lab.serve(Unit(objects=True)) as target:
        tree, back = os.path.join(target.folder, "tree"), os.path.join(target.folder, "back")
        os.makedirs(os.path.join(tree, "deep", "er"))
        for number, where in enumerate(["one", "deep/two", "deep/er/three"]):
            with open(os.path.join(tree, where), "wb") as file:
                file.write(os.urandom(700 * (number + 1)))

        def traffic():
            def stag(*words):
                return proc.run(Stag.binary, "osd", *words, timeout=30).strip()

            device = target.urls[0]
            place = f"{device}/{stag('mkpart', device).split()[-1]}"
            stag("put", "-r", tree, place)
            stag("ls", "-l", place)
            stag("ls", device)
            stag("stat", device)
            stag("stat", "--map", f"{place}/one")
            stag("attr", "list", f"{place}/one")
            stag("find", place, "--name", "two")
            stag("snapshot", "create", place)
            stag("check", device)
            stag("get", "-r", place, back)
            stag("rm", f"{place}/one")
            proc.run("diff", "-r", "-x", "one", tree, back)

        seen = judge(target, captured(target, traffic))
        actions = collections.Counter(int(fields["scsi_osd.svcaction"][0], 0) for fields in seen)
        unknown = [f"{action:04x}" for action in actions if action not in osd.BY_ACTION]
        expect(not unknown, f"service actions that there are not: {unknown}")
        for name in ("CREATE PARTITION", "WRITE", "READ", "GET ATTRIBUTES", "QUERY", "CREATE SNAPSHOT", "READ MAP", "REMOVE", "OBJECT STRUCTURE CHECK"):
            code = osd.ACTIONS[name][1]
            other = {"WRITE": 0x8892, "GET ATTRIBUTES": 0x8883}.get(name, code)
            expect(actions[code] or actions[other], f"`stag osd` never sent {name}: { {f'{key:04x}': count for key, count in actions.items()} }")
        print(f"       {sum(actions.values())} commands of {len(actions)} service actions")


CASES = [
    ("tshark reads every service action in every form, as often as it was sent, with our fields", whole(by_hand)),
    ("tshark reads the same over iSER, as iSCSI", whole(over_iser)),
    ("tshark reads what `stag osd` sends and is answered", whole(by_stag)),
]
