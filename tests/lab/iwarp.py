"""iWARP by hand: MPA (RFC 5044, RFC 6581), DDP (RFC 5041) and RDMAP (RFC 5040), as a peer of the stack under test.

Written from the RFCs and from nothing of Stag's. It can play fair, and it can say what no fair peer says. Nothing here
trusts the other side: what it places must lie inside a buffer that was exposed for it, else the test has failed.
"""

import dataclasses
import socket
import struct
import time

from . import proc
from .report import Failed, expect
from .wire import Closed, crc32c

REQUEST_KEY, REPLY_KEY = b"MPA ID Req Frame", b"MPA ID Rep Frame"
MARKERS, CRC, REJECT, ENHANCED = 0x80, 0x40, 0x20, 0x10
MARKER_SPACING = 512

# RDMAP opcodes (RFC 5040 §4.2), and which of DDP's untagged queues they use (§4.3).
WRITE, READ_REQUEST, READ_RESPONSE, SEND, SEND_INVALIDATE, SEND_SOLICITED, SEND_SOLICITED_INVALIDATE, TERMINATE = range(8)
SENDS = (SEND, SEND_INVALIDATE, SEND_SOLICITED, SEND_SOLICITED_INVALIDATE)
NAMES = ("Write", "Read Request", "Read Response", "Send", "Send Inv", "Send SE", "Send SE Inv", "Terminate")
SEND_QUEUE, READ_QUEUE, TERMINATE_QUEUE = 0, 1, 2


class Terminated(Exception):
    """The other side sent a Terminate (RFC 5040 §4.8)."""

    def __init__(self, payload):
        expect(len(payload) >= 4, f"a Terminate of {len(payload)} bytes: {payload.hex()}")
        self.layer, self.type, self.code = payload[0] >> 4, payload[0] & 15, payload[1]
        self.control = payload[2] >> 5
        self.header = payload[4:]
        super().__init__(f"Terminate: layer {self.layer}, type {self.type}, code {self.code:#04x}")

    @property
    def reason(self):
        return self.layer, self.type, self.code


@dataclasses.dataclass
class Segment:
    """A DDP segment with RDMAP's control byte. Tagged: `stag` and `offset` (its TO); else queue, msn, offset (its MO), ulp."""

    tagged: bool
    last: bool
    opcode: int
    payload: bytes
    stag: int = 0
    offset: int = 0
    queue: int = 0
    msn: int = 0
    ulp: int = 0


@dataclasses.dataclass
class Buffer:
    """Memory that the other side may reach by an STag. `rights`: "w" to write it, "r" to read it."""

    data: bytearray
    rights: str
    base: int = 0
    placed: int = 0
    lent: int = 0


@dataclasses.dataclass
class Setup:
    """What one side says in MPA's startup. `crc` None: as the other side says; `markers`: wants to receive them."""

    private_data: bytes = b""
    revision: int = 2
    crc: bool | None = None
    markers: bool = False
    ird: int = 128
    ord: int = 128
    reject: bool = False
    fpdu: int = 16384  # Payload bytes in an FPDU that this side sends, at most.
    settle: float = 0.0  # Seconds from the reply to the first FPDU: siw's server misses one that comes at once.


