"""Exports of NBD servers that we did not write, nbdkit and qemu-nbd, served as units; other clients look at the same bytes."""

import contextlib
import json
import os
import signal
import subprocess

from lab import proc, wire
from lab.report import expect
from lab.target import Stag, Unit
from peers import qemu
from peers.health import SYNCHRONIZE, acknowledge, flush, status, write
from peers.session import CHECK_CONDITION

MIB = 1 << 20
NOT_READY_HERE = (2, 0x04, 0x0C)  # NOT READY, TARGET PORT IN UNAVAILABLE STATE


@contextlib.contextmanager
def running(lab, *command, socket):
    """A server in the foreground that listens on `socket`."""
    log = open(os.path.join(lab.new_folder("nbd"), "log"), "w")
    process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log)
    try:
        proc.wait_until(lambda: os.path.exists(socket) or process.poll() is not None, 20, f"{command[0]} listens")
        expect(process.poll() is None, f"{command}: {open(log.name).read()}")
        yield process
    finally:
        proc.end(process)
        log.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket)


def nbdkit(lab, socket, *words):
    proc.need("nbdkit")
    return running(lab, "nbdkit", "--foreground", "--unix", socket, "--exit-with-parent", *words, socket=socket)


def qemu_nbd(lab, socket, *words):
    proc.need("qemu-nbd")
    return running(lab, "qemu-nbd", "--persistent", "--shared", 0, "--socket", socket, *words, socket=socket)


def socket_of(lab):
    return os.path.join(lab.new_folder("socket"), "nbd")


def uri(socket, export=""):
    return f"nbd+unix:///{export}?socket={socket}"


def unit(socket, export="", **more):
    return Unit(path=uri(socket, export), **more)


def sense(answer):
    """Key, code and qualifier of a command's sense data in fixed format."""
    data = answer[2:] if answer[:1] == b"\0" else answer
    return (data[2] & 15, data[12], data[13])


def patterns(lab):
    """QEMU's patterns, discards and zeros over iSCSI; nbdcopy finds the same bytes beside it."""
    proc.need("qemu-io", "qemu-img", "nbdcopy")
    socket = socket_of(lab)
    source = os.path.join(lab.new_folder("source"), "raw")
    qemu.random_image(source, 64)
    with nbdkit(lab, socket, "memory", "64M"), lab.serve(unit(socket, thin=True)) as target:
        proc.run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, target.url())
        expect("identical" in proc.run("qemu-img", "compare", "-f", "raw", "-F", "raw", source, target.url()), "as written")
        qemu.io(target.url(), "write -P 0xa5 0 1M", "read -P 0xa5 0 1M", "write -z 512k 256k", "read -P 0 512k 256k",
                "discard 8M 8M", "read -P 0 8M 8M", "write -f -P 0x11 4096 4096", "flush", "write -P 7 63M 1M", "read -P 7 63M 1M")
        copy = os.path.join(lab.new_folder("copy"), "raw")
        proc.run("nbdcopy", uri(socket), copy)
        expect("identical" in proc.run("qemu-img", "compare", "-f", "raw", "-F", "raw", copy, target.url()), "nbdcopy")
        proc.run(target.binary, "bench", target.url(), "-p", "randrw", "--bs", "4k", "--depth", 16, "--count", 3000, "--verify")


def qcow2(lab):
    """A qcow2 image behind qemu-nbd: holes are told and made, and qemu-img finds it whole afterwards."""
    proc.need("qemu-io", "qemu-img")
    socket, image = socket_of(lab), os.path.join(lab.new_folder("image"), "qcow2")
    proc.run("qemu-img", "create", "-f", "qcow2", image, "64M")
    with qemu_nbd(lab, socket, "--discard", "unmap", "--format", "qcow2", image):
        with lab.serve(unit(socket, thin=True)) as target:
            qemu.io(target.url(), "write -P 9 0 8M", "flush")
            told = json.loads(proc.run("qemu-img", "map", "--output=json", target.url()))
            mapped = [(run["start"], run["length"]) for run in told if run["data"]]
            expect(mapped == [(0, 8 * MIB)], f"mapped: {told}")
            qemu.io(target.url(), "discard 0 4M", "read -P 0 0 4M", "read -P 9 4M 4M", "flush")
    expect("No errors were found" in proc.run("qemu-img", "check", image), "the image is whole")
    told = json.loads(proc.run("qemu-img", "map", "--output=json", image))
    expect(sum(run["length"] for run in told if run["data"]) == 4 * MIB, f"allocated: {told}")


