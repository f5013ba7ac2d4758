"""Error recovery by hand (RFC 7143 §7): an initiator that loses what it pleases of what the target sends and breaks what it pleases of
what it sends, and gets by SNACK, retry, recovery R2T and task reassignment what it missed: the same bytes, once, and in order."""

import random
import struct
import time

from lab import wire
from lab.report import Failed, expect
from lab.target import Unit

LEVEL = 1  # What the target offers.
DATA_R2T, STATUS, DATA_ACK, R_DATA = 0, 1, 2, 3
DATA_DIGEST, SNACK_REJECT, PROTOCOL_ERROR, INVALID_ACK = 2, 3, 4, 8
OFFER = {"HeaderDigest": "CRC32C", "DataDigest": "CRC32C", "InitialR2T": "Yes", "ImmediateData": "No",
         "MaxRecvDataSegmentLength": 4096, "MaxBurstLength": 16384, "FirstBurstLength": 8192, "MaxOutstandingR2T": 1}


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

    def data_in(self, tag):
        """All Data-In PDUs of a read, up to its status."""
        pdus = []
        while not pdus or not pdus[-1].flags & 1:
            pdu = self.next(wire.DATA_IN)
            expect(pdu.tag == tag, f"data of another task: {pdu}")
            pdus.append(pdu)
        return pdus

    def data_out(self, tag, target_tag, number, offset, data, final, broken=None):
        specific = struct.pack(">IIIIII", target_tag, 0, self.status_number, 0, number, offset)
        header = wire.bhs(wire.DATA_OUT, wire.FINAL if final else 0, len(data), self.lun, tag, specific)
        if broken:
            self.send_broken(header, data, broken)
        else:
            self.send(header, data)


def connect(target, level=1, isid=b"\x40\0\0\1\0\1", initiator="iqn.2026-01.example.lab:recovery", first=None, cid=1, timeout=8, **keys):
    peer = Peer(target, timeout)
    name, peer.lun = wire.unit_of(target)
    offer = {**OFFER, "ErrorRecoveryLevel": level, **keys}
    if first:
        peer.command_number = first.command_number
        offer = {key: offer[key] for key in ("HeaderDigest", "DataDigest", "MaxRecvDataSegmentLength")}
    peer.login(name, initiator, isid, tsih=first.tsih if first else 0, cid=cid, **offer)
    if not first:
        expect(int(peer.keys["ErrorRecoveryLevel"]) == min(level, LEVEL), f"ErrorRecoveryLevel: {peer.keys['ErrorRecoveryLevel']}")
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
    peer.snack(DATA_R2T, tag, first=0, count=1)
    again = peer.next(wire.R2T)
    expect(again.bhs[:24] == first.bhs[:24] and again.bhs[36:] == first.bhs[36:], "another R2T")
    began = time.monotonic()
    recovery = peer.next(wire.R2T)
    expect(recovery.word(36) == 1 and recovery.word(40) == 0 and recovery.target_tag != first.target_tag, "no recovery R2T")
    expect(0.5 < time.monotonic() - began < 5, "it comes at another time")
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
            peer.wait_closed(1)
        except wire.Closed:
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
    peer.socket.settimeout(2)
    asked, total = 0, 0
    try:
        while True:
            pdu = peer.receive()
            total += len(pdu.data)
            asked += pdu.opcode == wire.NOP_IN
            if pdu.flags & 0x40 and pdu.opcode == wire.DATA_IN:
                tags.setdefault(pdu.tag, []).append((pdu.target_tag, pdu.word(36) + 1))
    except Failed:
        pass
    expect(total <= 24 << 20, f"{total >> 20} MiB are sent to an initiator that acknowledges nothing")
    expect(asked, "the target does not ask for an acknowledgement")
    grown = target.status("VmRSS") - before
    expect(grown < 64 << 10, f"the target has grown by {grown} KiB")
    # It acknowledges, and all comes.
    peer.socket.settimeout(8)
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
        self.socket.settimeout(0.4)
        while time.monotonic() < limit:
            try:
                pdu = self.receive()
            except Failed:
                # Nothing comes: what was lost, the command or its status?
                if self.expected_command == number:
                    self.say(header)
                self.ping()
                continue
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


def one_server(*cases):
    """Cases that share a server."""
    def run(lab):
        with lab.serve(Unit(memory=True), limits={"data-timeout": 3}) as target:
            for case in cases:
                lab.case(f"recovery: {case.__doc__.split(chr(10))[0].rstrip('.')}", case, target)
                target.check_alive()
    run.adds_its_own = True
    return run


CASES = [
    ("recovery: levels", levels),
    ("recovery: level 1", one_server(lost_data_in, lost_status, lost_r2t, broken_data_out, broken_commands, lost_framing,
                                     cut_anew, hostile_snacks, unacknowledged, lossy)),
]