class Stream:
    """An MPA connection in full operation."""

    def __init__(self, connected, setup, crc, markers_out, private_data, flags, ird, ord_):
        self.socket, self.crc, self.markers_out, self.markers_in = connected, crc, markers_out, setup.markers
        self.private_data, self.flags, self.peer_ird, self.peer_ord = private_data, flags, ird, ord_
        self.fpdu = setup.fpdu
        self.sent = self.received = 0  # Bytes of the FPDU stream, markers included.
        self.next_msn = [1, 1, 1]
        self.expected_msn = [1, 1, 1]
        self.partial = b""  # A Send of which the last segment has not come.
        self.buffers, self.next_stag = {}, 0x4C414200
        self.reads = []  # Our reads in flight: (sink STag, sink offset, length).
        self.counts = dict.fromkeys(NAMES, 0)
        self.invalidated = []
        self.pid = self.limit = None  # Of the peer's process, and the socket's time limit: with them there is proc.Patience.
        self.held = None  # Read Requests are kept here, unanswered, when it is a list.

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # MPA: FPDUs, their markers and CRC (RFC 5044 §4).

    def frame(self, ulpdu, length=None, crc=None, marker_error=0):
        """The bytes of an FPDU. Given `length`, `crc` or `marker_error`: with that field wrong."""
        body = struct.pack(">H", len(ulpdu) if length is None else length) + ulpdu
        body += bytes(-len(body) % 4)
        if self.markers_out:
            # A marker stands at every multiple of 512 bytes of the stream; it says how far back its FPDU began (§4.3).
            # One that comes just before an FPDU belongs to it and says 0.
            out, at = b"", self.sent
            start = at
            while body or at % MARKER_SPACING == 0:
                if at % MARKER_SPACING == 0:
                    out += struct.pack(">HH", 0, (at - start + marker_error) & 0xFFFF)
                    at += 4
                    if start == at - 4:
                        start = at
                    if not body:
                        break
                take = min(len(body), MARKER_SPACING - at % MARKER_SPACING)
                out, body, at = out + body[:take], body[take:], at + take
            body = out
        if crc is None:
            crc = crc32c(body) if self.crc else 0
        return body + struct.pack("<I", crc)

    def send_raw(self, data):
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None
        self.sent += len(data)

    def send_fpdu(self, ulpdu, **wrong):
        self.send_raw(self.frame(ulpdu, **wrong))

    def exactly(self, count):
        return receive_exactly(self.socket, count, self.pid, self.limit)

    def receive_fpdu(self):
        if not self.markers_in:
            head = self.exactly(2)
            length = struct.unpack(">H", head)[0]
            body = head + self.exactly(length + -(length + 2) % 4)
            covered = body
        else:
            covered, body, start = b"", b"", None
            need = 2
            while len(body) < need:
                if self.received % MARKER_SPACING == 0:
                    marker = self.exactly(4)
                    back = self.received - start if body else 0
                    self.received += 4
                    expect(struct.unpack(">HH", marker)[1] == back,
                           f"a marker says {marker.hex()}, {back} bytes after its FPDU's start")
                    covered += marker
                if start is None:
                    start = self.received
                part = self.exactly(min(need - len(body), MARKER_SPACING - self.received % MARKER_SPACING))
                self.received += len(part)
                covered, body = covered + part, body + part
                if need == 2 and len(body) == 2:
                    length = struct.unpack(">H", body)[0]
                    need = 2 + length + -(length + 2) % 4
            if self.received % MARKER_SPACING == 0:
                marker = self.exactly(4)
                expect(struct.unpack(">HH", marker)[1] == self.received - start, f"a marker before the CRC says {marker.hex()}")
                self.received += 4
                covered += marker
            self.received += 4
        trailer = struct.unpack("<I", self.exactly(4))[0]
        if self.crc:
            expect(trailer == crc32c(covered), "the CRC of an FPDU is wrong")
        return body[2:2 + length]

    # DDP and RDMAP: segments.

    def send_untagged(self, opcode, queue, payload, msn=None, offset=0, last=True, ulp=0, ddp=0x01, rdmap=0x40, **wrong):
        """One untagged segment, every field to choose. `msn` None: the next one of the queue."""
        if msn is None:
            msn = self.next_msn[queue]
            self.next_msn[queue] += last
        self.send_fpdu(bytes([ddp | (0x40 if last else 0), rdmap | opcode])
                       + struct.pack(">IIII", ulp, queue, msn, offset) + payload, **wrong)

    def send_tagged(self, opcode, stag, offset, payload, last=True, ddp=0x81, rdmap=0x40, **wrong):
        self.send_fpdu(bytes([ddp | (0x40 if last else 0), rdmap | opcode]) + struct.pack(">IQ", stag, offset) + payload, **wrong)

    def send(self, message, opcode=SEND, invalidate=0):
        for at in range(0, max(1, len(message)), self.fpdu):
            self.send_untagged(opcode, SEND_QUEUE, message[at:at + self.fpdu], offset=at,
                               last=at + self.fpdu >= len(message), ulp=invalidate)

    def tagged_message(self, opcode, stag, offset, data):
        for at in range(0, max(1, len(data)), self.fpdu):
            self.send_tagged(opcode, stag, offset + at, data[at:at + self.fpdu], last=at + self.fpdu >= len(data))

    def write(self, stag, offset, data):
        self.tagged_message(WRITE, stag, offset, data)

    def post_read(self, sink, sink_offset, length, stag, offset):
        """A Read Request: `length` bytes of the other side's `stag` into our exposed buffer `sink`."""
        self.reads.append((sink, sink_offset, length))
        self.send_untagged(READ_REQUEST, READ_QUEUE, struct.pack(">IQIIQ", sink, sink_offset, length, stag, offset))

    def send_terminate(self, layer=0, type_=0, code=0, payload=None):
        self.send_untagged(TERMINATE, TERMINATE_QUEUE, struct.pack(">BBxx", layer << 4 | type_, code) if payload is None else payload)

    def expose(self, data, rights, base=0):
        """Let the other side reach `data`; returns the STag. `base`: the tagged offset of its first byte."""
        self.next_stag += 0x101
        self.buffers[self.next_stag] = Buffer(data if isinstance(data, bytearray) else bytearray(data), rights, base)
        return self.next_stag

    def receive_segment(self):
        ulpdu = self.receive_fpdu()
        expect(len(ulpdu) >= 14, f"an FPDU of {len(ulpdu)} bytes is too short for a DDP header")
        ddp, rdmap = ulpdu[0], ulpdu[1]
        expect(ddp & 0x3F == 1 and rdmap & 0xF0 == 0x40, f"DDP or RDMAP version or reserved bits: {ddp:02x} {rdmap:02x}")
        tagged, last, opcode = bool(ddp & 0x80), bool(ddp & 0x40), rdmap & 15
        expect(opcode < len(NAMES), f"RDMAP opcode {opcode}")
        expect(tagged == (opcode in (WRITE, READ_RESPONSE)), f"{NAMES[opcode]} in a segment that is {'' if tagged else 'not '}tagged")
        if tagged:
            stag, offset = struct.unpack_from(">IQ", ulpdu, 2)
            segment = Segment(tagged, last, opcode, ulpdu[14:], stag=stag, offset=offset)
        else:
            expect(len(ulpdu) >= 18, f"an untagged segment of {len(ulpdu)} bytes")
            ulp, queue, msn, offset = struct.unpack_from(">IIII", ulpdu, 2)
            segment = Segment(tagged, last, opcode, ulpdu[18:], offset=offset, queue=queue, msn=msn, ulp=ulp)
            want = {READ_REQUEST: READ_QUEUE, TERMINATE: TERMINATE_QUEUE}.get(opcode, SEND_QUEUE)
            expect(queue == want, f"{NAMES[opcode]} on queue {queue}")
            expect(msn == self.expected_msn[queue], f"{NAMES[opcode]} has MSN {msn}, expected {self.expected_msn[queue]}")
            self.expected_msn[queue] += last
        self.counts[NAMES[opcode]] += last
        return segment

    def receive(self, wanted=SENDS):
        """The next whole Send, or what `wanted` names: (opcode, its bytes). What else comes is done on the way: placed,
        answered, checked. A Terminate is raised."""
        while True:
            segment = self.receive_segment()
            if segment.opcode == TERMINATE:
                raise Terminated(segment.payload)
            if segment.opcode == READ_REQUEST:
                expect(len(segment.payload) == 28, f"a Read Request of {len(segment.payload)} bytes")
                request = struct.unpack(">IQIIQ", segment.payload)
                if self.held is not None:
                    self.held.append(request)
                else:
                    self.answer_read(request)
            elif segment.tagged:
                self.place(segment)
                if segment.opcode in wanted and segment.last:
                    return segment.opcode, b""
            else:
                expect(segment.offset == len(self.partial), f"a Send continues at {segment.offset}, had {len(self.partial)}")
                self.partial += segment.payload
                if segment.last:
                    message, self.partial = self.partial, b""
                    if segment.opcode in (SEND_INVALIDATE, SEND_SOLICITED_INVALIDATE):
                        self.invalidate(segment.ulp)
                    return segment.opcode, message
            if segment.opcode in wanted and segment.last:
                return segment.opcode, segment.payload

    def reach(self, stag, offset, length, right):
        """The exposed buffer that holds these bytes, and where in it: or the other side reached for what it must not."""
        buffer = self.buffers.get(stag)
        expect(buffer is not None, f"the peer uses STag {stag:08x}, which does not exist (any more)")
        expect(right in buffer.rights, f"the peer may not {'write' if right == 'w' else 'read'} STag {stag:08x}")
        at = offset - buffer.base
        expect(0 <= at and at + length <= len(buffer.data),
               f"the peer reaches for {length} bytes at {at} of STag {stag:08x}, which has {len(buffer.data)}")
        return buffer, at

    def place(self, segment):
        length = len(segment.payload)
        if segment.opcode == READ_RESPONSE:
            expect(self.reads, "a Read Response without a Read Request")
            sink, offset, total = self.reads[0]
            expect(segment.stag == sink and segment.offset == offset, f"a Read Response for {segment.stag:08x} at "
                   f"{segment.offset:#x}, expected {sink:08x} at {offset:#x}")
            expect(length <= total and (length == total) == segment.last, f"a Read Response's segment of {length} bytes"
                   f"{', the last' if segment.last else ''}, with {total} to come")
            if segment.last:
                self.reads.pop(0)
            else:
                self.reads[0] = (sink, offset + length, total - length)
        elif not length:
            return
        buffer, at = self.reach(segment.stag, segment.offset, length, "w" if segment.opcode == WRITE else "s")
        buffer.data[at:at + length] = segment.payload
        buffer.placed += length

    def answer_read(self, request):
        sink, sink_offset, length, stag, offset = request
        if not length:
            self.send_tagged(READ_RESPONSE, sink, sink_offset, b"")
            return
        buffer, at = self.reach(stag, offset, length, "r")
        buffer.lent += length
        self.tagged_message(READ_RESPONSE, sink, sink_offset, bytes(buffer.data[at:at + length]))

    def invalidate(self, stag):
        expect(stag in self.buffers, f"the peer invalidates STag {stag:08x}, which does not exist")
        self.invalidated.append(stag)
        del self.buffers[stag]

    def read(self, length, stag, offset):
        """An RDMA Read to its end: the bytes."""
        sink = self.expose(bytearray(length), "s")
        self.post_read(sink, 0, length, stag, offset)
        while self.reads:
            self.receive((READ_RESPONSE,))
        return bytes(self.buffers.pop(sink).data)

    def wait_terminate(self, timeout=20):
        """Until the other side ends the stream: its Terminate, or None if it closes without one. Data that was on its way
        is taken first."""
        limit = time.monotonic() + timeout
        try:
            while time.monotonic() < limit:
                self.receive()
        except Terminated as terminated:
            return terminated
        except Closed:
            return None
        raise Failed(f"the stream goes on after {timeout} s")


