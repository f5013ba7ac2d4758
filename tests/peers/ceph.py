"""Ceph: images of a real cluster, small and on this machine, served by a daemon with a gateway's rights alone."""

import json
import os
import re
import struct
import subprocess
import threading
import time

from lab import ceph, proc, wire
from lab.report import Failed, expect
from lab.target import Unit
from peers import cu, qemu

MIB = 1 << 20
NOT_READY_HERE = (2, 0x04, 0x0C)  # NOT READY, TARGET PORT IN UNAVAILABLE STATE


def unit(cluster, image, **more):
    """An image as a unit, with the rights of client.gateway."""
    options = f"ceph-user=gateway,ceph-conf={cluster.user('gateway')}"
    return Unit(path=f"rbd:{image}", options=options, **more)


def exported(cluster, lab, image):
    path = os.path.join(lab.new_folder("export"), "image")
    cluster.rbd("export", image, path)
    return path


def compare(url, file):
    same = proc.run("qemu-img", "compare", "-f", "raw", "-F", "raw", file, url)
    expect("identical" in same, same)


def sense(answer):
    """Key, code and qualifier of a command's sense data in fixed or descriptor format."""
    _, data, _ = answer
    data = data[2:] if data and data[0] == 0 else data
    return (data[1] & 15, data[2], data[3]) if data[0] & 0x7F >= 0x72 else (data[2] & 15, data[12], data[13])


def of_its_own(lab):
    """What the other cases rest on: images are written, read and compared by Ceph's own tools, and an OSD may die."""
    cluster = ceph.cluster(lab)
    written = os.path.join(lab.new_folder("files"), "written")
    with open(written, "wb") as file:
        file.write(os.urandom(8 * MIB))
    image = f"{ceph.POOL}/first"
    cluster.rbd("import", written, image)
    cluster.kill("osd.1")
    proc.run("cmp", written, exported(cluster, lab, image))
    cluster.revive("osd.1")
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