def block_sizes(lab):
    """A server of 4096-byte blocks makes a unit of them, and is sent nothing smaller; one of smaller maximum gets pieces."""
    proc.need("qemu-io")
    socket = socket_of(lab)
    policy = ("blocksize-minimum=4096", "blocksize-preferred=65536", "blocksize-maximum=131072", "blocksize-error-policy=error")
    with nbdkit(lab, socket, "--filter=blocksize-policy", "memory", "16M", *policy), lab.serve(unit(socket)) as target:
        expect(wire.Session(target).capacity()[1] == 4096, "block size")
        qemu.io(target.url(), "write -P 3 0 8M", "read -P 3 0 8M", "write -P 4 1000 3000", "read -P 4 1000 3000")
        printed = proc.run(target.binary, "serve", "--control", "none", "--listen", f"127.0.0.1:{proc.free_port()}",
                           f"{uri(socket)},bs=512", ok=None, timeout=30)
        expect(printed.code not in (0, None) and "bs=4096" in printed, printed)


def one_and_many_connections(lab):
    """A server without CAN_MULTI_CONN has one client at a time; one with it serves each core."""
    proc.need("qemu-io")
    for words, most in ((("--filter=multi-conn", "multi-conn-mode=disable"), 1), ((), 64)):
        socket, log = socket_of(lab), os.path.join(lab.new_folder("log"), "nbd")
        words = ("--filter=log", *(w for w in words if w.startswith("--")), "memory", "64M", f"logfile={log}",
                 *(w for w in words if not w.startswith("--")))
        with nbdkit(lab, socket, *words), lab.serve(unit(socket)) as target:
            proc.run(target.binary, "bench", target.url(), "-p", "randrw", "--sessions", 4, "--depth", 8, "--count", 2000, "--verify")
            with open(log) as file:
                connections = sum(" Connect " in line for line in file)
            expect(1 <= connections <= most, f"{connections} connections, {most} allowed")


def read_only(lab):
    proc.need("qemu-io")
    socket = socket_of(lab)
    with nbdkit(lab, socket, "--readonly", "memory", "16M"), lab.serve(unit(socket)) as target:
        with wire.Session(target) as session:
            expect(write(session, 0) == CHECK_CONDITION, "a write is refused")
        qemu.io(target.url(), "read -P 0 0 1M", options=("-r",))


def errors(lab):
    """Errors of the server are errors of the medium; when they end, so does it."""
    socket, trigger = socket_of(lab), os.path.join(lab.new_folder("trigger"), "fail")
    words = ("--filter=error", "memory", "16M", "error-pwrite=ENOSPC", "error-pwrite-rate=100%", f"error-file={trigger}")
    with nbdkit(lab, socket, *words), lab.serve(unit(socket)) as target, wire.Session(target) as session:
        expect(write(session, 0) == 0, "no error yet")
        open(trigger, "w").close()
        expect(write(session, 0) == CHECK_CONDITION, "SPACE ALLOCATION FAILED")
        expect("full" in json.dumps(status(target)), "status tells")
        os.unlink(trigger)
        expect(write(session, 0) == 0, "writes again")


