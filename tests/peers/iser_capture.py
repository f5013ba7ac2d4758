"""Wireshark's dissectors read a session of our initiator with our target over iSER: MPA, DDP, RDMAP, and the iSCSI in it.

Wireshark knows iSER over InfiniBand only. So here it dissects and counts what lies below, this file takes the iSER headers
apart (RFC 7145 §9), and what they carry goes to Wireshark again, as a TCP stream of iSCSI.
"""

import collections
import contextlib
import os
import struct

from lab import iser, iwarp, proc, wire
from lab.iwarp import NAMES, Closed
from lab.report import Skip, expect
from lab.target import Stag, Unit
from peers.capture import captured, whole

MIB = 1 << 20
# Wireshark takes a Send for NFS over RDMA or SMB Direct at the slightest likeness.
NOT_THESE = ["--disable-protocol", "rpcordma", "--disable-protocol", "smb_direct"]


def tshark(path, *words):
    printed = proc.run("tshark", "-r", path, *NOT_THESE, *words, timeout=120)
    return [line for line in printed.splitlines() if "Running as user" not in line]


def fields(path, filter_, *names):
    words = [word for name in names for word in ("-e", name)]
    return [(line.split("\t") + [""] * len(names))[:len(names)]
            for line in tshark(path, "-Y", filter_, "-T", "fields", *words)]


def no_error(path, what):
    """Nothing malformed; and of the CRCs that are in use each is right. A frame that has come twice is TCP's business."""
    malformed = tshark(path, "-Y", "_ws.malformed")
    expect(not malformed, f"{what}: malformed:\n" + "\n".join(malformed[:10]))
    wrong = tshark(path, "-Y", "_ws.expert.severity >= 0x800000 && iwarp_mpa")
    expect(not wrong, f"{what}: errors:\n" + "\n".join(wrong[:10]))


def crcs(path):
    """How many FPDUs Wireshark found a good CRC in, and how many a bad one."""
    text = tshark(path, "-Y", "iwarp_mpa.fpdu", "-O", "iwarp_mpa")
    return sum("(Good CRC32)" in line for line in text), sum("(Bad CRC32" in line for line in text)


def operations(path):
    """Whole RDMAP messages of each kind: {name: count}, by their last segments."""
    counts = collections.Counter()
    for opcodes, lasts in fields(path, "iwarp_rdma.opcode", "iwarp_rdma.opcode", "iwarp_ddp.last_flag"):
        for opcode, last in zip(opcodes.split(","), lasts.split(",")):
            if last in ("1", "True"):
                counts[NAMES[int(opcode, 0)]] += 1
    return counts


class Recorded:
    """One direction of a captured connection, to be read as a socket is."""

    def __init__(self, data):
        self.data = data

    def recv(self, count):
        part, self.data = self.data[:count], self.data[count:]
        return part

    def gettimeout(self):
        """None: nobody is waited for."""


def directions(path):
    """{(connection, the sender's port): its bytes}."""
    parts = collections.defaultdict(dict)
    for stream, port, at, payload in fields(path, "tcp.len > 0", "tcp.stream", "tcp.srcport", "tcp.seq", "tcp.payload"):
        parts[int(stream), int(port)][int(at)] = bytes.fromhex(payload.replace(":", ""))
    whole = {}
    for key, pieces in parts.items():
        whole[key] = b""
        for at, piece in sorted(pieces.items()):
            have = len(whole[key]) + 1  # Sequence numbers begin with 1.
            expect(at <= have, f"a gap of {at - have} bytes in the capture")
            whole[key] += piece[have - at:]
    return whole


def segments(path):
    """(the sender's port, the segment) of each DDP segment, by the lab's own decoder: Wireshark shows one payload of a packet only.
    The connections have no markers."""
    for (_, port), data in directions(path).items():
        recorded = Recorded(data)
        key = data[:16]
        expect(key in (iwarp.REQUEST_KEY, iwarp.REPLY_KEY), f"a connection begins with {key!r}")
        flags, _, ird, ord_, private = iwarp.read_startup(recorded, key)
        stream = iwarp.Stream(recorded, iwarp.Setup(), bool(flags & iwarp.CRC), False, private, flags, ird, ord_)
        with contextlib.suppress(Closed):
            while True:
                yield port, stream.receive_segment()


def sends(found):
    """(the sender's port, the message) of each Send among segments."""
    messages = collections.defaultdict(bytes)
    for port, segment in found:
        if segment.opcode in iwarp.SENDS:
            messages[port] += segment.payload
            if segment.last:
                yield port, messages.pop(port)


def pdu_of(message):
    """The PDU that a Send carries, behind an iSER header that is as it must be."""
    expect(len(message) >= 76, f"a Send of {len(message)} bytes")
    expect(message[0] & 0xF0 == iser.CONTROL, f"an iSER header that begins with {message[0]:#04x}")
    if not message[0] & iser.WRITE_VALID:
        expect(not any(message[4:16]), f"a write STag that is not valid is not 0: {message[:28].hex()}")
    if not message[0] & iser.READ_VALID:
        expect(not any(message[16:28]), f"a read STag that is not valid is not 0: {message[:28].hex()}")
    expect(message[1:4] == bytes(3), f"reserved bytes of an iSER header: {message[:28].hex()}")
    pdu = message[28:]
    length = 48 + pdu[4] * 4 + int.from_bytes(pdu[5:8], "big")
    expect(length <= len(pdu) <= length + 3, f"a PDU of {length} bytes in a Send with room for {len(pdu)}")
    return pdu[:length] + bytes(-length % 4)


