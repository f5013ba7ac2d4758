"""Peers that break every rule: the target must stay alive, serve others meanwhile, and keep its memory.

Each case ends by looking at the target: alive, its memory within bounds, and a well-behaved session served.
"""

import contextlib
import os
import random
import resource
import signal
import socket
import struct
import threading
import time

from lab import osd_session, proc, wire
from lab.osd_session import Device
from lab.report import Failed, Skip, expect
from lab.target import IQN, Chap, Unit
from lab.wire import FINAL, IMMEDIATE, NO_TAG, Closed, Connection, bhs

from . import osd_data

# What hostile peers may make the target keep, beyond what it had before, MiB. Its own bounds are tighter; this one
# catches what has no bound.
GROWTH_MIB = 400

# Where everybody comes from one address and is meant to be let in.
ONE_ADDRESS = {"logins": 60000, "logins-per-address": 60000, "login-memory": '"1G"'}

GOOD = "iqn.2026-01.example.lab:good"


@contextlib.contextmanager
def under_attack(lab, units=None, **extra):
    """A target, and the look at it after the attack."""
    if lab.kind != "stag":
        extra = {}
    with lab.serve(*(units or [Unit(memory=True)]), **extra) as target:
        with wire.session(target, GOOD) as session:
            session.write(0, b"\xc3" * 4096)
        before = target.status("VmRSS")
        yield target
        target.check_alive()
        grown = (target.status("VmRSS") - before) / 1024
        expect(grown < GROWTH_MIB, f"memory grew by {grown:.0f} MiB")
        serves(target)


def apart(target):
    """An address of its own to log in from: the attackers' address may have used up its share of logins."""
    return "127.0.0.2" if target.host.startswith("127.") else None


def serves(target):
    """A session from an address of its own is served."""
    with wire.session(target, GOOD, source=apart(target)) as session:
        expect(session.read(0, 8) == b"\xc3" * 4096, "a well-behaved session reads other data")
        session.logout()


def full_feature(target, **keys):
    return wire.session(target, **keys)


def quietly(function, *arguments):
    """What the attacker does, however the target takes it."""
    try:
        return function(*arguments)
    except (Closed, OSError, Failed):
        return None


def sip(connection, seconds=0.05):
    """Take what has come, and go on."""
    connection.socket.settimeout(seconds)
    try:
        while connection.socket.recv(1 << 16):
            pass
    except OSError:
        pass


def garbage(lab):
    chance = random.Random(1)
    with under_attack(lab) as target:
        for _ in range(300):
            with Connection(target, 2) as connection:
                quietly(connection.send_raw, chance.randbytes(chance.choice([1, 47, 48, 49, 200, 5000, 70000])))


def mutated_logins(lab):
    chance = random.Random(2)
    with under_attack(lab) as target:
        for _ in range(500):
            with Connection(target, 2) as connection:
                header, data = connection.login_pdu([("InitiatorName", "iqn.2026-01.example.lab:evil"),
                                                     ("SessionType", "Normal"), ("TargetName", IQN)])
                message = bytearray(connection.encode(header, data))
                for _ in range(chance.randint(1, 4)):
                    message[chance.randrange(len(message))] ^= 1 << chance.randrange(8)
                quietly(connection.send_raw, bytes(message))
                if chance.random() < 0.3:
                    sip(connection)


def mutated_commands(lab):
    """Valid PDUs of the full-feature phase, with some bits changed; a new session whenever the target ends one."""
    chance = random.Random(3)
    opcodes = [wire.NOP_OUT, wire.COMMAND, wire.TASK_MANAGEMENT, wire.TEXT, wire.DATA_OUT, wire.LOGOUT, wire.SNACK]
    with under_attack(lab) as target:
        for _ in range(120):
            session = quietly(full_feature, target)
            if session is None:
                raise Failed("no login between attacks")
            with session:
                for _ in range(12):
                    if chance.random() < 0.6:
                        header, data = session.command_pdu(
                            chance.randbytes(16), chance.choice([0, 512, 4096, 1 << 20]), chance.random() < 0.5)
                    else:
                        header = bhs(chance.choice(opcodes) | chance.choice([0, IMMEDIATE]), chance.randrange(256), 0, 0,
                                     chance.randrange(64), struct.pack(">III", NO_TAG, session.command_number, 0)
                                     + chance.randbytes(16))
                        data = b""
                    message = bytearray(session.encode(header, data))
                    for _ in range(chance.randint(0, 3)):
                        message[chance.randrange(len(message))] ^= 1 << chance.randrange(8)
                    quietly(session.send_raw, bytes(message))
                sip(session, 0.01)


