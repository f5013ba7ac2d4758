"""Error recovery by hand (RFC 7143 §7): an initiator that loses what it pleases of what the target sends and breaks what it pleases of
what it sends, and gets by SNACK, retry, recovery R2T and task reassignment what it missed: the same bytes, once, and in order."""

import json
import random
import struct
import time

from lab import proc, wire
from lab.report import Failed, expect
from lab.target import Unit

DATA_R2T, STATUS, DATA_ACK, R_DATA = 0, 1, 2, 3
# Seconds. A sequence of which nothing is heard for a fifth of that is asked for anew: longer than this side ever takes to go on.
DATA_TIMEOUT = 10
DATA_DIGEST, SNACK_REJECT, PROTOCOL_ERROR, INVALID_ACK = 2, 3, 4, 8
OFFER = {"HeaderDigest": "CRC32C", "DataDigest": "CRC32C", "InitialR2T": "Yes", "ImmediateData": "No",
         "MaxRecvDataSegmentLength": 4096, "MaxBurstLength": 16384, "FirstBurstLength": 8192, "MaxOutstandingR2T": 1, "DefaultTime2Wait": 2, "DefaultTime2Retain": 20}


def read_cdb(lba, blocks):
    return struct.pack(">BBIBHB", 0x28, 0, lba, 0, blocks, 0)


def write_cdb(lba, blocks):
    return struct.pack(">BBIBHB", 0x2A, 0, lba, 0, blocks, 0)


class Peer(wire.Connection):
    """A connection whose acknowledgements are made by hand: `status_number`, its ExpStatSN, moves by `acknowledge` only."""

    def heard(self, pdu):
        if pdu.opcode == wire.LOGIN_RESPONSE:
            return super().heard(pdu)
        self.max_command_number = pdu.word(32)
        self.expected_command = pdu.word(28)
        return pdu

    def send_broken(self, header, data=b"", part="data"):
        """A PDU with a wrong digest."""
        out = bytearray(self.encode(header, data))
        out[48 if part == "header" else -1] ^= 0x55
        self.send_raw(bytes(out))

    def snack(self, kind, tag=wire.NO_TAG, target_tag=wire.NO_TAG, first=0, count=0, lun=0):
        specific = struct.pack(">IIIQII", target_tag, 0, self.status_number, 0, first, count)
        self.send(wire.bhs(wire.SNACK, wire.FINAL | kind, 0, lun, tag, specific))

    def acknowledge(self, status_number):
        """Say by a NOP-Out that asks for nothing which status is expected next."""
        self.status_number = status_number
        self.send(wire.bhs(wire.NOP_OUT | wire.IMMEDIATE, wire.FINAL, 0, 0, wire.NO_TAG, struct.pack(
            ">III", wire.NO_TAG, self.command_number, self.status_number)))

    def next(self, *opcodes):
        """The next PDU of these kinds; what the target asks or tells besides is passed over."""
        while True:
            pdu = self.receive()
            if pdu.opcode in opcodes:
                return pdu
            if pdu.opcode != wire.NOP_IN:
                raise Failed(f"{pdu} instead of one of {[hex(code) for code in opcodes]}")

    def begin(self, cdb, length, write=False, tag=None, number=None):
        tag = self.tag() if tag is None else tag
        header, _ = self.command_pdu(cdb, length, write, tag, command_number=number)
        self.send(header)
        return tag, header

    def ask(self, opcode, flags, specific, answer, tag=None):
        """An immediate request and its answer."""
        tag = self.tag() if tag is None else tag
        self.send(wire.bhs(opcode | wire.IMMEDIATE, wire.FINAL | flags, 0, self.lun if opcode == wire.TASK_MANAGEMENT else 0, tag, specific))
        while True:
            pdu = self.receive()
            if pdu.opcode == answer and pdu.tag == tag:
                self.status_number = pdu.word(24) + 1
                return pdu

    def taken(self):
        """Until the target has taken everything that was sent here: a NOP goes behind it."""
        self.ask(wire.NOP_OUT, 0, struct.pack(">III", wire.NO_TAG, self.command_number, self.status_number), wire.NOP_IN)

    def log_out(self, reason, cid):
        """(response, Time2Wait, Time2Retain) of a logout."""
        pdu = self.ask(wire.LOGOUT, reason, struct.pack(">HxxII", cid, self.command_number, self.status_number), wire.LOGOUT_RESPONSE)
        return pdu.bhs[2], *struct.unpack_from(">HH", pdu.bhs, 40)

    def reassign(self, tag, expected=0):
        specific = struct.pack(">IIIII", tag, self.command_number, self.status_number, 0, expected)
        return self.ask(wire.TASK_MANAGEMENT, 8, specific, wire.TASK_RESPONSE).bhs[2]

    def data_in(self, tag):
        """All Data-In PDUs of a read, up to its status."""
        pdus = []
        while not pdus or not pdus[-1].flags & 1:
            pdu = self.next(wire.DATA_IN)
            expect(pdu.tag == tag, f"data of another task: {pdu}")
            pdus.append(pdu)
        return pdus

    def data_in_any(self):
        """The last Data-In of any read."""
        while True:
            pdu = self.next(wire.DATA_IN)
            if pdu.flags & 1:
                return pdu

    def data_out(self, tag, target_tag, number, offset, data, final, broken=None):
        specific = struct.pack(">IIIIII", target_tag, 0, self.status_number, 0, number, offset)
        header = wire.bhs(wire.DATA_OUT, wire.FINAL if final else 0, len(data), self.lun, tag, specific)
        if broken:
            self.send_broken(header, data, broken)
        else:
            self.send(header, data)


