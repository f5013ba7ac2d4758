"""Units of other targets, tgt and istgt and another Stag, served as units of our own: QEMU on the near side, the same bytes
on the far one. TCP on one side and iSER on the other; targets that stop, die, grow, and refuse."""

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
RESERVE, RELEASE = bytes([0x16, 0, 0, 0, 0, 0]), bytes([0x17, 0, 0, 0, 0, 0])
RESERVATION_CONFLICT = 0x18


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


def health(target):
    return status(target)["targets"][0]["units"][0]["health"]


def load(target, url, count=1000, *words):
    proc.run(target.binary, "bench", url, "-p", "randrw", "--bs", "4k", "--depth", 16, "--count", count, "--verify", "--destroy", *words)


def is_same(one, other):
    expect("identical" in proc.run("qemu-img", "compare", "-f", "raw", "-F", "raw", one, other), f"{one} and {other} differ")


def patterns(lab):
    """QEMU's patterns, zeros and discards; the far target has the same bytes, which QEMU reads there itself. What is discarded
    is given back where the far unit is thin."""
    proc.need("qemu-io", "qemu-img")
    source = os.path.join(lab.new_folder("source"), "raw")
    qemu.random_image(source, 64)
    for kind in KINDS:
        thin = kind != "istgt"
        with far(lab, kind, Unit(mib=64, thin=thin)) as behind, lab.serve(unit(behind, thin=thin)) as target:
            near = target.url()
            proc.run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, near)
            is_same(source, near)
            qemu.io(near, "write -P 5 8M 8M", "flush")
            before = os.stat(behind.units[0].path).st_blocks
            qemu.io(near, "write -P 0xa5 0 1M", "read -P 0xa5 0 1M", "write -z 512k 256k", "read -P 0 512k 256k",
                    "discard 8M 8M", "write -f -P 0x11 4096 4096", "flush", "write -P 7 63M 1M", "read -P 7 63M 1M", "flush")
            is_same(near, behind.urls[0])
            if thin:
                qemu.io(near, "read -P 0 8M 8M")
                freed = (before - os.stat(behind.units[0].path).st_blocks) * 512
                expect(freed >= 4 * MIB, f"{kind}: {freed} bytes were given back")
            load(target, near, 2000, "--sessions", 2)


def transports(lab):
    """TCP to iSER and iSER to TCP: a verified load goes through."""
    for near, behind_by in (("iscsi", "iser"), ("iser", "iscsi")):
        with far(lab, "stag", Unit(mib=32, memory=True)) as behind, lab.serve(unit(behind, scheme=behind_by)) as target:
            load(target, target.url().replace("iscsi://", f"{near}://"))
            transports = {found["transport"] for session in status(behind)["sessions"] for found in session["connections"]}
            expect(transports == {behind_by}, f"to the far target: {transports}")


def moved(lab):
    """As the guide has it: initiators come to the bridge, the bytes are copied, and the copy takes the place of the far unit
    under the same names."""
    proc.need("qemu-io", "qemu-img")
    folder = lab.new_folder("image")
    source, copy = (os.path.join(folder, name) for name in ("source", "copy"))
    names = "serial=vol1,naa=6000000000000001000000000000abcd"
    qemu.random_image(source, 64)

    def told(target):
        facts = json.loads(proc.run(target.binary, "info", target.url(), "--json"))
        return {key: facts[key] for key in ("capacity_bytes", "block_bytes", "serial", "naa") if key in facts}

    def apply(target, *units):
        target.units = list(units)
        with open(os.path.join(target.folder, "stag.toml"), "w") as file:
            file.write(target.config())
        proc.run(target.binary, "apply", "--control", target.control, file.name)

    with far(lab, "tgt") as behind:
        proc.run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, behind.urls[0])
        with lab.serve(unit(behind, options=names), top={"sandbox-directories": [folder]}) as target:
            qemu.io(target.url(), "write -P 9 4M 4M", "flush")
            before = told(target)
            apply(target)
            proc.run(target.binary, "cp", "--verify", behind.urls[0], copy)
            is_same(copy, behind.urls[0])
            apply(target, Unit(path=copy, options=names))
            expect(told(target) == before and len(before) >= 3, f"{told(target)}, not {before}")
            qemu.io(target.url(), "read -P 9 4M 4M")