def random_cdbs(lab):
    """Every opcode with random fields: each is answered."""
    chance = random.Random(4)
    # Not FORMAT UNIT and SANITIZE: they would do as told.
    skipped = (0x04, 0x48)
    with under_attack(lab, [Unit(memory=True), Unit(thin=True)]) as target:
        with full_feature(target, ImmediateData="No", InitialR2T="Yes") as session:
            for opcode in range(256):
                if opcode in skipped:
                    continue
                for _ in range(6):
                    write = chance.random() < 0.5
                    length = chance.choice([0, 8, 24, 512, 8192])
                    cdb = bytes([opcode]) + bytes(chance.choice([0, 0, chance.randrange(256)]) for _ in range(15))
                    if opcode == 0x2A and cdb[2:6] < b"\0\0\1\0" or opcode == 0x1B:
                        continue
                    session.run(cdb, length, out=chance.randbytes(length) if write and length else None)
            # What the commands above reserved or protected, by chance, is taken back.
            session.task_management(5)
            for _ in range(4):
                session.run(bytes(6))
        target.stop()
        target.start()
        with wire.session(target, GOOD) as session:
            session.write(0, b"\xc3" * 4096)


def lying_lengths(lab):
    with under_attack(lab) as target:
        # In login: a data segment of 16 MiB that is announced, begun, and never ends.
        for length in (0xFFFFFF, 1 << 20, 65537):
            connection = Connection(target, 5)
            header, data = connection.login_pdu([("InitiatorName", "iqn.2026-01.example.lab:evil")])
            header = bytearray(header)
            header[5:8] = length.to_bytes(3, "big")
            quietly(connection.send, header, data)
            expect(connection.wait_closed(20), f"a login's data segment of {length} bytes is waited for")
        # In full-feature phase: more than the target said it takes.
        session = full_feature(target)
        limit = int(session.keys.get("MaxRecvDataSegmentLength", 8192))
        header, _ = session.command_pdu(struct.pack(">BBIBHB", 0x2A, 0, 0, 0, 8, 0), 4096, True)
        header = bytearray(header)
        header[5:8] = min(limit + 4, 0xFFFFFF).to_bytes(3, "big")
        quietly(session.send, header, b"x" * 4096)
        if limit + 4 <= 0xFFFFFF:
            quietly(session.send_raw, b"x" * (limit + 4 - 4096))
        sip(session, 1)
        session.close()
        # Additional header segments: the longest, ones that overrun what is announced, ones of length zero.
        for ahs, words in ((b"\0\x03\x01\0" + bytes(1016), 255), (struct.pack(">HBB", 0xFFFF, 1, 0) + bytes(4), 2),
                           (bytes(8), 2), (struct.pack(">HBB", 1, 2, 0) * 2, 2), (b"\0\x05\x02\0\0\0\x10\0", 2)):
            session = full_feature(target)
            header, _ = session.command_pdu(bytes(6))
            header = bytearray(header)
            header[4] = words
            quietly(session.send, header, b"", ahs.ljust(words * 4, b"\0"))
            sip(session, 0.2)
            session.close()


def announced_and_withheld(lab):
    """Five hundred logins, each announcing 64 KiB of text and sending a few bytes: memory is not taken on credit."""
    with under_attack(lab, limits=ONE_ADDRESS) as target:
        before = target.status("VmRSS")
        held = []
        for _ in range(500):
            connection = Connection(target, 5)
            header, _ = connection.login_pdu([])
            header = bytearray(header)
            header[5:8] = (8192).to_bytes(3, "big")
            quietly(connection.send, header, b"InitiatorName=iqn")
            held.append(connection)
        serves(target)
        grown = (target.status("VmRSS") - before) / 1024
        expect(grown < 100, f"500 withheld texts take {grown:.0f} MiB")
        for connection in held:
            connection.close()


def stalled_login(lab):
    """A login that does not go on is ended by the target in its own time."""
    with under_attack(lab, limits={"login-timeout": 2}) as target:
        silent, half, one_step = Connection(target, 30), Connection(target, 30), Connection(target, 30)
        half.send_raw(bytes(20))
        one_step.send(*one_step.login_pdu([("InitiatorName", "iqn.2026-01.example.lab:slow"), ("SessionType", "Discovery")],
                                          flags=0x04))
        start = time.monotonic()
        for what, connection in (("silent", silent), ("half a header", half), ("one step", one_step)):
            closed = connection.wait_closed(25)
            if lab.kind == "stag":
                expect(closed, f"{what}: still open after {time.monotonic() - start:.0f} s")
                expect(time.monotonic() - start < 60, f"{what}: open for {time.monotonic() - start:.0f} s of 2")