def connect(target, level=1, isid=b"\x40\0\0\1\0\1", initiator="iqn.2026-01.example.lab:recovery", first=None, cid=1, timeout=wire.Connection.PATIENCE, **keys):
    peer = Peer(target, timeout)
    name, peer.lun = wire.unit_of(target)
    offer = {**OFFER, "ErrorRecoveryLevel": level, **keys}
    if first:
        peer.command_number = first.command_number
        offer = {key: offer[key] for key in ("HeaderDigest", "DataDigest", "MaxRecvDataSegmentLength")}
    peer.login(name, initiator, isid, tsih=first.tsih if first else 0, cid=cid, **offer)
    if not first:
        expect(int(peer.keys["ErrorRecoveryLevel"]) == level, f"ErrorRecoveryLevel: {peer.keys['ErrorRecoveryLevel']}")
        for _ in range(4):  # Unit attentions.
            tag, _ = peer.begin(bytes(6), 0)
            answer = peer.next(wire.RESPONSE)
            peer.status_number = answer.word(24) + 1
            if answer.bhs[3] == 0:
                break
    return peer


def rejected(peer, reason):
    answer = peer.next(wire.REJECT)
    expect(answer.bhs[2] == reason, f"rejected with reason {answer.bhs[2]:#x}, not {reason:#x}")
    return answer


def same(one, other):
    """Whether two PDUs are the same but for ExpCmdSN and MaxCmdSN."""
    return one.data == other.data and one.bhs[:28] == other.bhs[:28] and one.bhs[36:] == other.bhs[36:]


def levels(lab):
    """ErrorRecoveryLevel is the smaller of both sides'."""
    with lab.serve(Unit(memory=True)) as target:
        for level in (0, 1, 2):
            connect(target, level).close()
    with lab.serve(Unit(memory=True), limits={"error-recovery-level": 0}) as target:
        peer = Peer(target)
        name, _ = wire.unit_of(target)
        peer.login(name, ErrorRecoveryLevel=2, DefaultTime2Wait=1, DefaultTime2Retain=7)
        expect(peer.keys["ErrorRecoveryLevel"] == "0", "a server that is told to offer level 0 offers more")
        expect((peer.keys["DefaultTime2Wait"], peer.keys["DefaultTime2Retain"]) == ("2", "7"), f"{peer.keys}")
        peer.close()


def lost_data_in(target):
    """Data-In that was lost comes again as it was, though the blocks have changed since."""
    peer = connect(target)
    other = wire.session(target, "iqn.2026-01.example.lab:writer")
    old = random.randbytes(32768)
    other.write(100, old)
    tag, _ = peer.begin(read_cdb(100, 64), 32768)
    first = peer.data_in(tag)
    expect(b"".join(pdu.data for pdu in first) == old, "the first reading is wrong")
    asking = [at for at, pdu in enumerate(first) if pdu.flags & 0x40]
    expect(asking == [3], f"A bits at {asking}, not once every MaxBurstLength")
    other.write(100, bytes(32768))
    peer.snack(DATA_R2T, tag, first=2, count=3)
    for pdu in first[2:5]:
        expect(same(peer.next(wire.DATA_IN), pdu), "what was sent again is not what was sent")
    peer.snack(DATA_R2T, tag, first=6)
    for pdu in first[6:]:
        expect(same(peer.next(wire.DATA_IN), pdu), "a run of length 0 does not end with the last")
    # Half of it is acknowledged: that is gone, the rest is not.
    peer.snack(DATA_ACK, target_tag=first[3].target_tag, first=4, lun=peer.lun)
    peer.snack(DATA_R2T, tag, first=3, count=1)
    rejected(peer, PROTOCOL_ERROR)
    peer.snack(DATA_R2T, tag)
    for pdu in first[4:]:
        expect(same(peer.next(wire.DATA_IN), pdu), "BegRun 0 and RunLength 0 is not all that is unacknowledged")
    peer.acknowledge(first[-1].word(24) + 1)
    peer.snack(DATA_R2T, tag)
    rejected(peer, PROTOCOL_ERROR)
    peer.close()
    other.close()


def lost_status(target):
    """Statuses come again by their numbers until they are acknowledged; a NOP-In tells of them."""
    peer = connect(target)
    base = peer.status_number
    tags = [peer.begin(bytes(6), 0)[0] for _ in range(3)]
    first = [peer.next(wire.RESPONSE) for _ in tags]
    expect([pdu.word(24) - base for pdu in first] == [0, 1, 2], "StatSNs have gaps")
    peer.snack(STATUS, first=base + 1, count=1)
    expect(same(peer.next(wire.RESPONSE), first[1]), "another status")
    ping = peer.receive()  # The target asks an initiator that acknowledges nothing.
    expect(ping.opcode == wire.NOP_IN and ping.target_tag != wire.NO_TAG and ping.word(24) == base + 3, f"no ping: {ping}")
    peer.snack(STATUS)
    for pdu in first:
        expect(same(peer.next(wire.RESPONSE), pdu), "another status")
    peer.acknowledge(base + 2)
    peer.snack(STATUS, first=base + 1, count=1)
    rejected(peer, PROTOCOL_ERROR)
    peer.close()


