"""A daemon that is managed while initiators use it: stag apply, SIGHUP, stag status, and a new daemon that takes the old one's place."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

from lab import nfs, proc, wire
from lab.report import Failed, Skip, expect
from lab.target import Stag, Unit
from lab.terminal import Terminal

from .session import CHECK_CONDITION, sense_of

MIB = 1 << 20


def stag(target, verb, *words, ok=(0,)):
    return proc.run(Stag.binary, verb, "--control", target.control, *words, ok=ok)


def document(target):
    """Writes what the target is to be into its configuration file."""
    path = os.path.join(target.folder, "stag.toml")
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(target.config())
    return path


def apply(target, *words):
    return json.loads(stag(target, "apply", "--json", *words, document(target)))


def served(lab, *units, **extra):
    if lab.kind != "stag":
        raise Skip("stag's own management")
    return lab.serve(*units, limits={"nop-interval": 0}, **extra)


def pending(session, lun=0):
    """The unit attentions that a session finds, as ASC and ASCQ."""
    found = []
    for _ in range(20):
        status, response, _ = session.run(bytes(6), lun=lun)
        if status != CHECK_CONDITION:
            return found
        sense = sense_of(response)
        found.append(sense[1:])
    return found


def grown(lab):
    """A unit that grows, and a new one, as a session and libiscsi's tools see them."""
    proc.need("iscsi-readcapacity16", "iscsi-inq")
    with served(lab, Unit(mib=64)) as target:
        with wire.session(target) as session:
            pending(session)
            os.truncate(target.units[0].path, 96 * MIB)
            target.units.append(Unit(mib=8, path=os.path.join(target.folder, "more.img")))
            outcome = apply(target)
            expect(outcome["applied"] and outcome["sessions_changed"] == 1, f"apply says {outcome}")
            log = target.log(100)
            expect(f'what="control" verb="apply" uid={os.geteuid()}' in log, f"the audit log does not say who applied:\n{log}")
            found = pending(session)
            expect((0x3F, 0x0E) in found, f"REPORTED LUNS DATA HAS CHANGED is not among {found}")
            expect((0x2A, 0x09) in found, f"CAPACITY DATA HAS CHANGED is not among {found}")
            size = int(proc.run("iscsi-readcapacity16", "-s", target.url()).split()[-1])
            expect(size == 96 * MIB, f"iscsi-readcapacity16 finds {size} bytes")
        other = target.url().rsplit("/", 1)[0] + "/1"
        expect("DIRECT_ACCESS" in proc.run("iscsi-inq", other), "the new unit is no disk")
        target.units.pop()
        apply(target)
        gone = proc.run("iscsi-readcapacity16", "-s", other, ok=None)
        expect(gone.code != 0, f"the unit that was taken out has a capacity:\n{gone}")