def crowded_logins(lab):
    """One address begins logins as fast as it can, silent ones and ones whose text goes on; those of another address succeed at once."""
    if lab.kind != "stag":
        return
    evil, begun, stop = "127.0.0.9", [0], threading.Event()
    text = b"".join(b"X-%d=%s\0" % (number, b"v" * 200) for number in range(39))

    def press(held):
        while not stop.is_set():
            begun[0] += 1
            connection = quietly(Connection, target, 1, None, evil)
            if connection is None:
                continue
            if begun[0] % 2:
                # Two parts of 8 KiB, each to be followed by another.
                for _ in range(2):
                    quietly(connection.send, *connection.login_pdu(text, flags=0x44))
            held.append(connection)
            if len(held) > 1000:
                held.pop(0).close()

    with under_attack(lab) as target:
        before, held = target.status("VmRSS"), [[], []]
        threads = [threading.Thread(target=press, args=(one,)) for one in held]
        try:
            for thread in threads:
                thread.start()
            while begun[0] < 5000:
                time.sleep(0.05)
            took, most, crowded = [], 0, target.status("VmRSS")
            for number in range(100):
                start = time.monotonic()
                with wire.session(target, GOOD, isid=bytes([0x40, 0, 0, 9, 0, number])) as session:
                    session.logout()
                took.append((time.monotonic() - start) * 1000)
                most = max(most, target.status("VmRSS"))
        finally:
            stop.set()
            for thread in threads:
                thread.join(10)
            for connection in held[0] + held[1]:
                connection.close()
        took.sort()
        grown, since = (most - before) / 1024, (most - crowded) / 1024
        print(f"       {begun[0]} logins from one address; 100 good ones took {took[50]:.1f} ms (median), {took[-1]:.1f} ms (longest); "
              f"memory grew by {grown:.1f} MiB")
        # A connection that finds the queue full is tried again by the kernel, after 1, 3 and 7 s.
        expect(took[90] < 2000 and took[-1] < 20_000, f"of 100 good logins the 91st took {took[90]:.0f} ms, the last {took[-1]:.0f} ms")
        # The receive buffers of all cores, which are the daemon's own, are touched for the first time too.
        expect(grown < 112, f"logins of one address take {grown:.0f} MiB")
        # Those of one core, 30 MiB, perhaps only now.
        expect(since < 64, f"memory grew by {since:.0f} MiB after the first 5,000 of {begun[0]}")


def flood_of_texts(lab):
    """32,768 logins of 1,024 addresses, each with 16 KiB of a text that goes on: what they hold is bounded, and a session is served."""
    if lab.kind != "stag":
        return
    text, count = b"".join(b"X-%d=%s\0" % (number, b"v" * 200) for number in range(39)), 32768
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with under_attack(lab) as target, wire.session(target, GOOD, source=apart(target)) as session:
        before, held, took, most = target.status("VmRSS"), [], [], 0

        def goes(function, *arguments):
            try:
                function(*arguments)
            except (Closed, OSError, Failed):
                return False
            return True

        def read():
            nonlocal most
            start = time.monotonic()
            expect(session.read(0, 8) == b"\xc3" * 4096, "reads other data")
            took.append((time.monotonic() - start) * 1000)
            most = max(most, target.status("VmRSS"))

        try:
            for number in range(count):
                address = f"127.1.{number % 1024 // 250}.{number % 1024 % 250 + 1}"
                if connection := quietly(Connection, target, 1, None, address):
                    for _ in range(2):
                        quietly(connection.send, *connection.login_pdu(text, flags=0x44))
                    held.append(connection)
                if len(held) > min(hard - 500, 20000):
                    held.pop(0).close()
                if number % 64 == 0:
                    read()
            good = sum(goes(serves, target) for _ in range(20))
        finally:
            for connection in held:
                connection.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        took.sort()
        grown = (most - before) / 1024
        print(f"       {count} logins from 1024 addresses; a READ of a session took {took[len(took) // 2]:.1f} ms (median), "
              f"{took[-1]:.1f} ms (longest); {good} of 20 new logins got in; memory grew by {grown:.1f} MiB")
        expect(grown < 112, f"logins take {grown:.0f} MiB")


def dripping(lab):
    """A login and a command that come one byte at a time are served like any other."""
    with under_attack(lab) as target:
        with Connection(target) as connection:
            offer = [("InitiatorName", "iqn.2026-01.example.lab:drip"), ("SessionType", "Normal"), ("TargetName", IQN)]
            for byte in connection.encode(*connection.login_pdu(offer)):
                connection.send_raw(bytes([byte]))
            answer = connection.receive()
            expect(answer.opcode == wire.LOGIN_RESPONSE and answer.bhs[36] == 0, f"answered by {answer}")
            if lab.kind == "tgt":
                return
            tag = connection.tag()
            for byte in connection.encode(*connection.command_pdu(bytes([0x12, 0, 0, 0, 36, 0]), 36, tag=tag)):
                connection.send_raw(bytes([byte]))
            status, _, data = connection.answer(tag)
            expect(status == 2 or len(data) == 36, f"INQUIRY: status {status}, {len(data)} bytes")