def receive_exactly(connected, count, pid=None, limit=None):
    parts = []
    while count:
        try:
            most = min(count, 1 << 20)
            patient = limit is not None and connected.gettimeout() == limit
            part = proc.receive(connected, most, pid) if patient else connected.recv(most)
        except (ConnectionResetError, BrokenPipeError):
            raise Closed from None
        except TimeoutError:
            raise Failed("the peer neither answers nor closes the connection") from None
        if not part:
            raise Closed
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


# MPA's startup (RFC 5044 §7.1, RFC 6581).

def startup_frame(key, setup, crc, flags=0, private_data=None):
    data = setup.private_data if private_data is None else private_data
    if setup.revision == 2:
        flags |= ENHANCED
        data = struct.pack(">HH", setup.ird & 0x3FFF, setup.ord & 0x3FFF) + data
    flags |= (CRC if crc else 0) | (MARKERS if setup.markers else 0) | (REJECT if setup.reject else 0)
    return key + struct.pack(">BBH", flags, setup.revision, len(data)) + data


def read_startup(connected, key, pid=None):
    """(flags, revision, ird, ord, private data) of the other side's frame."""
    head = receive_exactly(connected, 20, pid, connected.gettimeout())
    expect(head[:16] == key, f"MPA's key is {head[:16]!r}")
    flags, revision, length = struct.unpack(">BBH", head[16:])
    expect(length <= 512, f"MPA private data of {length} bytes")
    expect(flags & (0x0F if revision == 2 else 0x1F) == 0, f"MPA flags {flags:02x} have reserved bits, revision {revision}")
    data = receive_exactly(connected, length, pid, connected.gettimeout())
    ird = ord_ = 0
    if flags & ENHANCED:
        expect(length >= 4, "an enhanced frame without IRD and ORD")
        ird, ord_ = struct.unpack(">HH", data[:4])
        data = data[4:]
    return flags, revision, ird, ord_, data


