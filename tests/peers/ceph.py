"""Ceph: images of a real cluster, small and on this machine, served by a daemon with a gateway's rights alone."""

import json
import contextlib
import os
import signal
import struct
import subprocess
import threading
import time

from lab import ceph, proc, wire
from lab.report import Failed, expect
from lab.target import Stag, Unit
from peers import ceph_traps, qemu
from peers.ceph_units import (CAPACITY_CHANGED, MIB, NOT_READY_HERE, READ, WRITE, Writer, check, compare, exported, owner, sense,
                              serves_again, shut_out, unit)


def of_its_own(lab):
    """What the other cases rest on: images are written, read and compared by Ceph's own tools."""
    cluster = ceph.cluster(lab)
    written = os.path.join(lab.new_folder("files"), "written")
    with open(written, "wb") as file:
        file.write(os.urandom(8 * MIB))
    image = f"{ceph.POOL}/first"
    cluster.rbd("import", written, image)
    proc.run("cmp", written, exported(cluster, lab, image))
    expect(cluster.watchers(image) == [], "nobody has the image open")
    cluster.rbd("rm", image)


def blocks(lab):
    """QEMU's patterns, discards and zeros; the image has what the unit has. Small discards read as zeros."""
    proc.need("qemu-io", "qemu-img")
    cluster = ceph.cluster(lab)
    images = [cluster.image("small", 64), cluster.image("large", 64)]
    source = os.path.join(lab.new_folder("source"), "raw")
    qemu.random_image(source, 64)
    units = [unit(cluster, images[0], thin=True), unit(cluster, images[1], thin=True, block_bytes=4096)]
    with lab.serve(*units) as target:
        for number, image in enumerate(images):
            url = target.url(number)
            proc.run("qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", source, url)
            compare(url, source)
            qemu.io(url, "write -P 0xa5 0 1M", "write -P 0x5a 1M 64k", "read -P 0xa5 0 1M", "read -P 0x5a 1M 64k",
                    "write -z 512k 256k", "read -P 0 512k 256k", "read -P 0xa5 768k 256k",
                    "discard 0 16k", "read -P 0 0 16k", "read -P 0xa5 16k 16k", "write -f -P 0x11 4096 4096", "read -P 0x11 4096 4096", "flush", "write -P 7 63M 1M", "read -P 7 63M 1M")
            if number == 0:  # Of larger blocks QEMU asks GET LBA STATUS for a part of one, which its own check forbids.
                qemu.io(url, "discard 20k 300k", "read -P 0 20k 300k", "discard 8M 8M", "read -P 0 8M 8M")
            compare(url, exported(cluster, lab, image))
        proc.run(target.binary, "bench", *target.urls, "-p", "randrw", "--bs", "4k", "--depth", 16, "--count", 1500,
                 "--verify", "--destroy", timeout=120)
        for number, image in enumerate(images):
            compare(target.url(number), exported(cluster, lab, image))
    for image in images:
        expect(cluster.watchers(image) == [], f"{image} is closed with the daemon")
        cluster.rbd("rm", image)


def is_told(target, url):
    told = json.loads(proc.run(target.binary, "info", "--json", url))
    return json.dumps(told, sort_keys=True)


def snapshots(lab):
    """A snapshot is a unit of its own that cannot be written, and stays as it was."""
    proc.need("qemu-io")
    cluster = ceph.cluster(lab)
    image = cluster.image("snapped", 16)
    with lab.serve(unit(cluster, image)) as target:
        qemu.io(target.url(), "write -P 1 0 1M")
        cluster.rbd("snap", "create", f"{image}@noon")
        qemu.io(target.url(), "write -P 2 0 1M")
    with lab.serve(unit(cluster, f"{image}@noon"), unit(cluster, image)) as target:
        qemu.io(target.url(0), "read -P 1 0 1M", options=("-r",))
        qemu.io(target.url(1), "read -P 2 0 1M")
        with wire.session(target) as session:
            answer = session.run(struct.pack(">BBIBHB", 0x2A, 0, 0, 0, 1, 0), out=bytes(512), lun=0)
            expect(sense(answer)[0] == 7, f"a write to a snapshot: {answer}")
        naa = [inquiry(target, number) for number in range(2)]
        expect(naa[0] != naa[1], "a snapshot is another disk than its image")
    cluster.rbd("snap", "purge", image)
    cluster.rbd("rm", image)


