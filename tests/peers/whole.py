"""Blocks are whole: one initiator writes, another reads the same blocks, slowly; what it gets is as some write left it.

Each write is one number over and over, so that two numbers in what must be whole are a tear. Of commands of up to 4 KiB all is whole, of
longer ones each 4 KiB that begin at a multiple of 4 KiB."""

import contextlib
import os
import struct
import threading
import time
import types

from lab import iser, proc, uml, wire
from lab.report import expect
from lab.target import Unit

from . import nbd

PIECE = 4096
LONG = 65536
WRITER, READER = "iqn.2026-01.example.lab:writer", "iqn.2026-01.example.lab:reader"
# LIO proposes these if the initiator does not, and wants an answer.
KEYS = {"HeaderDigest": "None", "DataDigest": "None", "InitialR2T": "Yes", "ImmediateData": "No", "FirstBurstLength": 65536, "DefaultTime2Wait": 2,
        "DefaultTime2Retain": 0, "MaxOutstandingR2T": 1, "ErrorRecoveryLevel": 0}
# Seconds that each unit is tried for, at least.
TRIED = float(os.environ.get("WHOLE_SECONDS", "1"))
# What a reader asks for before it takes anything: more than sockets hold.
AHEAD = 24

UNITS = [Unit(memory=True), Unit(), Unit(options="engine=mmap"), Unit(options="engine=inline"), Unit(options="engine=uring"),
         Unit(options="engine=threads"), Unit(cache="direct"), Unit(cache="writethrough", options="engine=sync")]


@contextlib.contextmanager
def all_units(lab):
    """All kinds, and Stag's disks of NBD servers: of one that serves each core, of one that serves one client, and of QEMU's."""
    if lab.kind != "stag":
        yield UNITS
        return
    names = ("nbdkit", "nbdkit-one-connection", "qemu-nbd")
    sockets, image = {name: nbd.socket_of(lab) for name in names}, os.path.join(lab.new_folder("image"), "raw")
    proc.run("truncate", "-s", "64M", image)
    one = ("--filter=multi-conn", "memory", "64M", "multi-conn-mode=disable")
    with (nbd.nbdkit(lab, sockets["nbdkit"], "memory", "64M"), nbd.nbdkit(lab, sockets["nbdkit-one-connection"], *one),
          nbd.qemu_nbd(lab, sockets["qemu-nbd"], "--export-name", "qemu-nbd", "--format", "raw", image)):
        yield UNITS + [nbd.unit(sockets[name], name) for name in names]


def name_of(unit):
    if unit.path.startswith("nbd"):
        return unit.path.split("?")[0].split("/")[-1]
    return "memory" if unit.memory else ", ".join(word for word in (unit.options, unit.cache and f"cache={unit.cache}") if word) or "file"