def half_open(lab):
    """Thousands of connections that say nothing, while others are served."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = int(os.environ.get("HALF_OPEN", 10_000 if lab.kind == "stag" else 500))
    if hard != resource.RLIM_INFINITY and hard < wanted + 200:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted + 200, wanted + 200))
            hard = wanted + 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard - 200)
    with under_attack(lab, limits=ONE_ADDRESS) as target:
        held = []
        try:
            for _ in range(count):
                connection = socket.socket()
                connection.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    connection.connect((target.host, target.port))
                held.append(connection)
                if len(held) % 500 == 0:
                    serves(target)
            print(f"       {len(held)} half-open connections; the target has {target.status('VmRSS') // 1024} MiB")
            # Among them, a session that works, for a while.
            with wire.session(target, GOOD) as session:
                for number in range(200):
                    expect(session.read(0, 8) == b"\xc3" * 4096, "reads other data")
            used = proc.idle_seconds(target.cpu_seconds, 2, 0.5)
            expect(used < 0.5, f"{used:.1f} s of CPU in 2 s for connections that say nothing")
        finally:
            for connection in held:
                connection.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def out_of_descriptors(lab):
    """More connections than the target has file descriptors: it goes on, and serves when some are free again."""
    if lab.kind != "stag":
        return
    with under_attack(lab, more=["# SIGHUP has it read again"]) as target:
        resource.prlimit(target.pid, resource.RLIMIT_NOFILE, (120, 120))
        held = []
        for _ in range(300):
            connection = socket.socket()
            connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                connection.connect((target.host, target.port))
            held.append(connection)
        time.sleep(1)
        # What the next signal needs is there from the start.
        resource.prlimit(target.pid, resource.RLIMIT_NOFILE, (3, 120))
        target.process.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        target.check_alive()
        resource.prlimit(target.pid, resource.RLIMIT_NOFILE, (120, 120))
        used = proc.idle_seconds(target.cpu_seconds, 2, 1.2)
        for connection in held:
            connection.close()
        target.check_alive()
        expect(used < 1.2, f"{used:.1f} s of CPU in 2 s without a descriptor to accept with")
        limit = time.monotonic() + 60
        while True:
            try:
                serves(target)
                break
            except (Closed, OSError, Failed):
                if time.monotonic() > limit:
                    raise
                time.sleep(0.3)


def stops_reading(lab):
    """A peer that asks for much and reads nothing: its answers wait with it, and others are served."""
    with under_attack(lab, [Unit(memory=True, mib=256)]) as target:
        before = target.status("VmRSS")
        held = []
        for number in range(8):
            session = wire.session(target, isid=bytes([0x40, 0, 0, 2, 0, number]), MaxRecvDataSegmentLength="262144")
            session.socket.settimeout(2)
            for _ in range(64):
                quietly(session.send, *session.command_pdu(struct.pack(">BBIBHB", 0x28, 0, 0, 0, 2048, 0), 1 << 20))
            held.append(session)
        time.sleep(1)
        for _ in range(20):
            serves(target)
        grown = (target.status("VmRSS") - before) / 1024
        expect(grown < GROWTH_MIB, f"512 MiB asked for and not read take {grown:.0f} MiB")
        # One of them reads at last: all that the window took arrives.
        session, received = held[0], 0
        session.socket.settimeout(session.limit)
        while received < 1 << 20:
            pdu = session.receive()
            received += len(pdu.data) if pdu.opcode == wire.DATA_IN else 0
        for session in held:
            session.reset()


def attributes_nobody_takes(lab):
    """Initiators that ask an object for all of its attributes, 17 MB each time, and take none: 26 GB in all are asked for, and the
    server holds no more of them than ARCHITECTURE.md's share of its pool. Others are served."""
    if lab.kind != "stag":
        raise Skip("an object unit is Stag's")
    with under_attack(lab, [Unit(memory=True), Unit(memory=True, mib=128, objects=True)]) as target:
        def attacker(number):
            session = wire.session(target, isid=bytes([0x40, 0, 0, 3, 0, number]), ImmediateData="Yes")
            session.lun = 1
            session.test_unit_ready()
            return Device(session)
        with contextlib.closing(attacker(0).session) as session:
            device = Device(session)
            partition = osd_data.new_partition(device)
            object_ = osd_data.new_object(device, partition)
            for first in range(1, 271, 10):
                device.good("SET ATTRIBUTES", partition=partition, object=object_,
                            set_=[(0x10000, number, bytes(65000)) for number in range(first, first + 10)])
        request = {"partition": partition, "object": object_, "get": [(0x10000, 0xFFFFFFFF)], "room": 17 << 20}
        before, waits, held = target.status("VmRSS"), [], []
        with wire.session(target, GOOD, source=apart(target)) as good:
            def look():
                start = time.monotonic()
                expect(good.read(0, 8) == b"\xc3" * 4096, "a well-behaved session reads other data")
                waits.append(time.monotonic() - start)
            for number in range(12):
                device = attacker(number + 1)
                device.session.socket.settimeout(2)
                held.append(device)
                for _ in range(128):
                    quietly(device.post, osd_session.Request("GET ATTRIBUTES", **request))
                look()
            for _ in range(40):
                time.sleep(0.05)
                look()
            grown = (target.status("VmRSS") - before) / 1024
            waits.sort()
            print(f"       {len(held)} connections that take nothing: {grown:.0f} MiB; reads beside them within "
                  f"{1000 * waits[len(waits) // 2]:.1f} ms at the median, {1000 * waits[-1]:.1f} ms at most")
            expect(grown < GROWTH_MIB, f"attributes that nobody takes take {grown:.0f} MiB")
            # One of them takes what it has asked for: an answer comes whole.
            session, received = held[0].session, 0
            session.socket.settimeout(session.limit)
            while received < 17 << 20:
                pdu = session.receive()
                if pdu.opcode == wire.DATA_IN:
                    received += len(pdu.data)
                    if pdu.flags & 1:
                        break
                elif pdu.opcode == wire.RESPONSE:
                    break
            expect(received > 270 * 65000, f"{received} bytes of an answer")
        for device in held:
            device.session.reset()