def inquiry(target, number):
    """VPD page 83h."""
    with wire.session(target) as session:
        return session.run(struct.pack(">BBBHB", 0x12, 1, 0x83, 255, 0), 255, lun=number)[2]


def identity(lab):
    """An image keeps its identity under another name and number; a new image of its old name has another."""
    cluster = ceph.cluster(lab)
    image, moved = cluster.image("named", 16), f"{ceph.POOL}/moved"
    with lab.serve(unit(cluster, image)) as target:
        first = inquiry(target, 0)
    cluster.rbd("rename", image, moved)
    cluster.image("named", 16)
    with lab.serve(unit(cluster, image), unit(cluster, moved)) as target:
        expect(inquiry(target, 1) == first, "the renamed image is the same disk")
        expect(inquiry(target, 0) != first, "the new image is another disk")
    for name in (image, moved):
        cluster.rbd("rm", name)


def another_image(lab):
    """A daemon whose image was renamed asks nobody for the lock of the image that has its old name, and serves its own one once that
    has its name again."""
    cluster = ceph.cluster(lab)
    image, moved = cluster.image("swapped", 16), f"{ceph.POOL}/elsewhere"
    with lab.serve(unit(cluster, image, op_timeout=5)) as first, wire.session(first, timeout=90) as session:
        session.write(0, bytes(4096))
        cluster.rbd("rename", image, moved)
        cluster.image("swapped", 16)
        with lab.serve(unit(cluster, image)) as second, wire.session(second) as other:
            other.write(0, bytes(4096))
            shut_out(cluster, moved)
            proc.wait_until(lambda: session.run(WRITE, out=bytes(4096))[0] != 0, 30, "a write is refused")
            # One that asked for the lock would wait for the second, and then name it.
            proc.wait_until(lambda: "another image has its name now" in check(first), 60, "the first says what has become of its image")
            other.write(0, bytes(4096))
        cluster.rbd("rm", image)
        cluster.rbd("rename", moved, image)
        serves_again(session)
    cluster.rbd("rm", image)


@contextlib.contextmanager
def rival(lab, cluster, first, image):
    """A second daemon that waits for the image's lock. Yields it, what waits until it serves, and what ends it."""
    second = type(first)(lab.new_folder("second"), [unit(cluster, image)], "127.0.0.1", proc.free_port(), None, {})
    with open(second.log_path, "ab") as log:
        waiting = subprocess.Popen(second.command(), stdout=subprocess.PIPE, stderr=log, text=True)

    def serves():
        second.urls = [waiting.stdout.readline().strip()]
        expect(second.url(), f"the second has ended: {second.log()}")

    try:
        proc.wait_until(lambda: "another client has the image's lock" in second.log(50), 60, "the second waits")
        yield second, serves, lambda: expect(proc.end(waiting) == 0, "the second ends cleanly")
    finally:
        waiting.kill()
        waiting.wait()


