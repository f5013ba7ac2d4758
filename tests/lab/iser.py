"""An iSER initiator by hand (RFC 7145): lab/wire.py's iSCSI, carried by lab/iwarp.py's RDMA.

Control PDUs go as Sends behind a 28-byte iSER header; a command's data is never sent: the target writes and reads it in
buffers that the command advertises. What the target reaches for beyond them fails the test (iwarp.Stream.reach).
"""

import struct

from . import iwarp, wire
from .report import Failed, expect

CONTROL = 0x10  # The iSER message's opcode, upper nibble (RFC 7145 §9.2): an iSCSI control-type PDU.
WRITE_VALID, READ_VALID = 0x08, 0x04
HELLO, HELLO_REPLY = 0x20, 0x30
# The connection manager's private data, as Linux's initiator sends it: no zero-based addresses, remote invalidation is welcome.
PRIVATE_DATA = bytes([0x80, 0, 0, 0])
BASE = 0x7F00_1234_5000  # Where advertised buffers seem to lie: an address like a kernel's, not zero.


def header(flags=CONTROL, write_stag=0, write_at=0, read_stag=0, read_at=0):
    return struct.pack(">BxxxIQIQ", flags, write_stag, write_at, read_stag, read_at)


class Connection(wire.Connection):
    """An iSER connection to the target, in login or full-feature phase. `stream` is its RDMA, to spoil."""

    def __init__(self, target, timeout=wire.Connection.PATIENCE, setup=None, padded=True):
        setup = setup or iwarp.Setup(private_data=PRIVATE_DATA, crc=True)
        self.stream = iwarp.connect(target.host, target.port, setup, timeout, getattr(target, "pid", None))
        self.socket = self.stream.socket
        self.wait_for(target, timeout)
        self.stream.pid, self.stream.limit = self.pid, self.limit
        self.command_number, self.status_number, self.next_tag = 1, 0, 1
        self.max_command_number = 0
        self.header_digest = self.data_digest = False
        self.keys, self.lun, self.out = {}, 0, b""
        self.padded = padded
        self.last_residual = 0

    def encode(self, header_, data=b"", ahs=b"", iser=None):
        padding = bytes(-len(data) % 4) if self.padded else b""
        return (header() if iser is None else iser) + bytes(header_) + ahs + data + padding

    def send(self, header_, data=b"", ahs=b"", iser=None):
        self.stream.send(self.encode(header_, data, ahs, iser))

    def receive(self):
        _, message = self.stream.receive()
        expect(len(message) >= 76, f"a Send of {len(message)} bytes is too short for an iSER header and a BHS")
        expect(message[0] == CONTROL, f"an iSER header with flags {message[0]:#04x} from the target")
        bhs = message[28:76]
        ahs, length = bhs[4] * 4, int.from_bytes(bhs[5:8], "big")
        have = len(message) - 76 - ahs
        expect(length <= have <= length + 3, f"a data segment of {length} bytes in a Send that has {have} for it")
        pdu = wire.Pdu(bhs, message[76 + ahs:76 + ahs + length], message[76:76 + ahs])
        expect(pdu.opcode not in (wire.DATA_IN, wire.R2T), f"{pdu} may not travel over iSER (RFC 7145 §7.3)")
        return self.heard(pdu)

    def login(self, target_name=None, **keys):
        """As over TCP; the keys that stand for receive buffers are iSER's (RFC 7145 §6)."""
        offer = {"RDMAExtensions": "Yes", "InitiatorRecvDataSegmentLength": 8192, "TargetRecvDataSegmentLength": 8192,
                 "HeaderDigest": "None", "DataDigest": "None", "MaxConnections": 1, "ErrorRecoveryLevel": 0,
                 "DefaultTime2Wait": 2, "DefaultTime2Retain": 0, "MaxOutstandingR2T": 1, "DataPDUInOrder": "Yes",
                 "DataSequenceInOrder": "Yes", "IFMarker": "No", "OFMarker": "No", **keys}
        super().login(target_name, **offer)
        expect(self.keys.get("RDMAExtensions") == "Yes", f"no RDMA extensions are agreed: {self.keys}")
        return self

    def command(self, cdb, read=None, write=None, write_base=BASE, read_base=BASE, lun=None, tag=None, **header_):
        """Send one command. `read`: a buffer for what comes; `write`: the bytes that go. Returns its tag and STags."""
        tag = self.tag() if tag is None else tag
        read_stag = self.stream.expose(read, "w", read_base) if read is not None else 0
        write_stag = self.stream.expose(write, "r", write_base) if write is not None else 0
        flags = CONTROL | (READ_VALID if read is not None else 0) | (WRITE_VALID if write is not None else 0)
        iser = header(flags, write_stag, write_base if write is not None else 0, read_stag,
                      read_base if read is not None else 0)
        length = len(read if read is not None else write if write is not None else b"")
        pdu, _ = self.command_pdu(cdb, length, write is not None, tag, lun=lun, **header_)
        self.send(pdu, iser=iser)
        return tag, read_stag, write_stag

    def response(self, tag):
        """The SCSI Response of a task: (status, sense with its length)."""
        while True:
            pdu = self.receive()
            if pdu.opcode == wire.NOP_IN and pdu.target_tag != wire.NO_TAG:
                self.send(wire.bhs(wire.NOP_OUT | wire.IMMEDIATE, wire.FINAL, 0, 0, wire.NO_TAG, struct.pack(
                    ">III", pdu.target_tag, self.command_number, self.status_number)))
            elif pdu.tag == tag and pdu.opcode == wire.RESPONSE:
                if pdu.bhs[2]:
                    raise Failed(f"iSCSI response {pdu.bhs[2]:#x}")
                self.last_residual = pdu.word(44) if pdu.flags & 0x06 else 0
                return pdu.bhs[3], pdu.data
            elif pdu.tag == tag and pdu.opcode == wire.REJECT:
                raise Failed(f"rejected: reason {pdu.bhs[2]:#x}")

    def run(self, cdb, length=0, out=None, lun=None):
        """One command to its end: (status, sense, data). The bytes placed must be those the response accounts for."""
        read = bytearray(length) if length and out is None else None
        tag, read_stag, write_stag = self.command(cdb, read, bytearray(out) if out else None, lun=lun)
        placed = self.stream.buffers.get(read_stag)
        lent = self.stream.buffers.get(write_stag)
        status, sense = self.response(tag)
        if placed and not status:
            expect(placed.placed == length - self.last_residual, f"{placed.placed} bytes were placed, of {length} less a "
                   f"residual of {self.last_residual}")
        if lent and not status:
            expect(lent.lent == len(out) - self.last_residual, f"{lent.lent} bytes were read, of {len(out)} less a "
                   f"residual of {self.last_residual}")
        self.stream.buffers.pop(read_stag, None)
        self.stream.buffers.pop(write_stag, None)
        return status, sense, bytes(read[:placed.placed]) if placed else b""


def session(target, initiator="iqn.2026-01.example.lab:iser", isid=b"\x40\0\0\2\0\0", timeout=wire.Connection.PATIENCE, setup=None, **keys):
    """A logged-in connection of a session of its own, its pending unit attentions taken."""
    connection = Connection(target, timeout, setup)
    name, connection.lun = wire.unit_of(target)
    connection.login(name, initiator=initiator, isid=isid, InitialR2T="Yes", ImmediateData="No", MaxBurstLength=262144,
                     FirstBurstLength=65536, **keys)
    connection.test_unit_ready()
    return connection