def withheld_writes(lab):
    """Writes whose data never comes, in every session slot: R2Ts stay open, others are served, an abort ends them."""
    with under_attack(lab) as target:
        session = full_feature(target)
        tags = []
        for _ in range(32):
            tag = session.tag()
            session.send(*session.command_pdu(struct.pack(">BBIBHB", 0x2A, 0, 64, 0, 2048, 0), 1 << 20, True, tag=tag))
            tags.append(tag)
        expect(session.receive().opcode == wire.R2T, "no R2T for a write")
        serves(target)
        for tag in tags[:8]:
            code = session.task_management(1, tag)
            expect(code in (0, 1), f"ABORT TASK: response {code}")
        code = session.task_management(5)
        expect(code == 0, f"LOGICAL UNIT RESET: response {code}")
        session.test_unit_ready()
        session.reset()


def data_out_lies(lab):
    """Data-Out with tags nobody gave, at wrong offsets, too much, after the end."""
    with under_attack(lab) as target:
        for case in range(6):
            session = full_feature(target)
            tag = session.tag()
            session.send(*session.command_pdu(struct.pack(">BBIBHB", 0x2A, 0, 64, 0, 16, 0), 8192, True, tag=tag))
            r2t = session.receive()
            expect(r2t.opcode == wire.R2T, f"no R2T: {r2t}")
            target_tag, data = r2t.target_tag, bytes(8192)
            if case == 0:
                quietly(session.send_data, tag, 0x12345678, 0, data)
            elif case == 1:
                quietly(session.send_data, tag, target_tag, 0xFFFFD000, data)
            elif case == 2:
                quietly(session.send_data, tag, target_tag, 4096, data * 8)
            elif case == 3:
                quietly(session.send_data, tag + 999, target_tag, 0, data)
            elif case == 4:
                quietly(session.send_data, tag, target_tag, 0, data, 77)
            else:
                quietly(session.send_data, tag, target_tag, 0, data)
                quietly(session.send_data, tag, target_tag, 0, data)
            sip(session, 0.2)
            session.close()
        with wire.session(target, GOOD) as session:
            session.read(64, 16)


def residuals(lab):
    """Expected lengths that differ from the CDB's: residual counts tell, nothing else is touched."""
    with under_attack(lab) as target, full_feature(target) as session:
        read = struct.pack(">BBIBHB", 0x28, 0, 0, 0, 8, 0)
        for expected in (0, 4, 512, 4095, 4096, 4100, 1 << 20):
            tag = session.tag()
            session.send(*session.command_pdu(read, expected, tag=tag, flags=FINAL | 0x40))
            got, last = 0, None
            while last is None:
                pdu = session.receive()
                if pdu.tag == tag and pdu.opcode == wire.DATA_IN:
                    got += len(pdu.data)
                    last = pdu if pdu.flags & 1 else None
                elif pdu.tag == tag and pdu.opcode == wire.RESPONSE:
                    last = pdu
            over, under = expected < 4096, expected > 4096
            if lab.kind == "stag" and last.bhs[3] == 0:
                expect(got == min(expected, 4096), f"expected {expected}: {got} bytes came")
                expect(bool(last.flags & 4) == over and bool(last.flags & 2) == under,
                       f"expected {expected}: residual flags {last.flags:#x}")
                expect(last.word(44) == abs(expected - 4096), f"expected {expected}: residual {last.word(44)}")
        for expected in (512, 4096, 8192):
            tag = session.tag()
            session.out = b"\xc3" * expected
            session.send(*session.command_pdu(struct.pack(">BBIBHB", 0x2A, 0, 0, 0, 8, 0), expected, True, tag=tag))
            session.answer(tag)