def lost_r2t(target):
    """An R2T comes again when it is asked for, and another one when nothing comes."""
    peer = connect(target)
    data = random.randbytes(12288)
    tag, _ = peer.begin(write_cdb(500, 24), 12288, write=True)
    first = peer.next(wire.R2T)
    began = time.monotonic()
    peer.snack(DATA_R2T, tag, first=0, count=1)
    again = peer.next(wire.R2T)
    expect(again.bhs[:24] == first.bhs[:24] and again.bhs[36:] == first.bhs[36:], "another R2T")
    recovery = peer.next(wire.R2T)
    expect(recovery.word(36) == 1 and recovery.word(40) == 0 and recovery.target_tag != first.target_tag, "no recovery R2T")
    expect(DATA_TIMEOUT / 5 - 0.1 < time.monotonic() - began < 60, "it comes at another time")
    peer.data_out(tag, first.target_tag, 0, 0, b"x" * 4096, False)  # Too late.
    for at in range(3):
        peer.data_out(tag, recovery.target_tag, at, 4096 * at, data[4096 * at:4096 * (at + 1)], at == 2)
    answer = peer.next(wire.RESPONSE)
    expect(answer.bhs[3] == 0 and answer.word(36) == 2, f"status {answer.bhs[3]}, ExpDataSN {answer.word(36)}")
    peer.status_number = answer.word(24) + 1
    tag, _ = peer.begin(read_cdb(500, 24), 12288)
    expect(b"".join(pdu.data for pdu in peer.data_in(tag)) == data, "something else was written")
    peer.close()


def broken_data_out(target):
    """Data-Out with a wrong data or header digest is asked for again, and written once it has come."""
    for part in ("data", "header"):
        peer = connect(target)
        data = random.randbytes(16384)
        tag, _ = peer.begin(write_cdb(600, 32), 16384, write=True)
        r2t = peer.next(wire.R2T)
        for at in range(4):
            piece = data[4096 * at:4096 * (at + 1)]
            peer.data_out(tag, r2t.target_tag, at, 4096 * at, piece, at == 3, part if at == 1 else None)
        if part == "data":
            reject = rejected(peer, DATA_DIGEST)
            expect(reject.data[:1] == bytes([wire.DATA_OUT]), "the Reject has another header")
        again = peer.next(wire.R2T)
        expect((again.word(36), again.word(40), again.word(44)) == (1, 4096, 12288), f"asks for {again.word(40)}")
        for at in range(1, 4):
            piece = data[4096 * at:4096 * (at + 1)]
            # The last one is lost too, and nothing follows it: only time tells.
            peer.data_out(tag, again.target_tag, at - 1, 4096 * at, piece, at == 3, "header" if at == 3 else None)
        last = peer.next(wire.R2T)
        expect((last.word(36), last.word(40), last.word(44)) == (2, 12288, 4096), f"asks for {last.word(40)}")
        peer.data_out(tag, last.target_tag, 0, 12288, data[12288:], True)
        answer = peer.next(wire.RESPONSE)
        expect(answer.bhs[3] == 0 and answer.word(36) == 3, f"status {answer.bhs[3]}, ExpDataSN {answer.word(36)}")
        peer.status_number = answer.word(24) + 1
        tag, _ = peer.begin(read_cdb(600, 32), 16384)
        expect(b"".join(pdu.data for pdu in peer.data_in(tag)) == data, "something else was written")
        peer.close()


def broken_commands(target):
    """A command that is dropped is not received; sent again it runs, once, and those after it have waited."""
    peer = connect(target, ImmediateData="Yes")
    number = peer.command_number
    data = random.randbytes(4096)
    for part in ("data", "header"):
        number = peer.command_number
        header, _ = peer.command_pdu(write_cdb(700, 8), 4096, True, data=data)
        tag = struct.unpack_from(">I", header, 16)[0]
        peer.send_broken(header, data, part)
        if part == "data":
            reject = rejected(peer, DATA_DIGEST)
            expect(reject.word(28) == number, "a dropped command moves ExpCmdSN")
            peer.status_number = reject.word(24) + 1
        reading, _ = peer.begin(read_cdb(700, 8), 4096)
        specific = struct.pack(">III", wire.NO_TAG, peer.command_number, peer.status_number)
        peer.send(wire.bhs(wire.NOP_OUT | wire.IMMEDIATE, wire.FINAL, 0, 0, 0x9999, specific))
        pong = peer.receive()
        while pong.tag != 0x9999:
            pong = peer.receive()
        expect(pong.word(28) == number, f"ExpCmdSN {pong.word(28)}, not {number}: the gap does not show")
        peer.status_number = pong.word(24) + 1
        for _ in range(3):
            peer.send(header, data)  # A retry, and more of it than is needed.
        answers = [peer.next(wire.RESPONSE, wire.DATA_IN) for _ in range(2)]
        expect([pdu.tag for pdu in answers] == [tag, reading], f"{answers}")
        expect(answers[1].data == data, "the read did not wait for the write before it")
        peer.status_number = answers[1].word(24) + 1
        peer.send(header, data)
        tag, _ = peer.begin(bytes(6), 0)
        answer = peer.next(wire.RESPONSE)
        expect(answer.tag == tag, "a command that is over is answered again")
        peer.status_number = answer.word(24) + 1
        data = random.randbytes(4096)
    peer.close()


