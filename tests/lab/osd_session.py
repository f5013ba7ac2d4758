"""OSD commands over a session: lab/osd.py's CDBs in additional header segments (RFC 7143 §11.2.2), their data both ways at once.

`Device` sends a command as a test describes it, lays out its Data-Out (continuation, data, attribute lists) and Data-In (data,
retrieved attributes), and gives the `Answer` taken apart. Over TCP and, by lab/iser.py, over iSER.
"""

import struct

from . import iser, osd, wire
from .report import Failed, expect

GOOD, CHECK_CONDITION = 0, 2
BIDIRECTIONAL_OVERFLOW, BIDIRECTIONAL_UNDERFLOW, OVERFLOW, UNDERFLOW = 0x10, 0x08, 0x04, 0x02


def extended_cdb(cdb):
    """The additional header segment with the CDB's bytes from 16 on (RFC 7143 §11.2.2.3)."""
    rest = cdb[16:]
    return struct.pack(">HBx", len(rest) + 1, 1) + rest + bytes(-len(rest) % 4)


def read_length(count):
    """The additional header segment with how many bytes a bidirectional command reads at most (RFC 7143 §11.2.2.4)."""
    return struct.pack(">HBxI", 5, 2, count)


class Answer:
    """What came back of one command."""

    def __init__(self, pdu, data, request):
        self.status, self.flags = pdu.bhs[3], pdu.flags
        self.residual = pdu.word(44)
        # A Data-In PDU with the status has no such field (§11.7).
        self.read_residual = pdu.word(40) if pdu.opcode == wire.RESPONSE else 0
        raw = pdu.data if pdu.opcode == wire.RESPONSE else b""
        self.raw_sense = raw[2:2 + int.from_bytes(raw[:2], "big")] if raw else b""
        self.sense = osd.decode_sense(self.raw_sense)
        self.everything, self.request = data, request
        self.data = data[:request.data_in] if request.data_in else data if request.retrieved_at is None else b""

    @property
    def code(self):
        """(sense key, ASC and ASCQ), or None."""
        return (self.sense["key"], self.sense["code"]) if self.sense else None

    @property
    def attribute_list(self):
        """(type, contents) of the retrieved attributes' list."""
        at = self.request.retrieved_at
        expect(at is not None and len(self.everything) > at, f"no attributes at {at} of {len(self.everything)} bytes of Data-In")
        kind, found, _ = osd.decode_list(self.everything[at:], self.request.generation)
        return kind, found

    @property
    def attributes(self):
        """{(page, number): value} of a list of type 9."""
        kind, found = self.attribute_list
        expect(kind == 9, f"a list of type {kind}")
        return {(page, number): value for page, number, value in found}

    @property
    def objects(self):
        """{id: {(page, number): value}} of a list of many objects."""
        kind, found = self.attribute_list
        expect(kind == (15 if self.request.generation == 1 else 14), f"a list of type {kind}")
        objects = {}
        for entry in found:
            objects.setdefault(entry[0], {}).update({(page, number): value for page, number, value in entry[-1]})
        return objects

    @property
    def page(self):
        """The bytes of a page that was asked for in page format."""
        return self.everything[self.request.retrieved_at:]

    def __repr__(self):
        return f"status {self.status:#x}, sense {self.code} {self.raw_sense.hex()}, {len(self.everything)} bytes in, flags {self.flags:#x}"