def immediate_excess(lab):
    """Immediate data where none was agreed, and unsolicited data beyond FirstBurstLength."""
    with under_attack(lab) as target:
        for keys in ({"ImmediateData": "No"}, {"ImmediateData": "Yes", "FirstBurstLength": "4096"}):
            session = full_feature(target, **keys)
            quietly(session.send, *session.command_pdu(
                struct.pack(">BBIBHB", 0x2A, 0, 64, 0, 64, 0), 32768, True, data=b"i" * 8192))
            sip(session, 0.3)
            session.close()


def out_of_turn(lab):
    """PDUs at the wrong time and of unknown kinds."""
    with under_attack(lab) as target:
        # Before any login.
        for opcode in (wire.COMMAND, wire.NOP_OUT, wire.TEXT, wire.LOGOUT, wire.DATA_OUT, 0x1C, 0x3F):
            with Connection(target, 5) as connection:
                quietly(connection.send, bhs(opcode | IMMEDIATE, FINAL))
                expect(connection.wait_closed(10), f"opcode {opcode:#x} before login leaves the connection open")
        # After it.
        for opcode in (0x07, 0x0F, 0x1F, 0x22, 0x25, 0x31, 0x3F, wire.SNACK):
            session = full_feature(target)
            tag = session.tag()
            quietly(session.send, bhs(opcode | IMMEDIATE, FINAL, 0, 0, tag,
                                      struct.pack(">III", NO_TAG, session.command_number, 0)))
            answer = quietly(session.receive)
            if lab.kind == "stag" and answer is not None:
                expect(answer.opcode == wire.REJECT, f"opcode {opcode:#x} is answered by {answer}")
                expect(answer.data[:1] == bytes([opcode | IMMEDIATE]), "a reject carries the header that it rejects")
            session.close()
        # A login in full-feature phase.
        session = full_feature(target)
        quietly(session.send, *session.login_pdu([("InitiatorName", GOOD)]))
        sip(session, 0.3)
        session.close()


def wrong_numbers(lab):
    """Commands outside of the window are ignored, the same number twice counts once, and order is kept."""
    with under_attack(lab) as target, full_feature(target) as session:
        start = session.command_number
        for number in (start + 100_000, start - 1, start - 100_000 & 0xFFFFFFFF, start + 0x80000000 & 0xFFFFFFFF):
            session.send(*session.command_pdu(bytes(6), command_number=number))
        expect(session.nop(b"still there") == b"still there", "no answer to a NOP")
        # Sent in the wrong order, run in the right one.
        first, second = session.tag(), session.tag()
        session.send(*session.command_pdu(bytes(6), tag=second, command_number=start + 1))
        session.send(*session.command_pdu(bytes(6), tag=first, command_number=start))
        order = []
        while len(order) < 2:
            pdu = session.receive()
            if pdu.opcode == wire.RESPONSE:
                order.append(pdu.tag)
        expect(order == [first, second], f"commands ran as {order}, not {[first, second]}")
        session.command_number = start + 2
        session.test_unit_ready()


def task_management(lab):
    """Functions on tasks and units that are not there, and functions that do not exist."""
    with under_attack(lab) as target, full_feature(target) as session:
        code = session.task_management(1, 0x4321, referenced_number=session.command_number)
        expect(code in (0, 1), f"ABORT TASK of no task: {code}")
        if lab.kind == "stag":
            expect(session.task_management(5, lun=200) == 2, "LOGICAL UNIT RESET of no unit is not refused as such")
            for function in (0, 9, 77, 127):
                code = quietly(session.task_management, function)
                expect(code in (5, 255, None), f"function {function}: response {code}")
                if code is None:
                    session = full_feature(target)
        for function in (2, 4, 5):
            code = session.task_management(function)
            expect(code == 0, f"function {function}: response {code}")
        session.test_unit_ready()


