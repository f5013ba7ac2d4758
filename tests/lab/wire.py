"""iSCSI by hand: the few PDUs (RFC 7143 §11) that tests need to say what no well-behaved initiator says.

Nothing here trusts the target either: every receive has a time limit and a length limit.
"""

import base64
import hashlib
import select
import socket
import struct
import time

from . import proc
from .report import Failed

NOP_OUT, COMMAND, TASK_MANAGEMENT, LOGIN, TEXT, DATA_OUT, LOGOUT, SNACK = 0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x10
NOP_IN, RESPONSE, TASK_RESPONSE, LOGIN_RESPONSE, TEXT_RESPONSE, DATA_IN, LOGOUT_RESPONSE = 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26
R2T, ASYNC, REJECT = 0x31, 0x32, 0x3F
IMMEDIATE, FINAL = 0x40, 0x80
NO_TAG = 0xFFFFFFFF


class Closed(Exception):
    """The target closed the connection."""


def crc32c(data, table=[]):
    if not table:
        for byte in range(256):
            for _ in range(8):
                byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
            table.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class Pdu:
    """A PDU: its 48-byte BHS, and its data segment."""

    def __init__(self, bhs, data=b"", ahs=b""):
        self.bhs, self.data, self.ahs = bytearray(bhs), data, ahs

    opcode = property(lambda self: self.bhs[0] & 0x3F)
    flags = property(lambda self: self.bhs[1])
    tag = property(lambda self: self.word(16))
    target_tag = property(lambda self: self.word(20))

    def word(self, at):
        return struct.unpack_from(">I", self.bhs, at)[0]

    def __repr__(self):
        return f"opcode {self.opcode:#x} flags {self.flags:#x} {bytes(self.bhs[2:4]).hex()} data {len(self.data)}"


def bhs(opcode, flags=0, length=0, lun=0, tag=0, specific=b"", ahs_words=0):
    """A header: `specific` is bytes 20 to 47. `length` is told as it is, true or not."""
    head = struct.pack(">BBxxB", opcode, flags, ahs_words) + length.to_bytes(3, "big")
    return head + struct.pack(">BBxxxxxx", lun >> 8 & 0xFF, lun & 0xFF) + struct.pack(">I", tag) + specific.ljust(28, b"\0")


