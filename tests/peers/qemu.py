"""QEMU's block layer over iSCSI: qemu-img and qemu-io on iscsi:// URLs."""

import json
import os
import re

from lab import proc
from lab.report import expect
from lab.target import Chap, Unit

MIB = 1 << 20


def io(url, *commands, options=()):
    """qemu-io's commands, each of which must succeed."""
    words = [word for command in commands for word in ("-c", command)]
    printed = proc.run("qemu-io", "-f", "raw", *options, *words, url)
    for bad in ("failed", "Pattern verification", "error"):
        expect(bad not in printed, f"qemu-io: {printed}")
    return printed


def random_image(path, mib=24, seed=1):
    """An image with data, zeros and holes: every fourth MiB is random, every fourth written zeros, the rest holes."""
    with open(path, "wb") as file:
        file.truncate(mib * MIB)
        for at in range(0, mib, 2):
            file.seek(at * MIB + seed * 512)
            file.write(os.urandom(MIB - 1024) if at % 4 == 0 else bytes(MIB - 1024))


def info(lab):
    proc.need("qemu-img")
    with lab.serve(Unit(mib=96), Unit(mib=96, block_bytes=4096)) as target:
        for number in range(2):
            told = json.loads(proc.run("qemu-img", "info", "--output=json", target.url(number)))
            expect(told["virtual-size"] == 96 * MIB, f"virtual size {told['virtual-size']}")


def patterns(lab):
    proc.need("qemu-io")
    with lab.serve(Unit(thin=True), Unit(thin=True, block_bytes=4096), Unit(memory=True),
                   Unit(cache="writethrough")) as target:
        for number in range(4):
            io(target.url(number),
               "write -P 0xa5 0 1M", "write -P 0x5a 1M 64k", "read -P 0xa5 0 1M", "read -P 0x5a 1M 64k",
               "write -z 512k 256k", "read -P 0 512k 256k", "read -P 0xa5 768k 256k",
               "discard 0 256k", "write -f -P 0x11 4096 4096", "read -P 0x11 4096 4096", "flush",
               "write -P 7 63M 1M", "read -P 7 63M 1M")
        printed = proc.run("qemu-io", "-f", "raw", "-c", "read 64M 512", target.url(), ok=None)
        expect("read 512/512" not in printed, f"a read beyond the end went through: {printed}")


def unaligned(lab):
    """QEMU reads, changes and writes back what is smaller than a block."""
    proc.need("qemu-io")
    with lab.serve(Unit(block_bytes=4096)) as target:
        io(target.url(), "write -P 1 0 64k", "write -P 2 1000 3000", "read -P 1 0 1000", "read -P 2 1000 3000",
           "read -P 1 4000 60000")


def queued(lab):
    """Many requests in flight, in order and not."""
    proc.need("qemu-io")
    with lab.serve(Unit(mib=128)) as target:
        writes = [f"aio_write -P {number % 255 + 1} {number * 256}k 256k" for number in range(200)]
        reads = [f"aio_read -P {number % 255 + 1} {number * 256}k 256k" for number in range(200)]
        io(target.url(), *writes, "aio_flush", *reversed(reads), "aio_flush")


def convert(lab):
    proc.need("qemu-img")
    with lab.serve(Unit(thin=True), Unit(block_bytes=4096, memory=True)) as target:
        source, back = os.path.join(target.folder, "source.raw"), os.path.join(target.folder, "back.raw")
        random_image(source, 64)
        for number in range(2):
            url = target.url(number)
            proc.run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, url)
            same = proc.run("qemu-img", "compare", "-f", "raw", "-F", "raw", source, url)
            expect("identical" in same, same)
            proc.run("qemu-img", "convert", "-f", "raw", "-O", "raw", url, back)
            proc.run("cmp", source, back)
        # From one unit to the other, out of order and with many requests at once.
        random_image(source, 64, seed=2)
        proc.run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, target.url(0))
        proc.run("qemu-img", "convert", "-n", "-W", "-m", 16, "-f", "raw", "-O", "raw", target.url(0), target.url(1))
        proc.run("qemu-img", "compare", "-f", "raw", "-F", "raw", target.url(0), target.url(1))
        io(target.url(1), "write -P 0xee 40M 512")
        differs = proc.run("qemu-img", "compare", "-f", "raw", "-F", "raw", target.url(0), target.url(1), ok=(1,))
        expect("mismatch" in differs, differs)


