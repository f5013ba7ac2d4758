"""Units of other targets, tgt and istgt and another Stag, served as units of our own: QEMU on the near side, the same bytes
on the far one. TCP on one side and iSER on the other; targets that stop, die, and grow."""

import contextlib
import json
import os
import signal

from lab import proc, wire
from lab.report import Skip, expect
from lab.target import Chap, Stag, Tgt, Unit

from . import qemu
from .bench import Istgt
from .health import acknowledge, flush, status, write
from .nbd import NOT_READY_HERE, WRITE, Writer, refused
from .session import CHECK_CONDITION, sense_of

MIB = 1 << 20
KINDS = {"tgt": Tgt, "istgt": Istgt, "stag": Stag}


@contextlib.contextmanager
def far(lab, kind, *units, chap=None):
    """A running target of this kind; `kill` and `start` may come between."""
    if lab.kind != "stag":
        raise Skip("a bridge of Stag's")
    target = KINDS[kind](lab.new_folder(kind), list(units) or [Unit(mib=64)], "127.0.0.1", proc.free_port("127.0.0.1"), chap, {})
    target.start()
    try:
        yield target
    finally:
        if target.alive():
            target.stop()


def unit(target, number=0, scheme="iscsi", **more):
    """The far unit as a unit. Its URL has neither user nor secret."""
    return Unit(path=target.urls[number].replace("iscsi://", f"{scheme}://"), **more)


def patterns(lab):
    """QEMU's patterns, zeros and discards; the far target has the same bytes, which QEMU reads there itself."""
    proc.need("qemu-io", "qemu-img")
    source = os.path.join(lab.new_folder("source"), "raw")
    qemu.random_image(source, 64)
    for kind in KINDS:
        with far(lab, kind, Unit(mib=64, thin=kind != "istgt")) as behind, lab.serve(unit(behind)) as target:
            near = target.url()
            proc.run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, near)
            qemu.io(near, "write -P 0xa5 0 1M", "read -P 0xa5 0 1M", "write -z 512k 256k", "read -P 0 512k 256k",
                    "discard 8M 8M", "write -f -P 0x11 4096 4096", "flush", "write -P 7 63M 1M", "read -P 7 63M 1M", "flush")
            same = proc.run("qemu-img", "compare", "-f", "raw", "-F", "raw", near, behind.urls[0])
            expect("identical" in same, f"{kind}: {same}")
            proc.run(target.binary, "bench", near, "-p", "randrw", "--bs", "4k", "--depth", 16, "--sessions", 2, "--count", 2000,
                     "--verify", "--destroy")


def transports(lab):
    """TCP to iSER and iSER to TCP: a verified load goes through."""
    for near, behind_by in (("iscsi", "iser"), ("iser", "iscsi")):
        with far(lab, "stag", Unit(mib=32, memory=True)) as behind, lab.serve(unit(behind, scheme=behind_by)) as target:
            url = target.url().replace("iscsi://", f"{near}://")
            proc.run(target.binary, "bench", url, "-p", "randrw", "--bs", "4k", "--depth", 16, "--count", 1000, "--verify", "--destroy")


def moved(lab):
    """A volume moves off an old target: QEMU's guest goes on over the bridge while the bytes are copied, and the copy is whole."""
    proc.need("qemu-img")
    source, copy = (os.path.join(lab.new_folder("image"), "raw") for _ in range(2))
    qemu.random_image(source, 64)
    with far(lab, "tgt") as behind, lab.serve(unit(behind)) as target:
        proc.run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, target.url())
        proc.run("qemu-img", "convert", "-f", "raw", "-O", "raw", target.url(), copy)
    expect("identical" in proc.run("qemu-img", "compare", "-f", "raw", "-F", "raw", source, copy), "the copy")