def cdb(code, lba, length):
    return struct.pack(">BBIBHB", code, 0, lba, 0, length // 512, 0)


def write_on(session, lba, length, ended, wrote):
    """Writes the same blocks over and over, each time another number."""
    number = 1
    with contextlib.suppress(wire.Closed):
        while not ended.is_set():
            session.out, tag = struct.pack(">Q", number) * (length // 8), session.tag()
            session.send(*session.command_pdu(cdb(0x2A, lba, length), length, True, tag))
            expect(session.answer(tag)[0] == 0, "a WRITE fails")
            number += 1
    wrote.append(number)


@contextlib.contextmanager
def writer(target, lun, lba, length):
    ended, wrote = threading.Event(), []
    with wire.session(target, WRITER, **KEYS) as session:
        session.lun = lun
        session.test_unit_ready()
        thread = threading.Thread(target=write_on, args=(session, lba, length, ended, wrote), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(20)
    expect(wrote and wrote[0] > 10, f"the writer has written {wrote} times: the test tests nothing")


def answers(reader, tags):
    """The data of READs that are on their way, in whatever order it comes."""
    data = {tag: {} for tag in tags}
    while data:
        pdu = reader.receive()
        if pdu.opcode == wire.NOP_IN and pdu.target_tag != wire.NO_TAG:
            reader.send(wire.bhs(wire.NOP_OUT | wire.IMMEDIATE, wire.FINAL, 0, 0, wire.NO_TAG, struct.pack(
                ">III", pdu.target_tag, reader.command_number, reader.status_number)))
            continue
        if pdu.opcode == wire.DATA_IN:
            data[pdu.tag][pdu.word(40)] = pdu.data
        if pdu.opcode == wire.RESPONSE or pdu.flags & 1:
            expect(pdu.bhs[3] == 0, f"a READ fails with status {pdu.bhs[3]}")
            parts = data.pop(pdu.tag)
            yield b"".join(parts[at] for at in sorted(parts))


def slow_reads(target, lun, lba, length):
    """What a reader gets that asks for much, and takes it late and through a small window."""
    with wire.Connection(target, receive_buffer=16384) as reader:
        reader.lun = lun
        reader.login(wire.unit_of(target)[0], READER, MaxRecvDataSegmentLength=65536, MaxBurstLength=262144, **KEYS)
        reader.test_unit_ready()
        end, read = time.monotonic() + TRIED, 0
        while time.monotonic() < end or read < 4 * AHEAD:
            tags = [reader.tag() for _ in range(AHEAD)]
            for tag in tags:
                reader.send(*reader.command_pdu(cdb(0x28, lba, length), length, tag=tag))
            time.sleep(0.02)
            for data in answers(reader, tags):
                expect(len(data) == length, f"a READ brings {len(data)} bytes of {length}")
                read += 1
                yield data


def torn(data, piece):
    return any(data[at:at + piece] != data[at:at + 8] * (piece // 8) for at in range(0, len(data), piece))


def tears(lab, lba, length):
    """Tries every unit with commands of this length, tells what was torn of each, and judges only ours."""
    found = []
    with all_units(lab) as units, lab.serve(*units) as target:
        for lun, unit in enumerate(units, wire.unit_of(target)[1]):
            if torn_of(target, lun, name_of(unit), lba, length):
                found.append(name_of(unit))
    expect(lab.kind != "stag" or not found, f"torn blocks: {', '.join(found)}")


def torn_of(target, lun, name, lba, length):
    """Tries a unit; how many READs had a torn piece."""
    with writer(target, lun, lba, length):
        read = [(torn(data, PIECE), torn(data, 512)) for data in slow_reads(target, lun, lba, length)]
    pieces, sectors = (sum(column) for column in zip(*read))
    print(f"       {name}: of {len(read)} reads of {length} bytes {pieces} had 4 KiB torn, {sectors} a sector")
    return pieces


def short_commands(lab):
    """READs and WRITEs of 4 KiB, across a border of 4 KiB of the medium."""
    tears(lab, 19, PIECE)


def long_commands(lab):
    """READs and WRITEs of 64 KiB, which a unit may send and receive without a copy where it has one initiator."""
    tears(lab, 256, LONG)


def over_iser(lab):
    """The same over iSER, where what is read is placed in the initiator's memory, and what is written comes by RDMA Reads."""
    if lab.kind != "stag":
        return
    with all_units(lab) as units, lab.serve(*units) as target:
        for lun, unit in enumerate(units, wire.unit_of(target)[1]):
            if unit not in (*UNITS[:2], *units[len(UNITS):]):
                continue
            for lba, length in ((19, PIECE), (256, LONG)):
                with writer(target, lun, lba, length), iser.session(target, READER) as reader:
                    reader.lun = lun
                    reader.test_unit_ready()
                    end, read, found = time.monotonic() + TRIED, 0, 0
                    while time.monotonic() < end or read < 50:
                        status, _, data = reader.run(cdb(0x28, lba, length), length)
                        expect(status == 0 and len(data) == length, f"a READ brings {len(data)} bytes, status {status}")
                        found += torn(data, PIECE)
                        read += 1
                expect(not found, f"{name_of(unit)}: {found} of {read} reads of {length} bytes are torn")


STEP = 8192  # Blocks: 4 MiB.


def zero_on(session, how, ended, zeroed):
    """UNMAPs, or zeroes by WRITE SAME (16), the first half of a unit of 64 MiB, in steps of 4 MiB, over and over."""
    while not ended.is_set():
        lba = len(zeroed) % 8 * STEP
        if how == "UNMAP":
            command = struct.pack(">BBIBHB", 0x42, 0, 0, 0, 24, 0)
            data = struct.pack(">HHIQII", 22, 16, 0, lba, STEP, 0)
        else:
            command, data = struct.pack(">BBQIBB", 0x93, 0, lba, STEP, 0, 0), bytes(512)
        status, _, _ = session.run(command, out=data)
        expect(status == 0, f"{how} ends with status {status}")
        zeroed.append(lba)


def beside_zeroing(lab):
    """What a reader of 4 KiB waits for alone, and beside long UNMAPs and WRITE SAMEs of these blocks and of others: told, not judged."""
    units = [Unit(memory=True, thin=True), Unit(thin=True)]
    with lab.serve(*units) as target:
        for lun, unit in enumerate(units, wire.unit_of(target)[1]):
            with wire.session(target, READER) as reader, wire.session(target, WRITER, isid=b"\x40\0\0\2\0\0") as other:
                reader.lun = other.lun = lun
                for session in (reader, other):
                    session.test_unit_ready()
                for lba in range(0, 131072, 128):
                    reader.write(lba, bytes(65536))
                for how in ("nothing", "UNMAP", "WRITE SAME"):
                    for where in ("the same", "other") if how != "nothing" else ("",):
                        ended, zeroed, took = threading.Event(), [], []
                        thread = threading.Thread(target=zero_on, args=(other, how, ended, zeroed), daemon=True)
                        if how != "nothing":
                            thread.start()
                        end = time.monotonic() + 2 * TRIED
                        while time.monotonic() < end or len(took) < 100:
                            start = time.monotonic()
                            reader.read((len(took) * 8 * 37) % 65536 + (65536 if where == "other" else 0), 8)
                            took.append((time.monotonic() - start) * 1e3)
                        ended.set()
                        if how != "nothing":
                            thread.join(60)
                            expect(zeroed, f"no {how} ended")
                        took.sort()
                        beside = f"{len(zeroed)} {how} of {where} blocks" if where else "nothing"
                        print(f"       {unit.memory and 'memory' or 'file'}, {len(took)} READs beside {beside}: {took[len(took) // 2]:.2f} ms by the median, "
                              f"{took[len(took) * 99 // 100]:.2f} ms 99 of 100, {took[-1]:.2f} ms the longest")


def beside_lio(lab):
    """Linux's own target in the lab's kernel: what it tears is told, for comparison, and not judged."""
    if lab.kind != "stag":
        return
    proc.need("ip")
    uml.network_up()
    for kind, backing in (("a file in memory", "/run/disk"), ("memory", "64")):
        def clients(kind=kind):
            target = types.SimpleNamespace(host=uml.GUEST, port=3260, urls=[f"iscsi://{uml.GUEST}:3260/iqn.2026-01.example.lab:lio/0"])
            for lba, length in ((19, PIECE), (256, LONG)):
                torn_of(target, 0, f"LIO, {kind}", lba, length)

        script = f"truncate -s 64M /run/disk\nlio_up {backing} tcp && ready"
        code, output = uml.Guest(lab.new_folder("guest"), script, memory_mib=512).run(300, {"ready": clients})
        expect(code == 0, f"the guest's script ended with {code}:\n{output}")


CASES = [
    ("commands of 4 KiB beside each other are whole, read slowly, on every engine", short_commands),
    ("of commands of 64 KiB beside each other each 4 KiB are whole, read slowly, on every engine", long_commands),
    ("the same over iSER", over_iser),
    ("READs beside long UNMAPs and WRITE SAMEs: told, not judged", beside_zeroing),
    ("Linux's own target beside it: told, not judged", beside_lio),
]