def wrong_digests(lab):
    """A header whose digest is wrong ends the connection; data whose digest is wrong is not written."""
    with under_attack(lab) as target:
        session = full_feature(target, HeaderDigest="CRC32C", DataDigest="CRC32C", ImmediateData="Yes")
        expect(session.header_digest and session.data_digest, f"digests were not agreed: {session.keys}")
        header, _ = session.command_pdu(bytes(6))
        broken = bytearray(session.encode(header))
        broken[-1] ^= 1
        session.send_raw(bytes(broken))
        expect(session.wait_closed(10), "a wrong header digest leaves the connection open")
        session = full_feature(target, HeaderDigest="CRC32C", DataDigest="CRC32C", ImmediateData="Yes",
                               FirstBurstLength="65536")
        header, data = session.command_pdu(struct.pack(">BBIBHB", 0x2A, 0, 0, 0, 8, 0), 4096, True, data=b"E" * 4096)
        broken = bytearray(session.encode(header, data))
        broken[-1] ^= 1
        quietly(session.send_raw, bytes(broken))
        sip(session, 0.5)
        session.close()


def endless_text(lab):
    """Text requests that always go on: with bounded memory, and an end."""
    with under_attack(lab) as target:
        for phase in ("login", "full feature"):
            connection = Connection(target, 3) if phase == "login" else full_feature(target)
            text = b"".join(b"X-com.example.key%d=%s\0" % (number, b"v" * 200) for number in range(30))
            try:
                target_tag = NO_TAG
                for _ in range(3000):
                    if phase == "login":
                        # C: more text follows (RFC 7143 §11.12.2).
                        connection.send(*connection.login_pdu(text, flags=0x44))
                    else:
                        specific = struct.pack(">III", target_tag, connection.command_number, connection.status_number)
                        connection.send(bhs(wire.TEXT | IMMEDIATE, 0x40, len(text), 0, 7, specific), text)
                    answer = connection.receive()
                    if answer.opcode == wire.REJECT:
                        break
                    target_tag = answer.target_tag
                else:
                    raise Failed(f"{phase}: 18 MiB of text were taken")
            except (Closed, OSError):
                pass
            connection.close()


def many_keys(lab):
    """Logins with ten thousand keys, keys without end, values without end, the same key again and again."""
    with under_attack(lab) as target:
        base = b"InitiatorName=iqn.2026-01.example.lab:evil\0SessionType=Discovery\0"
        for text in (b"".join(b"k%d=1\0" % number for number in range(900)), b"K" * 8000 + b"=1\0", b"k=" + b"V" * 8000 + b"\0",
                     b"HeaderDigest=None\0" * 400, b"=\0" * 3000, b"\0" * 8000, bytes(range(256)) * 30,
                     b"MaxBurstLength=99999999999999999999999\0", b"MaxBurstLength=-1\0", b"MaxBurstLength=0x\0",
                     b"InitiatorName=\xff\xfe\0", b"AuthMethod=CHAP,,,None,,\0"):
            for flags in (0x87, 0x81, 0x04):
                with Connection(target, 3) as connection:
                    quietly(connection.send, *connection.login_pdu(base + text, flags=flags))
                    sip(connection, 0.05)


def chap_lies(lab):
    """CHAP out of order, with wrong algorithms, long responses, reflected challenges."""
    with under_attack_chap(lab) as target:
        name = [("InitiatorName", "iqn.2026-01.example.lab:evil"), ("SessionType", "Normal"), ("TargetName", IQN),
                ("AuthMethod", "CHAP")]
        for second, third in (
                ([("CHAP_A", "5")], [("CHAP_N", "alice"), ("CHAP_R", "0x" + "00" * 16)]),
                ([("CHAP_A", "5")], [("CHAP_N", "alice"), ("CHAP_R", "0x" + "00" * 4000)]),
                ([("CHAP_A", "5")], [("CHAP_N", "alice"), ("CHAP_R", "")]),
                ([("CHAP_A", "5")], [("CHAP_N", "alice"), ("CHAP_R", "0xZZ")]),
                ([("CHAP_A", "5")], [("CHAP_N", "x" * 4000), ("CHAP_R", "0b" + "A" * 400)]),
                ([("CHAP_A", "99,4711")], []), ([("CHAP_A", "")], []), ([("CHAP_R", "0x00")], []),
                ([("CHAP_A", "5")], [("CHAP_N", "alice"), ("CHAP_R", "0x00"), ("CHAP_I", "1"), ("CHAP_C", "0x")])):
            with Connection(target, 5) as connection:
                for text in (name, second, third):
                    if not text:
                        continue
                    try:
                        connection.send(*connection.login_pdu(text, flags=0x00 if text is not third else 0x81))
                        answer = connection.receive()
                    except Closed:
                        break
                    if answer.bhs[36]:
                        break
                else:
                    raise Failed(f"not refused: {second} {third}: {answer.data[:80]!r}")
        # Straight to full-feature phase, without any proof.
        with Connection(target, 5) as connection:
            connection.send(*connection.login_pdu(name[:3], flags=0x87))
            try:
                answer = connection.receive()
                expect(answer.bhs[36] != 0 or not answer.flags & 0x80, "logged in without CHAP")
            except Closed:
                pass