def lost_framing(target):
    """Two wrong headers in a row, or one whose lengths make no sense: the connection ends, and nothing else."""
    for lengths in (False, True):
        peer = connect(target)
        header, _ = peer.command_pdu(bytes(6))
        header = bytearray(header)
        if lengths:
            header[5] = 0xFF
        peer.send_broken(bytes(header), part="header")
        if not lengths:
            peer.send_broken(bytes(header), part="header")
        expect(peer.wait_closed(5), "the connection goes on without knowing where PDUs begin")


def cut_anew(target):
    """R-Data SNACK: data is cut for another MaxRecvDataSegmentLength, and a SCSI Response has the tag and the same StatSN."""
    peer = connect(target)
    tag, _ = peer.begin(read_cdb(0, 40), 20480)
    first = peer.data_in(tag)
    text = b"MaxRecvDataSegmentLength=1024\0"
    specific = struct.pack(">III", wire.NO_TAG, peer.command_number, peer.status_number)
    peer.send(wire.bhs(wire.TEXT | wire.IMMEDIATE, wire.FINAL, len(text), 0, 0x8888, specific), text)
    peer.next(wire.TEXT_RESPONSE)
    peer.snack(R_DATA, tag, 0x1234)
    again = []
    while not again or again[-1].opcode != wire.RESPONSE:
        again.append(peer.next(wire.DATA_IN, wire.RESPONSE))
    response = again.pop()
    expect(b"".join(pdu.data for pdu in again) == b"".join(pdu.data for pdu in first), "other data")
    expect(max(len(pdu.data) for pdu in again) == 1024, "it is not cut anew")
    expect([pdu.word(36) for pdu in again] == list(range(20)), "DataSNs do not begin anew")
    expect(response.word(20) == 0x1234 and response.word(24) == first[-1].word(24) and response.word(36) == 20, f"{response}")
    peer.close()


def hostile_snacks(target):
    """SNACKs that name what is not there, in floods: rejected, bounded, and nobody else's business."""
    bystander = wire.session(target, "iqn.2026-01.example.lab:bystander")
    marker = random.randbytes(4096)
    bystander.write(900, marker)
    before = target.status("VmRSS")
    for seed in range(6):
        peer = connect(target, timeout=3)
        dice = random.Random(seed)
        tag, _ = peer.begin(read_cdb(0, 64), 32768)
        pdus = peer.data_in(tag)
        tags = [tag, tag + 1, 0, wire.NO_TAG, pdus[3].target_tag]
        try:
            for _ in range(400):
                peer.snack(dice.randrange(6), dice.choice(tags), dice.choice(tags), dice.choice([0, 1, 7, 8, peer.status_number,
                           dice.getrandbits(32)]), dice.choice([0, 1, 3, dice.getrandbits(32)]), dice.choice([0, 0, 1, 9]))
            while not peer.is_quiet(1) and peer.socket.recv(1 << 16):
                pass
        except (wire.Closed, OSError):
            pass
        peer.close()
        expect(bystander.read(900, 8) == marker, "another session suffers")
    # One that asks for the same again and again without reading it.
    peer = connect(target, timeout=3)
    tag, _ = peer.begin(read_cdb(0, 2048), 1 << 20)
    try:
        for _ in range(3000):
            peer.snack(DATA_R2T, tag)
            peer.snack(STATUS)
    except (wire.Closed, TimeoutError, OSError):
        pass
    expect(bystander.read(900, 8) == marker, "another session suffers")
    peer.close()
    grown = target.status("VmRSS") - before
    expect(grown < 96 << 10, f"the target has grown by {grown} KiB")
    bystander.close()


def unacknowledged(target):
    """An initiator that reads and acknowledges nothing: what is kept for it is bounded, and it goes on when it acknowledges."""
    peer = connect(target, MaxBurstLength=262144, MaxRecvDataSegmentLength=65536, HeaderDigest="None", DataDigest="None")
    before = target.status("VmRSS")
    pending, tags, done = {}, {}, 0
    for _ in range(64):  # 64 MiB.
        tag, _ = peer.begin(read_cdb(0, 2048), 1 << 20)
        pending[tag] = 0
    asked, total, limit = 0, 0, time.monotonic() + 60
    while not peer.is_quiet(2) or not asked and time.monotonic() < limit:
        pdu = peer.receive()
        total += len(pdu.data)
        asked += pdu.opcode == wire.NOP_IN
        if pdu.flags & 0x40 and pdu.opcode == wire.DATA_IN:
            tags.setdefault(pdu.tag, []).append((pdu.target_tag, pdu.word(36) + 1))
    expect(total <= 24 << 20, f"{total >> 20} MiB are sent to an initiator that acknowledges nothing")
    expect(asked, "the target does not ask for an acknowledgement")
    grown = target.status("VmRSS") - before
    expect(grown < 64 << 10, f"the target has grown by {grown} KiB")
    # It acknowledges, and all comes.
    for asking in tags.values():
        for target_tag, number in asking:
            peer.snack(DATA_ACK, target_tag=target_tag, first=number, lun=peer.lun)
    peer.send(wire.bhs(wire.NOP_OUT | wire.IMMEDIATE, wire.FINAL, 0, 0, wire.NO_TAG, struct.pack(
        ">III", wire.NO_TAG, peer.command_number, peer.status_number)))
    while total < 64 << 20:
        pdu = peer.receive()
        total += len(pdu.data)
        if pdu.opcode == wire.DATA_IN and pdu.flags & 1:
            peer.acknowledge(pdu.word(24) + 1)
        elif pdu.opcode == wire.DATA_IN and pdu.flags & 0x40:
            peer.snack(DATA_ACK, target_tag=pdu.target_tag, first=pdu.word(36) + 1, lun=peer.lun)
    peer.close()