def chap(lab):
    """User and secret file; the secret is in no output. A wrong one says so."""
    folder = lab.new_folder("secret")

    def secret(name, text):
        path = os.path.join(folder, name)
        with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(f"{text}\n")
        return path

    right, wrong = secret("right", "far-secret-12"), secret("wrong", "far-secret-13")
    with far(lab, "tgt", chap=Chap("bridge", "far-secret-12")) as behind:
        url = behind.urls[0]
        with lab.serve(unit(behind, options=f"far-user=bridge,far-secret-file={right}")) as target:
            with wire.session(target) as session:
                expect(write(session, 0) == 0, "a write")
            expect("far-secret-12" not in open(target.log_path).read(), "the secret is in the log")
        refused(url, "Authentication failure")
        refused(f"{url},far-user=bridge,far-secret-file={wrong}", "Authentication failure")
        refused(url.replace("iscsi://", "iscsi://bridge%far-secret-12@"), "far-secret-file")


def block_sizes(lab):
    with far(lab, "tgt", Unit(mib=16, block_bytes=4096)) as behind, lab.serve(unit(behind)) as target:
        told = json.loads(proc.run(target.binary, "info", target.url(), "--json"))
        expect(told["block_bytes"] == 4096, f"block size: {told}")
        load(target, target.url())
        refused(f"{behind.urls[0]},bs=512", "bs=4096")


def read_only(lab):
    with far(lab, "tgt", Unit(mib=16, read_only=True)) as behind, lab.serve(unit(behind)) as target:
        with wire.session(target) as session:
            expect(write(session, 0) == CHECK_CONDITION, "a write is refused")
            expect(session.read(0, 8) == bytes(4096), "a read")


def reserved(lab):
    """Another initiator reserves the far unit: an unavailable path, until it releases it."""
    for kind in ("tgt", "stag"):
        with far(lab, kind, Unit(mib=16)) as behind, lab.serve(unit(behind)) as target, wire.session(target) as session:
            expect(write(session, 0) == 0, f"{kind}: a write before")
            with wire.session(behind, initiator="iqn.2026-01.example.lab:other") as other:
                expect(other.run(RESERVE)[0] == 0, f"{kind}: RESERVE")
                code, response, _ = session.run(WRITE, out=bytes(4096))
                expect(code == CHECK_CONDITION and sense_of(response) == NOT_READY_HERE, f"{kind}: {code:#x} {sense_of(response)}")
                expect(health(target)["state"] != "ok", f"{kind}: status tells")
                expect(other.run(RELEASE)[0] == 0, f"{kind}: RELEASE")
                expect(write(session, 8) == 0, f"{kind}: a write after")


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
                with wire.session(target) as session:
                    expect(flush(session), f"{kind}: no flush is refused")
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
    """SIGSTOP for longer than op-timeout: an unavailable path, no medium error, other units go on, and nothing comes late."""
    for kind in ("tgt", "istgt", "stag"):
        with far(lab, kind, Unit(mib=16)) as behind:
            near = unit(behind, cache="writethrough", options="op-timeout=2")
            with lab.serve(near, Unit(mib=16, memory=True)) as target, wire.session(target) as session:
                expect(write(session, 0) == 0, "a write before")
                proc.freeze(behind.process)
                try:
                    for number in (b"1", b"2"):
                        code, response, _ = session.run(WRITE, out=number * 4096)
                        expect(code == CHECK_CONDITION and sense_of(response) == NOT_READY_HERE, f"{kind}: {code:#x} {sense_of(response)}")
                    expect(health(target)["state"] == "failed", f"{kind}: status tells")
                    load(target, target.url(1))
                finally:
                    behind.process.send_signal(signal.SIGCONT)
                proc.wait_until(lambda: session.run(WRITE, out=b"3" * 4096)[0] == 0, 60, f"{kind}: it serves again")
                for _ in range(20):
                    expect(session.read(0, 8) == b"3" * 4096, f"{kind}: a write that came late")
                expect(flush(session), f"{kind}: SYNCHRONIZE CACHE")
                expect(health(target)["state"] == "ok", f"{kind}: status tells that it is over")


