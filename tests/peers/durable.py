"""What was acknowledged as durable is there after the target was killed; a medium that fails is told by sense data."""

import contextlib
import os
import random
import struct
import threading
import time

from lab import proc, wire
from lab.report import Skip, expect
from lab.target import Unit

from .session import CHECK_CONDITION, sense_of

BLOCKS = 16  # Blocks of a record.
RECORDS = 256


def record(number, version):
    return struct.pack(">QQ", number, version) * (BLOCKS * 512 // 16)


def killed_writers(lab, cache, rounds=6):
    """A writer keeps a book of what the target promised to keep; after each kill -9 the unit must hold at least that.

    With a write-back cache a promise is a write followed by SYNCHRONIZE CACHE, or a write with FUA; with write-through it
    is every write."""
    chance = random.Random(6)
    with lab.serve(Unit(cache=cache)) as target:
        promised, sent = [0] * RECORDS, [0] * RECORDS
        version = 0
        for _ in range(rounds):
            session = wire.session(target)
            killer = threading.Thread(target=kill_later, daemon=True, args=(
                target, chance.uniform(0.1, 0.6), lambda enough=version + 40: version > enough))
            killer.start()
            with contextlib.suppress(wire.Closed, OSError):
                while True:
                    batch = [chance.randrange(RECORDS) for _ in range(chance.randrange(1, 8))]
                    fua = cache != "writeback" or chance.random() < 0.3
                    for number in batch:
                        version += 1
                        sent[number] = version
                        flags = 8 if fua and cache == "writeback" else 0
                        cdb = struct.pack(">BBIBHB", 0x2A, flags, number * BLOCKS, 0, BLOCKS, 0)
                        status, response, _ = session.run(cdb, out=record(number, version))
                        expect(status == 0, f"WRITE: status {status}, sense {response.hex()}")
                        if fua:
                            promised[number] = version
                    if not fua:
                        written = {number: sent[number] for number in batch}
                        status, _, _ = session.run(struct.pack(">BBIBHB", 0x35, 0, 0, 0, 0, 0))
                        expect(status == 0, f"SYNCHRONIZE CACHE: status {status}")
                        promised = [max(have, written.get(number, 0)) for number, have in enumerate(promised)]
            killer.join()
            target.process.wait()
            session.close()
            target.restart()
            with wire.session(target) as session:
                for number in range(RECORDS):
                    data = session.read(number * BLOCKS, BLOCKS)
                    # Writes of the process's last moment may be there or not, block by block.
                    for at in range(0, len(data), 512):
                        found_number, found = struct.unpack_from(">QQ", data, at)
                        if promised[number]:
                            expect(found_number == number and promised[number] <= found <= sent[number],
                                   f"record {number}: version {found} of {found_number}, promised {promised[number]}")
        expect(version > 100, f"only {version} writes: the test tests nothing")
        print(f"       {cache}: {version} writes, {rounds} kills, {sum(1 for entry in promised if entry)} records promised")


def kill_later(target, seconds, enough):
    """Kills the target after so many seconds, and not before enough is done, which takes a slow machine longer."""
    time.sleep(seconds)
    limit = time.monotonic() + 60
    while not enough() and time.monotonic() < limit:
        time.sleep(0.003)
    target.process.kill()


def write_back(lab):
    killed_writers(lab, "writeback")


def write_through(lab):
    killed_writers(lab, "writethrough")


def direct(lab):
    killed_writers(lab, "direct", rounds=3)


def reservations(lab, memory=False):
    """A reservation made with APTPL=1 holds after kill -9; without it, it is gone.

    A file's is kept beside the file, a memory unit's in the state directory."""
    if lab.kind != "stag":
        raise Skip("where reservations are kept is Stag's")
    holder, other = "iqn.2026-01.example.lab:holder", "iqn.2026-01.example.lab:other"

    def persistent_reserve_out(session, action, key, new_key=0, type_=0, aptpl=0):
        parameters = struct.pack(">QQIBBH", key, new_key, 0, aptpl, 0, 0)
        return session.run(struct.pack(">BBBxxIB", 0x5F, action, type_, len(parameters), 0), out=parameters)[0]

    def keys(session):
        _, _, data = session.run(struct.pack(">BBxxxxxHB", 0x5E, 0, 256, 0), 256)
        count = struct.unpack_from(">I", data, 4)[0] // 8
        return [struct.unpack_from(">Q", data, 8 + 8 * index)[0] for index in range(count)]

    for aptpl in (1, 0):
        with lab.serve(Unit(memory=memory)) as target:
            with wire.session(target, holder) as session:
                expect(persistent_reserve_out(session, 0, 0, 0xABCD, aptpl=aptpl) == 0, "REGISTER fails")
                expect(persistent_reserve_out(session, 1, 0xABCD, type_=1) == 0, "RESERVE fails")
                target.kill()
            target.restart()
            with wire.session(target, other) as session:
                found = keys(session)
                expect(found == ([0xABCD] if aptpl else []), f"APTPL={aptpl}: keys after kill -9: {found}")
                _, _, held = session.run(struct.pack(">BBxxxxxHB", 0x5E, 1, 256, 0), 256)
                expect(held[4:16] == (struct.pack(">IQ", 16, 0xABCD) if aptpl else bytes(4)),
                       f"APTPL={aptpl}: the reservation after kill -9: {held.hex()}")
                status, _, _ = session.run(struct.pack(">BBIBHB", 0x2A, 0, 0, 0, 8, 0), out=bytes(4096))
                expect(status == (0x18 if aptpl else 0), f"APTPL={aptpl}: another's write has status {status:#x}")
            if aptpl:
                with wire.session(target, holder) as session:
                    session.write(0, bytes(4096))
                    expect(persistent_reserve_out(session, 3, 0xABCD) == 0, "CLEAR fails")
                    target.kill()
                target.restart()
                with wire.session(target, other) as session:
                    expect(keys(session) == [], f"keys after CLEAR and kill -9: {keys(session)}")


def reservations_of_memory(lab):
    reservations(lab, memory=True)


def full_medium(lab):
    """A file system without room: writes fail with sense data, reads go on, and with room again writes do too."""
    if os.geteuid() != 0:
        raise Skip("mounting a small file system needs root")
    folder = lab.new_folder("small")
    proc.run("mount", "-t", "tmpfs", "-o", "size=8M", "tmpfs", folder)
    try:
        path = os.path.join(folder, "unit.img")
        with open(path, "wb") as file:
            file.truncate(64 << 20)
        ballast = os.path.join(folder, "ballast")
        with open(ballast, "wb") as file:
            file.write(bytes(2 << 20))
        with lab.serve(Unit(path=path, thin=True)) as target, wire.session(target) as session:
            failed = None
            for number in range(64):
                cdb = struct.pack(">BBIBHB", 0x2A, 0, number * 512, 0, 512, 0)
                status, response, _ = session.run(cdb, out=bytes([number + 1]) * (512 * 512))
                if status:
                    failed = status, sense_of(response)
                    break
            expect(failed is not None, "64 writes of 256 KiB fit in 8 MiB")
            expect(failed[0] == CHECK_CONDITION, f"status {failed[0]:#x}")
            # SPACE ALLOCATION FAILED WRITE PROTECT (SBC-3 §4.7.3.6), or another error of the medium.
            expect(failed[1] == (7, 0x27, 7) or failed[1][0] in (3, 4, 7), f"sense {failed[1]}")
            for done in range(number):
                expect(session.read(done * 512, 1) == bytes([done + 1]) * 512, "what was written before is lost")
            os.remove(ballast)
            session.write(number * 512, bytes([9]) * (512 * 512))
            expect(session.read(number * 512, 1) == bytes([9]) * 512, "no write with room again")
            target.check_alive()
    finally:
        proc.run("umount", "-l", folder, ok=None)


def shrunk_file(lab):
    """A file that becomes shorter: what is missing fails with sense data or reads as zeros; the rest is served."""
    with lab.serve(Unit(), Unit(memory=True)) as target, wire.session(target) as session:
        session.write(0, b"\x11" * 4096)
        session.write(100_000, b"\x22" * 4096)
        os.truncate(target.units[0].path, 1 << 20)
        status, response, data = session.run(struct.pack(">BBIBHB", 0x28, 0, 100_000, 0, 8, 0), 4096)
        expect(status == CHECK_CONDITION and sense_of(response)[0] in (3, 4) or status == 0 and data == bytes(4096),
               f"a read of what is gone: status {status}, sense {sense_of(response)}")
        session.test_unit_ready()  # CAPACITY DATA HAS CHANGED may have been told.
        expect(session.read(0, 8) == b"\x11" * 4096, "a read of what is there fails")
        session.test_unit_ready(lun=session.lun + 1)
        session.read(0, 8, lun=session.lun + 1)
        target.check_alive()


CASES = [
    ("kill -9 loses nothing that was flushed or written with FUA (write-back)", write_back),
    ("kill -9 loses nothing (write-through)", write_through),
    ("kill -9 loses nothing (direct)", direct),
    ("kill -9 keeps reservations made with APTPL", reservations),
    ("kill -9 keeps a memory unit's reservations made with APTPL", reservations_of_memory),
    ("a full file system is told by sense data", full_medium),
    ("a file that shrinks is told by sense data", shrunk_file),
]