class Lossy(Peer):
    """An initiator that recovers: it loses one PDU in `odds` either way, and gets every command done."""

    odds, dice = 0, random.Random(7)

    def lose(self):
        return self.odds and self.dice.randrange(self.odds) == 0

    def say(self, header, data=b""):
        if self.lose():
            self.send_broken(header, data, self.dice.choice(["header", "data"] if data else ["header"]))
            return
        self.send(header, data)

    def ping(self):
        specific = struct.pack(">III", wire.NO_TAG, self.command_number, self.status_number)
        self.send(wire.bhs(wire.NOP_OUT | wire.IMMEDIATE, wire.FINAL, 0, 0, 0x10000, specific))

    def do(self, cdb, length=0, out=None):
        """One command to its end: (status, data)."""
        number = self.command_number
        header, _ = self.command_pdu(cdb, len(out) if out else length, out is not None)
        tag = struct.unpack_from(">I", header, 16)[0]
        self.say(header)
        got, r2ts, status, expected, limit = {}, {}, None, None, time.monotonic() + 60
        while time.monotonic() < limit:
            if self.is_quiet(0.4):
                # Nothing comes: what was lost, the command or its status?
                if self.expected_command == number:
                    self.say(header)
                self.ping()
                continue
            pdu = self.receive()
            if pdu.opcode not in (wire.REJECT, wire.NOP_IN) and self.lose():
                continue
            if pdu.opcode == wire.DATA_IN and pdu.tag == tag:
                got[pdu.word(36)] = pdu
                if pdu.flags & 1:
                    status, expected = pdu, pdu.word(36) + 1
            elif pdu.opcode == wire.R2T and pdu.tag == tag and pdu.word(36) not in r2ts:
                r2ts[pdu.word(36)] = pdu
                offset, count = pdu.word(40), pdu.word(44)
                for start in range(0, count, 4096):
                    piece = out[offset + start:offset + min(start + 4096, count)]
                    specific = struct.pack(">IIIIII", pdu.target_tag, 0, self.status_number, 0, start // 4096, offset + start)
                    final = wire.FINAL if start + len(piece) == count else 0
                    self.say(wire.bhs(wire.DATA_OUT, final, len(piece), self.lun, tag, specific), piece)
            elif pdu.opcode == wire.RESPONSE and pdu.tag == tag:
                status, expected = pdu, pdu.word(36)
            elif pdu.opcode in (wire.REJECT, wire.NOP_IN) and pdu.tag == 0x10000 or pdu.opcode == wire.REJECT:
                self.lost.add(pdu.word(24))
            if status is not None and (out is not None or set(range(expected)) <= set(got)):
                self.lost.add(status.word(24))
                while self.status_number in self.lost:
                    self.lost.discard(self.status_number)
                    self.status_number += 1
                return status.bhs[3], b"".join(got[at].data for at in sorted(got))
            missing = [at for at in range(expected if expected is not None else max(got, default=-1) + 1) if at not in got]
            if missing and out is None and (status or pdu.opcode == wire.NOP_IN):
                self.snack(DATA_R2T, tag, first=missing[0], count=1)
            if pdu.opcode == wire.NOP_IN and not missing and status is None:
                newest = pdu.word(24) - (pdu.tag != wire.NO_TAG)
                for at in range(self.status_number, newest + 1):
                    if at not in self.lost:
                        self.snack(STATUS, first=at, count=1)
        raise Failed("a command does not get done")


def lossy(target):
    """Writes and reads over a connection that loses one PDU in twelve: all of it arrives, and none of it twice."""
    peer = Lossy(target)
    name, peer.lun = wire.unit_of(target)
    peer.login(name, "iqn.2026-01.example.lab:lossy", b"\x40\0\0\1\0\2", **{**OFFER, "ErrorRecoveryLevel": 1})
    peer.lost, peer.expected_command = set(), peer.command_number
    while peer.do(bytes(6))[0]:
        pass
    peer.odds = 12
    image = bytearray(64 * 512)
    for round_ in range(12):
        at, blocks = peer.dice.randrange(32), peer.dice.randrange(1, 33)
        data = peer.dice.randbytes(blocks * 512)
        status, _ = peer.do(write_cdb(2000 + at, blocks), out=data)
        expect(status == 0, f"write {round_}: status {status}")
        image[at * 512:(at + blocks) * 512] = data
        status, got = peer.do(read_cdb(2000, 64), 64 * 512)
        if round_:
            expect(status == 0 and got[at * 512:(at + blocks) * 512] == data, f"round {round_}: other data, or status {status}")
    peer.close()


COMPLETE, NO_TASK, NO_LUN, ALLEGIANT, NOT_SUPPORTED = range(5)
REMOVE = 2


def lost_mid_read(target):
    """A read whose connection breaks goes on with another one, from the DataSN that it had come to."""
    first = connect(target, 2)
    old = random.randbytes(65536)
    with wire.session(target, "iqn.2026-01.example.lab:writer") as other:
        other.write(3000, old)
        tag, _ = first.begin(read_cdb(3000, 128), 65536)
        got = [first.next(wire.DATA_IN) for _ in range(5)]
        first.reset()
        other.write(3000, bytes(65536))
    second = connect(target, 2, first=first, cid=2, MaxRecvDataSegmentLength=2048)
    expect(second.reassign(tag, 5) == ALLEGIANT, "a task is reassigned whose connection was not removed")
    expect(second.log_out(REMOVE, 1) == (0, 2, 20), "logout for recovery")
    expect(second.reassign(tag + 77) == NO_TASK, "a task that never was")
    lun, second.lun = second.lun, 9
    expect(second.reassign(tag) == NO_LUN, "a LUN that is not")
    second.lun = lun
    expect(second.reassign(tag, 5) == COMPLETE, "the task is not reassigned")
    rest = second.data_in(tag)
    expect(rest[0].word(36) == 5 and rest[0].word(40) == 5 * 4096, f"goes on at DataSN {rest[0].word(36)}")
    expect(max(len(pdu.data) for pdu in rest) == 2048, "not cut for the new connection")
    expect(b"".join(pdu.data for pdu in got + rest) == old, "other data than was read")
    expect(second.reassign(tag) == ALLEGIANT, "reassigned twice")
    # It may be asked for again here, too.
    second.snack(DATA_R2T, tag, first=6, count=1)
    expect(same(second.next(wire.DATA_IN), rest[1]), "what was sent again is not what was sent")
    second.close()


def lost_status_and_connection(target):
    """Commands that had ended: their statuses and data come again on the new connection; what was acknowledged does not."""
    first = connect(target, 2)
    tags = [first.begin(read_cdb(0, 16), 8192)[0] for _ in range(3)]
    whole = [first.data_in(tag) for tag in tags]
    first.acknowledge(whole[0][-1].word(24) + 1)
    first.taken()
    first.close()
    second = connect(target, 2, first=first, cid=2)
    expect(second.log_out(REMOVE, 1)[0] == 0, "logout for recovery")
    expect(second.reassign(tags[0]) == NO_TASK, "a task whose status was acknowledged is still there")
    expect(second.reassign(tags[1], 2) == COMPLETE, "a task that has ended cannot be reassigned")
    response = second.next(wire.RESPONSE)
    expect(response.tag == tags[1] and response.bhs[3] == 0 and response.word(36) == 2, f"{response}")
    expect(second.reassign(tags[2], 1) == COMPLETE, "a task that has ended cannot be reassigned")
    again = second.data_in(tags[2])
    expect([pdu.word(36) for pdu in again] == [1] and again[0].data == whole[2][1].data, "not from ExpDataSN on")
    second.close()


def lost_mid_write(target):
    """A write whose connection breaks goes on where its data ended: by the login of a new connection with the same CID."""
    first = connect(target, 2)
    data = random.randbytes(49152)
    tag, _ = first.begin(write_cdb(4000, 96), 49152, write=True)
    r2t = first.next(wire.R2T)
    for at in range(4):
        first.data_out(tag, r2t.target_tag, at, 4096 * at, data[4096 * at:4096 * (at + 1)], at == 3)
    r2t = first.next(wire.R2T)
    first.data_out(tag, r2t.target_tag, 0, 16384, data[16384:20480], False)
    first.taken()
    # It is not even broken: the login logs it out (RFC 7143 §6.3.4).
    second = connect(target, 2, first=first, cid=1)
    expect(first.wait_closed(5), "the old connection stays")
    expect(second.reassign(tag, 2) == COMPLETE, "the task is not reassigned")
    done, number = 20480, 2
    while done < 49152:
        r2t = second.next(wire.R2T)
        expect((r2t.word(36), r2t.word(40)) == (number, done), f"R2TSN {r2t.word(36)} at {r2t.word(40)}, not {number} at {done}")
        end = done + r2t.word(44)
        for at in range(0, end - done, 4096):
            second.data_out(tag, r2t.target_tag, at // 4096, done + at, data[done + at:min(done + at + 4096, end)], done + at + 4096 >= end)
        done, number = end, number + 1
    response = second.next(wire.RESPONSE)
    expect(response.bhs[3] == 0 and response.word(36) == number, f"status {response.bhs[3]}, ExpDataSN {response.word(36)}")
    second.status_number = response.word(24) + 1
    tag, _ = second.begin(read_cdb(4000, 96), 49152)
    expect(b"".join(pdu.data for pdu in second.data_in(tag)) == data, "something else was written")
    second.close()


def several_connections(target):
    """One connection of several breaks: the others go on, its tasks go to one of them, and the gap that it left is plugged there."""
    first = connect(target, 2, MaxConnections=4)
    second = connect(target, 2, first=first, cid=2)
    third = connect(target, 2, first=first, cid=3)
    data = random.randbytes(8192)
    number = first.command_number
    tag, _ = second.begin(write_cdb(5000, 16), 8192, write=True, tag=1001, number=number)
    r2t = second.next(wire.R2T)
    # A command that is lost with the connection, and one behind it that waits on the broken one, and one on another.
    lost, _ = second.command_pdu(bytes(6), tag=1002, command_number=number + 1)
    second.send_broken(lost, part="header")
    second.begin(read_cdb(0, 8), 4096, tag=1003, number=number + 2)
    third.begin(read_cdb(0, 8), 4096, tag=1004, number=number + 3)
    # A reset takes along what the target has not taken yet.
    second.taken()
    second.reset()
    time.sleep(0.1)
    first.command_number = third.command_number = number + 4
    for peer in (first, third):
        peer.status_number = peer.ask(wire.NOP_OUT, 0, struct.pack(">III", wire.NO_TAG, number + 4, peer.status_number), wire.NOP_IN).word(24) + 1
    expect(first.expected_command == number + 1, f"ExpCmdSN {first.expected_command}, not {number + 1}")
    expect(first.log_out(REMOVE, 2)[0] == 0, "logout for recovery")
    expect(first.log_out(REMOVE, 9)[0] == 1, "a CID that never was")
    expect(first.reassign(1001, 1) == COMPLETE, "the write is not reassigned")
    r2t = first.next(wire.R2T)
    expect(r2t.word(40) == 0, f"R2T at {r2t.word(40)}")
    expect(third.reassign(1003) == COMPLETE, "a command that waits for its turn is not reassigned")
    for at in range(2):
        first.data_out(1001, r2t.target_tag, at, 4096 * at, data[4096 * at:4096 * (at + 1)], at == 1)
    expect(first.next(wire.RESPONSE).tag == 1001, "no end of the write")
    # The lost command is sent again where there is a connection.
    first.begin(bytes(6), 0, tag=1002, number=number + 1)
    expect(first.next(wire.RESPONSE).tag == 1002, "no answer to what plugs the gap")
    answers = {third.data_in_any().tag for _ in range(2)}
    expect(answers == {1003, 1004}, f"what waited behind the gap: {answers}")
    first.close()
    third.close()


def others_tasks(target):
    """Nobody reassigns another session's task, whatever it is called; and one that is lost does not see it."""
    first = connect(target, 2)
    tag, _ = first.begin(read_cdb(0, 16), 8192, tag=4711)
    whole = first.data_in(tag)
    first.close()
    thief = connect(target, 2, isid=b"\x40\0\0\7\0\7", initiator="iqn.2026-01.example.lab:thief")
    expect(thief.log_out(REMOVE, 7)[0] == 1, "a CID of nobody is removed")
    for _ in range(3):
        expect(thief.reassign(tag) == NO_TASK, "another session's task is given away")
    thief.close()
    second = connect(target, 2, first=first, cid=1)
    expect(second.reassign(tag) == COMPLETE, "the task is gone")
    expect(b"".join(pdu.data for pdu in second.data_in(tag)) == b"".join(pdu.data for pdu in whole), "other data")
    for wild in (0, 0xFFFFFFFF, 12345):
        expect(second.reassign(wild, wild) in (NO_TASK, ALLEGIANT), "a task that never was")
    second.close()


def below_level_2(target):
    """At level 1 nothing is reassigned, and a connection that breaks takes its session along."""
    first = connect(target, 1, MaxConnections=2)
    second = connect(target, 1, first=first, cid=2)
    expect(first.reassign(5) == NOT_SUPPORTED, "TASK REASSIGN at level 1")
    expect(first.log_out(REMOVE, 2)[0] == 2, "logout for recovery at level 1")
    second.reset()
    expect(first.wait_closed(5), "the session outlives its connection at level 1")


def too_late(target):
    """After Time2Wait and Time2Retain the tasks of a lost connection have ended, the initiator is told, and a gap that nobody plugs ends
    the session."""
    first = connect(target, 2, MaxConnections=2, DefaultTime2Retain=3)
    second = connect(target, 2, first=first, cid=2)
    number = first.command_number
    second.begin(write_cdb(6000, 16), 8192, write=True, tag=2001, number=number)
    second.next(wire.R2T)
    first.command_number = number + 1
    began = time.monotonic()
    second.reset()
    time.sleep(0.1)
    expect(first.log_out(REMOVE, 2)[0] == 0, "logout for recovery")
    while True:
        tag, _ = first.begin(bytes(6), 0)
        answer = first.next(wire.RESPONSE)
        first.status_number = answer.word(24) + 1
        if answer.bhs[3]:
            break
        expect(time.monotonic() - began < 60, "the tasks of a lost connection never end")
        time.sleep(0.2)
    expect(time.monotonic() - began > 3.5, "they end before their time")
    sense = answer.data[2:]
    code = (sense[1] & 15, sense[2], sense[3]) if sense[0] & 0x7F in (0x72, 0x73) else (sense[2] & 15, sense[12], sense[13])
    expect(code == (6, 0x47, 0x7F), f"sense {code}, not SOME COMMANDS CLEARED BY ISCSI PROTOCOL EVENT")
    expect(first.reassign(2001) == NO_TASK, "a task is reassigned after its time")
    # A command that went down with its connection, and that nobody sends again.
    third = connect(target, 2, first=first, cid=3)
    number = first.command_number
    first.begin(bytes(6), 0, tag=2002, number=number + 1)
    third.reset()
    expect(first.wait_closed(30), "a gap that nobody plugs is waited for, for ever")


def without_connection(target):
    """A session whose only connection breaks waits for another one, goes on with it, and ends if none comes."""
    first = connect(target, 2)
    tag, _ = first.begin(write_cdb(7000, 8), 4096, write=True)
    first.next(wire.R2T)
    first.reset()
    time.sleep(1)
    second = connect(target, 2, first=first, cid=4)
    expect(second.log_out(REMOVE, 1)[0] == 0, "the lost connection cannot be removed")
    expect(second.reassign(tag, 1) == COMPLETE, "the task is not reassigned")
    second.reset()
    # And once more: the task has been reassigned before.
    third = connect(target, 2, first=second, cid=4)
    expect(third.reassign(tag, 1) == COMPLETE, "the task is not reassigned again")
    r2t = third.next(wire.R2T)
    data = random.randbytes(4096)
    third.data_out(tag, r2t.target_tag, 0, 0, data, True)
    response = third.next(wire.RESPONSE)
    expect(response.tag == tag and response.bhs[3] == 0, f"{response}")
    third.status_number = response.word(24) + 1
    third.close()
    # One that is kept for a shorter time.
    last = connect(target, 2, isid=b"\x40\0\0\1\0\2", DefaultTime2Retain=2)
    last.begin(write_cdb(7000, 8), 4096, write=True)
    last.next(wire.R2T)
    last.reset()
    proc.wait_until(lambda: last.tsih not in sessions_of(target), 60, "the session ends")
    try:
        connect(target, 2, isid=b"\x40\0\0\1\0\2", first=last, cid=5)
    except Failed as refusal:
        expect("020a" in str(refusal), f"{refusal}")
    else:
        raise Failed("the session is still there after its time")


def sessions_of(target):
    """The TSIHs of its sessions."""
    told = json.loads(proc.run(target.binary, "status", "--control", target.control, "--json"))
    return {session["tsih"] for session in told["sessions"]}


def cut_often(target):
    """However often an only connection breaks, the next one is let in, and goes on with what the last one had."""
    peer = connect(target, 2, isid=b"\x40\0\0\3\0\4", MaxConnections=1, DefaultTime2Retain=3)
    for cid in range(2, 22):
        # Its answer comes and is not acknowledged: what is lost has something that might be asked for until its time is over.
        peer.begin(bytes(6), 0)
        peer.next(wire.RESPONSE)
        tag, _ = peer.begin(write_cdb(7000, 8), 4096, write=True)
        peer.next(wire.R2T)
        peer.reset()
        peer = connect(target, 2, isid=b"\x40\0\0\3\0\4", first=peer, cid=cid)
        expect(peer.log_out(REMOVE, cid - 1)[0] == 0, "the lost connection cannot be removed")
        expect(peer.reassign(tag, 1) == COMPLETE, f"connection {cid}: the task is not reassigned")
        r2t = peer.next(wire.R2T)
        peer.data_out(tag, r2t.target_tag, 0, 0, random.randbytes(4096), True)
        response = peer.next(wire.RESPONSE)
        expect(response.tag == tag and response.bhs[3] == 0, f"{response}")
    # One that has nothing left ends as soon as the next one, with its CID, is there to take its place, and must not take the session along.
    for _ in range(40):
        peer.acknowledge(response.word(24) + 1)
        peer.close()
        time.sleep(0.02)
        peer = connect(target, 2, isid=b"\x40\0\0\3\0\4", first=peer, cid=cid)
        peer.begin(bytes(6), 0, tag=10)
        response = peer.next(wire.RESPONSE)
    peer.close()


def churn(target):
    """Connections that break again and again while their tasks are reassigned: bounded, and nobody else's business."""
    bystander = wire.session(target, "iqn.2026-01.example.lab:bystander")
    marker = random.randbytes(4096)
    bystander.write(8000, marker)
    before = target.status("VmRSS")
    dice = random.Random(11)
    peer = connect(target, 2, isid=b"\x40\0\0\3\0\3", MaxConnections=3, DefaultTime2Retain=3)
    done = 0
    for round_ in range(40):
        tag, _ = peer.begin(read_cdb(0, 512), 262144)
        got = {}
        for _ in range(dice.randrange(0, 12)):
            pdu = peer.next(wire.DATA_IN)
            got[pdu.word(40)] = pdu
        getattr(peer, dice.choice(["reset", "close"]))()
        cid = dice.choice([1, 1, 2])
        peer = connect(target, 2, isid=b"\x40\0\0\3\0\3", first=peer, cid=cid)
        expect(peer.log_out(REMOVE, dice.choice([n for n in (1, 2, 3) if n != cid]))[0] in (0, 1), "logout")
        code = peer.reassign(tag, len(got))
        if code == COMPLETE:
            for pdu in peer.data_in(tag):
                got[pdu.word(40)] = pdu
            expect(sum(len(pdu.data) for pdu in got.values()) == 262144, "bytes are missing")
            peer.acknowledge(pdu.word(24) + 1)
            done += 1
        else:
            expect(code in (NO_TASK, ALLEGIANT), f"reassignment: {code}")
        expect(bystander.read(8000, 8) == marker, "another session suffers")
    expect(done, "nothing was ever reassigned")
    peer.close()
    grown = target.status("VmRSS") - before
    expect(grown < 96 << 10, f"the target has grown by {grown} KiB")
    bystander.close()


def calm(case, target):
    """A case, after which no task of the server has panicked."""
    case(target)
    target.check_alive()
    with open(target.log_path, errors="replace") as log:
        expect("panicked" not in log.read(), f"something panicked:\n{target.log()}")


def one_server(*cases, data_timeout=DATA_TIMEOUT):
    """Cases that share a server."""
    def run(lab):
        with lab.serve(Unit(memory=True), limits={"data-timeout": data_timeout}) as target:
            for case in cases:
                lab.case(f"recovery: {case.__doc__.split(chr(10))[0].rstrip('.')}", calm, case, target)
    run.adds_its_own = True
    return run


CASES = [
    ("recovery: levels", levels),
    ("recovery: level 1", one_server(lost_data_in, lost_status, lost_r2t, broken_data_out, broken_commands, lost_framing,
                                     cut_anew, hostile_snacks, unacknowledged)),
    ("recovery: level 1, with losses", one_server(lossy, data_timeout=3)),
    ("recovery: level 2", one_server(lost_mid_read, lost_status_and_connection, lost_mid_write, several_connections, others_tasks,
                                     below_level_2, too_late, without_connection, cut_often, churn)),
]