def ends_beside_a_stopped_target(lab):
    """SIGTERM ends the daemon though its far target is silent; it says that it could not flush."""
    with far(lab, "tgt", Unit(mib=16)) as behind, lab.serve(unit(behind, options="op-timeout=2")) as target:
        with wire.session(target) as session:
            expect(write(session, 0) == 0, "a write before")
        proc.freeze(behind.process)
        try:
            target.process.terminate()
            expect(target.process.wait(30) == 1, f"it ended with {target.process.returncode}")
        finally:
            behind.process.send_signal(signal.SIGCONT)
        target.restart()
        with wire.session(target) as session:
            expect(session.read(0, 8) == bytes([1]) * 4096, "what was written before")


def grown(lab):
    """A far unit that grows: READ CAPACITY of an initiator finds it."""
    with far(lab, "stag", Unit(mib=16)) as behind, lab.serve(unit(behind)) as target:
        with wire.session(target) as session:
            expect(write(session, 0) == 0, "a write before")
            os.truncate(behind.units[0].path, 32 * MIB)
            proc.run(behind.binary, "info", behind.urls[0])

            def is_larger():
                session.run(WRITE, out=bytes(4096))
                return json.loads(proc.run(target.binary, "info", target.url(), "--json"))["capacity_bytes"] == 32 * MIB

            proc.wait_until(is_larger, 60, "the near unit grows")


def taken_over(lab):
    """A successor's sessions have the names of those before them, and find what was written."""
    for kind in ("tgt", "stag"):
        with far(lab, kind, Unit(mib=16)) as behind, lab.serve(unit(behind)) as target:
            seen = set()
            for round in range(3):
                with wire.session(target) as session:
                    expect(write(session, 8 * round) == 0, f"{kind}: a write before")
                    if kind == "stag":
                        seen |= {(found["initiator"], found["isid"]) for found in status(behind)["sessions"]}
                target.take_over()
                with wire.session(target) as session:
                    expect(session.read(8 * round, 8) == bytes([8 * round % 255 + 1]) * 4096, f"{kind}: as the last daemon wrote")
                    expect(flush(session), f"{kind}: SYNCHRONIZE CACHE")
            expect(health(target)["state"] == "ok", f"{kind}: {health(target)}")
            cores = len(status(target)["cores"])
            expect(len(seen) <= cores, f"{len(seen)} names of sessions for {cores} cores: {seen}")


def many_sessions(lab):
    """Each core has a session, whichever initiators come; they share it."""
    with far(lab, "stag", Unit(mib=64)) as behind, lab.serve(unit(behind)) as target:
        load(target, target.url(), 2000, "--sessions", 4)
        cores, sessions = len(status(target)["cores"]), len(status(behind)["sessions"])
        expect(1 <= sessions <= cores, f"{sessions} sessions of {cores} cores")


CASES = [
    ("QEMU's patterns over tgt, istgt and Stag are on the far side, and our verified load passes", patterns),
    ("TCP to iSER and iSER to TCP", transports),
    ("a volume moves off an old target and keeps its names", moved),
    ("CHAP by a secret file, and never by a URL", chap),
    ("block sizes of a far unit are kept to", block_sizes),
    ("far write protection", read_only),
    ("a far unit that another initiator reserves is an unavailable path", reserved),
    ("kill -9 of the far target under load loses no durable write", killed),
    ("flushes are refused after a far target died with unflushed writes", cache_lost),
    ("a stopped far target is an unavailable path, disturbs no other unit, and nothing comes late", stopped),
    ("a daemon ends beside a stopped far target", ends_beside_a_stopped_target),
    ("a far unit that grows", grown),
    ("a takeover over a far unit keeps the sessions' names", taken_over),
    ("one session a core for many initiators", many_sessions),
]