def write_stream(out, pdus):
    """Write (whether the target sent it, the PDU) pairs to a capture as a TCP stream to port 3260."""
    at = {True: 1, False: 1}
    with open(out, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, 101))  # LINKTYPE_RAW: IP.
        for ours, pdu in pdus:
            tcp = struct.pack(">HHIIBBHHH", 3260 if ours else 50000, 50000 if ours else 3260, at[ours], at[not ours], 0x50, 0x18, 65535, 0, 0)
            ip = struct.pack(">BBHHHBBHII", 0x45, 0, 40 + len(pdu), 0, 0, 64, 6, 0, 0x0A000001 + ours, 0x0A000002 - ours)
            at[ours] += len(pdu)
            file.write(struct.pack("<IIII", 0, 0, 40 + len(pdu), 40 + len(pdu)) + ip + tcp + pdu)


def as_iscsi(path, out, port):
    """Write the PDUs that the Sends carry to a capture of iSCSI; returns the opcodes, and the iSER flags."""
    opcodes, flags, pdus = collections.Counter(), collections.Counter(), []
    for source, message in sends(segments(path)):
        pdu = pdu_of(message)
        opcodes[pdu[0] & 0x3F] += 1
        flags[message[0] & 0x0F] += 1
        pdus.append((source == port, pdu))
    write_stream(out, pdus)
    return opcodes, flags


def session_of_ours(lab):
    """`stag` against `stag serve`: as many Writes and Reads as the traffic needs, and no Data-In, Data-Out or R2T."""
    proc.need("tshark")
    if lab.kind != "stag" or not Stag.binary:
        raise Skip("needs stag on both sides")
    with lab.serve(Unit(), Unit(block_bytes=4096)) as target:
        data, back = os.path.join(target.folder, "data"), os.path.join(target.folder, "back")
        with open(data, "wb") as file:
            file.write(os.urandom(2 * MIB))
        url = target.urls[0].replace("iscsi://", "iser://", 1)

        def traffic():
            proc.run(Stag.binary, "info", url)
            proc.run(Stag.binary, "write", "-q", "-i", data, "--block", "128K", url)
            proc.run(Stag.binary, "read", "-q", "-o", back, "--length", 2 * MIB, "--block", "128K", url)
            proc.run("cmp", data, back)

        path = captured(target, traffic)
        no_error(path, "iWARP")
        good, bad = crcs(path)
        expect(not bad and good, f"{good} FPDUs have a good CRC, {bad} a bad one")
        counts = operations(path)
        # 16 writes of 128 KiB, each by at least one Read; 16 reads, each by at least one Write; small ones besides.
        for name in ("Write", "Read Request", "Read Response"):
            expect(counts[name] >= 16, f"too few of {name}: {counts}")
        expect(counts["Read Request"] == counts["Read Response"], f"unanswered reads: {counts}")
        expect(counts["Terminate"] == 0, f"a Terminate in a clean session: {counts}")
        bytes_ = sum(int(size, 0) for row in fields(path, "iwarp_rdma.rdmardsz", "iwarp_rdma.rdmardsz") for size in row[0].split(","))
        expect(bytes_ <= 2 * MIB + 65536, f"{bytes_} bytes were read to write {2 * MIB}")
        out = os.path.join(target.folder, "iscsi.pcap")
        opcodes, flags = as_iscsi(path, out, target.port)
        expect(not opcodes[wire.DATA_IN] and not opcodes[wire.R2T], f"PDUs that iSER replaces: {opcodes}")
        expect(opcodes[wire.COMMAND] == opcodes[wire.RESPONSE] >= 32, f"commands and their responses: {opcodes}")
        expect(opcodes[wire.LOGIN] == opcodes[wire.LOGIN_RESPONSE] >= 3 and opcodes[wire.LOGOUT] == opcodes[wire.LOGOUT_RESPONSE] >= 3,
               f"logins and logouts: {opcodes}")
        expect(flags[iser.READ_VALID] >= 16 and flags[iser.WRITE_VALID] <= 17, f"headers with STags: {flags}")
        no_error(out, "iSCSI")
        pdus = fields(out, "iscsi.opcode", "iscsi.opcode")
        expect(sum(len(row[0].split(",")) for row in pdus) == sum(opcodes.values()), "Wireshark sees another number of PDUs")


def session_by_hand(lab):
    """The lab's own initiator, with markers and without CRC, NOPs, task management, sense and a Terminate."""
    proc.need("tshark")
    if lab.kind != "stag":
        raise Skip(f"{lab.kind} has no software iWARP")
    with lab.serve(Unit(memory=True), chap=None) as target:
        def traffic():
            for number, setup in enumerate((dict(crc=False), dict(crc=True, markers=True))):
                with iser.session(target, isid=bytes([0x40, 0, 0, 7, number, 0]),
                                  setup=iwarp.Setup(private_data=iser.PRIVATE_DATA, **setup)) as session:
                    session.nop(b"x" * 100)
                    session.write(0, os.urandom(65536))
                    session.read(0, 128)
                    session.run(bytes([0xC7]))
                    session.task_management(5)
                    session.test_unit_ready()
                    session.logout()
            with iser.session(target) as session:
                session.stream.send_tagged(0, 0x1234, 0, bytes(512))
                session.stream.wait_terminate()

        path = captured(target, traffic)
        no_error(path, "iWARP")
        counts = operations(path)
        expect(counts["Terminate"] == 1, f"one stream was terminated: {counts}")
        layers = fields(path, "iwarp_rdma.term_layer", "iwarp_rdma.term_layer", "iwarp_rdma.term_etype_ddp")
        expect(layers and layers[0][0] in ("1", "0x01"), f"Wireshark reads the Terminate as {layers}")


CASES = [
    ("tshark decodes our initiator and target over iSER", whole(session_of_ours)),
    ("tshark decodes markers, sense, task management and a Terminate", whole(session_by_hand)),
]