class Connection:
    """A TCP connection to the target, in login or full-feature phase.

    The time limit for an answer is shorter than the target's own interval of pings: a ping would hide a lost wake-up. A target that is
    busy beyond it is waited for (proc.Patience), unless a test has set another limit."""

    PATIENCE = 7
    limit = pid = None

    def __init__(self, target, timeout=PATIENCE, receive_buffer=None, source=None):
        family = socket.AF_INET6 if ":" in target.host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if source:
            self.socket.bind((source, 0))
        self.wait_for(target, timeout)
        self.socket.connect((target.host, target.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.command_number, self.status_number, self.next_tag = 1, 0, 1
        self.max_command_number = 0
        self.header_digest = self.data_digest = False
        self.keys = {}
        self.lun = 0
        self.out = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def wait_for(self, target, timeout):
        """The time limit for an answer of this target's."""
        self.limit, self.pid = timeout, getattr(target, "pid", None)
        self.socket.settimeout(timeout)

    def close(self):
        self.socket.close()

    def is_quiet(self, seconds):
        """Whether nothing comes for so long. It is for who goes on then: a receive that gives up may have taken half a PDU."""
        return not select.select([self.socket], [], [], seconds)[0] and not select.select([self.socket], [], [], 0.05)[0]

    def reset(self):
        """End the connection with a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send_raw(self, data):
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            raise Closed from None

    def encode(self, header, data=b"", ahs=b""):
        out = bytes(header) + ahs
        if self.header_digest:
            out += struct.pack("<I", crc32c(out))
        if data:
            padded = data + bytes(-len(data) % 4)
            out += padded + (struct.pack("<I", crc32c(padded)) if self.data_digest else b"")
        return out

    def send(self, header, data=b"", ahs=b""):
        self.send_raw(self.encode(header, data, ahs))

    def receive_exactly(self, count):
        parts = []
        while count:
            try:
                most = min(count, 1 << 20)
                patient = self.limit is not None and self.socket.gettimeout() == self.limit
                part = proc.receive(self.socket, most, self.pid) if patient else self.socket.recv(most)
            except (ConnectionResetError, BrokenPipeError):
                raise Closed from None
            except TimeoutError:
                raise Failed("the target neither answers nor closes the connection") from None
            if not part:
                raise Closed
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def receive(self):
        header = self.receive_exactly(48)
        ahs = self.receive_exactly(header[4] * 4)
        if self.header_digest:
            digest = self.receive_exactly(4)
            if struct.unpack("<I", digest)[0] != crc32c(header + ahs):
                raise Failed("the target's header digest is wrong")
        length = int.from_bytes(header[5:8], "big")
        if length > 1 << 20:
            raise Failed(f"the target sends a data segment of {length} bytes")
        data = self.receive_exactly(length + -length % 4)
        if self.data_digest and length:
            if struct.unpack("<I", self.receive_exactly(4))[0] != crc32c(data):
                raise Failed("the target's data digest is wrong")
        return self.heard(Pdu(header, data[:length], ahs))

    def heard(self, pdu):
        """Take the numbers that a PDU of the target brings."""
        if pdu.opcode in (NOP_IN, RESPONSE, TASK_RESPONSE, LOGIN_RESPONSE, TEXT_RESPONSE, LOGOUT_RESPONSE, REJECT, ASYNC) or (
                pdu.opcode == DATA_IN and pdu.flags & 1):
            self.status_number = pdu.word(24) + 1 & 0xFFFFFFFF
        self.max_command_number = pdu.word(32)
        return pdu

    def wait_closed(self, timeout=10):
        """Whether the target closes the connection in time, whatever it says before; with Patience, if it is busy."""
        limit, patience = time.monotonic() + timeout, None
        while True:
            try:
                self.socket.settimeout(patience.LOOK if patience else max(0.01, limit - time.monotonic()))
                if not self.socket.recv(1 << 16):
                    return True
                if not patience and time.monotonic() < limit:
                    continue
            except TimeoutError:
                pass
            except OSError:
                return True
            patience = patience or proc.Patience(self.pid)
            if not patience.lasts():
                return False

    def login_pdu(self, text, flags=0x87, isid=b"\x40\0\0\1\0\0", tsih=0, tag=0, version=0, immediate=IMMEDIATE, cid=1):
        """A login request. Flags 0x87: from operational negotiation straight to full-feature phase."""
        data = "".join(f"{key}={value}\0" for key, value in text).encode() if not isinstance(text, bytes) else text
        header = struct.pack(">BBBBB", LOGIN | immediate, flags, version, version, 0) + len(data).to_bytes(3, "big")
        header += isid + struct.pack(">HIHxxII", tsih, tag, cid, self.command_number, self.status_number)
        return header.ljust(48, b"\0"), data

    def prove(self, chap, names, **fields):
        """The security stage of a login: one-way CHAP with MD5 (RFC 7143 §12.1.3, RFC 1994)."""
        def ask(text, flags):
            self.send(*self.login_pdu(text, flags=flags, **fields))
            answer = self.receive()
            if answer.opcode != LOGIN_RESPONSE or answer.bhs[36]:
                raise Failed(f"login refused: status {answer.bhs[36]:02x}{answer.bhs[37]:02x}")
            return dict(pair.split("=", 1) for pair in answer.data.decode().split("\0") if "=" in pair)

        ask(names + [("AuthMethod", "CHAP")], 0x00)
        said = ask([("CHAP_A", "5")], 0x00)
        challenge = said["CHAP_C"]
        decode = base64.b64decode if challenge[:2].lower() == "0b" else bytes.fromhex
        proof = hashlib.md5(bytes([int(said["CHAP_I"], 0)]) + chap.secret.encode() + decode(challenge[2:])).hexdigest()
        ask([("CHAP_N", chap.name), ("CHAP_R", "0x" + proof)], 0x81)

    def login(self, target_name=None, initiator="iqn.2026-01.example.lab:wire", isid=b"\x40\0\0\1\0\0", tsih=0, cid=1,
              chap=None, **keys):
        """Log in, with the credential `chap` if there is one. `keys` are offered beside the usual ones. With a `tsih`: a further
        connection, of number `cid`, of that session."""
        offer = [("InitiatorName", initiator), ("SessionType", "Normal" if target_name else "Discovery")]
        if target_name:
            offer.append(("TargetName", target_name))
        if chap:
            self.prove(chap, offer, isid=isid, tsih=tsih, cid=cid)
            offer = []
        offer += keys.items()
        self.send(*self.login_pdu(offer, isid=isid, tsih=tsih, cid=cid))
        answer = self.receive()
        if answer.opcode != LOGIN_RESPONSE:
            raise Failed(f"a login is answered by {answer}")
        if answer.bhs[36]:
            raise Failed(f"login refused: status {answer.bhs[36]:02x}{answer.bhs[37]:02x}")
        self.keys.update(pair.split("=", 1) for pair in answer.data.decode().split("\0") if "=" in pair)
        if not answer.flags & 0x80:
            # The target wants a further round: agree to what it has offered by itself.
            declared = {"TargetAlias", "TargetAddress", "TargetPortalGroupTag", "MaxRecvDataSegmentLength"}
            agreed = [(key, "None" if value.endswith(",None") else value) for key, value in self.keys.items()
                      if key not in declared and key not in dict(offer)]
            self.send(*self.login_pdu(agreed, isid=isid, tsih=tsih, cid=cid))
            answer = self.receive()
            self.keys.update(pair.split("=", 1) for pair in answer.data.decode().split("\0") if "=" in pair)
        self.tsih = struct.unpack_from(">H", answer.bhs, 14)[0]
        self.header_digest = self.keys.get("HeaderDigest") == "CRC32C"
        self.data_digest = self.keys.get("DataDigest") == "CRC32C"
        return self

    def tag(self):
        self.next_tag += 1
        return self.next_tag

    def command_pdu(self, cdb, length=0, write=False, tag=None, data=b"", lun=None, command_number=None, flags=None, final=True):
        """A SCSI command with a CDB of up to 16 bytes; `length` is its Expected Data Transfer Length."""
        tag = self.tag() if tag is None else tag
        lun = self.lun if lun is None else lun
        if flags is None:
            flags = (FINAL if final else 0) | (0x20 if write else 0x40 if length else 0)
        if command_number is None:
            command_number, self.command_number = self.command_number, self.command_number + 1 & 0xFFFFFFFF
        specific = struct.pack(">III", length, command_number, self.status_number) + cdb.ljust(16, b"\0")
        return bhs(COMMAND, flags, len(data), lun, tag, specific), data

    def answer(self, tag):
        """(status, sense or response data, data in) of a task, answering R2Ts for its data with `self.out`."""
        received = {}
        while True:
            pdu = self.receive()
            if pdu.opcode == NOP_IN and pdu.target_tag != NO_TAG:
                self.send(bhs(NOP_OUT | IMMEDIATE, FINAL, 0, 0, NO_TAG, struct.pack(
                    ">III", pdu.target_tag, self.command_number, self.status_number)))
            elif pdu.tag != tag:
                continue
            elif pdu.opcode == DATA_IN:
                received[pdu.word(40)] = pdu.data
                if pdu.flags & 1:
                    return pdu.bhs[3], b"", b"".join(received[at] for at in sorted(received))
            elif pdu.opcode == R2T:
                at, count = pdu.word(40), pdu.word(44)
                self.send_data(tag, pdu.target_tag, at, self.out[at:at + count])
            elif pdu.opcode == RESPONSE:
                if pdu.bhs[2]:
                    raise Failed(f"iSCSI response {pdu.bhs[2]:#x}")
                return pdu.bhs[3], pdu.data, b"".join(received[at] for at in sorted(received))
            elif pdu.opcode == REJECT:
                raise Failed(f"rejected: reason {pdu.bhs[2]:#x}")

    def send_data(self, tag, target_tag, offset, data, number=0, segment=4096):
        """Data-Out PDUs that answer one R2T."""
        for start in range(0, len(data), segment):
            part = data[start:start + segment]
            final = FINAL if start + len(part) == len(data) else 0
            specific = struct.pack(">IIIIII", target_tag, 0, self.status_number, 0, number, offset + start)
            self.send(bhs(DATA_OUT, final, len(part), self.lun, tag, specific), part)
            number += 1

    def run(self, cdb, length=0, out=None, lun=None):
        """One command to its end. Returns (status, sense with its length, data)."""
        self.out = out or b""
        tag = self.tag()
        self.send(*self.command_pdu(cdb, len(out) if out else length, out is not None, tag, lun=lun))
        return self.answer(tag)

    def test_unit_ready(self, lun=None):
        """Until ready: unit attentions that are pending are taken."""
        for _ in range(8):
            status, _, _ = self.run(bytes(6), lun=lun)
            if status == 0:
                return
        raise Failed(f"TEST UNIT READY: status {status:#x}")

    def read(self, lba, blocks, block_bytes=512, lun=None):
        status, sense, data = self.run(struct.pack(">BBIBHB", 0x28, 0, lba, 0, blocks, 0), blocks * block_bytes, lun=lun)
        if status:
            raise Failed(f"READ (10): status {status:#x}, {sense.hex()}")
        return data

    def write(self, lba, data, block_bytes=512, lun=None):
        status, sense, _ = self.run(struct.pack(">BBIBHB", 0x2A, 0, lba, 0, len(data) // block_bytes, 0), out=data, lun=lun)
        if status:
            raise Failed(f"WRITE (10): status {status:#x}, {sense.hex()}")

    def nop(self, data=b"ping"):
        tag = self.tag()
        specific = struct.pack(">III", NO_TAG, self.command_number, self.status_number)
        self.send(bhs(NOP_OUT | IMMEDIATE, FINAL, len(data), 0, tag, specific), data)
        while True:
            pdu = self.receive()
            if pdu.opcode == NOP_IN and pdu.tag == tag:
                return pdu.data

    def task_management(self, function, referenced=NO_TAG, lun=None, referenced_number=0):
        """The response's code (RFC 7143 §11.6.1)."""
        tag = self.tag()
        specific = struct.pack(">IIII", referenced, self.command_number, self.status_number, referenced_number)
        self.send(bhs(TASK_MANAGEMENT | IMMEDIATE, FINAL | function, 0, self.lun if lun is None else lun, tag, specific))
        while True:
            pdu = self.receive()
            if pdu.opcode == TASK_RESPONSE and pdu.tag == tag:
                return pdu.bhs[2]

    def logout(self, reason=0, connection=1):
        tag = self.tag()
        specific = struct.pack(">HxxII", connection, self.command_number, self.status_number)
        self.send(bhs(LOGOUT | IMMEDIATE, FINAL | reason, 0, 0, tag, specific))
        while True:
            pdu = self.receive()
            if pdu.opcode == LOGOUT_RESPONSE:
                return pdu.bhs[2]


def unit_of(target):
    """The target's name and the LUN of its first unit."""
    name, _, lun = target.urls[0].split("/", 3)[3].partition("/")
    return name, int(lun)


def session(target, initiator="iqn.2026-01.example.lab:wire", isid=b"\x40\0\0\1\0\0", timeout=Connection.PATIENCE, chap=None,
            name=None, source=None, **keys):
    """A logged-in connection of a session of its own, its pending unit attentions taken. `name`: of which target, if not of the
    first unit's. `source`: the address that it comes from."""
    connection = Connection(target, timeout, source=source)
    offer = {"HeaderDigest": "None", "DataDigest": "None", "InitialR2T": "Yes", "ImmediateData": "No",
             "MaxRecvDataSegmentLength": 65536, "MaxBurstLength": 262144, "FirstBurstLength": 65536, **keys}
    first, connection.lun = unit_of(target)
    connection.login(name or first, initiator, isid, chap=chap, **offer)
    connection.test_unit_ready()
    return connection
