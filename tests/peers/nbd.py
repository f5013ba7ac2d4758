"""Exports of NBD servers that we did not write, nbdkit and qemu-nbd, served as units; other clients look at the same bytes."""

import contextlib
import json
import os
import signal
import socket as connections
import struct
import subprocess
import threading

from lab import proc, wire
from lab.report import expect
from lab.target import Stag, Unit

from . import cu, qemu
from .health import acknowledge, flush, status, write
from .session import CHECK_CONDITION, sense_of

MIB = 1 << 20
WRITE = struct.pack(">BBIBHB", 0x2A, 0, 0, 0, 8, 0)
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
    shared = () if "--shared" in words else ("--shared", 0)
    return running(lab, "qemu-nbd", "--persistent", *shared, "--socket", socket, *words, socket=socket)


def socket_of(lab):
    return os.path.join(lab.new_folder("socket"), "nbd")


def uri(socket, export=""):
    return f"nbd+unix:///{export}?socket={socket}"


def unit(socket, export="", **more):
    return Unit(path=uri(socket, export), **more)


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
        proc.run(target.binary, "bench", target.url(), "-p", "randrw", "--bs", "4k", "--depth", 16, "--count", 3000, "--verify", "--destroy")


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


def end_of(server, socket):
    """kill -9. The socket's file stays."""
    server.kill()
    server.wait()
    os.unlink(socket)


def block_sizes(lab):
    """A server of 4096-byte blocks makes a unit of them, and is sent nothing smaller; one of smaller maximum gets pieces."""
    proc.need("qemu-io")
    socket = socket_of(lab)
    policy = ("blocksize-minimum=4096", "blocksize-preferred=65536", "blocksize-maximum=131072", "blocksize-error-policy=error")
    with nbdkit(lab, socket, "--filter=blocksize-policy", "memory", "16M", *policy), lab.serve(unit(socket)) as target:
        told = json.loads(proc.run(target.binary, "info", target.url(), "--json"))
        expect(told["block_bytes"] == 4096, f"block size: {told}")
        qemu.io(target.url(), "write -P 3 0 8M", "read -P 3 0 8M", "write -P 4 1000 3000", "read -P 4 1000 3000")
        refused(f"{uri(socket)},bs=512", "bs=4096")


def one_and_many_connections(lab):
    """A server without CAN_MULTI_CONN has one client at a time; one with it serves each core."""
    for words, most in ((("--filter=multi-conn", "multi-conn-mode=disable"), 1), ((), 64)):
        socket, log = socket_of(lab), os.path.join(lab.new_folder("log"), "nbd")
        words = ("--filter=log", *(w for w in words if w.startswith("--")), "memory", "64M", f"logfile={log}",
                 *(w for w in words if not w.startswith("--")))
        with nbdkit(lab, socket, *words), lab.serve(unit(socket)) as target:
            proc.run(target.binary, "bench", target.url(), "-p", "randrw", "--sessions", 4, "--depth", 8, "--count", 2000, "--verify", "--destroy")
            with open(log) as file:
                connections = sum(" Connect " in line for line in file)
            expect(1 <= connections <= most, f"{connections} connections, {most} allowed")


def read_only(lab):
    proc.need("qemu-io")
    socket = socket_of(lab)
    with nbdkit(lab, socket, "--readonly", "memory", "16M"), lab.serve(unit(socket)) as target:
        with wire.session(target) as session:
            expect(write(session, 0) == CHECK_CONDITION, "a write is refused")
        qemu.io(target.url(), "read -P 0 0 1M", options=("-r",))


def errors(lab):
    """Errors of the server are errors of the medium; when they end, so does it."""
    socket, trigger = socket_of(lab), os.path.join(lab.new_folder("trigger"), "fail")
    words = ("--filter=error", "memory", "16M", "error-pwrite=ENOSPC", "error-pwrite-rate=100%", f"error-file={trigger}")
    with nbdkit(lab, socket, *words), lab.serve(unit(socket)) as target, wire.session(target) as session:
        expect(write(session, 0) == 0, "no error yet")
        open(trigger, "w").close()
        code, response, _ = session.run(WRITE, out=bytes(4096))
        expect(code == CHECK_CONDITION and sense_of(response) == (7, 0x27, 7), f"not SPACE ALLOCATION FAILED: {sense_of(response)}")
        expect("full" in json.dumps(status(target)), "status tells")
        os.unlink(trigger)
        expect(write(session, 0) == 0, "writes again")


