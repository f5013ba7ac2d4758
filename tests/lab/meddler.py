"""A forwarding proxy that meddles with iSCSI PDUs: it loses them, spoils their data, or cuts the connection.

It follows each login to its end, and knows from then on where PDUs begin, with digests or without. What it does to which
PDU is told by rules; how often it did so is counted.
"""

import random
import socket
import threading

DATA_IN, RESPONSE, R2T, NOP_IN = 0x25, 0x21, 0x31, 0x20
COMMAND, DATA_OUT, LOGIN_RESPONSE = 0x01, 0x05, 0x23
UP, DOWN = "to the target", "to the initiator"


class Rule:
    """One of `every` PDUs with that opcode in that direction (in the mean) is meddled with: "lose" or "spoil"."""

    def __init__(self, direction, opcode, action, every, at_least=0):
        self.direction, self.opcode, self.action, self.every, self.at_least = direction, opcode, action, every, at_least
        self.times = 0


class Meddler:
    """Listens at `listen` and forwards to `to`. `digests`: (header, data), as the sessions negotiate them."""

    def __init__(self, listen, to, digests=(True, True), rules=(), seed=1):
        self.to, self.digests, self.rules, self.random = to, digests, list(rules), random.Random(seed)
        self.socket = socket.create_server(listen)
        self.port = self.socket.getsockname()[1]
        self.links, self.lock, self.connections, self.cuts = [], threading.Lock(), 0, 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.socket.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self.to, timeout=30)
                far.settimeout(None)
            except OSError:
                near.close()
                continue
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = Link(self, near, far)
            with self.lock:
                self.links.append(link)
                self.connections += 1
            link.start()

    def cut(self):
        """End one of the connections that have logged in, chosen by chance. Answers whether there was one."""
        with self.lock:
            full = [link for link in self.links if link.full]
            if not full:
                return False
            link = self.random.choice(full)
            self.links.remove(link)
            self.cuts += 1
        link.close()
        return True

    def fate(self, direction, opcode, length):
        with self.lock:
            for rule in self.rules:
                if rule.direction == direction and rule.opcode == opcode and length >= rule.at_least \
                        and (rule.action != "spoil" or length) and self.random.randrange(rule.every) == 0:
                    rule.times += 1
                    return rule.action, self.random.randrange(max(length, 1))
        return None, 0

    def close(self):
        # A blocked accept is woken by shutdown, not by close.
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        with self.lock:
            links, self.links = self.links, []
        for link in links:
            link.close()


class Link:
    """One connection."""

    def __init__(self, meddler, near, far):
        self.meddler, self.near, self.far, self.full = meddler, near, far, False

    def start(self):
        for direction, source, sink in ((UP, self.near, self.far), (DOWN, self.far, self.near)):
            threading.Thread(target=self.pump, args=(direction, source, sink), daemon=True).start()

    def close(self):
        for one in (self.near, self.far):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def pump(self, direction, source, sink):
        try:
            with source.makefile("rb", buffering=1 << 18) as stream:
                while True:
                    pdu = self.read(direction, stream)
                    if not pdu:
                        break
                    if pdu is not True:
                        sink.sendall(pdu)
        except OSError:
            pass
        self.close()
        with self.meddler.lock:
            if self in self.meddler.links:
                self.meddler.links.remove(self)

    def read(self, direction, stream):
        """The next PDU as it is to be sent on; True if it is lost, nothing at the end."""
        header = stream.read(48)
        if len(header) < 48:
            return b""
        # Both directions change to full feature at the same PDU: nothing follows the last Login Request before its response.
        full = self.full
        opcode, length = header[0] & 0x3f, int.from_bytes(header[5:8], "big")
        padded = (length + 3) & ~3
        front = 4 * header[4] + (4 if full and self.meddler.digests[0] else 0)
        back = padded + (4 if full and self.meddler.digests[1] and length else 0)
        rest = stream.read(front + back)
        if len(rest) < front + back:
            return b""
        if not full:
            if direction == DOWN and opcode == LOGIN_RESPONSE and header[1] & 0x83 == 0x83 and header[36] == 0:
                self.full = True
            return header + rest
        action, at = self.meddler.fate(direction, opcode, length)
        if action == "lose":
            return True
        if action == "spoil":
            spoilt = bytearray(rest)
            spoilt[front + at] ^= 0x10
            rest = bytes(spoilt)
        return header + rest