@contextlib.contextmanager
def under_attack_chap(lab):
    with lab.serve(Unit(memory=True), chap=Chap("alice", "alice-secret-12")) as target:
        yield target
        target.check_alive()
        proc.need("iscsi-inq")
        proc.run("iscsi-inq", target.url())


def comes_and_goes(lab):
    """Connections that end at any moment: by FIN, by RST, with commands running."""
    chance = random.Random(5)
    with under_attack(lab) as target:
        for number in range(1500):
            connection = Connection(target, 3)
            if number % 3 == 0:
                connection.reset()
            elif number % 3 == 1:
                header, data = connection.login_pdu([("InitiatorName", "iqn.2026-01.example.lab:gone")])
                quietly(connection.send_raw, connection.encode(header, data)[:chance.randrange(1, 90)])
                connection.reset()
            else:
                connection.close()
        # The target may still have most of those to read; they count against their address.
        for number in range(150):
            session = full_feature(target, source=apart(target))
            for _ in range(chance.randrange(1, 30)):
                write = chance.random() < 0.5
                quietly(session.send, *session.command_pdu(
                    struct.pack(">BBIBHB", 0x2A if write else 0x28, 0, 256, 0, 512, 0), 512 * 512, write))
            session.reset()


def at_once(lab):
    """Sixty-four commands in one segment, and a login with the first command behind it."""
    with under_attack(lab) as target, full_feature(target) as session:
        read = struct.pack(">BBIBHB", 0x28, 0, 0, 0, 8, 0)
        tags = [session.tag() for _ in range(24)]
        session.send_raw(b"".join(session.encode(*session.command_pdu(read, 4096, tag=tag)) for tag in tags))
        for tag in tags:
            status, _, data = session.answer(tag)
            expect(status == 0 and data == b"\xc3" * 4096, f"one of many reads: status {status}")


def two_at_once(lab):
    """Attackers and a verifying writer at the same time: its data stays its own."""
    with under_attack(lab, [Unit(memory=True), Unit()]) as target:
        stop = threading.Event()
        faults = []

        def attack(seed):
            chance = random.Random(seed)
            while not stop.is_set():
                with contextlib.suppress(Closed, OSError, Failed):
                    session = wire.session(target, f"iqn.2026-01.example.lab:evil{seed}")
                    session.lun = session.lun + 1
                    for _ in range(20):
                        session.send_raw(chance.randbytes(48) if chance.random() < 0.1 else session.encode(
                            *session.command_pdu(struct.pack(">BBIBHB", 0x28, 0, 0, 0, 128, 0), 65536)))
                    session.reset()

        threads = [threading.Thread(target=attack, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        try:
            with wire.session(target, GOOD) as session:
                limit = time.monotonic() + 5
                number = 0
                while time.monotonic() < limit:
                    number += 1
                    data = struct.pack(">I", number) * 2048
                    session.write(1024 + number % 7 * 16, data)
                    if session.read(1024 + number % 7 * 16, 16) != data:
                        faults.append(number)
        finally:
            stop.set()
            for thread in threads:
                thread.join(20)
        expect(not faults, f"writes {faults[:5]} read back otherwise")


CASES = [
    ("hostile: random bytes", garbage),
    ("hostile: logins with changed bits", mutated_logins),
    ("hostile: commands with changed bits", mutated_commands),
    ("hostile: random CDBs of every opcode are answered", random_cdbs),
    ("hostile: lengths that lie", lying_lengths),
    ("hostile: texts announced and withheld", announced_and_withheld),
    ("hostile: logins that stall", stalled_login),
    ("hostile: one address begins logins without end", crowded_logins),
    ("hostile: logins of a thousand addresses with endless texts", flood_of_texts),
    ("hostile: one byte at a time", dripping),
    ("hostile: thousands of half-open connections", half_open),
    ("hostile: more connections than descriptors", out_of_descriptors),
    ("hostile: peers that stop reading", stops_reading),
    ("hostile: attributes of objects that nobody takes", attributes_nobody_takes),
    ("hostile: writes whose data never comes", withheld_writes),
    ("hostile: Data-Out that lies", data_out_lies),
    ("hostile: expected lengths that differ, residuals", residuals),
    ("hostile: unsolicited data in excess", immediate_excess),
    ("hostile: PDUs out of turn and of unknown kinds", out_of_turn),
    ("hostile: command numbers out of the window and out of order", wrong_numbers),
    ("hostile: task management of what is not there", task_management),
    ("hostile: wrong digests", wrong_digests),
    ("hostile: texts without an end", endless_text),
    ("hostile: keys and values without measure", many_keys),
    ("hostile: CHAP that lies", chap_lies),
    ("hostile: connections that come and go", comes_and_goes),
    ("hostile: many commands in one segment", at_once),
    ("hostile: attackers beside a verifying writer", two_at_once),
]