def one_owner(lab):
    """A second daemon waits while the first one serves, never takes the lock, and serves once the first has ended."""
    proc.need("qemu-io")
    cluster = ceph.cluster(lab)
    image = cluster.image("owned", 16)
    with lab.serve(unit(cluster, image)) as first:
        with rival(lab, cluster, first, image) as (second, second_serves, end_second):
            printed = proc.run("rbd", "bench", "--io-type", "write", "--io-total", "4K", image, env=cluster.env, ok=None, timeout=60)
            expect(printed.code != 0, f"another client writes: {printed}")
            qemu.io(first.url(), "write -P 3 0 1M", "read -P 3 0 1M")
            first.process.terminate()
            second_serves()
            qemu.io(second.url(), "read -P 3 0 1M", "write -P 4 0 1M", "read -P 4 0 1M")
            expect(len(cluster.watchers(image)) == 1, "the first has gone")
            expect(first.process.wait(30) == 0, "the first ends cleanly")
            end_second()
        first.process = subprocess.Popen(first.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        proc.wait_until(lambda: len(cluster.watchers(image)) == 1, 60, "a third serves")
    cluster.rbd("rm", image)


def taken(lab):
    """`stag lock` names the client that Ceph names. With --break it is shut out, though it lives, and who has waited serves."""
    proc.need("qemu-io")
    cluster = ceph.cluster(lab)
    image = cluster.image("taken", 16)
    units = unit(cluster, image)
    lock = [Stag.binary, "lock", f"{units.path},{units.options}"]
    printed = proc.run(*lock)
    expect("nobody has its lock" in printed, printed)
    with lab.serve(units) as first, wire.session(first, timeout=60) as session, rival(lab, cluster, first, image) as (second, serves, end):
        session.write(0, b"\1" * 4096)
        had = owner(cluster, image)
        printed = proc.run(*lock)
        expect(f"{had} has its lock" in printed and owner(cluster, image) == had, f"of {had}: {printed}")
        printed = proc.run(*lock, "--break")
        expect(had in printed and "shut out" in printed, printed)
        expect(had in str(cluster.command("osd", "blocklist", "ls")), f"the cluster refuses {had}")
        serves()
        expect(sense(session.run(WRITE, out=bytes(4096))) == NOT_READY_HERE, "a write of the first is refused")
        qemu.io(second.url(), "read -P 1 0 4k", "write -P 2 0 4k")
        end()
        serves_again(session)
    printed = proc.run(*lock, "--break")
    expect("nobody has its lock" in printed, printed)
    for wrong in ("mem:1M", f"rbd:{image}@snapshot"):
        printed = proc.run(Stag.binary, "lock", wrong, ok=None)
        expect(printed.code == 2 and "rbd:POOL/IMAGE" in printed, f"{wrong}: {printed}")
    cluster.rbd("rm", image)


def changed(lab):
    """Within the sandbox: an image comes and goes by `stag apply`, and a new daemon takes both over."""
    proc.need("qemu-io")
    cluster = ceph.cluster(lab)
    images = [cluster.image("stays", 16), cluster.image("comes", 16)]
    units = [unit(cluster, image) for image in images]
    with lab.serve(units[0], limits={"nop-interval": 5}) as target:
        qemu.io(target.url(), "write -P 5 0 1M")
        second = target.url()[:-1] + "1"

        def apply():
            target.command()  # Writes its configuration.
            return proc.run(target.binary, "apply", "--control", target.control, os.path.join(target.folder, "stag.toml"))

        target.units.append(units[1])
        apply()
        qemu.io(second, "write -P 6 0 1M")
        target.take_over()
        qemu.io(target.url(), "read -P 5 0 1M", "write -P 7 0 1M")
        qemu.io(second, "read -P 6 0 1M")
        target.units.pop()
        apply()
        proc.wait_until(lambda: cluster.watchers(images[1]) == [], 30, "the image is closed")
        qemu.io(target.url(), "read -P 7 0 1M")
    expect(cluster.watchers(images[0]) == [], "the image is closed with the daemon")
    for image in images:
        cluster.rbd("rm", image)


def register(session, key):
    """Registers a key that outlives the daemon (APTPL)."""
    parameters = struct.pack(">QQIBBH", 0, key, 0, 1, 0, 0)
    answer = session.run(struct.pack(">BBBxxIB", 0x5F, 0, 0, len(parameters), 0), out=parameters)
    expect(answer[0] == 0, f"REGISTER with APTPL: {answer}")


def keys(session):
    """READ KEYS."""
    _, _, data = session.run(struct.pack(">BBxxxxxHB", 0x5E, 0, 256, 0), 256)
    return list(struct.unpack_from(f">{(len(data) - 8) // 8}Q", data, 8))


def killed(lab):
    """kill -9 loses no acknowledged write and no reservation; the dead client is fenced before the next one writes."""
    cluster = ceph.cluster(lab)
    image = cluster.image("killed", 16)
    acknowledged = 0
    with lab.serve(unit(cluster, image)) as target:
        dead = owner(cluster, image)
        with wire.session(target) as session:
            register(session, 0xABCD)
            threading.Timer(1, target.process.kill).start()
            try:
                while acknowledged < 20_000:
                    session.write(acknowledged % 1000 * 8, struct.pack(">Q", acknowledged + 1) * 512)
                    acknowledged += 1
            except (wire.Closed, OSError, Failed):
                pass
        target.process.wait()
        expect(acknowledged > 10, f"{acknowledged} writes")
        target.restart()
        with wire.session(target, isid=b"\x40\0\0\2\0\0") as session:
            for number in range(max(acknowledged - 1000, 0), acknowledged):
                found = struct.unpack_from(">Q", session.read(number % 1000 * 8, 8))[0]
                expect(found in (number + 1, acknowledged + 1), f"write {number + 1} of {acknowledged}: {found}")
            expect(keys(session) == [0xABCD], f"keys after kill -9: {keys(session)}")
        expect(dead in cluster.blocklist(), f"the dead client, {dead}, is on the blocklist: {cluster.blocklist()}")
        print(f"       {acknowledged} writes before the kill")
    cluster.rbd("rm", image)


def silent_osds(lab):
    """An OSD that stops is passed by; while all are silent writes wait, another unit goes on, and then all is done."""
    proc.need("qemu-io")
    cluster = ceph.cluster(lab)
    image = cluster.image("slow", 32)
    with lab.serve(unit(cluster, image), Unit(memory=True)) as target:
        command = [target.binary, "bench", target.url(0), "-p", "randrw", "--bs", "4k", "--depth", "8", "--time", "14",
                   "--verify", "--destroy"]
        with open(os.path.join(target.folder, "bench"), "wb") as log:
            load = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            time.sleep(1)
            with ceph.silent(cluster, "osd.0"):
                cluster.until_down("osd.0")
            cluster.wait_up()
            with ceph.silent(cluster, "osd.0", "osd.1", "osd.2"):
                time.sleep(1)
                qemu.io(target.url(1), "write -P 9 0 1M", "read -P 9 0 1M")
                proc.run(target.binary, "status", "--control", target.control, timeout=20)
            code = load.wait(120)
        finally:
            load.kill()
            load.wait()
        with open(os.path.join(target.folder, "bench"), errors="replace") as log:
            expect(code == 0, f"bench --verify: exit code {code}\n{proc.tail(log.read())}")
        compare(target.url(0), exported(cluster, lab, image))
    cluster.rbd("rm", image)


def late_write(lab):
    """A write that the cluster holds back is answered when it can no longer be carried out, and never is; service resumes by itself."""
    cluster = ceph.cluster(lab)
    image = cluster.image("late", 16)
    with lab.serve(unit(cluster, image, op_timeout=3)) as target, wire.session(target, timeout=60) as session:
        before, acknowledged = len(cluster.blocklist()), 0
        content = lambda number: struct.pack(">Q", number) * 512
        cluster.command("osd", "set", "pause")  # Clients keep their operations until it is unset, once they know.
        try:
            while (answer := session.run(WRITE, out=content(acknowledged + 1)))[0] == 0:
                acknowledged += 1
            expect(sense(answer) == NOT_READY_HERE, f"a write without an answer of the cluster: {answer}")
            expect(len(cluster.blocklist()) > before, "the instance is fenced before its write is answered")
            told = check(target)
            expect(told.code != 0 and "has not answered for 3 s" in told, f"the health meanwhile: {told}")
        finally:
            cluster.command("osd", "unset", "pause")
        with open(exported(cluster, lab, image), "rb") as file:
            expect(file.read(4096) == content(acknowledged), "the write has been carried out after its answer")
        serves_again(session)
        with open(exported(cluster, lab, image), "rb") as file:
            expect(file.read(4096) == b"\4" * 4096, "what the new instance has written")
        proc.wait_until(lambda: check(target).code == 0, 30, "the unit is healthy again")
    cluster.rbd("rm", image)


def stopped_osds(lab):
    """All OSDs stop for longer than `op-timeout`, under writes: they are answered, other units go on, and afterwards each block has
    what was written to it last."""
    proc.need("qemu-io")
    cluster = ceph.cluster(lab)
    image = cluster.image("stopped", 16)
    with lab.serve(unit(cluster, image, op_timeout=3), Unit(memory=True)) as target:
        writers = [Writer(target, place) for place in range(6)]
        until = lambda what, holds: proc.wait_until(
            lambda: all(writer.wrong or holds(writer) for writer in writers), 120, what)
        until("writes are acknowledged", lambda writer: writer.acknowledged > 20)
        with ceph.silent(cluster, "osd.0", "osd.1", "osd.2"):
            until("writes are answered", lambda writer: writer.unknown > 0)
            qemu.io(target.url(1), "write -P 9 0 1M", "read -P 9 0 1M")
        seen = {writer: writer.acknowledged for writer in writers}
        until("service resumes", lambda writer: writer.acknowledged > seen[writer] + 2 * Writer.BLOCKS)
        for writer in writers:
            writer.end()
        files = [exported(cluster, lab, image) for _ in range(2)]
        proc.run("cmp", *files)
        with open(files[0], "rb") as file:
            for writer in writers:
                writer.verify(file)
        acknowledged, unknown = (sum(getattr(writer, what) for writer in writers) for what in ("acknowledged", "unknown"))
        print(f"       {acknowledged} writes acknowledged, {unknown} of unknown outcome")
    cluster.wait_up()
    cluster.rbd("rm", image)


def resized(lab):
    """`rbd resize` under load: initiators are told without asking, READ CAPACITY follows, and blocks beyond the end are out of range."""
    cluster = ceph.cluster(lab)
    image = cluster.image("resized", 16)
    at_28_mib = lambda opcode: struct.pack(">BBIBHB", opcode, 0, 28 * MIB // 512, 0, 8, 0)

    def capacity(session):
        status, _, data = session.run(struct.pack(">BBQIBB", 0x9E, 0x10, 0, 32, 0, 0), 32)
        return 0 if status else (struct.unpack_from(">Q", data)[0] + 1) * 512

    with lab.serve(unit(cluster, image)) as target, wire.session(target, timeout=60) as session:
        writers = [Writer(target, place) for place in (1, 2)]

        def told():
            answer = session.run(READ, 4096)
            expect(answer[0] == 0 or sense(answer) == CAPACITY_CHANGED, f"a read while the image is resized: {answer}")
            return answer[0] != 0

        cluster.rbd("resize", image, "--size", "32M")
        proc.wait_until(told, 30, "initiators are told of a larger image")
        expect(capacity(session) == 32 * MIB, "READ CAPACITY tells the new size")
        expect(session.run(at_28_mib(0x2A), out=bytes(4096))[0] == 0, "the new blocks can be written")
        cluster.rbd("resize", image, "--size", "8M", "--allow-shrink", "--no-progress")
        proc.wait_until(lambda: capacity(session) == 8 * MIB, 30, "READ CAPACITY tells the smaller size")
        session.test_unit_ready()
        for opcode, more in ((0x28, {"length": 4096}), (0x2A, {"out": bytes(4096)})):
            answer = session.run(at_28_mib(opcode), **more)
            expect(sense(answer) == (5, 0x21, 0), f"beyond the end: {answer}")
        status = check(target)
        expect(status.code != 0 and "8388608 of 16777216 bytes" in status, f"the health of a unit that has shrunk: {status}")
        for writer in writers:
            writer.end()
        with open(exported(cluster, lab, image), "rb") as file:
            for writer in writers:
                writer.verify(file)
    cluster.rbd("rm", image)


def full_cluster(lab):
    """OSDs without room refuse writes at once with SPACE ALLOCATION FAILED; reads go on, and so do writes once there is room."""
    cluster = ceph.cluster(lab)
    image = cluster.image("full", 64)
    with lab.serve(unit(cluster, image, thin=True), limits={"nop-interval": 60}) as target, wire.session(target, timeout=60) as session:
        for lba in range(0, 48 * MIB // 512, 128):
            session.write(lba, b"\1" * 65536)
        answers = []

        def writes_new_block():
            lba = 48 * MIB // 512 + 8 * len(answers)
            answers.append(session.run(struct.pack(">BBIBHB", 0x2A, 0, lba, 0, 8, 0), out=b"\2" * 4096))
            return answers[-1][0] == 0

        with ceph.full(cluster):
            proc.wait_until(lambda: not writes_new_block(), 60, "a write is refused")
            expect(sense(answers[-1]) == (7, 0x27, 0x07), f"sense of a write to a full cluster: {answers[-1]}")
            expect(session.read(128, 8) == b"\1" * 4096, "what is there can be read")
            session.write(0, b"\3" * 4096)  # It needs no room.
            told = check(target)
            expect("the medium is full" in told, f"the health: {told}")
        proc.wait_until(writes_new_block, 60, "writes go on")
        expect(session.read(0, 8) == b"\3" * 4096, "what is written meanwhile")
    cluster.rbd("rm", image)


def blocklisted(lab):
    """A daemon that the cluster has shut out says so, opens the image anew, and leaves it to another daemon that has it."""
    proc.need("qemu-io")
    cluster = ceph.cluster(lab)
    image = cluster.image("refused", 16)

    with lab.serve(unit(cluster, image, op_timeout=3)) as target, wire.session(target, timeout=60) as session:
        session.write(0, bytes(4096))
        shut_out(cluster, image)
        answers = []

        def refused():
            answers.append(session.run(WRITE, out=bytes(4096)))
            return answers[-1][0] == 2

        proc.wait_until(refused, 30, "a write is refused")
        expect(sense(answers[-1]) == NOT_READY_HERE, f"sense of a fenced daemon: {answers[-1]}")
        serves_again(session)
        for says in ("the cluster has shut this daemon out", "a new instance of the image is in service"):
            expect(says in target.log(100), f"the log says {says!r}:\n{target.log(100)}")
        proc.wait_until(lambda: check(target).code == 0, 30, "the unit is healthy again")
        with rival(lab, cluster, target, image) as (other, other_serves, end_other):
            proc.freeze(target.process)
            try:
                shut_out(cluster, image)
                other_serves()
            finally:
                target.process.send_signal(signal.SIGCONT)
            for command, more in ((WRITE, {"out": bytes(4096)}), (READ, {"length": 4096}), (WRITE, {"out": bytes(4096)})):
                answer = session.run(command, **more)
                expect(sense(answer) == NOT_READY_HERE, f"while another daemon has the image: {answer}")
            told = check(target)
            expect(told.code != 0 and "shut this daemon out" in told, f"the health of a fenced daemon's unit: {told}")
            qemu.io(other.url(), "read -P 4 0 4k", "write -P 5 4k 4k")
            with wire.session(other, isid=b"\x40\0\0\7\0\0") as others:
                register(others, 0xFEED)
            end_other()
            serves_again(session)
            session.test_unit_ready()
            expect(session.read(8, 8) == b"\5" * 4096, "what the other daemon has written")
            expect(keys(session) == [0xFEED], f"reservations are those that the other daemon has kept: {keys(session)}")
    cluster.rbd("rm", image)


def refusals(lab):
    """What cannot be served is said, and what to do."""
    cluster = ceph.cluster(lab)
    unlocked = cluster.image("unlocked", 16, "--image-feature", "layering")
    conf = cluster.user("gateway")
    for image, user, says in ((f"{ceph.POOL}/none", "gateway", "cannot be opened"), ("nowhere/none", "gateway", "pool nowhere"),
                              (unlocked, "gateway", "rbd feature enable"), (unlocked, "nobody", "cannot connect")):
        printed = proc.run(Stag.binary, "serve", "--control", "none", "--listen", f"127.0.0.1:{proc.free_port()}",
                           f"rbd:{image},ceph-user={user},ceph-conf={conf}", ok=None, timeout=60)
        expect(printed.code not in (0, None) and says in printed, f"{image} as {user}: {printed}")
    cluster.rbd("rm", unlocked)


def spoilt_settings(lab):
    """librbd prefers settings of an image and its pool to a client's: those that lose writes are refused, with what to do; the
    image's own go before the pool's."""
    cluster = ceph.cluster(lab)
    cluster.command("osd", "pool", "create", "spoilt")
    cluster.rbd("pool", "init", "spoilt")
    image = "spoilt/image"
    cluster.rbd("create", image, "--size", "16M")

    def refused(name, needed):
        printed = proc.run(Stag.binary, "serve", "--control", "none", "--listen", f"127.0.0.1:{proc.free_port()}",
                           f"rbd:{image},ceph-conf={cluster.conf}", ok=None, timeout=60)
        expect(printed.code not in (0, None) and f"rbd config image set {image} {name} {needed}" in printed, f"with another {name}: {printed}")

    for name, value, needed in (("rbd_cache", "true", "false"), ("rbd_persistent_cache_mode", "ssd", "disabled"),
                                ("rbd_blocklist_on_break_lock", "false", "true")):
        cluster.rbd("config", "image", "set", image, name, value)
        refused(name, needed)
        cluster.rbd("config", "image", "remove", image, name)
    cluster.rbd("config", "pool", "set", "spoilt", "rbd_cache", "true")
    refused("rbd_cache", "false")
    cluster.rbd("config", "image", "set", image, "rbd_cache", "false")
    with lab.serve(Unit(path=f"rbd:{image}", options=f"ceph-conf={cluster.conf}")) as target, wire.session(target) as session:
        session.write(0, bytes(4096))
    cluster.rbd("rm", image)


def replaced(lab):
    """A cluster that has lost a daemon fails no case after that."""
    lost = ceph.cluster(lab)
    lost.kill("mon.a")
    cluster = ceph.cluster(lab)
    expect(cluster is not lost, "the next case has a new cluster")
    cluster.rbd("rm", cluster.image("anew", 16))
    expect(ceph.cluster(lab) is cluster, "and keeps it")


CASES = [
    ("a cluster that has lost a daemon is replaced", replaced),
    ("the cluster serves images to Ceph's own tools", of_its_own),
    *ceph_traps.CASES,
    ("images that cannot be served are refused with what to do", refusals),
    ("an image whose settings lose writes is refused with what to do", spoilt_settings),
    ("QEMU's patterns, discards and our verified load are what `rbd export` finds", blocks),
    ("snapshots are read-only units of their own", snapshots),
    ("an image keeps its identity, and another one has another", identity),
    ("a daemon leaves the lock of another image of its name alone", another_image),
    ("a second daemon waits for the lock and never takes it", one_owner),
    ("`stag lock` shows who has an image, and shuts it out", taken),
    ("images come and go by `stag apply`, and are taken over", changed),
    ("kill -9 keeps acknowledged writes and reservations, and the dead is fenced", killed),
    ("OSDs that stop are waited for, and nothing else waits", silent_osds),
    ("a write without an answer is never carried out after its answer", late_write),
    ("OSDs that stop for longer than op-timeout lose nothing", stopped_osds),
    ("a blocklisted daemon opens the image anew, and takes it from no living owner", blocklisted),
    ("a full cluster refuses writes with SPACE ALLOCATION FAILED", full_cluster),
    ("`rbd resize` under load is told to initiators", resized),
]

for case in (refusals, blocks, snapshots, identity, one_owner, changed, killed):
    case.disturbs_nobody = True
