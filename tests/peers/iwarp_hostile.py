"""RDMA peers that break every rule of MPA, DDP, RDMAP and iSER: a Terminate that names what was wrong, the end of that
connection and of no other, and not a byte outside of what was advertised.

The peer is lab/iwarp.py's, written from the RFCs; Linux's own stack would never say these things.
"""

import contextlib
import itertools
import os
import random
import socket
import struct
import threading
import time

from lab import iser, iwarp, proc, wire
from lab.iwarp import CRC, ENHANCED, MARKERS, READ_REQUEST, READ_RESPONSE, REJECT, SEND, SEND_INVALIDATE, TERMINATE, WRITE
from lab.report import Failed, Skip, expect
from lab.target import Unit
from lab.wire import FINAL, IMMEDIATE, NO_TAG, Closed

# Terminates by layer, type and code (RFC 5040 §4.8, RFC 5041 §8.2, RFC 5044 §8).
RDMAP_INVALID_STAG, RDMAP_BOUNDS, RDMAP_RIGHTS, RDMAP_NOT_ASSOCIATED = (0, 1, 0), (0, 1, 1), (0, 1, 2), (0, 1, 3)
RDMAP_WRAP, RDMAP_CANNOT_INVALIDATE = (0, 1, 4), (0, 1, 9)
RDMAP_VERSION, RDMAP_OPCODE, RDMAP_STREAM = (0, 2, 5), (0, 2, 6), (0, 2, 7)
DDP_INVALID_STAG, DDP_BOUNDS, DDP_NOT_ASSOCIATED, DDP_WRAP, DDP_TAGGED_VERSION = ((1, 1, code) for code in range(5))
DDP_QUEUE, DDP_NO_BUFFER, DDP_MSN_RANGE, DDP_OFFSET, DDP_TOO_LONG, DDP_UNTAGGED_VERSION = ((1, 2, code) for code in range(1, 7))
MPA_CRC, MPA_MARKER = (2, 0, 2), (2, 0, 3)
ANY = None

GOOD = "iqn.2026-01.example.lab:good"
PATTERN = bytes(range(256)) * 64  # 16 KiB: blocks 0 to 31.
GROWTH_MIB = 200