def delays(lab):
    """Requests overtake each other where a server lets them: slow reads beside fast writes."""
    socket = socket_of(lab)
    words = ("--filter=delay", "--threads=32", "memory", "16M", "rdelay=20ms")
    with nbdkit(lab, socket, *words), lab.serve(unit(socket)) as target:
        proc.run(target.binary, "bench", target.url(), "-p", "randrw", "--bs", "4k", "--depth", 32, "--count", 500, "--verify", "--destroy")


class Writer(threading.Thread):
    """Writes one block after the other, each until it is GOOD, and notes what else it was told."""

    def __init__(self, target):
        super().__init__()
        self.target, self.good, self.told, self.stopping, self.failure = target, {}, set(), False, None

    def run(self):
        try:
            with wire.session(self.target, initiator="iqn.2026-01.example.lab:writer", timeout=60) as session:
                number = 0
                while not self.stopping:
                    number += 1
                    lba, data = number % 1000 * 8, struct.pack(">Q", number) * 512
                    while True:
                        code, response, _ = session.run(struct.pack(">BBIBHB", 0x2A, 0, lba, 0, 8, 0), out=data)
                        if code == 0:
                            break
                        self.told.add(sense_of(response))
                    self.good[lba] = data
        except Exception as error:  # noqa: BLE001
            self.failure = error

    def end(self):
        self.stopping = True
        self.join(90)
        expect(not self.is_alive() and self.failure is None, f"the writer: {self.failure or 'hangs'}")


def killed(lab):
    """kill -9 of the server under load, three times: each write is durable or asked for again, and initiators see at most an
    unavailable path."""
    socket, image = socket_of(lab), os.path.join(lab.new_folder("image"), "raw")
    proc.run("truncate", "-s", "16M", image)
    with lab_servers(lab, socket, "file", image) as start:
        server = start()
        with lab.serve(unit(socket, cache="writethrough", options="op-timeout=3")) as target:
            writer = Writer(target)
            writer.start()
            for away in (0, 0.5, 5):
                before = len(writer.good)
                proc.wait_until(lambda: len(writer.good) > before + 20 or writer.failure, 60, "the load runs")
                end_of(server, socket)
                threading.Event().wait(away)
                server = start()
            before = len(writer.good)
            proc.wait_until(lambda: len(writer.good) > before or writer.failure or len(writer.good) == 1000, 60, "service resumes")
            writer.end()
            expect(writer.told <= {NOT_READY_HERE}, f"told: {writer.told}")
            with wire.session(target) as session:
                expect(flush(session), "no flush is refused")
    with open(image, "rb") as file:
        bytes_now = file.read()
    for lba, data in writer.good.items():
        expect(bytes_now[lba * 512:lba * 512 + 4096] == data, f"LBA {lba} was acknowledged and is lost")