def qcow2(lab):
    """A qcow2 image made on a unit, with a file system's worth of changes in it."""
    proc.need("qemu-img", "qemu-io")
    with lab.serve(Unit(thin=True, mib=128)) as target:
        url = target.url()
        proc.run("qemu-img", "create", "-f", "qcow2", url, "96M")
        printed = proc.run("qemu-io", "-f", "qcow2", "-c", "write -P 3 0 8M", "-c", "write -P 4 50M 3M",
                           "-c", "read -P 3 0 8M", "-c", "read -P 4 50M 3M", "-c", "read -P 0 20M 1M", url)
        expect("failed" not in printed, printed)
        expect("No errors were found" in proc.run("qemu-img", "check", "-f", "qcow2", url), "qemu-img check finds errors")


def holes(lab):
    """GET LBA STATUS as QEMU uses it: what was never written or was discarded is a hole, in the file too."""
    proc.need("qemu-img", "qemu-io")
    with lab.serve(Unit(thin=True)) as target:
        io(target.url(), "write -P 9 8M 4M", "write -P 9 32M 4M", "flush")
        said = json.loads(proc.run("qemu-img", "map", "-f", "raw", "--output=json", target.url()))
        data = [(entry["start"] // MIB, entry["length"] // MIB) for entry in said if entry["data"]]
        expect(data == [(8, 4), (32, 4)], f"allocated (MiB, MiB): {data}")
        if lab.kind == "stag":
            used = os.stat(target.units[0].path).st_blocks * 512
            io(target.url(), "discard 8M 4M", "flush")
            freed = used - os.stat(target.units[0].path).st_blocks * 512
            expect(freed == 4 * MIB, f"a discard of 4 MiB gave {freed} bytes back")
            io(target.url(), "read -P 0 8M 4M", "read -P 9 32M 4M")


def bench(lab):
    proc.need("qemu-img")
    with lab.serve(Unit(memory=True)) as target:
        for options in (["-d", 1], ["-d", 64], ["-w", "-d", 32], ["-w", "-d", 16, "-s", 65536, "--flush-interval=64"]):
            printed = proc.run("qemu-img", "bench", "-f", "raw", "-t", "none", "-c", 4000, *options, target.url())
            expect(re.search(r"Run completed in [\d.]+ seconds", printed) is not None, printed)


def chap(lab):
    proc.need("qemu-io")
    for credentials in (Chap("alice", "alice-secret-12"),):
        with lab.serve(Unit(), chap=credentials) as target:
            io(target.url(), "write -P 1 0 1M", "read -P 1 0 1M")
            for wrong in (target.url(chap=Chap("alice", "not-the-secret")), target.urls[0]):
                printed = proc.run("qemu-io", "-f", "raw", "-c", "read 0 512", wrong, ok=None)
                expect("read 512/512" not in printed, f"served without the right secret: {wrong}")


def survives_restart(lab):
    """What was flushed is there after the target was killed and started again."""
    proc.need("qemu-io")
    for cache in ("writeback", "writethrough", "direct"):
        with lab.serve(Unit(cache=cache)) as target:
            io(target.url(), "write -P 0x77 1M 2M", "flush")
            target.kill()
            target.restart()
            io(target.url(), "read -P 0x77 1M 2M")


CASES = [
    ("qemu-img info: the size of units", info),
    ("qemu-io: patterns, zeros, discards, FUA on four kinds of unit", patterns),
    ("qemu-io: less than a block on 4096-byte blocks", unaligned),
    ("qemu-io: 200 requests in flight", queued),
    ("qemu-img convert and compare: to a unit, back, and between units", convert),
    ("qemu-img: a qcow2 image on a unit", qcow2),
    ("qemu-img map: holes are holes", holes),
    ("qemu-img bench: reads and writes with flushes", bench),
    ("qemu-io: CHAP", chap),
    ("qemu-io: flushed data outlives kill -9, in each cache mode", survives_restart),
]