def chap(lab):
    """User and secret file; the secret is in no output."""
    secret = os.path.join(lab.new_folder("secret"), "far")
    with open(secret, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write("far-secret-12\n")
    with far(lab, "tgt", chap=Chap("bridge", "far-secret-12")) as behind:
        with lab.serve(unit(behind, options=f"far-user=bridge,far-secret-file={secret}")) as target:
            with wire.session(target) as session:
                expect(write(session, 0) == 0, "a write")
            expect("far-secret-12" not in open(target.log_path).read(), "the secret is in the log")
        refused(behind.urls[0], "log in")
        refused(behind.urls[0].replace("iscsi://", "iscsi://bridge%far-secret-12@"), "far-secret-file")


def block_sizes(lab):
    with far(lab, "tgt", Unit(mib=16, block_bytes=4096)) as behind, lab.serve(unit(behind)) as target:
        told = json.loads(proc.run(target.binary, "info", target.url(), "--json"))
        expect(told["block_bytes"] == 4096, f"block size: {told}")
        refused(f"{behind.urls[0]},bs=512", "bs=4096")


def read_only(lab):
    with far(lab, "tgt", Unit(mib=16, read_only=True)) as behind, lab.serve(unit(behind)) as target:
        with wire.session(target) as session:
            expect(write(session, 0) == CHECK_CONDITION, "a write is refused")
            expect(session.read(0, 8) == bytes(4096), "a read")


def killed(lab):
    """kill -9 of the far target under load: each durable write is there, and initiators see at most an unavailable path."""
    for kind in ("tgt", "istgt"):
        with far(lab, kind, Unit(mib=16)) as behind:
            with lab.serve(unit(behind, cache="writethrough", options="op-timeout=5")) as target:
                writer = Writer(target)
                writer.start()
                for _ in range(3):
                    before = len(writer.good)
                    proc.wait_until(lambda: len(writer.good) > before + 20 or writer.failure, 60, "the load runs")
                    behind.kill()
                    behind.start()
                before = len(writer.good)
                proc.wait_until(lambda: len(writer.good) > before or writer.failure or len(writer.good) == 1000, 60, "service resumes")
                writer.end()
                expect(writer.told <= {NOT_READY_HERE}, f"{kind}: told {writer.told}")
            with open(behind.units[0].path, "rb") as file:
                bytes_now = file.read()
        for lba, data in writer.good.items():
            expect(bytes_now[lba * 512:lba * 512 + 4096] == data, f"{kind}: LBA {lba} was acknowledged and is lost")


def cache_lost(lab):
    """A far target that dies with unflushed writes: flushes are refused until an administrator has acknowledged that."""
    with far(lab, "tgt", Unit(mib=16)) as behind, lab.serve(unit(behind)) as target, wire.session(target) as session:
        expect(write(session, 0) == 0, "it is in the far cache")
        behind.kill()
        behind.start()
        proc.wait_until(lambda: write(session, 8) == 0, 60, "it serves again")
        expect(not flush(session), "SYNCHRONIZE CACHE is GOOD")
        acknowledge(target)
        expect(flush(session), "refused after stag acknowledge")


def stopped(lab):
    """SIGSTOP for longer than op-timeout: an unavailable path, no medium error, and nothing that comes late."""
    for kind in ("tgt", "istgt", "stag"):
        with far(lab, kind, Unit(mib=16)) as behind:
            with lab.serve(unit(behind, cache="writethrough", options="op-timeout=2")) as target, wire.session(target) as session:
                expect(write(session, 0) == 0, "a write before")
                behind.process.send_signal(signal.SIGSTOP)
                try:
                    for number in (b"1", b"2"):
                        code, response, _ = session.run(WRITE, out=number * 4096)
                        expect(code == CHECK_CONDITION and sense_of(response) == NOT_READY_HERE, f"{kind}: {code:#x} {sense_of(response)}")
                    expect(status(target)["targets"][0]["units"][0]["health"]["state"] == "failed", "status tells")
                finally:
                    behind.process.send_signal(signal.SIGCONT)
                proc.wait_until(lambda: session.run(WRITE, out=b"3" * 4096)[0] == 0, 60, "it serves again")
                for _ in range(20):
                    expect(session.read(0, 8) == b"3" * 4096, f"{kind}: a write that came late")
                expect(flush(session), "SYNCHRONIZE CACHE")


def grown(lab):
    """A far unit that grows: READ CAPACITY of an initiator finds it."""
    with far(lab, "stag", Unit(mib=16)) as behind, lab.serve(unit(behind)) as target:
        with wire.session(target) as session:
            expect(write(session, 0) == 0, "a write before")
            os.truncate(behind.units[0].path, 32 * MIB)
            proc.run(behind.binary, "info", behind.urls[0])

            def is_larger():
                session.read(0, 8)
                return json.loads(proc.run(target.binary, "info", target.url(), "--json"))["capacity_bytes"] == 32 * MIB

            proc.wait_until(is_larger, 60, "the near unit grows")


def taken_over(lab):
    """A successor's sessions have the names of those before them, and find what was written."""
    with far(lab, "tgt", Unit(mib=16)) as behind, lab.serve(unit(behind)) as target:
        for round in range(3):
            with wire.session(target) as session:
                expect(write(session, 8 * round) == 0, "a write before")
            target.take_over()
            with wire.session(target) as session:
                expect(session.read(8 * round, 8) == bytes([8 * round % 255 + 1]) * 4096, "as the last daemon wrote")
                expect(flush(session), "SYNCHRONIZE CACHE")


CASES = [
    ("QEMU's patterns over tgt, istgt and Stag are on the far side, and our verified load passes", patterns),
    ("TCP to iSER and iSER to TCP", transports),
    ("a volume moves off an old target", moved),
    ("CHAP by a secret file, and never by a URL", chap),
    ("block sizes of a far unit are kept to", block_sizes),
    ("far write protection", read_only),
    ("kill -9 of the far target under load loses no durable write", killed),
    ("flushes are refused after a far target died with unflushed writes", cache_lost),
    ("a stopped far target is an unavailable path, and nothing comes late", stopped),
    ("a far unit that grows", grown),
    ("a takeover over a far unit", taken_over),
]