@contextlib.contextmanager
def lab_servers(lab, socket, *words):
    """A function that starts nbdkit once more, all of them ended at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(nbdkit(lab, socket, *words))


def cache_lost(lab):
    """A server that dies with unflushed writes: flushes are refused until an administrator has acknowledged that."""
    socket = socket_of(lab)
    with lab_servers(lab, socket, "memory", "16M") as start:
        server = start()
        with lab.serve(unit(socket)) as target:
            with wire.session(target) as session:
                expect(write(session, 0) == 0, "it is in the server's cache")
                end_of(server, socket)
                start()
                expect(write(session, 8) == 0, "the new server serves")
                expect(not flush(session), "SYNCHRONIZE CACHE is GOOD")
                acknowledge(target)
                expect(flush(session), "refused after stag acknowledge")


def stopped(lab):
    """SIGSTOP for longer than op-timeout: an unavailable path, no medium error, no loss, and nothing that comes late."""
    for words in (("memory", "16M"), ("--filter=multi-conn", "memory", "16M", "multi-conn-mode=disable")):
        socket = socket_of(lab)
        with nbdkit(lab, socket, *words) as server, lab.serve(unit(socket, options="op-timeout=2")) as target:
            with wire.session(target) as session:
                expect(write(session, 0) == 0, "a write before")
                proc.freeze(server)
                try:
                    code, response, _ = session.run(WRITE, out=b"1" * 4096)
                    expect(code == CHECK_CONDITION and sense_of(response) == NOT_READY_HERE, f"{code:#x} {sense_of(response)}")
                    code, response, _ = session.run(WRITE, out=b"2" * 4096)
                    expect(code == CHECK_CONDITION and sense_of(response) == NOT_READY_HERE, f"{code:#x} {sense_of(response)}")
                    expect(status(target)["targets"][0]["units"][0]["health"]["state"] == "failed", "status tells")
                finally:
                    server.send_signal(signal.SIGCONT)
                proc.wait_until(lambda: session.run(WRITE, out=b"3" * 4096)[0] == 0, 60, "it serves again")
                expect(session.read(0, 8) == b"3" * 4096, "a write that came late")
                expect(flush(session), "SYNCHRONIZE CACHE")
                expect(status(target)["targets"][0]["units"][0]["health"]["state"] == "ok", "status tells that it is over")


def ends_beside_a_stopped_server(lab):
    """SIGTERM ends the daemon though its server is silent; it says that it could not flush."""
    socket = socket_of(lab)
    with nbdkit(lab, socket, "memory", "16M") as server, lab.serve(unit(socket, options="op-timeout=2")) as target:
        with wire.session(target) as session:
            expect(write(session, 0) == 0, "a write before")
        proc.freeze(server)
        try:
            target.process.terminate()
            expect(target.process.wait(30) == 1, f"it ended with {target.process.returncode}")
        finally:
            server.send_signal(signal.SIGCONT)
        target.restart()
        with wire.session(target) as session:
            expect(session.read(0, 8) == bytes([1]) * 4096, "what was written before")


def resized(lab):
    """Over TCP: a server that is started anew with a longer export has a longer unit, and initiators are told."""
    image, port = os.path.join(lab.new_folder("image"), "raw"), proc.free_port()
    proc.run("truncate", "-s", "16M", image)
    server = lambda: subprocess.Popen(["nbdkit", "--foreground", "--ipaddr", "127.0.0.1", "--port", str(port), "file", image])  # noqa: E731
    first = server()
    try:
        wait_for_port(port)
        with lab.serve(Unit(path=f"nbd://localhost:{port}/")) as target, wire.session(target) as session:
            expect(session.read(0, 8) == bytes(4096), "zeros")
            first.kill()  # SIGTERM would have nbdkit wait for its clients.
            first.wait()
            proc.run("truncate", "-s", "32M", image)
            first = server()
            proc.wait_until(lambda: session.run(WRITE, out=bytes(4096))[0] == 0, 60, "it serves again")
            told = json.loads(proc.run(target.binary, "info", target.url(), "--json"))
            expect(told["capacity_bytes"] == 32 * MIB, f"capacity: {told}")
    finally:
        proc.end(first)


def wait_for_port(port):
    def is_open():
        with contextlib.suppress(OSError), connections.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    proc.wait_until(is_open, 20, f"port {port} is open")


def taken_over(lab):
    """A successor gets the export of a server that allows one client, with what was not flushed."""
    socket, image = socket_of(lab), os.path.join(lab.new_folder("image"), "qcow2")
    proc.run("qemu-img", "create", "-f", "qcow2", image, "16M")
    with qemu_nbd(lab, socket, "--shared", 1, "--format", "qcow2", image), lab.serve(unit(socket)) as target:
        for round in range(3):
            with wire.session(target) as session:
                expect(write(session, 8 * round) == 0, "a write before")
            target.take_over()
            with wire.session(target) as session:
                expect(session.read(8 * round, 8) == bytes([8 * round % 255 + 1]) * 4096, "as the last daemon wrote")
                expect(flush(session), "SYNCHRONIZE CACHE")
    expect("No errors were found" in proc.run("qemu-img", "check", image), "the image is whole")


def two_daemons(lab):
    """Nothing keeps two daemons apart where a server allows several clients: both see what either has written."""
    socket = socket_of(lab)
    with nbdkit(lab, socket, "memory", "16M"), lab.serve(unit(socket)) as one, lab.serve(unit(socket)) as other:
        with wire.session(one) as first, wire.session(other) as second:
            expect(write(first, 0) == 0 and write(second, 8) == 0, "both write")
            for session in (first, second):
                expect(session.read(0, 16) == bytes([1]) * 4096 + bytes([9]) * 4096, "both read")


def identity(lab):
    """An export is the same disk after a restart of the daemon, and another export is another disk."""
    first, second = socket_of(lab), socket_of(lab)
    with nbdkit(lab, first, "memory", "16M"), nbdkit(lab, second, "memory", "16M"):
        seen = []
        for _ in range(2):
            with lab.serve(unit(first), unit(second)) as target:
                units = status(target)["targets"][0]["units"]
                seen.append([found["naa"] for found in units])
        expect(seen[0] == seen[1] and seen[0][0] != seen[0][1], f"{seen}")


def refused(path, says):
    printed = proc.run(Stag.binary, "serve", "--control", "none", "--listen", f"127.0.0.1:{proc.free_port()}", path, ok=None, timeout=60)
    expect(printed.code not in (0, None) and says in printed, f"{path}: {printed}")


def refusals(lab):
    """What cannot be served is said, and what to do."""
    socket = socket_of(lab)
    tls = os.path.join(lab.new_folder("psk"), "keys")
    with open(tls, "w") as file:
        file.write("user:" + "00" * 32 + "\n")
    with nbdkit(lab, socket, "--tls=require", f"--tls-psk={tls}", "memory", "16M"):
        refused(uri(socket), "requires TLS")
    image = os.path.join(lab.new_folder("image"), "raw")
    proc.run("truncate", "-s", "16M", image)
    with qemu_nbd(lab, socket, "--export-name", "disk", "--format", "raw", image):
        refused(uri(socket, "other"), "no export")
    for path, says in ((uri(socket), "cannot be reached"), ("nbds://localhost/x", "TLS is not supported"), ("nbd:///x", "host is missing")):
        refused(path, says)


def iscsi_test_cu(lab):
    """All of iscsi-test-cu over exports of both servers."""
    proc.need("iscsi-test-cu")
    first, second, image = socket_of(lab), socket_of(lab), os.path.join(lab.new_folder("image"), "qcow2")
    with nbdkit(lab, first, "memory", "64M"), lab.serve(unit(first, thin=True)) as target:
        cu.all_of_a_thin_unit(target)
    proc.run("qemu-img", "create", "-f", "qcow2", image, "64M")
    with qemu_nbd(lab, second, "--discard", "unmap", "--format", "qcow2", image), lab.serve(unit(second, thin=True)) as target:
        cu.all_of_a_thin_unit(target)


CASES = [
    ("QEMU's patterns over iSCSI are what nbdcopy finds, and our verified load passes", patterns),
    ("a qcow2 image tells and makes holes, and is whole afterwards", qcow2),
    ("block sizes of a server are kept to", block_sizes),
    ("one connection where a server allows one, several where it allows several", one_and_many_connections),
    ("read-only exports are write-protected", read_only),
    ("errors of a server are errors of the medium while they last", errors),
    ("requests overtake each other at a slow server", delays),
    ("kill -9 of the server under load loses no durable write", killed),
    ("flushes are refused after a server died with unflushed writes", cache_lost),
    ("a stopped server is an unavailable path, and serves again by itself", stopped),
    ("a daemon ends beside a stopped server", ends_beside_a_stopped_server),
    ("a longer export behind TCP is a longer unit", resized),
    ("a takeover of an export for one client", taken_over),
    ("two daemons on one export see each other's writes", two_daemons),
    ("an export keeps its identity, and another one has another", identity),
    ("what cannot be served says why", refusals),
    ("iscsi-test-cu over exports of both servers", iscsi_test_cu),
]
