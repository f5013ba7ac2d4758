"""A target that breaks one rule: a proxy before a right one, which changes what goes through.

It knows where PDUs begin and end in both directions, and which digests are on, so that what it changes is wrong in nothing else.
"""

import contextlib
import socket
import struct
import threading

from . import wire


class Pdu:
    """A PDU on its way. `data` may be changed to any length; `spoil_data_digest` makes the data's digest wrong."""

    def __init__(self, head, ahs, data):
        self.head, self.ahs, self.data = bytearray(head), ahs, data
        self.spoil_data_digest = False

    @property
    def opcode(self):
        return self.head[0] & 0x3F

    def word(self, at):
        return struct.unpack_from(">I", self.head, at)[0]

    def set_word(self, at, value):
        struct.pack_into(">I", self.head, at, value & 0xFFFFFFFF)

    def encode(self, header_digest, data_digest):
        self.head[5:8] = len(self.data).to_bytes(3, "big")
        out = bytes(self.head) + self.ahs
        if header_digest:
            out += struct.pack("<I", wire.crc32c(out))
        if self.data:
            padded = self.data + bytes(-len(self.data) % 4)
            out += padded
            if data_digest:
                out += struct.pack("<I", wire.crc32c(padded) ^ (1 if self.spoil_data_digest else 0))
        return out


class Lie:
    """What is changed: each direction's function gets a Pdu and answers whether it goes on."""

    requests = False  # Whether `to_target` sees what the initiator sends after its login too.

    def to_initiator(self, pdu):
        return True

    def to_target(self, pdu):
        return True


def answering(function):
    """A lie about the target's PDUs alone."""
    lie = Lie()

    def to_initiator(pdu):
        return function(pdu) is not False

    lie.to_initiator = to_initiator
    return lie


class Connection:
    def __init__(self, client, server, lie):
        self.client, self.server, self.lie = client, server, lie
        self.header_digest = self.data_digest = self.full_feature = False
        self.answered = threading.Event()  # The latest login request is answered.

    def exactly(self, source, count):
        parts = []
        while count:
            part = source.recv(min(count, 1 << 20))
            if not part:
                raise ConnectionError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def pdu(self, source):
        header_digest, data_digest = self.header_digest, self.data_digest
        head = self.exactly(source, 48)
        ahs = self.exactly(source, head[4] * 4)
        if header_digest:
            self.exactly(source, 4)
        length = int.from_bytes(head[5:8], "big")
        data = self.exactly(source, length + -length % 4)[:length] if length else b""
        if data_digest and length:
            self.exactly(source, 4)
        return Pdu(head, ahs, data)

    def answers(self):
        """From the target to the initiator."""
        with contextlib.suppress(OSError):
            while True:
                pdu = self.pdu(self.server)
                login = not self.full_feature
                goes_on = self.lie.to_initiator(pdu)
                if goes_on:
                    self.client.sendall(pdu.encode(self.header_digest, self.data_digest))
                if login and pdu.opcode == wire.LOGIN_RESPONSE:
                    keys = pdu.data.split(b"\0")
                    self.header_asked = getattr(self, "header_asked", False) or b"HeaderDigest=CRC32C" in keys
                    self.data_asked = getattr(self, "data_asked", False) or b"DataDigest=CRC32C" in keys
                    if pdu.head[1] & 0x83 == 0x83 and pdu.head[36] == 0:
                        self.full_feature = True
                        self.header_digest, self.data_digest = self.header_asked, self.data_asked
                    self.answered.set()
        self.answered.set()
        self.close()

    def requests(self):
        """From the initiator to the target: PDU by PDU during login and for lies that want it, else as it comes."""
        with contextlib.suppress(OSError):
            while not self.full_feature or self.lie.requests:
                pdu = self.pdu(self.client)
                self.answered.clear()
                if self.lie.to_target(pdu):
                    self.server.sendall(pdu.encode(self.header_digest, self.data_digest))
                if pdu.opcode == wire.LOGIN and pdu.head[1] & 0x83 == 0x83 and not self.lie.requests:
                    break  # What follows a last request depends on the answer; it is not looked at.
                if pdu.opcode == wire.LOGIN and self.lie.requests:
                    self.answered.wait()
            while True:
                part = self.client.recv(1 << 20)
                if not part:
                    break
                self.server.sendall(part)
        self.close()

    def close(self):
        for end in (self.client, self.server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextlib.contextmanager
def lying(target, lie):
    """The port of a portal that passes on to `target`, with that lie."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.listen(64)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection((target.host, target.port), 5)
                server.settimeout(None)
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection = Connection(client, server, lie)
                for work in (connection.answers, connection.requests):
                    threading.Thread(target=work, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