class Request:
    """A command with its buffers: where each part of Data-Out and Data-In lies is decided here.

    `get`: (page, number) pairs; `set_`: (page, number, value); `get_page`: (page, allocation length) and `set_one`: (page,
    number, value) for the page format; `in_cdb`: one attribute to set in the CDB. `data_in`: how many bytes of data are
    expected before the attributes, `room` how many they may take. `list_lengths`: the lists that are sent tell their length, which nobody needs but Wireshark."""

    def __init__(self, action, version=236, data=b"", data_in=0, get=None, set_=None, get_page=None, set_one=None, in_cdb=None,
                 room=4096, pieces=None, capability=None, security=None, list_lengths=False, **fields):
        known = osd.VERSIONS[version]
        self.generation, self.data_in = known.generation, data_in
        out, self.retrieved_at, self.in_length = bytearray(), None, data_in

        def put(part):
            out.extend(bytes(-len(out) % known.smallest))
            at = len(out)
            out.extend(part)
            return at

        if pieces is not None:
            out += osd.continuation(action, pieces)
            fields.setdefault("continuation", len(out))
        out += data
        attributes = {}
        if in_cdb:
            attributes = {"format": 1, "page": in_cdb[0], "number": in_cdb[1], "value": in_cdb[2].hex()}
        elif get_page or set_one:
            attributes = {"format": 2}
            if set_one:
                attributes |= {"set_page": set_one[0], "set_number": set_one[1], "set_length": len(set_one[2]), "set_offset": put(set_one[2])}
        elif get is not None or set_ is not None:
            attributes = {"format": 3}
            if get is not None:
                part = osd.get_list(get, self.generation, 8 * len(get) * list_lengths)
                attributes |= {"get_list_length": len(part), "get_list_offset": put(part)}
            if set_ is not None:
                part = osd.set_list(set_, self.generation, len(osd.entries(set_, self.generation)) * list_lengths)
                attributes |= {"set_list_length": len(part), "set_list_offset": put(part)}
        if get_page or get is not None:
            if get_page:
                attributes["get_page"], room = get_page
            self.retrieved_at = data_in + -data_in % known.smallest
            attributes |= {"get_length": room, "retrieved_offset": self.retrieved_at}
            self.in_length = self.retrieved_at + room
        self.out = bytes(out)
        if capability is None:
            capability = {name: value for name, value in osd.decode_capability(osd.capability_for(
                fields.get("partition", 0), fields.get("object", 0), self.generation)).items() if value}
        self.view = {"version": version, "action": action, "attributes": attributes, "capability": capability,
                     "security": security or {}, **fields}
        self.cdb = osd.encode(self.view)