@contextlib.contextmanager
def under_attack(lab, **settings):
    """A target with two well-behaved sessions, over iSER and over TCP, that live through the attack and are served after."""
    if lab.kind != "stag":
        raise Skip(f"{lab.kind} has no software iWARP")
    with lab.serve(Unit(memory=True), **settings) as target:
        with iser.session(target, GOOD, b"\x40\0\0\x09\0\0") as neighbor, wire.session(target, GOOD) as other, \
                contextlib.ExitStack() as stack:
            neighbor.write(0, PATTERN)
            before = target.status("VmRSS")
            stop = stack.enter_context(awake(neighbor, other))
            yield target
            stop()
            target.check_alive()
            for session in (neighbor, other):
                expect(session.read(0, len(PATTERN) // 512) == PATTERN, "a neighbor's blocks have changed")
                session.write(64, PATTERN)
            grown = (target.status("VmRSS") - before) / 1024
            expect(grown < GROWTH_MIB, f"memory grew by {grown:.0f} MiB")
            neighbor.logout()
            other.logout()
        with iser.session(target, GOOD, b"\x40\0\0\x0a\0\0") as later:
            expect(later.read(64, len(PATTERN) // 512) == PATTERN, "a later session reads other data")
            later.logout()


@contextlib.contextmanager
def awake(*sessions):
    """Sessions that answer the target's pings while the test is busy elsewhere: a silent one is given up."""
    done = threading.Event()

    def work():
        while not done.wait(1):
            for session in sessions:
                session.nop()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    stopped = False

    def stop():
        nonlocal stopped
        if not stopped:
            stopped = True
            done.set()
            thread.join(20)

    try:
        yield stop
    finally:
        stop()


def attacker(target, timeout=8, counter=itertools.count(), **setup):
    """A session of its own: one of the same name and ISID would end the one before."""
    isid = b"\x40\0\x01" + (next(counter) & 0xFFFFFF).to_bytes(3, "big")
    return iser.session(target, "iqn.2026-01.example.lab:evil", isid, timeout=timeout,
                        setup=iwarp.Setup(private_data=iser.PRIVATE_DATA, **{"crc": True, **setup}))


def ended_by(session, reasons, what):
    """The target must end this connection, and say why: with one of the reasons (ANY: whichever)."""
    terminated = session.stream.wait_terminate()
    expect(terminated is not None, f"{what}: the connection ended without a Terminate")
    expect(reasons is ANY or terminated.reason in reasons, f"{what}: {terminated}, expected one of {reasons}")
    expect(session.wait_closed(), f"{what}: the connection stays open after the Terminate")


def provoke(target, what, attack, reasons, **setup):
    with attacker(target, **setup) as session:
        try:
            attack(session)
        except Closed:
            pass  # The target was quicker; what it said is still to be read.
        ended_by(session, reasons, what)


def each(lab, cases):
    """Cases of (what, attack on a session, reasons), each on a connection of its own."""
    with under_attack(lab) as target:
        for what, attack, reasons in cases:
            provoke(target, what, attack, reasons)


def nop(session):
    """A NOP-Out that wants an answer, as a Send's bytes."""
    return session.encode(wire.bhs(wire.NOP_OUT | IMMEDIATE, FINAL, 0, 0, session.tag(), struct.pack(
        ">III", NO_TAG, session.command_number, session.status_number)))


def write_blocks(session, lba, data, **options):
    return session.command(struct.pack(">BBIBHB", 0x2A, 0, lba, 0, len(data) // 512, 0), write=bytearray(data), **options)


def asked_for_data(session, lba=32, size=8192):
    """Send a write, and keep the target's Read Request for its data: (tag, sink STag, its offset, length)."""
    session.stream.held = []
    tag, _, _ = write_blocks(session, lba, b"\x5a" * size)
    while not session.stream.held:
        session.stream.receive((READ_REQUEST,))
    sink, offset, length, _, _ = session.stream.held[0]
    return tag, sink, offset, length


# Steering tags.

def wild_writes(lab):
    chance = random.Random(11)
    stags = [0, 1, 0x100, 0xFFFFFFFF] + [chance.getrandbits(32) for _ in range(12)]
    each(lab, [(f"RDMA Write to STag {stag:#x}", lambda session, stag=stag: session.stream.write(stag, offset, b"\xee" * 4096),
                {DDP_INVALID_STAG, DDP_NOT_ASSOCIATED, RDMAP_INVALID_STAG, RDMAP_RIGHTS})
               for stag in stags for offset in (0,)])


def wild_reads(lab):
    chance = random.Random(12)
    stags = [0, 1, 0xFFFFFFFF] + [chance.getrandbits(32) for _ in range(8)]
    cases = [(f"RDMA Read of {length} bytes of STag {stag:#x}",
              lambda session, stag=stag, length=length: session.stream.post_read(7, 0, length, stag, 0),
              {RDMAP_INVALID_STAG, RDMAP_NOT_ASSOCIATED}) for stag in stags for length in (512, 0xFFFFFFFF)]
    each(lab, cases)


def wild_invalidations(lab):
    reasons = {RDMAP_CANNOT_INVALIDATE, RDMAP_INVALID_STAG, RDMAP_NOT_ASSOCIATED, (0, 2, 9)}
    each(lab, [(f"Send with Invalidate of STag {stag:#x}",
                lambda session, stag=stag: session.stream.send(nop(session), SEND_INVALIDATE, stag), reasons)
               for stag in (0, 0x4C414201, 0xFFFFFFFF)])


def strangers_stags(lab):
    """The sink of one connection's read, used on another: it must mean nothing there."""
    with under_attack(lab) as target:
        for what, attack, reasons in (
                ("write", lambda stream, sink, at: stream.write(sink, at, b"\xee" * 512), {DDP_INVALID_STAG, DDP_NOT_ASSOCIATED}),
                ("read", lambda stream, sink, at: stream.post_read(7, 0, 512, sink, at), {RDMAP_INVALID_STAG, RDMAP_NOT_ASSOCIATED}),
                ("Read Response", lambda stream, sink, at: stream.tagged_message(READ_RESPONSE, sink, at, b"\xee" * 512), ANY)):
            with attacker(target) as victim:
                tag, sink, at, length = asked_for_data(victim)
                with iser.session(target, isid=b"\x40\0\0\x0b\0\0", initiator="iqn.2026-01.example.lab:thief") as thief:
                    with contextlib.suppress(Closed):
                        attack(thief.stream, sink, at)
                    ended_by(thief, reasons, f"a stranger's {what}")
                victim.stream.held, held = None, victim.stream.held
                for request in held:
                    victim.stream.answer_read(request)
                expect(victim.response(tag)[0] == 0, f"after a stranger's {what}: the write fails")
                expect(victim.read(32, 16) == b"\x5a" * 8192, f"after a stranger's {what}: other data was written")


# Answers to the target's own RDMA Reads.

def read_responses(lab):
    """The target reads a write's data. Whatever comes instead of it: no block beside the write's changes."""
    bounds = {DDP_BOUNDS, RDMAP_BOUNDS, DDP_WRAP, RDMAP_WRAP, DDP_INVALID_STAG, RDMAP_STREAM}

    def answer(lie):
        def attack(session):
            _, sink, at, length = asked_for_data(session)
            lie(session.stream, sink, at, length)
        return attack

    def respond(stream, sink, at, data, last=True):
        stream.send_tagged(READ_RESPONSE, sink, at, data, last)

    def twice(stream, sink, at, length):
        for _ in range(2):
            stream.tagged_message(READ_RESPONSE, sink, at, bytes(length))

    def overlapping(stream, sink, at, length):
        respond(stream, sink, at, b"\xee" * 4096, last=False)
        respond(stream, sink, at + 2048, b"\xdd" * (length - 2048))

    def gap(stream, sink, at, length):
        respond(stream, sink, at, b"\xee" * 512, last=False)
        respond(stream, sink, at + 1024, b"\xdd" * (length - 1024))

    cases = [
        ("a Read Response longer than asked", lambda s, sink, at, n: respond(s, sink, at, b"\xee" * (n + 512)), bounds),
        ("one byte too long", lambda s, sink, at, n: respond(s, sink, at, b"\xee" * (n + 1)), bounds),
        ("too long in its second segment", lambda s, sink, at, n: (
            respond(s, sink, at, b"\xee" * n, False), respond(s, sink, at + n, b"\xee" * 512)), bounds),
        ("before its start", lambda s, sink, at, n: respond(s, sink, (at - 512) % 2**64, b"\xee" * 512), bounds),
        ("past its end", lambda s, sink, at, n: respond(s, sink, (at + n) % 2**64, b"\xee" * 512), bounds),
        ("far away", lambda s, sink, at, n: respond(s, sink, (at + (1 << 40)) % 2**64, b"\xee" * 512), bounds),
        ("at the end of all offsets", lambda s, sink, at, n: respond(s, sink, 2**64 - 256, b"\xee" * 512), bounds),
        ("for another STag", lambda s, sink, at, n: respond(s, sink ^ 0x100, at, b"\xee" * n),
         {DDP_INVALID_STAG, DDP_NOT_ASSOCIATED, RDMAP_INVALID_STAG, RDMAP_STREAM}),
        ("for the STag with another key", lambda s, sink, at, n: respond(s, sink ^ 1, at, b"\xee" * n),
         {DDP_INVALID_STAG, DDP_NOT_ASSOCIATED, RDMAP_INVALID_STAG, RDMAP_STREAM}),
        ("too short", lambda s, sink, at, n: respond(s, sink, at, b"\xee" * (n - 512)), ANY),
        ("empty", lambda s, sink, at, n: respond(s, sink, at, b""), ANY),
        ("overlapping itself", overlapping, ANY),
        ("with a gap", gap, ANY),
        ("twice", twice, {DDP_INVALID_STAG, DDP_NOT_ASSOCIATED, RDMAP_OPCODE, RDMAP_INVALID_STAG, RDMAP_STREAM}),
        ("as an RDMA Write to the sink", lambda s, sink, at, n: s.write(sink, at, b"\xee" * n),
         {RDMAP_RIGHTS, DDP_INVALID_STAG, DDP_NOT_ASSOCIATED, RDMAP_INVALID_STAG}),
        ("a read of the sink", lambda s, sink, at, n: s.post_read(7, 0, n, sink, at),
         {RDMAP_RIGHTS, RDMAP_INVALID_STAG, RDMAP_NOT_ASSOCIATED}),
    ]
    with under_attack(lab) as target:
        with attacker(target) as session:
            session.write(0, PATTERN + bytes(32768))  # Blocks 0 to 31, and zeros to 95.
        for what, lie, reasons in cases:
            provoke(target, what, answer(lie), reasons)
            with attacker(target) as session:
                expect(session.read(0, 32) == PATTERN and session.read(48, 16) == bytes(8192),
                       f"{what}: blocks beside those of the write have changed")


def unasked_responses(lab):
    each(lab, [("a Read Response without a Read Request",
                lambda session: session.stream.tagged_message(READ_RESPONSE, 0x1234, 0, bytes(512)),
                {RDMAP_OPCODE, DDP_INVALID_STAG, DDP_NOT_ASSOCIATED, RDMAP_INVALID_STAG, RDMAP_STREAM}),
               ("an empty one", lambda session: session.stream.tagged_message(READ_RESPONSE, 0x1234, 0, b""),
                {RDMAP_OPCODE, DDP_INVALID_STAG, DDP_NOT_ASSOCIATED, RDMAP_INVALID_STAG, RDMAP_STREAM})])


def reads_beyond_the_limit(lab):
    """As many Read Requests at once as the target allows, and more (RFC 5040 §5.2, its inbound read queue is the buffer)."""
    with under_attack(lab) as target:
        with attacker(target) as session:
            # Nothing is read by a read of no bytes, so it needs no STag (RFC 5040 §5.2.1).
            for _ in range(min(4, session.stream.peer_ird)):
                session.stream.reads.append((7, 0, 0))
                session.stream.buffers[7] = iwarp.Buffer(bytearray(), "s")
                session.stream.send_untagged(READ_REQUEST, 1, struct.pack(">IQIIQ", 7, 0, 0, 0, 0))
                session.stream.receive((READ_RESPONSE,))
            session.nop(b"")
        with attacker(target) as session:
            stream = session.stream
            with contextlib.suppress(Closed):
                stream.send_raw(b"".join(
                    stream.frame(bytes([0x41, 0x40 | READ_REQUEST]) + struct.pack(
                        ">IIII", 0, 1, number + 1, 0) + struct.pack(">IQIIQ", 7, 0, 0, 0, 0)) for number in range(20000)))
            stream.buffers[7] = iwarp.Buffer(bytearray(), "s")
            answered = 0
            stream.reads = [(7, 0, 0)] * 20000
            try:
                while answered < 20000:
                    stream.receive((READ_RESPONSE,))
                    answered += 1
            except iwarp.Terminated as terminated:
                expect(terminated.reason in (DDP_NO_BUFFER, DDP_MSN_RANGE), f"too many reads: {terminated}")
            except Closed:
                pass


# Untagged segments: queues, sequence numbers, offsets, lengths.

def sequence(lab):
    def segment(**wrong):
        return lambda session: session.stream.send_untagged(**{"opcode": SEND, "queue": 0, "payload": nop(session), **wrong})

    def offset_in_the_middle(session):
        message = nop(session)
        session.stream.send_untagged(SEND, 0, message[:40], last=False)
        session.stream.send_untagged(SEND, 0, message[40:], offset=44)

    def number_in_the_middle(session):
        message = nop(session)
        session.stream.send_untagged(SEND, 0, message[:40], last=False)
        session.stream.send_untagged(SEND, 0, message[40:], offset=40, msn=session.stream.next_msn[0] + 1)

    def repeated(session):
        session.stream.send(nop(session))
        session.stream.send_untagged(SEND, 0, nop(session), msn=session.stream.next_msn[0] - 1)

    def other_operation_in_the_middle(session):
        message = nop(session)
        session.stream.send_untagged(SEND, 0, message[:40], last=False)
        session.stream.send_untagged(SEND_INVALIDATE, 0, message[40:], offset=40, ulp=5)

    msn = {DDP_NO_BUFFER, DDP_MSN_RANGE}
    each(lab, [
        ("a Send ahead of its turn", segment(msn=1000), msn),
        ("a Send of number 0", segment(msn=0), msn),
        ("a Send far ahead", segment(msn=0x80000000), msn),
        ("a Send twice", repeated, msn),
        ("another number in the middle of a Send", number_in_the_middle, msn | {DDP_OFFSET}),
        ("a Send that begins at offset 4", segment(offset=4), {DDP_OFFSET}),
        ("a Send with a gap", offset_in_the_middle, {DDP_OFFSET}),
        ("another operation in the middle of a Send", other_operation_in_the_middle, ANY),
        ("a Send on the queue of reads", segment(queue=1), {DDP_QUEUE, RDMAP_OPCODE, DDP_MSN_RANGE}),
        ("a Send on the queue of Terminates", segment(queue=2), {DDP_QUEUE, RDMAP_OPCODE}),
        ("queue 3", segment(queue=3, msn=1), {DDP_QUEUE}),
        ("queue 2^32 - 1", segment(queue=0xFFFFFFFF, msn=1), {DDP_QUEUE}),
        ("a Read Request on the queue of Sends", segment(opcode=READ_REQUEST, payload=bytes(28)), {DDP_QUEUE, RDMAP_OPCODE}),
        ("a Read Request of 27 bytes", segment(opcode=READ_REQUEST, queue=1, payload=bytes(27)), ANY),
        ("a Read Request in two segments", segment(opcode=READ_REQUEST, queue=1, payload=bytes(20), last=False), ANY),
    ])


def versions(lab):
    def untagged(**wrong):
        return lambda session: session.stream.send_untagged(SEND, 0, nop(session), **wrong)

    def tagged(**wrong):
        return lambda session: session.stream.send_tagged(WRITE, 5, 0, bytes(64), **wrong)

    cases = [("DDP version 0, untagged", untagged(ddp=0), {DDP_UNTAGGED_VERSION}),
             ("DDP version 2, untagged", untagged(ddp=2), {DDP_UNTAGGED_VERSION}),
             ("DDP version 3, tagged", tagged(ddp=0x83), {DDP_TAGGED_VERSION}),
             ("RDMAP version 0", untagged(rdmap=0), {RDMAP_VERSION}),
             ("RDMAP version 2", untagged(rdmap=0x80), {RDMAP_VERSION}),
             ("RDMAP version 3, tagged", tagged(rdmap=0xC0), {RDMAP_VERSION, DDP_INVALID_STAG})]
    for opcode in (0xD, 0xE, 0xF):
        cases.append((f"RDMAP opcode {opcode:#x}", lambda session, opcode=opcode: session.stream.send_untagged(
            opcode, 0, nop(session)), {RDMAP_OPCODE}))
    cases += [("a Send in a tagged segment", lambda session: session.stream.send_tagged(SEND, 5, 0, bytes(64)),
               {RDMAP_OPCODE, DDP_INVALID_STAG}),
              ("an RDMA Write in an untagged segment", lambda session: session.stream.send_untagged(WRITE, 0, bytes(64)),
               {RDMAP_OPCODE})]
    each(lab, cases)


def short_segments(lab):
    """FPDUs too short for the header that they begin."""
    cases = []
    for length in (0, 1, 2, 13):
        cases.append((f"a tagged segment of {length} bytes", lambda session, length=length: session.stream.send_fpdu(
            (bytes([0xC1, 0x40]) + bytes(12))[:length]), ANY))
    for length in (14, 17):
        cases.append((f"an untagged segment of {length} bytes", lambda session, length=length: session.stream.send_fpdu(
            (bytes([0x41, 0x43]) + bytes(16))[:length]), ANY))
    each(lab, cases)


def too_long(lab):
    """Sends longer than any receive buffer, whole and never-ending."""
    def endless(session):
        for number in range(2000):
            session.stream.send_untagged(SEND, 0, bytes(32768), offset=number * 32768, last=False)

    reasons = {DDP_TOO_LONG, DDP_NO_BUFFER}
    each(lab, [("a Send of 1 MiB", lambda session: session.stream.send(nop(session) + bytes(1 << 20)), reasons),
               ("a Send without end", endless, reasons)])


# MPA: CRC, markers, startup.

def wrong_crc(lab):
    def spoiled(crc):
        return lambda session: session.stream.send_untagged(SEND, 0, nop(session), crc=crc)

    def spoiled_answer(session):
        _, sink, at, length = asked_for_data(session)
        session.stream.send_tagged(READ_RESPONSE, sink, at, b"\xee" * length, crc=0x12345678)

    each(lab, [("a CRC of 0", spoiled(0), {MPA_CRC}), ("a CRC of ones", spoiled(0xFFFFFFFF), {MPA_CRC}),
               ("a wrong CRC after a write's data", spoiled_answer, {MPA_CRC})])
    with under_attack(lab) as target:
        with attacker(target, crc=False) as session:
            if session.stream.crc:
                raise Failed("the target insists on a CRC although neither side was told to")
            session.stream.send_untagged(SEND, 0, nop(session), crc=0xDEADBEEF)
            expect(session.receive().opcode == wire.NOP_IN, "without CRC its field is still looked at (RFC 5044 §4.4)")


def markers(lab):
    """A peer that demands markers gets them at the right places; every one is checked as it comes."""
    with under_attack(lab) as target:
        for crc in (True, False):
            with attacker(target, markers=True, crc=crc) as session:
                for size in (512, 1024, 3584, 65536):
                    data = os.urandom(size)
                    session.write(1024, data)
                    expect(session.read(1024, size // 512) == data, f"{size} bytes come back otherwise, with markers")
                session.logout()


def wrong_markers(lab):
    """A target that demands markers: right ones are taken, and one that points elsewhere ends its connection where it stands."""
    def misled(session, error):
        stream, message = session.stream, nop(session) + bytes(600)
        ulpdu = bytes([0x41, 0x43]) + struct.pack(">IIII", 0, 0, stream.next_msn[0], 0) + message
        stream.send_fpdu(ulpdu, marker_error=error)

    with under_attack(lab, iser={"markers": True}) as target:
        for crc in (True, False):
            with attacker(target, crc=crc) as session:
                expect(session.stream.markers_out, "the target does not demand the markers that it was told to")
                session.write(1024, PATTERN)
                expect(session.read(1024, len(PATTERN) // 512) == PATTERN, "blocks come back otherwise, with markers")
                session.logout()
            for error in (4, -4, 1, 0x8000):
                provoke(target, f"a marker that is {error} off, CRC: {crc}", lambda session, error=error: misled(session, error),
                        {MPA_MARKER}, crc=crc)


def startup(lab):
    """Frames of MPA's startup that are no such frames: closed, or rejected, in time."""
    good = iwarp.startup_frame(iwarp.REQUEST_KEY, iwarp.Setup(private_data=iser.PRIVATE_DATA), True)
    key = iwarp.REQUEST_KEY
    frames = {
        "another key": b"MPA ID Reg Frame" + good[16:],
        "a reply's key": iwarp.REPLY_KEY + good[16:],
        "revision 0": key + bytes([CRC, 0, 0, 0]),
        "revision 3": key + bytes([CRC, 3, 0, 0]),
        "revision 255": key + bytes([0xFF, 255, 0xFF, 0xFF]),
        "private data of 513 bytes": key + struct.pack(">BBH", CRC, 1, 513) + bytes(513),
        "private data of 65535 bytes": key + struct.pack(">BBH", CRC, 1, 65535) + bytes(65535),
        "a request that rejects": key + struct.pack(">BBH", CRC | REJECT, 2, 4) + bytes(4),
        "an enhanced request without IRD and ORD": key + struct.pack(">BBH", CRC | ENHANCED, 2, 0),
        "an enhanced request with three bytes": key + struct.pack(">BBH", CRC | ENHANCED, 2, 3) + bytes(3),
        "half a key, and then a login": key[:8] + bytes(48),
        "the frame twice": good + good,
        "the frame and an FPDU of 65535 bytes": good + b"\xff" * 4096,
    }
    with under_attack(lab) as target:
        open_ = {}
        for what, frame in frames.items():
            open_[what] = iwarp.tcp(target.host, target.port)
            with contextlib.suppress(OSError):
                open_[what].sendall(frame)
        # Those that are not refused at once are a login that takes too long: together, not one after the other.
        limit = time.monotonic() + 60
        for what, connected in open_.items():
            with connected:
                connected.settimeout(max(0.1, limit - time.monotonic()))
                try:
                    while connected.recv(4096):
                        pass
                except TimeoutError:
                    raise Failed(f"{what}: still open after a minute") from None
                except OSError:
                    pass


def half_frames(lab):
    """Connections that stop in the middle: of the key, the startup, an FPDU's length, its payload, its CRC."""
    # All from one address: its share of logins is not what this is about.
    with under_attack(lab, limits={"logins": 4096, "logins-per-address": 4096, "login-memory": '"64M"'}) as target:
        open_ = []
        good = iwarp.startup_frame(iwarp.REQUEST_KEY, iwarp.Setup(private_data=iser.PRIVATE_DATA), True)
        for cut in list(range(1, 28, 3)) * 8:
            connected = iwarp.tcp(target.host, target.port)
            connected.sendall(good[:cut])
            open_.append(connected)
        for cut in (1, 2, 3, 19, 40, 95, 97):
            session = attacker(target)
            session.send_raw(session.stream.frame(bytes([0x41, 0x43]) + struct.pack(">IIII", 0, 0, session.stream.next_msn[0], 0)
                                                  + nop(session))[:cut])
            open_.append(session.socket)
        session = attacker(target)
        _, sink, at, length = asked_for_data(session)
        whole = session.stream.frame(bytes([0xC1, 0x42]) + struct.pack(">IQ", sink, at) + b"\x5a" * length)
        session.send_raw(whole[:5000])
        open_.append(session.socket)
        with attacker(target) as meanwhile:
            meanwhile.write(128, PATTERN)
            expect(meanwhile.read(128, 32) == PATTERN, "a session beside half frames reads other data")
        # One byte at a time is slow, and legal.
        with iwarp.tcp(target.host, target.port) as slow:
            for byte in good:
                slow.sendall(bytes([byte]))
                time.sleep(0.002)
            expect(iwarp.read_startup(slow, iwarp.REPLY_KEY)[0] & REJECT == 0, "a startup byte by byte is rejected")
        for connected in open_:
            connected.close()


# Terminates, floods, ends.

def terminates(lab):
    """A Terminate at any time ends the connection, silently: right after startup, while logging in, while data is on its way."""
    def after(target, prepare, payload=None, **options):
        with prepare(target) as session:
            session.stream.send_terminate(payload=payload, **options)
            expect(session.wait_closed(), "a Terminate does not end the connection")

    def unborn(target):
        return iser.Connection(target)

    def logging_in(target):
        session = iser.Connection(target)
        session.send(*session.login_pdu([("InitiatorName", "iqn.2026-01.example.lab:evil"), ("SessionType", "Normal")], flags=4))
        return session

    def while_reading(target):
        session = attacker(target)
        for _ in range(8):
            session.command(struct.pack(">BBIBHB", 0x28, 0, 0, 0, 2048, 0), read=bytearray(1 << 20))
        return session

    def while_writing(target):
        session = attacker(target)
        asked_for_data(session)
        return session

    with under_attack(lab) as target:
        for prepare in (unborn, logging_in, attacker, while_reading, while_writing):
            after(target, prepare)
            for reason in ({"layer": 1, "type_": 1, "code": 1}, {"layer": 15, "type_": 15, "code": 255},
                           {"payload": b""}, {"payload": b"\0"}, {"payload": bytes(3)}, {"payload": b"\xff" * 16384}):
                after(target, prepare, **reason)


def floods(lab):
    """Sends without end, faster than any are taken, their answers not read: bounded, and the neighbors are served."""
    with under_attack(lab) as target:
        for kind in ("NOP", "command", "response to nothing"):
            with attacker(target, timeout=3) as session:
                session.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
                sent = 0
                with contextlib.suppress(Closed, OSError):
                    for _ in range(60):
                        batch = b""
                        for _ in range(200):
                            if kind == "NOP":
                                message = nop(session)
                            elif kind == "command":
                                message = session.encode(session.command_pdu(bytes([0x28]) + bytes(15), 65536)[0], iser=iser.header(
                                    iser.CONTROL | iser.READ_VALID, read_stag=9, read_at=0))
                            else:
                                message = session.encode(wire.bhs(wire.DATA_OUT, FINAL, 0, 0, 5, struct.pack(">I", 77)))
                            stream = session.stream
                            batch += stream.frame(bytes([0x41, 0x43]) + struct.pack(">IIII", 0, 0, stream.next_msn[0], 0) + message)
                            stream.next_msn[0] += 1
                        session.send_raw(batch)
                        sent += 200
                with attacker(target) as meanwhile:
                    meanwhile.write(128, PATTERN)
                with contextlib.suppress(Failed, OSError):
                    session.socket.settimeout(5)
                    while session.socket.recv(1 << 20):
                        pass


def open_files(target):
    return len(os.listdir(f"/proc/{target.pid}/fd"))


def vanishing(lab):
    """Connections that end, by reset or by close, at every kind of moment."""
    chance = random.Random(21)
    with under_attack(lab) as target:
        # It serves before its start is over: some files, as the control socket's, come later.
        files = 0
        while files < (files := open_files(target)):
            time.sleep(0.5)
        for number in range(60):
            session = attacker(target)
            kind = number % 6
            if kind == 0:
                session.command(struct.pack(">BBIBHB", 0x28, 0, 0, 0, 2048, 0), read=bytearray(1 << 20))
            elif kind in (1, 2):
                _, sink, at, length = asked_for_data(session, size=65536)
                whole = session.stream.frame(bytes([0x81, 0x42]) + struct.pack(">IQ", sink, at) + b"\x5a" * 16384)
                session.send_raw(whole[:chance.randrange(len(whole))])
            elif kind == 3:
                for _ in range(16):
                    write_blocks(session, 64, bytes(8192))
            elif kind == 4:
                session.send_raw(session.stream.frame(bytes([0x41, 0x43]) + bytes(200))[:chance.randrange(200)])
            if chance.random() < 0.5:
                session.reset()
            else:
                session.close()
        proc.wait_until(lambda: open_files(target) <= files + 2, 60, "the target closes its connections")


# iSER above it.

def iser_lies(lab):
    """Headers and commands that promise what they do not have. The connection may end, the command may fail."""
    def spoiled(message):
        def attack(session):
            session.stream.send(message(session))
            session.socket.settimeout(3)
            with contextlib.suppress(Failed, Closed, iwarp.Terminated):
                for _ in range(4):
                    session.receive()
        return attack

    def command(session, flags, cdb=b"\x2a" + bytes(15), length=8192, write=True, **stags):
        pdu, _ = session.command_pdu(cdb[:7] + struct.pack(">H", length // 512) + cdb[9:], length, write)
        return session.encode(pdu, iser=iser.header(flags, **stags))

    lies = {
        "a write without an STag": lambda s: command(s, iser.CONTROL),
        "a read without an STag": lambda s: command(s, iser.CONTROL, b"\x28" + bytes(15), write=False),
        "a write with a read's STag alone": lambda s: command(s, iser.CONTROL | iser.READ_VALID, read_stag=5),
        "a header of opcode 0": lambda s: s.encode(nop(s)[28:], iser=iser.header(0)),
        "a header of opcode 15": lambda s: s.encode(nop(s)[28:], iser=iser.header(0xF0)),
        "a Hello that nobody asked for": lambda s: bytes([iser.HELLO, 0x11, 0, 8]) + bytes(24),
        "a HelloReply": lambda s: bytes([iser.HELLO_REPLY, 0x11, 0, 8]) + bytes(24),
        "an empty Send": lambda s: b"",
        "a Send of an iSER header alone": lambda s: iser.header(),
        "a Send of 75 bytes": lambda s: nop(s)[:75],
        "a data segment longer than the Send": lambda s: s.encode(wire.bhs(wire.NOP_OUT | IMMEDIATE, FINAL, 4096, 0, 5)),
        "a Send longer than its data segment": lambda s: nop(s) + bytes(100),
        "additional headers that are not there": lambda s: s.encode(wire.bhs(wire.COMMAND, FINAL, 0, 0, 5, ahs_words=255)),
        "Data-Out for nothing": lambda s: s.encode(wire.bhs(wire.DATA_OUT, FINAL, 0, 0, 5, struct.pack(">I", 99))),
        "a Data-In from the initiator": lambda s: s.encode(wire.bhs(wire.DATA_IN, FINAL, 0, 0, 5)),
        "an R2T from the initiator": lambda s: s.encode(wire.bhs(wire.R2T, FINAL, 0, 0, 5)),
    }
    with under_attack(lab) as target:
        for what, message in lies.items():
            with attacker(target) as session:
                try:
                    spoiled(message)(session)
                except Failed as failed:
                    raise Failed(f"{what}: {failed}") from None
            target.check_alive()


def advertised_exactly(lab):
    """The target keeps to what a command advertises, whatever its CDB says: iwarp.Stream.reach fails on every other byte."""
    with under_attack(lab) as target:
        with attacker(target) as session:
            session.write(256, PATTERN)
            for blocks, length in ((32, 512), (32, 513), (32, 4095), (1, 16384), (32, 1)):
                read = bytearray(length)
                tag, stag, _ = session.command(struct.pack(">BBIBHB", 0x28, 0, 256, 0, blocks, 0), read=read)
                status, _ = session.response(tag)
                if status == 0:
                    have = min(length, blocks * 512)
                    expect(bytes(read[:have]) == PATTERN[:have] and not any(read[have:]),
                           f"{blocks} blocks into {length} bytes: other bytes came")
                session.stream.buffers.pop(stag, None)
                data = bytearray(os.urandom(length))
                tag, _, stag = session.command(struct.pack(">BBIBHB", 0x2A, 0, 512, 0, blocks, 0), write=data)
                session.response(tag)
                session.stream.buffers.pop(stag, None)
            # The last bytes of all that a tagged offset can say.
            read = bytearray(16384)
            tag, stag, _ = session.command(struct.pack(">BBIBHB", 0x28, 0, 256, 0, 32, 0), read=read, read_base=2**64 - 16384)
            expect(session.response(tag)[0] == 0 and bytes(read) == PATTERN, "a buffer at the end of all offsets")
            session.logout()


def mutations(lab):
    """Valid FPDUs with some bits changed, their CRC made right again: whatever they mean now, the target goes on."""
    chance = random.Random(31)
    with under_attack(lab) as target:
        for _ in range(60):
            with attacker(target, timeout=2) as session:
                stream = session.stream
                with contextlib.suppress(Closed, Failed, OSError, iwarp.Terminated):
                    if chance.random() < 0.3:
                        _, sink, at, length = asked_for_data(session)
                        ulpdu = bytearray(bytes([0xC1, 0x42]) + struct.pack(">IQ", sink, at) + b"\x5a" * length)
                    else:
                        read = bytearray(4096)
                        stag = stream.expose(read, "w", iser.BASE)
                        pdu, _ = session.command_pdu(b"\x28" + bytes(7) + b"\x08" + bytes(7), 4096)
                        ulpdu = bytearray(bytes([0x41, 0x43]) + struct.pack(">IIII", 0, 0, stream.next_msn[0], 0) + session.encode(
                            pdu, iser=iser.header(iser.CONTROL | iser.READ_VALID, read_stag=stag, read_at=iser.BASE)))
                    for _ in range(chance.randint(1, 4)):
                        ulpdu[chance.randrange(min(len(ulpdu), 110))] ^= 1 << chance.randrange(8)
                    stream.send_fpdu(bytes(ulpdu))
                    session.socket.settimeout(0.05)
                    session.receive()


CASES = [
    ("RDMA Writes to STags that do not exist are terminated", wild_writes),
    ("RDMA Reads of STags that do not exist are terminated", wild_reads),
    ("invalidations of STags that do not exist are terminated", wild_invalidations),
    ("another connection's STags mean nothing", strangers_stags),
    ("Read Responses that are not what was asked are terminated, and write nothing", read_responses),
    ("Read Responses that nobody asked for are terminated", unasked_responses),
    ("reads beyond the inbound limit", reads_beyond_the_limit),
    ("wrong queues, sequence numbers and offsets are terminated", sequence),
    ("wrong versions and opcodes are terminated", versions),
    ("segments too short for their header are terminated", short_segments),
    ("Sends longer than the receives are terminated", too_long),
    ("a wrong CRC is terminated, and not looked at where there is none", wrong_crc),
    ("markers are where a peer that demands them expects them", markers),
    ("markers that point elsewhere are terminated", wrong_markers),
    ("wrong startup frames are refused", startup),
    ("half frames hold up nobody else", half_frames),
    ("a Terminate ends its connection at any time", terminates),
    ("floods of Sends are bounded", floods),
    ("connections that vanish leave nothing behind", vanishing),
    ("iSER headers that lie", iser_lies),
    ("the target keeps to advertised buffers", advertised_exactly),
    ("mutated segments", mutations),
]