def tcp(host, port, timeout=8):
    connected = socket.create_connection((host, port), timeout)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def connect(host, port, setup, timeout=8, pid=None):
    connected = tcp(host, port, timeout)
    connected.sendall(startup_frame(REQUEST_KEY, setup, setup.crc))
    flags, revision, ird, ord_, data = read_startup(connected, REPLY_KEY, pid)
    expect(not flags & REJECT, f"the connection is rejected, private data {data.hex()}")
    expect(revision == setup.revision, f"the reply has revision {revision}")
    time.sleep(setup.settle)
    expect(flags & CRC or not setup.crc, "the reply declines the CRC that the request asked for (RFC 5044 §7.1.2)")
    return Stream(connected, setup, bool(flags & CRC), bool(flags & MARKERS), data, flags, ird, ord_)


def accept(listener, setup, timeout=20):
    """The next connection to a listening socket, and its startup."""
    listener.settimeout(timeout)
    try:
        connected, _ = listener.accept()
    except TimeoutError:
        raise Failed(f"nobody connects within {timeout} s") from None
    connected.settimeout(timeout)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    flags, revision, ird, ord_, data = read_startup(connected, REQUEST_KEY)
    crc = bool(flags & CRC) if setup.crc is None else setup.crc or bool(flags & CRC)
    # The reply speaks the request's revision (RFC 6581 §5), and takes no ready-to-receive frame.
    mine = dataclasses.replace(setup, revision=revision)
    connected.sendall(startup_frame(REPLY_KEY, mine, crc))
    return Stream(connected, mine, crc, bool(flags & MARKERS), data, flags, ird, ord_)


def listen(host, port):
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    listener.listen(8)
    return listener