def undisturbed(lab):
    """qemu-io works on while everything around it changes."""
    proc.need("qemu-io")
    with served(lab, Unit(mib=64)) as target:
        words = [word for number in range(40) for word in (
            "-c", f"write -P {number + 1} {number}M 1M", "-c", "sleep 40", "-c", f"read -P {number + 1} {number}M 1M")]
        worker = subprocess.Popen(["qemu-io", "-f", "raw", *words, target.url()], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
        rounds = 0
        while worker.poll() is None:
            target.units.append(Unit(mib=1, memory=True))
            target.extra["portals"] = [f"127.0.0.1:{proc.free_port()}"]
            target.extra["limits"] = {"nop-interval": 0, "queue-depth": 32 + rounds}
            apply(target)
            target.units.pop()
            target.extra["portals"] = []
            apply(target)
            rounds += 1
        printed = worker.stdout.read()
        expect(worker.returncode == 0 and "failed" not in printed and "rror" not in printed, f"qemu-io: {printed}")
        expect(rounds > 2, f"only {rounds} rounds of changes")


def replaced(lab):
    """ORDERED writes wait when another file takes the place of theirs: they end, and reach neither."""
    ordered = 0x80 | 0x20 | 2
    with served(lab, Unit(mib=1)) as target:
        old, new = target.units[0].path, os.path.join(target.folder, "new.img")
        with wire.session(target, ImmediateData="Yes") as session:
            # Its data does not come, and the others wait for it.
            first = session.tag()
            session.send(*session.command_pdu(bytes([0x2A]) + bytes(7) + b"\x40\0", 64 * 512, True, first))
            r2t = session.receive()
            expect(r2t.opcode == wire.R2T and r2t.tag == first, f"an R2T is expected: {r2t}")
            waiting = [session.tag() for _ in range(8)]
            for number, tag in enumerate(waiting):
                cdb = bytes([0x2A, 0, 0, 0, 0, 8 + number, 0, 0, 1, 0])
                session.send(*session.command_pdu(cdb, 512, True, tag, data=b"\xaa" * 512, flags=ordered))
            session.nop()
            target.units = [Unit(mib=1, path=new)]
            outcome = apply(target)
            expect(outcome["applied"] and outcome["sessions_changed"] == 1, f"apply says {outcome}")
            ended = {}
            while len(ended) < len(waiting):
                pdu = session.receive()
                if pdu.opcode == wire.RESPONSE:
                    ended[pdu.tag] = (pdu.bhs[3], *sense_of(pdu.data))
            expect(set(ended) == set(waiting) and set(ended.values()) == {(CHECK_CONDITION, 5, 0x25, 0)},
                   f"they ended with {sorted(ended.items())}")
            session.send_data(first, r2t.target_tag, r2t.word(40), b"\xcc" * r2t.word(44))
            status, response, _ = session.answer(first)
            expect((status, *sense_of(response)) == (CHECK_CONDITION, 5, 0x25, 0), f"the first ended with {status:#x}")
            pending(session)
            expect(session.read(0, 128) == bytes(65536), "a write reached the new file")
            session.write(0, b"\xbb" * 512)
        for path, written in ((old, 0), (new, 512)):
            with open(path, "rb") as file:
                content = file.read(1 << 20)
            expect(content == b"\xbb" * written + bytes(len(content) - written), f"{path} holds something else")


def shut_out(lab):
    """Who may not stay is asked to go; who may hears nothing; the file of the daemon is read again on SIGHUP."""
    with served(lab, Unit(mib=4, memory=True), acls={"iqn.2026-01.example.lab:a": None, "iqn.2026-01.example.lab:b": None}) as target:
        with wire.session(target, initiator="iqn.2026-01.example.lab:a") as a, \
                wire.session(target, initiator="iqn.2026-01.example.lab:b", isid=b"\x40\0\0\2\0\0") as b:
            pending(a), pending(b)
            del target.extra["acls"]["iqn.2026-01.example.lab:a"]
            document(target)
            target.process.send_signal(signal.SIGHUP)
            a.wait_closed(timeout=30)
            expect(pending(b) == [], "the other session has heard of it")
        listed = json.loads(stag(target, "status", "--json"))
        expect(len(listed["sessions"]) <= 1, f"sessions: {listed['sessions']}")


def many_units(lab):
    """A thousand units in one change, and one more."""
    with served(lab, Unit(mib=1, memory=True)) as target:
        counts = {}
        # What a busy machine delays is delayed in one of them.
        for _ in range(4):
            for count in (1, 200, 1000):
                target.units = [Unit(mib=1, memory=True) for _ in range(count)]
                counts[count] = apply(target)["took_ms"] / {1: 1, 200: 199, 1000: 800}[count]
            if counts[1000] < 4 * counts[200] + 1:
                break
        expect(counts[1000] < 4 * counts[200] + 1, f"milliseconds a unit grow with their number: {counts}")
        with wire.session(target) as session:
            status, data, _ = session.run(bytes([0xA0, 0, 2]) + bytes(3) + (1 << 16).to_bytes(4, "big") + bytes(2), 1 << 16)
        started = time.monotonic()
        target.units.append(Unit(mib=1, memory=True))
        apply(target)
        one = time.monotonic() - started
        expect(one < 60, f"one more of a thousand took {one:.2f} s")


def upgraded(lab, rounds=10):
    """qemu-io writes and reads what it wrote while the daemon is replaced ten times; nobody is refused meanwhile."""
    proc.need("qemu-io")
    with served(lab, Unit(mib=64)) as target:
        words = [word for number in range(60) for word in (
            "-c", f"write -P {number + 1} {number}M 1M", "-c", "sleep 50", "-c", f"read -P {number + 1} {number}M 1M")]
        worker = subprocess.Popen(["qemu-io", "-f", "raw", *words, target.url()], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True)
        for _ in range(rounds):
            target.take_over()
            with wire.session(target, initiator="iqn.2026-01.example.lab:prober") as session:
                pending(session)
        printed, _ = worker.communicate(timeout=180)
        bad = re.search("verification failed|rror|refused", printed)
        expect(worker.returncode == 0 and not bad, f"qemu-io: {printed}")
        pids = [json.loads(stag(target, "status", "--json"))["pid"]]
        expect(pids == [target.pid], f"the control socket is answered by {pids}, not {target.pid}")


def fenced_over_upgrades(lab):
    """A persistent reservation without APTPL is in force after the daemon was replaced."""
    with served(lab, Unit(mib=4)) as target:
        key = bytes(8) + (7).to_bytes(8, "big") + bytes(8)
        holder = {"initiator": "iqn.2026-01.example.lab:holder"}
        with wire.session(target, **holder) as session:
            pending(session)
            for action, kind, parameters in ((0, 0, key), (1, 1, (7).to_bytes(8, "big") + bytes(16))):
                cdb = bytes([0x5F, action, kind, 0, 0]) + (24).to_bytes(4, "big") + b"\0"
                status, response, _ = session.run(cdb, out=parameters)
                expect(status == 0, f"PERSISTENT RESERVE OUT: status {status}, {response.hex()}")
        target.take_over()
        with wire.session(target, initiator="iqn.2026-01.example.lab:other", isid=b"\x40\0\0\2\0\0") as session:
            pending(session)
            status, _, _ = session.run(bytes([0x2A, 0, 0, 0, 0, 0, 0, 0, 1, 0]), out=bytes(512))
            expect(status == 0x18, f"WRITE by another initiator: status {status}, not RESERVATION CONFLICT")


def failed_upgrade(lab):
    """A daemon that cannot take over, or is killed at it, leaves the old one serving."""
    with served(lab, Unit(mib=4)) as target:
        wrong = os.path.join(target.folder, "wrong.toml")
        with open(wrong, "w") as file:
            file.write(target.config().replace(target.units[0].path, "/nowhere/at/all"))
        command = [Stag.binary, "serve", "--control", target.control, "--takeover", "--config", wrong]
        failed = proc.run(*command, ok=None)
        expect(failed.code == 4, f"exit code {failed.code}:\n{failed}")
        for delay in (0.01, 0.03, 0.1):
            victim = subprocess.Popen(target.command() + ["--takeover"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(delay)
            victim.kill()
            victim.wait()
            # Either the old one serves again, or the new one was faster, and the old one ends.
            # It may hear only now what the dead one had said.
            proc.wait_until(lambda: not target.alive() or serves(target), 60, "the old daemon serves again or ends")
            if not target.alive():
                break
        if not target.alive():
            target.start()
        with served(lab, Unit(mib=1, memory=True)) as other:
            refused = proc.run(*other.command(), "--takeover", ok=None)
            expect(refused.code != 0 and "lose-memory-units" in refused, f"memory: {refused}")
            other.check_alive()


def supervised(lab):
    """A service manager keeps the listening sockets of a daemon that is killed: who connects meanwhile is served by the next one."""
    with served(lab, Unit(mib=4)) as target:
        target.stop()
        path = os.path.join(target.folder, "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(path)
            manager.settimeout(60)
            os.environ["NOTIFY_SOCKET"] = path
            try:
                target.start()
                kept, words = [], []
                while "READY=1" not in words:
                    data, fds, _, _ = socket.recv_fds(manager, 4096, 4)
                    words += data.decode().split("\n")
                    kept += fds
            finally:
                del os.environ["NOTIFY_SOCKET"]
        names = [word for word in words if word.startswith("FDNAME=")]
        expect(len(kept) == 1 and "FDSTORE=1" in words and names, f"the manager was told {words}, {len(kept)} sockets")
        target.kill()
        with socket.create_connection((target.host, target.port), timeout=30):
            script = f'exec 3<&{kept[0]}; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES={names[0].split("=")[1]}; exec "$@"'
            log = open(target.log_path, "ab")
            target.process = subprocess.Popen(["sh", "-c", script, "sh", *target.command()], stdout=subprocess.DEVNULL,
                                              stderr=log, pass_fds=(kept[0],))
            os.close(kept[0])
            proc.wait_until(lambda: served_units(target) == 1, 60, "the next daemon serves")
            with wire.session(target) as session:
                pending(session)


def serves(target):
    """Whether somebody who comes now is served."""
    try:
        with wire.session(target) as session:
            pending(session)
            return served_units(target) == 1
    except (wire.Closed, OSError, Failed):
        return False


def served_units(target):
    told = proc.run(Stag.binary, "status", "--control", target.control, "--json", ok=None)
    return sum(len(one["units"]) for one in json.loads(told)["targets"]) if told.code == 0 else 0


def disconnected(lab):
    """QEMU is thrown out, refused for a while, and back by itself; another initiator comes in meanwhile."""
    proc.need("qemu-io", "iscsi-inq")
    with served(lab, Unit(mib=16, memory=True)) as target:
        def sessions():
            return json.loads(stag(target, "status", "--json"))["sessions"]

        qemu = subprocess.Popen(["qemu-io", "-f", "raw", target.url()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            qemu.stdin.write("write -P 7 0 64k\n")
            qemu.stdin.flush()
            [session] = proc.wait_until(lambda: [one for one in sessions() if one["io"]["writes"] > 0], 60, "QEMU writes")
            said = stag(target, "disconnect", str(session["tsih"]), "--refuse", "15")
            expect("refused for 15 s" in said and session["initiator"] in said, said)
            expect(not sessions(), f"it is still there: {sessions()}")
            refused = proc.run("iscsi-inq", "-i", session["initiator"], target.url(), ok=None)
            expect(refused.code != 0 and "Service unavailable" in refused, f"iscsi-inq as QEMU is let in: {refused}")
            expect("DISK" in proc.run("iscsi-inq", "-i", "iqn.2026-01.example.lab:other", target.url()).upper(), "another initiator is refused")
            log = target.log(100)
            for line in (f'what="control" verb="disconnect" uid={os.geteuid()}', f'what="disconnected" initiator="{session["initiator"]}"'):
                expect(line in log, f"{line} is not in the audit log:\n{log}")
            printed, _ = qemu.communicate("read -P 7 0 64k\nquit\n", timeout=120)
            expect("read 65536/65536" in printed and "failed" not in printed, f"QEMU is not back: {printed}")
        finally:
            qemu.kill()
            qemu.wait()


def disconnected_nfs(lab):
    """An NFS client is thrown out and refused for a while; libnfs lists the export afterwards."""
    proc.need("nfs-ls")
    folder, port = lab.new_folder("export"), proc.free_port()
    open(os.path.join(folder, "file"), "w", encoding="utf-8").close()
    more = ["[nfs]", f'listen = "127.0.0.1:{port}"', "[[export]]", 'name = "/data"', f'path = "{folder}"']
    with served(lab, Unit(mib=1, memory=True), more=more) as target:
        client = nfs.Three("127.0.0.1", port)
        client.mount("/data")
        [shown] = json.loads(stag(target, "status", "--json"))["nfs"]["clients"]
        said = json.loads(stag(target, "disconnect", "--json", shown["peer"], "--refuse", "10"))
        expect(said == {"client": shown["peer"], "connections": 1, "refused_s": 10}, said)
        for one in (client, nfs.Three("127.0.0.1", port)):
            try:
                one.mount("/data")
            except (OSError, Failed):
                continue
            raise Failed("a client that is refused is served")
        listed = proc.wait_until(lambda: (said := proc.run("nfs-ls", f"nfs://127.0.0.1/data?version=3&nfsport={port}&mountport={port}", ok=None)).code == 0 and said,
                                 60, "libnfs is let in again")
        expect("file" in listed, listed)
        log = target.log(100)
        expect(f'what="disconnected" address={shown["peer"]}' in log, f"the audit log does not tell it:\n{log}")


def watched(lab):
    """stag top on a terminal: load, views, details, a filter, a daemon that dies and comes back; the terminal is as before at every end."""
    restored = "the terminal is not as it was before"
    with served(lab, Unit(mib=16)) as target:
        command = [Stag.binary, "top", "--control", target.control, "--interval", "0.2"]
        bench = subprocess.Popen([Stag.binary, "bench", target.url(), "--time", "300"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with Terminal(*command) as top:
                top.see(r"(?m)^\S*/0 +[1-9]\S* +[1-9]")
                top.see(r"commands/s +[1-9]\S* +\S*[▁-█]")
                top.press("2\r")
                top.see(r"(?s)session .*Connections: 1 of.*medium \(medium\) +\d.*Esc back")
                top.press("\x1b")
                top.see("sort: a all")
                top.press("/nothing like it")
                top.see("none with this text")
                top.press("\x1b")
                top.see(r"\(\d+\) +[1-9]\S* +[1-9]")
                top.press("p")
                top.see("PAUSED")
                top.resize(60, 20)
                top.see("needs 80 columns")
                top.resize(120, 30)
                top.see(r"(?s)PAUSED.*others")
                top.press("p1")
                target.kill()
                top.see("waiting for a daemon")
                target.start()
                top.see(r"(?s)^((?!waiting for).)*commands/s")
                top.press("q")
                code, whole = top.ended()
                expect(code == 0 and whole, f"q: exit code {code}; {restored if not whole else ''}")
            for end, press in (("Ctrl-C", lambda top: top.press("\x03")), ("SIGTERM", lambda top: top.process.terminate())):
                with Terminal(*command, env={"NO_COLOR": "1"}) as top:
                    top.see("commands/s")
                    press(top)
                    code, whole = top.ended()
                    expect(code == 130 and whole, f"{end}: exit code {code}; {restored if not whole else ''}")
                    colours = re.findall(r"\x1b\[(?:3[0-7]|9[0-7]|38;[0-9;]*)m", top.raw)
                    expect(not colours, f"colours in spite of NO_COLOR: {colours}")
            with Terminal(*command) as top:
                top.see("commands/s")
                top.hang_up()
                proc.wait_until(lambda: top.process.poll() is not None, 60, "stag top ends after its terminal")
        finally:
            proc.end(bench)


CASES = [
    ("a unit grows and another comes and goes, by unit attention and in libiscsi's eyes", grown),
    ("qemu-io is not disturbed by changes around it", undisturbed),
    ("commands that wait when their unit is replaced reach neither unit", replaced),
    ("a session that may not stay goes, on SIGHUP, and the other one hears nothing", shut_out),
    ("a thousand units in one change", many_units),
    ("ten daemons after each other under qemu-io", upgraded),
    ("a reservation outlives the daemon that is replaced", fenced_over_upgrades),
    ("a service manager keeps the sockets of a daemon that was killed", supervised),
    ("QEMU is disconnected, refused for a while, and back", disconnected),
    ("stag top on a terminal, which is as before when it ends", watched),
    ("an NFS client is disconnected, refused for a while, and back", disconnected_nfs),
    ("a daemon that fails to take over leaves the old one serving", failed_upgrade),
]
