"""Wireshark's dissector reads what the target sends: no PDU of a captured session may be malformed."""

import os
import struct
import subprocess
import time

from lab import proc, wire
from lab.report import Failed, Skip, expect
from lab.target import Chap, Unit


class Gaps(Failed):
    """The capture is not whole."""


def whole(case):
    """A case that is tried again when its capture has gaps: a machine that is busy with something else loses packets for tshark."""
    def tries(lab):
        for left in (4, 3, 2, 1, 0):
            try:
                return case(lab)
            except Gaps:
                if not left:
                    raise
    return tries


def captured(target, traffic):
    """Capture the loopback, or the interface that the target names, while `traffic` runs; the file's path."""
    path = os.path.join(target.folder, "session.pcapng")
    log = os.path.join(target.folder, "tshark.log")
    # Before everybody else, where that is allowed: whoever loses packets has missed its turn.
    first = ["chrt", "--fifo", "1"]
    if proc.run(*first, "true", ok=None).code != 0:
        first = []
    with open(log, "wb") as errors:
        process = subprocess.Popen([*first, "tshark", "-q", "-B", "256", "-i", getattr(target, "interface", "lo"), "-f", f"tcp port {target.port}",
                                    "-w", path], stdout=errors, stderr=errors)
    try:
        proc.wait_until(lambda: os.path.exists(path) and os.path.getsize(path) > 0 or process.poll() is not None, 60,
                        "tshark captures")
        if process.poll() is not None:
            with open(log) as file:
                raise Skip(f"tshark cannot capture here: {proc.tail(file.read(), 2)}")
        time.sleep(0.5)
        traffic()
        settled(path)
    finally:
        process.terminate()
        process.wait(60)
    gaps = decode(target, path, "tcp.analysis.lost_segment || tcp.analysis.ack_lost_segment")
    if gaps:
        raise Gaps(f"the capture has gaps: {len(gaps)}\n" + "\n".join(gaps[:3]))
    return path


def settled(path):
    """Waits until a capture grows no more."""
    size, limit = -1, time.monotonic() + 30
    while size != os.path.getsize(path) and time.monotonic() < limit:
        size = os.path.getsize(path)
        time.sleep(1)


def decode(target, path, filter_, *fields):
    words = [word for field in fields for word in ("-e", field)]
    printed = proc.run("tshark", "-r", path, "-d", f"tcp.port=={target.port},iscsi", "-Y", filter_,
                       *(["-T", "fields", *words] if fields else []), timeout=120)
    return [line for line in printed.splitlines() if "Running as user" not in line]


def check(target, path, at_least):
    """No malformed PDU. Parameter data that the initiator's allocation length cut off looks malformed to the dissector,
    and is not: then as many bytes came as the command expected at most."""
    pdus = decode(target, path, "iscsi.opcode", "frame.number", "tcp.stream", "iscsi.initiatortasktag", "iscsi.datasegmentlength",
                  "iscsi.scsicommand.expecteddatatransferlength")
    expect(len(pdus) >= at_least, f"Wireshark sees {len(pdus)} packets with PDUs, fewer than {at_least}")
    wanted, lengths = {}, {}
    for line in pdus:
        frame, stream, tags, length, expected = (line.split("\t") + [""] * 5)[:5]
        for tag, most in zip(tags.split(","), expected.split(",")):
            if most:
                wanted[stream, tag] = int(most, 0)
        lengths[frame] = (stream, tags.split(",")[-1], length.split(",")[-1])
    malformed = []
    for line in decode(target, path, "_ws.malformed"):
        if not line.strip():
            continue
        stream, tag, length = lengths.get(line.split()[0], ("", "", ""))
        if not length or int(length, 0) != wanted.get((stream, tag)):
            malformed.append(line.strip())
    expect(not malformed, "malformed:\n" + "\n".join(malformed[:10]))


def session_of_everything(lab):
    """Discovery, login with CHAP, reads, writes, sense, mode pages, task management, NOP, text, rejects, logout."""
    proc.need("tshark", "iscsi-ls", "iscsi-inq", "qemu-io")
    with lab.serve(Unit(thin=True), Unit(block_bytes=4096), chap=Chap("alice", "alice-secret-12")) as target:
        def traffic():
            proc.run("iscsi-ls", f"iscsi://alice%alice-secret-12@{target.portal}", ok=None)
            for page in (0, 0x80, 0x83, 0xB0, 0xB1, 0xB2):
                proc.run("iscsi-inq", "-e", 1, "-c", page, target.url())
            proc.run("qemu-io", "-f", "raw", "-c", "write 0 1M", "-c", "read 0 1M", "-c", "discard 0 64k", target.url(1))
            for suite in ("ModeSense6", "ReportSupportedOpcodes", "PrinReportCapabilities", "ReadCapacity16",
                          "GetLBAStatus", "iSCSIResiduals"):
                proc.run("iscsi-test-cu", "-d", "-t", f"ALL.{suite}", target.url(), timeout=90, ok=None)

        check(target, captured(target, traffic), 200)


def by_hand(lab):
    """Without CHAP: rejects, NOPs, task management, text, and both digests."""
    proc.need("tshark")
    with lab.serve(Unit(memory=True)) as target:
        def traffic():
            with wire.session(target) as session:
                session.nop(b"x" * 100)
                session.write(0, bytes(65536))
                session.read(0, 128)
                session.run(bytes([0xC7]))
                session.task_management(5)
                session.test_unit_ready()
                session.send(wire.bhs(wire.SNACK | wire.IMMEDIATE, wire.FINAL, 0, 0, 5,
                                      struct.pack(">III", wire.NO_TAG, session.command_number, 0)))
                time.sleep(0.2)
            with wire.session(target, HeaderDigest="CRC32C", DataDigest="CRC32C") as session:
                session.write(0, bytes(8192))
                session.read(0, 16)
                session.logout()
            with wire.Connection(target) as discovery:
                discovery.login()
                text = b"SendTargets=All\0"
                discovery.send(wire.bhs(wire.TEXT | wire.IMMEDIATE, wire.FINAL, len(text), 0, 3,
                                        struct.pack(">III", wire.NO_TAG, 1, discovery.status_number)), text)
                discovery.receive()

        check(target, captured(target, traffic), 20)


CASES = [
    ("tshark decodes sessions of libiscsi and QEMU without a malformed PDU", whole(session_of_everything)),
    ("tshark decodes rejects, NOPs, digests and text without a malformed PDU", whole(by_hand)),
]