def one_owner(lab):
    """A second daemon waits while the first one serves, never takes the lock, and serves once the first has ended."""
    proc.need("qemu-io")
    cluster = ceph.cluster(lab)
    image = cluster.image("owned", 16)
    with lab.serve(unit(cluster, image)) as first:
        second = type(first)(lab.new_folder("second"), [unit(cluster, image)], "127.0.0.1", proc.free_port(), None, {})
        with open(second.log_path, "ab") as log:
            waiting = subprocess.Popen(second.command(), stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            proc.wait_until(lambda: "another client has the image's lock" in second.log(50), 60, "the second waits")
            printed = proc.run("rbd", "bench", "--io-type", "write", "--io-total", "4K", image, env=cluster.env, ok=None, timeout=60)
            expect(printed.code != 0, f"another client writes: {printed}")
            qemu.io(first.url(), "write -P 3 0 1M", "read -P 3 0 1M")
            first.process.terminate()
            url = waiting.stdout.readline().strip()
            expect(url, f"the second has ended: {second.log()}")
            qemu.io(url, "read -P 3 0 1M", "write -P 4 0 1M", "read -P 4 0 1M")
            expect(len(cluster.watchers(image)) == 1, "the first has gone")
            expect(first.process.wait(30) == 0, "the first ends cleanly")
            expect(proc.end(waiting) == 0, "the second ends cleanly")
        finally:
            waiting.kill()
            waiting.wait()
        first.process = subprocess.Popen(first.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        proc.wait_until(lambda: len(cluster.watchers(image)) == 1, 60, "a third serves")
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


def killed(lab):
    """kill -9 loses no acknowledged write and no reservation; the dead client is fenced before the next one writes."""
    cluster = ceph.cluster(lab)
    image = cluster.image("killed", 16)
    before, acknowledged = len(cluster.blocklist()), 0
    with lab.serve(unit(cluster, image)) as target:
        with wire.session(target) as session:
            parameters = struct.pack(">QQIBBH", 0, 0xABCD, 0, 1, 0, 0)
            register = struct.pack(">BBBxxIB", 0x5F, 0, 0, len(parameters), 0)
            expect(session.run(register, out=parameters)[0] == 0, "REGISTER with APTPL fails")
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
        expect(len(cluster.blocklist()) > before, "the dead client is on the blocklist")
        with wire.session(target, isid=b"\x40\0\0\2\0\0") as session:
            for number in range(max(acknowledged - 1000, 0), acknowledged):
                found = struct.unpack_from(">Q", session.read(number % 1000 * 8, 8))[0]
                expect(found in (number + 1, acknowledged + 1), f"write {number + 1} of {acknowledged}: {found}")
            _, _, data = session.run(struct.pack(">BBxxxxxHB", 0x5E, 0, 256, 0), 256)
            expect(data[8:16] == struct.pack(">Q", 0xABCD), f"keys after kill -9: {data.hex()}")
        print(f"       {acknowledged} writes before the kill")
    cluster.rbd("rm", image)


def silent_osds(lab):
    """An OSD that stops is passed by; while all are silent writes wait, another unit goes on, and then all is done."""
    proc.need("qemu-io")
    cluster = ceph.cluster(lab)
    image = cluster.image("slow", 32)
    with lab.serve(unit(cluster, image), Unit(memory=True)) as target:
        command = [target.binary, "bench", target.url(0), "-p", "randrw", "--bs", "4k", "--depth", "8", "--time", "20",
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


def blocklisted(lab):
    """A daemon that the cluster has shut out answers as an unavailable path, on which multipath changes it."""
    cluster = ceph.cluster(lab)
    image = cluster.image("refused", 16)
    with lab.serve(unit(cluster, image)) as target:
        with wire.session(target) as session:
            session.write(0, bytes(4096))
            for watcher in cluster.watchers(image):
                cluster.command("osd", "blocklist", "add", watcher["address"], 60)
            write = struct.pack(">BBIBHB", 0x2A, 0, 0, 0, 8, 0)
            proc.wait_until(lambda: session.run(write, out=bytes(4096))[0] == 2, 30, "a write is refused")
            for answer in (session.run(write, out=bytes(4096)), session.run(struct.pack(">BBIBHB", 0x28, 0, 0, 0, 8, 0), 4096)):
                expect(sense(answer) == NOT_READY_HERE, f"sense of a fenced daemon: {answer}")
        told = proc.run(target.binary, "status", "--control", target.control, "--check", ok=None)
        expect(told.code != 0 and "gone" in told, f"the health of a fenced daemon's unit: {told}")
        target.kill()
        for address in cluster.blocklist():
            cluster.command("osd", "blocklist", "rm", address)
        target.restart()
        with wire.session(target) as session:
            session.write(0, bytes(4096))
    cluster.rbd("rm", image)


def refusals(lab):
    """What cannot be served is said, and what to do."""
    cluster = ceph.cluster(lab)
    unlocked = cluster.image("unlocked", 16, "--image-feature", "layering")
    conf = cluster.user("gateway")
    for image, user, says in ((f"{ceph.POOL}/none", "gateway", "cannot be opened"), ("nowhere/none", "gateway", "pool nowhere"),
                              (unlocked, "gateway", "rbd feature enable"), (unlocked, "nobody", "cannot connect")):
        printed = proc.run(lab_binary(), "serve", "--control", "none", "--listen", f"127.0.0.1:{proc.free_port()}",
                           f"rbd:{image},ceph-user={user},ceph-conf={conf}", ok=None, timeout=60)
        expect(printed.code not in (0, None) and says in printed, f"{image} as {user}: {printed}")
    cluster.rbd("rm", unlocked)


def lab_binary():
    from lab.target import Stag
    return Stag.binary


# SANITIZE's tests ask which blocks are mapped, which an image does not tell. Unmap.Simple unmaps
# 32,896 single blocks, each of which is an operation of the cluster. The others are about sessions
# and paths, and wait.
NOT_OF_A_STORE = re.compile(r"Sanitize|Unmap|iSCSI|Multipath")


def iscsi_test_cu(lab):
    """iscsi-test-cu over an image: what reads, writes, compares and reserves."""
    proc.need("iscsi-test-cu")
    cluster = ceph.cluster(lab)
    image = cluster.image("cu", 128)
    results = cu.Results()
    with lab.serve(unit(cluster, image, thin=True)) as target:
        suites = {suite: tests for suite, tests in cu.all_tests().items() if not NOT_OF_A_STORE.match(suite)}
        cu.run_unit("thin", target, suites, results)
    excused = {test for test, entry in cu.exceptions().items() if "thin" in entry.get("units", cu.UNITS)}
    outcomes = {test: by_unit["thin"] for test, by_unit in results.outcomes.items()}
    failed = [f"{test}: {results.why[test, 'thin']}" for test, outcome in outcomes.items()
              if outcome == "failed" and test not in excused]
    passed = sum(outcome == "passed" for outcome in outcomes.values())
    print(f"       {passed} of {len(outcomes)} tests passed, {len(failed)} failed")
    expect(not failed, "\n".join(failed))
    expect(passed > 100, f"only {passed} tests ran")
    cluster.rbd("rm", image)


CASES = [
    ("the cluster serves images, and survives the death of an OSD", of_its_own),
    ("images that cannot be served are refused with what to do", refusals),
    ("QEMU's patterns, discards and our verified load are what `rbd export` finds", blocks),
    ("snapshots are read-only units of their own", snapshots),
    ("an image keeps its identity, and another one has another", identity),
    ("a second daemon waits for the lock and never takes it", one_owner),
    ("images come and go by `stag apply`, and are taken over", changed),
    ("kill -9 keeps acknowledged writes and reservations, and the dead is fenced", killed),
    ("OSDs that stop are waited for, and nothing else waits", silent_osds),
    ("a blocklisted daemon's path is unavailable", blocklisted),
    ("iscsi-test-cu over an image", iscsi_test_cu),
]