def killed(lab):
    """kill -9 of the server under load: with each write durable nothing is lost, and service resumes by itself."""
    socket, image = socket_of(lab), os.path.join(lab.new_folder("image"), "raw")
    proc.run("truncate", "-s", "64M", image)
    server = lambda: nbdkit(lab, socket, "file", image)  # noqa: E731
    with server() as first, lab.serve(unit(socket, cache="writethrough")) as target:
        load = subprocess.Popen([target.binary, "bench", target.url(), "-p", "randrw", "--depth", "8", "--count", "20000", "--verify"],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            with wire.Session(target) as session:
                expect(write(session, 100) == 0, "a write before")
            first.kill()
            first.wait()
            os.unlink(socket)
            with server():
                with wire.Session(target) as session:
                    proc.wait_until(lambda: session.read(100, 8) == bytes([101]) * 4096, 60, "the server is found again")
                    expect(flush(session), "no flush is refused")
        finally:
            proc.end(load)
            load.stdout.close()


def cache_lost(lab):
    """A server that dies with unflushed writes: flushes are refused until an administrator has acknowledged that."""
    socket = socket_of(lab)
    with nbdkit(lab, socket, "memory", "16M") as first, lab.serve(unit(socket)) as target:
        with wire.Session(target) as session:
            expect(write(session, 0) == 0, "it is in the server's cache")
        first.kill()
        first.wait()
        os.unlink(socket)
        with nbdkit(lab, socket, "memory", "16M"), wire.Session(target) as session:
            proc.wait_until(lambda: write(session, 8) == 0, 60, "the new server serves")
            expect(not flush(session), "SYNCHRONIZE CACHE is refused")
            acknowledge(target)
            expect(flush(session), "after stag acknowledge")


def stopped(lab):
    """SIGSTOP for longer than op-timeout: an unavailable path, no medium error; SIGCONT ends it."""
    socket = socket_of(lab)
    with nbdkit(lab, socket, "memory", "16M") as server, lab.serve(unit(socket, cache="writethrough", options="op-timeout=2")) as target:
        with wire.Session(target) as session:
            expect(write(session, 0) == 0, "a write before")
            server.send_signal(signal.SIGSTOP)
            try:
                code, _, data = session.run(b"\x2a\0\0\0\0\0\0\0\x08\0", out=bytes(4096))
                expect(code == CHECK_CONDITION and sense(data) == NOT_READY_HERE, f"{code:#x} {data.hex()}")
            finally:
                server.send_signal(signal.SIGCONT)
            proc.wait_until(lambda: write(session, 0) == 0, 60, "it serves again")
            code, _, _ = session.run(SYNCHRONIZE)
            expect(code == 0, "SYNCHRONIZE CACHE")


def identity(lab):
    """An export is the same disk after a restart of the daemon, and another export is another disk."""
    first, second = socket_of(lab), socket_of(lab)
    with nbdkit(lab, first, "memory", "16M"), nbdkit(lab, second, "memory", "16M"):
        seen = []
        for _ in range(2):
            with lab.serve(unit(first), unit(second)) as target:
                seen.append([proc.run(target.binary, "info", target.url(n), "--json") for n in range(2)])
        names = [[json.loads(text)["naa"] for text in run] for run in seen]
        expect(names[0] == names[1] and names[0][0] != names[0][1], f"{names}")


def refusals(lab):
    """What cannot be served is said, and what to do."""
    socket = socket_of(lab)
    tls = os.path.join(lab.new_folder("psk"), "keys")
    with open(tls, "w") as file:
        file.write("user:" + "00" * 32 + "\n")
    ours = lambda path: proc.run(Stag.binary, "serve", "--control", "none", "--listen", f"127.0.0.1:{proc.free_port()}",  # noqa: E731
                                 path, ok=None, timeout=60)
    with nbdkit(lab, socket, "--tls=require", f"--tls-psk={tls}", "memory", "16M"):
        printed = ours(uri(socket))
        expect(printed.code not in (0, None) and "requires TLS" in printed, printed)
    image = os.path.join(lab.new_folder("image"), "raw")
    proc.run("truncate", "-s", "16M", image)
    with qemu_nbd(lab, socket, "--export-name", "disk", "--format", "raw", image):
        printed = ours(uri(socket, "other"))
        expect(printed.code not in (0, None) and "no export" in printed, printed)
    for path, says in ((uri(socket), "cannot be reached"), ("nbds://localhost/x", "TLS is not supported"), ("nbd:///x", "host is missing")):
        printed = ours(path)
        expect(printed.code not in (0, None) and says in printed, f"{path}: {printed}")


CASES = [
    ("QEMU's patterns over iSCSI are what nbdcopy finds, and our verified load passes", patterns),
    ("a qcow2 image tells and makes holes, and is whole afterwards", qcow2),
    ("block sizes of a server are kept to", block_sizes),
    ("one connection where a server allows one, several where it allows several", one_and_many_connections),
    ("read-only exports are write-protected", read_only),
    ("errors of a server are errors of the medium while they last", errors),
    ("kill -9 of the server under load loses no durable write", killed),
    ("flushes are refused after a server died with unflushed writes", cache_lost),
    ("a stopped server is an unavailable path, and serves again by itself", stopped),
    ("an export keeps its identity, and another one has another", identity),
    ("what cannot be served says why", refusals),
]