class Device:
    """A unit of a session, that of TCP's `wire.session` or of `iser.session`."""

    def __init__(self, session, version=236):
        self.session, self.version = session, version
        self.sent = {}  # How often each service action was sent.

    def _pdu(self, request, cdb=None, first="cdb", immediate=0):
        """The PDU of a command. -> header, additional header segments, tag"""
        cdb = request.cdb if cdb is None else cdb
        action = int.from_bytes(cdb[8:10], "big")
        self.sent[action] = self.sent.get(action, 0) + 1
        session, tag = self.session, self.session.tag()
        out, length = request.out, request.in_length
        segments = [extended_cdb(cdb)] if len(cdb) > 16 else []
        if out and length:
            segments.append(read_length(length))
        if first != "cdb":
            segments.reverse()
        ahs = b"".join(segments)
        flags = wire.FINAL | (0x20 if out else 0) | (0x40 if length else 0)
        number, session.command_number = session.command_number, session.command_number + 1 & 0xFFFFFFFF
        specific = struct.pack(">III", len(out) if out else length, number, session.status_number) + cdb[:16]
        return wire.bhs(wire.COMMAND, flags, immediate, session.lun, tag, specific, ahs_words=len(ahs) // 4), ahs, tag

    def post(self, request):
        """Sends it, over TCP, its Data-Out as immediate data, and takes nothing that comes back."""
        header, ahs, _ = self._pdu(request, immediate=len(request.out))
        self.session.send(header, request.out, ahs=ahs)

    def send(self, request, cdb=None, first="cdb"):
        """Run it to its end. `cdb`: these bytes instead of its own. `first`: which segment comes first where there are two."""
        session, out, length = self.session, request.out, request.in_length
        header, ahs, tag = self._pdu(request, cdb, first)
        if isinstance(session, iser.Connection):
            return self._over_iser(header, ahs, tag, out, length, request)
        session.send(header, ahs=ahs)
        received = bytearray()
        while True:
            pdu = session.receive()
            if pdu.opcode == wire.NOP_IN and pdu.target_tag != wire.NO_TAG:
                self._pong(pdu)
            elif pdu.tag != tag:
                continue
            elif pdu.opcode == wire.DATA_IN:
                at = pdu.word(40)
                expect(at + len(pdu.data) <= length, f"Data-In of {len(pdu.data)} bytes at {at} where {length} are expected")
                received.extend(bytes(max(0, at + len(pdu.data) - len(received))))
                received[at:at + len(pdu.data)] = pdu.data
                if pdu.flags & 1:
                    return Answer(pdu, bytes(received), request)
            elif pdu.opcode == wire.R2T:
                at, count = pdu.word(40), pdu.word(44)
                expect(at + count <= len(out), f"R2T for {count} bytes at {at} of {len(out)}")
                session.send_data(tag, pdu.target_tag, at, out[at:at + count])
            elif pdu.opcode == wire.RESPONSE:
                if pdu.bhs[2]:
                    raise Failed(f"iSCSI response {pdu.bhs[2]:#x}")
                return Answer(pdu, bytes(received), request)
            elif pdu.opcode == wire.REJECT:
                raise Failed(f"rejected: reason {pdu.bhs[2]:#x}")

    def _over_iser(self, header, ahs, tag, out, length, request):
        session = self.session
        read, write = bytearray(length), bytearray(out)
        read_stag = session.stream.expose(read, "w", iser.BASE) if length else 0
        write_stag = session.stream.expose(write, "r", iser.BASE) if out else 0
        flags = iser.CONTROL | (iser.READ_VALID if length else 0) | (iser.WRITE_VALID if out else 0)
        # As lab/iser.py has it: the buffer that is read to goes with the read STag.
        session.send(header, ahs=ahs, iser=iser.header(flags, write_stag, iser.BASE if out else 0, read_stag, iser.BASE if length else 0))
        placed = session.stream.buffers.get(read_stag)
        while True:
            pdu = session.receive()
            if pdu.opcode == wire.NOP_IN and pdu.target_tag != wire.NO_TAG:
                self._pong(pdu)
            elif pdu.tag == tag and pdu.opcode == wire.RESPONSE:
                if pdu.bhs[2]:
                    raise Failed(f"iSCSI response {pdu.bhs[2]:#x}")
                session.stream.buffers.pop(read_stag, None)
                session.stream.buffers.pop(write_stag, None)
                return Answer(pdu, bytes(read[:placed.placed]) if placed else b"", request)
            elif pdu.tag == tag and pdu.opcode == wire.REJECT:
                raise Failed(f"rejected: reason {pdu.bhs[2]:#x}")

    def _pong(self, pdu):
        session = self.session
        session.send(wire.bhs(wire.NOP_OUT | wire.IMMEDIATE, wire.FINAL, 0, 0, wire.NO_TAG, struct.pack(
            ">III", pdu.target_tag, session.command_number, session.status_number)))

    def run(self, action, **what):
        """One command and its answer, whatever that is."""
        what.setdefault("version", self.version)
        return self.send(Request(action, **what))

    def good(self, action, **what):
        """One command that must end with GOOD."""
        answer = self.run(action, **what)
        expect(answer.status == GOOD, f"{action} {brief(what)}: {answer}")
        return answer

    def fails(self, action, key, code, field=None, **what):
        """One command that must end with that sense, and name that byte of the CDB if one is given."""
        answer = self.run(action, **what)
        expect(answer.status == CHECK_CONDITION and answer.code == (key, code),
               f"{action} {brief(what)}: {answer}; expected sense {key:x}/{code:04x}")
        check_sense(answer)
        if field is not None:
            expect(answer.sense.get("field") == field and answer.sense.get("in_cdb") == 1,
                   f"{action} {brief(what)}: field {answer.sense.get('field')}, not {field}; {answer}")
        return answer


def check_sense(answer):
    """What every CHECK CONDITION of an OSD has: descriptor format with the object it is about."""
    expect(answer.raw_sense[:1] == b"\x72", f"sense that is not in descriptor format: {answer.raw_sense.hex()}")
    expect("object" in answer.sense, f"sense without the object identification descriptor: {answer.raw_sense.hex()}")


def brief(what):
    return " ".join(f"{name}={value if not isinstance(value, bytes) or len(value) < 20 else f'{len(value)} bytes'}"
                    for name, value in what.items())


def read_attribute(device, partition, object_, page, number, version=None):
    """The value of one attribute; None where it is not defined."""
    answer = device.good("GET ATTRIBUTES", partition=partition, object=object_, get=[(page, number)],
                         **({"version": version} if version else {}))
    found = answer.attributes
    expect(list(found) == [(page, number)], f"asked for {page:x}/{number:x}, got {[(hex(p), hex(n)) for p, n in found]}")
    value = found[page, number]
    return value if value or device.version != 200 and value is not None else None
