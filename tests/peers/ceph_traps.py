"""Ceph's traps, each with what happens to a gateway that has not closed it: more cases of the suite `ceph`."""

import contextlib
import os
import struct
import subprocess
import time

from lab import ceph, proc, wire
from lab.report import expect
from lab.target import IQN, Stag, Unit
from peers import cu, qemu
from peers.ceph_units import MIB, WRITE, Writer, compare, exported, sense, serves_again, shut_out, unit

SPACE_FAILED = (7, 0x27, 0x07)  # DATA PROTECT, SPACE ALLOCATION FAILED WRITE PROTECT
THRESHOLD = (6, 0x38, 0x07)  # UNIT ATTENTION, THIN PROVISIONING SOFT THRESHOLD REACHED


def encrypted(lab):
    """Images that `rbd encryption format` has encrypted: QEMU finds the bytes that a unit has written, a wrong key opens none,
    a snapshot can be read, and a daemon that was shut out opens the image anew, within its sandbox."""
    proc.need("qemu-io", "qemu-img")
    cluster = ceph.cluster(lab)
    folder = lab.new_folder("keys")
    keys = {name: os.path.join(folder, name) for name in ("right", "wrong")}
    for name, path in keys.items():
        with open(path, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(f"the {name} passphrase\n")
    images = {version: cluster.image(version, 48) for version in ("luks1", "luks2")}
    for version, image in images.items():
        cluster.rbd("encryption", "format", image, version, keys["right"], timeout=120)

    def encrypted_unit(image, key="right", **more):
        served = unit(cluster, image, **more)
        served.options += f",luks-key-file={keys[key]}"
        return served

    printed = proc.run(Stag.binary, "serve", "--control", "none", "--listen", f"127.0.0.1:{proc.free_port()}",
                       f"rbd:{images['luks1']},{encrypted_unit(images['luks1'], 'wrong').options}", ok=None, timeout=120)
    expect(printed.code not in (0, None) and "does not open the image" in printed, f"a wrong passphrase: {printed}")
    mark = b"readable by everybody\n"
    pattern = os.path.join(folder, "pattern")
    with open(pattern, "wb") as file:
        file.write((mark * MIB)[:MIB])
    with lab.serve(encrypted_unit(images["luks1"]), encrypted_unit(images["luks2"], block_bytes=4096, op_timeout=20),
                   limits={"nop-interval": 60}) as target:
        qemu.io(target.url(), "write -P 3 0 44M")  # QEMU would decrypt what was never written.
        for url in target.urls:
            qemu.io(url, f"write -s {pattern} 1M 1M", "write -P 0xa5 0 64k", "write -z 4k 4k", "write -P 7 24M 1M", "read -P 0 4k 4k",
                    "read -P 0xa5 8k 8k", "flush")
        proc.run(target.binary, "bench", *target.urls, "-p", "randrw", "--bs", "4k", "--depth", 8, "--count", 300, "--verify", "--destroy",
                 "--span", "8M", timeout=120)
        for url in target.urls:
            qemu.io(url, f"write -s {pattern} 1M 1M")
        for image in images.values():
            with open(exported(cluster, lab, image), "rb") as file:
                expect(mark not in file.read(), f"{image}: the pool has what is encrypted")
        # QEMU decrypts version 1 by its own code.
        proc.run("qemu-img", "compare", "--object", "secret,id=key,data=the right passphrase", "--image-opts", "-U",
                 f"driver=luks,key-secret=key,file.driver=file,file.filename={exported(cluster, lab, images['luks1'])}",
                 f"driver=raw,file.driver=iscsi,file.transport=tcp,file.portal={target.portal},file.target={IQN},file.lun=0")
        with wire.session(target, timeout=90) as session:
            session.test_unit_ready(lun=1)
            write = lambda: session.run(struct.pack(">BBIBHB", 0x2A, 0, 0, 0, 1, 0), out=bytes(4096), lun=1)[0]
            before = session.read(256, 8, 4096, lun=1)
            shut_out(cluster, images["luks2"])
            proc.wait_until(lambda: write() != 0, 30, "a write is refused")
            proc.wait_until(lambda: write() == 0, 120, "a new instance serves")
            expect(session.read(256, 8, 4096, lun=1) == before and before[:22] == mark, "the new instance decrypts")
    cluster.rbd("snap", "create", f"{images['luks2']}@noon")
    with lab.serve(encrypted_unit(f"{images['luks2']}@noon")) as target:
        qemu.io(target.url(), "read -P 7 24M 1M", options=("-r",))
    cluster.rbd("snap", "purge", images["luks2"])
    for image in images.values():
        cluster.rbd("rm", image)


def lba_status(session, lba):
    """Blocks from `lba` on of one state, and whether they are mapped."""
    status, _, data = session.run(struct.pack(">BBQIBB", 0x9E, 0x12, lba, 64, 0, 0), 64)
    expect(status == 0, f"GET LBA STATUS: {status}")
    _, blocks, state = struct.unpack_from(">QIB", data, 8)
    return blocks, state & 15 == 0


def invalid_object_map(lab):
    """An object map that is not valid tells nothing, until it is rebuilt under the daemon; nor does one that is disabled."""
    cluster = ceph.cluster(lab)
    image = cluster.image("unmapped", 64, "--image-feature", "layering,exclusive-lock")
    cluster.rbd("bench", "--io-type", "write", "--io-total", "4M", "--io-size", "4M", image)
    cluster.rbd("feature", "enable", image, "object-map", "fast-diff")
    with lab.serve(unit(cluster, image, thin=True)) as target, wire.session(target) as session:
        expect(lba_status(session, 0) == (64 * MIB // 512, True), f"by an invalid map: {lba_status(session, 0)}")
        cluster.rbd("object-map", "rebuild", image, "--no-progress")
        proc.wait_until(lambda: lba_status(session, 0) == (4 * MIB // 512, True), 30, "the map is used once it is valid")
        expect(lba_status(session, 8192) == (60 * MIB // 512, False), "the rest has no objects")
        session.run(struct.pack(">BBBxxxxHB", 0x42, 0, 0, 24, 0), out=struct.pack(">HHIQII", 22, 16, 0, 0, 8192, 0))
        proc.wait_until(lambda: lba_status(session, 0) == (64 * MIB // 512, False), 30, "UNMAP gives the object back")
        cluster.rbd("feature", "disable", image, "fast-diff", "object-map")
        proc.wait_until(lambda: lba_status(session, 0) == (64 * MIB // 512, True), 30, "without a map all counts as mapped")
    cluster.rbd("rm", image)


def threads_of_librados(target):
    """Processors of the threads that librados and librbd have started, by thread."""
    found = {}
    for task in os.listdir(f"/proc/{target.pid}/task"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{target.pid}/task/{task}/status") as file:
            about = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
            if about["Name"].startswith(("msgr-worker", "io_context_pool", "taskfin_librbd", "safe_timer", "ms_dispatch")):
                found[f"{about['Name']} {task}"] = about["Cpus_allowed_list"]
    return found


def pinned(lab):
    """Ceph's threads run on all processors, though they are started for a core that is pinned to one: at the start, by
    `stag apply`, and when an instance is replaced."""
    cluster = ceph.cluster(lab)
    images = [cluster.image("first", 16), cluster.image("second", 16)]
    every = f"0-{os.cpu_count() - 1}" if os.cpu_count() > 1 else "0"
    with lab.serve(unit(cluster, images[0], op_timeout=3), limits={"nop-interval": 60}, top={"cores": os.cpu_count()}) as target:
        threads = lambda: threads_of_librados(target)

        def all_processors(least):
            found = threads()
            expect(len(found) >= least and set(found.values()) == {every}, f"processors of Ceph's threads, not {every}: {found}")

        all_processors(6)
        target.units.append(unit(cluster, images[1]))
        target.command()
        proc.run(target.binary, "apply", "--control", target.control, os.path.join(target.folder, "stag.toml"))
        all_processors(12)
        with wire.session(target, timeout=60) as session:
            session.write(0, bytes(4096))
            shut_out(cluster, images[0])
            proc.wait_until(lambda: session.run(WRITE, out=bytes(4096))[0] != 0, 30, "a write is refused")
            serves_again(session)
        all_processors(12)
        target.units.pop()
    for image in images:
        cluster.rbd("rm", image)


def in_flight(lab):
    """Writes to silent OSDs wait in bounded memory, and no core waits with them: another unit answers at once."""
    cluster = ceph.cluster(lab)
    image = cluster.image("many", 1024)
    with lab.serve(unit(cluster, image), Unit(memory=True), limits={"nop-interval": 60}) as target, wire.session(target) as session:
        session.test_unit_ready(lun=1)
        command = [target.binary, "bench", target.url(0), "-p", "write", "--bs", "1M", "--depth", 64, "--sessions", 4, "--count", 600,
                   "--destroy"]
        with ceph.silent(cluster, "osd.0", "osd.1", "osd.2"), open(os.path.join(target.folder, "bench"), "wb") as log:
            load = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            before, longest, most = target.status("VmRSS"), 0, 0
            end = time.monotonic() + 4
            while time.monotonic() < end:
                start = time.monotonic()
                session.write(8, bytes(4096), lun=1)
                longest = max(longest, time.monotonic() - start)
                most = max(most, target.status("VmRSS"))
                time.sleep(0.005)
        code = load.wait(60)
        expect(code == 0, f"the load ends with {code}")
        print(f"       another unit answered within {longest * 1e3:.0f} ms; {before >> 10} MiB of memory before, {most >> 10} MiB at most")
        expect(longest < 0.5, f"another unit has waited {longest:.2f} s")
        expect(most - before < 320 << 10, f"memory has grown from {before} to {most} KiB")
    cluster.rbd("rm", image)


def striped(lab):
    """Images of which one command becomes many operations, in stripes of 4 KiB and in objects of 4 KiB, have what was written."""
    proc.need("qemu-io", "qemu-img")
    cluster = ceph.cluster(lab)
    images = [cluster.image("striped", 64, "--stripe-unit", "4K", "--stripe-count", "16"), cluster.image("crumbs", 8, "--object-size", "4K")]
    with lab.serve(*(unit(cluster, image, thin=True) for image in images)) as target:
        proc.run(target.binary, "bench", target.url(0), "-p", "randrw", "--bs", "256k", "--depth", 64, "--count", 300, "--verify",
                 "--destroy", timeout=120)
        for url, image in zip(target.urls, images):
            qemu.io(url, "write -P 3 0 8M", "write -P 5 1M 2k", "discard 4M 3M", "read -P 5 1M 2k", "read -P 0 4M 3M", "read -P 3 7M 1M")
            compare(url, exported(cluster, lab, image))
    for image in images:
        cluster.rbd("rm", image)


def until(writers, what, holds):
    proc.wait_until(lambda: all(writer.wrong or holds(writer) for writer in writers), 120, what)


def verified(cluster, lab, image, writers):
    for writer in writers:
        writer.end()
    with open(exported(cluster, lab, image), "rb") as file:
        for writer in writers:
            writer.verify(file)


def killed_osd(lab):
    """kill -9 of an OSD under writes: none fails, and all of them are there, also once another OSD has the data."""
    cluster = ceph.cluster(lab)
    image = cluster.image("one", 16)
    with lab.serve(unit(cluster, image)) as target:
        writers = [Writer(target, place) for place in range(4)]
        until(writers, "writes are acknowledged", lambda writer: writer.acknowledged > 10)
        cluster.kill("osd.2")
        cluster.until_down("osd.2")
        seen = {writer: writer.acknowledged for writer in writers}
        until(writers, "writes go on", lambda writer: writer.acknowledged > seen[writer] + 2 * Writer.BLOCKS)
        cluster.revive("osd.2")
        expect(not any(writer.unknown for writer in writers), "no write fails")
        verified(cluster, lab, image, writers)
    cluster.rbd("rm", image)


def killed_osds(lab):
    """kill -9 of all OSDs, which keep their data on disk, under writes: service resumes once they are there again, and no
    acknowledged write is lost."""
    cluster = ceph.Cluster(lab.new_folder("durable"), osds=2, store="bluestore", address="127.0.0.2")
    try:
        cluster.start()
        image = cluster.image("all", 16)
        with lab.serve(unit(cluster, image)) as target:
            writers = [Writer(target, place) for place in range(4)]
            until(writers, "writes are acknowledged", lambda writer: writer.acknowledged > 10)
            for name in ("osd.0", "osd.1"):
                cluster.kill(name)
            seen = {writer: writer.acknowledged for writer in writers}
            for name in ("osd.0", "osd.1"):
                cluster.launch(name)
            until(writers, "service resumes", lambda writer: writer.acknowledged > seen[writer] + 2 * Writer.BLOCKS)
            expect(not any(writer.unknown for writer in writers), "no write fails within op-timeout")
            verified(cluster, lab, image, writers)
    finally:
        cluster.stop()


def snapshots_under_load(lab):
    """Snapshots while writes are in flight have each write that was acknowledged before, and none that was sent after."""
    cluster = ceph.cluster(lab)
    image = cluster.image("busy", 16)
    with lab.serve(unit(cluster, image)) as target:
        writers = [Writer(target, place) for place in range(4)]
        until(writers, "writes are acknowledged", lambda writer: writer.acknowledged > 2 * Writer.BLOCKS)
        for number in range(3):
            before = [writer.acknowledged for writer in writers]
            cluster.rbd("snap", "create", f"{image}@{number}")
            after = [writer.acknowledged + 1 for writer in writers]
            until(writers, "writes go on", lambda writer: writer.acknowledged > after[writers.index(writer)] + 2 * Writer.BLOCKS)
            with open(exported(cluster, lab, f"{image}@{number}"), "rb") as file:
                for writer, first, last in zip(writers, before, after):
                    numbers = []
                    for block in range(Writer.BLOCKS):
                        file.seek((writer.first + block) * 4096)
                        numbers += set(struct.unpack(">512Q", file.read(4096)))
                    expect(len(numbers) == Writer.BLOCKS, "each block is of one write")
                    newest = max(numbers)
                    expect(first <= newest <= last, f"the newest write in the snapshot is {newest}, of {first} to {last}")
                    expect(sorted(numbers) == list(range(newest - Writer.BLOCKS + 1, newest + 1)), f"writes in the snapshot: {numbers}")
        verified(cluster, lab, image, writers)
        with lab.serve(*(unit(cluster, f"{image}@{number}") for number in range(3))) as other:
            for number in range(3):
                compare(other.url(number), exported(cluster, lab, f"{image}@{number}"))
    cluster.rbd("snap", "purge", image)
    cluster.rbd("rm", image)


def quota(lab):
    """What is left of a pool's quota is what LOG SENSE tells and thresholds warn of; a full quota refuses writes, and no more once
    there is room."""
    cluster = ceph.cluster(lab)
    image = cluster.image("bounded", 128)
    served = unit(cluster, image, thin=True)
    served.options += ",warn-available=14M"
    with (cluster.manager(), lab.serve(served, limits={"nop-interval": 60}) as target, wire.session(target, timeout=60) as session):

        def provisioning():
            """MiB that are available, and used; none while monitors know nothing of the pool."""
            status, _, data = session.run(struct.pack(">BBBBBHHB", 0x4D, 0, 0x4C, 0, 0, 0, 64, 0), 64)
            if status != 0 or len(data) < 20:
                return None
            return struct.unpack_from(">I", data, 8)[0], struct.unpack_from(">I", data, 20)[0]

        stored = lambda: next(pool["stats"]["stored"] for pool in cluster.command("df", "detail")["pools"] if pool["name"] == ceph.POOL)
        proc.wait_until(lambda: provisioning() is not None, 60, "the pool's space is told")
        expect(provisioning() == (128, 0), f"an empty image of 128 MiB in a large pool: {provisioning()}")
        for lba in range(0, 8 * MIB // 512, 128):
            session.write(lba, b"\1" * 65536)
        cluster.command("osd", "pool", "set-quota", ceph.POOL, "max_bytes", stored() + 24 * MIB)
        proc.wait_until(lambda: provisioning()[0] < 32, 60, "the quota is told")
        expect(provisioning()[1] == 8, f"what is used: {provisioning()}")
        told, answers, lba = [], [], 8 * MIB // 512

        def refused():
            nonlocal lba
            answers.append(session.run(struct.pack(">BBIBHB", 0x2A, 0, lba, 0, 128, 0), out=b"\2" * 65536))
            if answers[-1][0] == 0:
                lba += 128
                time.sleep(0.02)
                return False
            if sense(answers[-1]) == THRESHOLD:
                told.append(lba)
                return False
            return True

        proc.wait_until(refused, 60, "a write beyond the quota is refused")
        expect(sense(answers[-1]) == SPACE_FAILED, f"sense of a write beyond the quota: {answers[-1]}")
        expect(told, "a threshold is told before")
        expect(session.read(0, 8) == b"\1" * 4096, "what is there can be read")
        cluster.command("osd", "pool", "set-quota", ceph.POOL, "max_bytes", 0)
        pool = lambda: next(pool for pool in cluster.command("osd", "dump")["pools"] if pool["pool_name"] == ceph.POOL)
        proc.wait_until(lambda: "full" not in pool()["flags_names"], 60, "the pool has room")
        proc.wait_until(lambda: not refused(), 30, "writes go on")
    cluster.rbd("rm", image)


def iscsi_test_cu(lab):
    """All of iscsi-test-cu over images, in blocks of 512 and of 4096 bytes, at once: its tests wait more than they work."""
    proc.need("iscsi-test-cu")
    cluster = ceph.cluster(lab)
    images = {"thin": cluster.image("cu", 64), "4k": cluster.image("cu4k", 256)}
    with contextlib.ExitStack() as stack:
        targets = {name: stack.enter_context(lab.serve(unit(cluster, image, thin=True, block_bytes=4096 if name == "4k" else 512)))
                   for name, image in images.items()}
        cu.all_of_units(targets)
    for image in images.values():
        cluster.rbd("rm", image)


CASES = [
    ("iscsi-test-cu over images, in blocks of 512 and of 4096 bytes", iscsi_test_cu),
    ("encrypted images are units by their key", encrypted),
    ("an object map that is not valid tells nothing", invalid_object_map),
    ("Ceph's threads are pinned to no core", pinned),
    ("writes to silent OSDs wait in bounded memory, and on no core", in_flight),
    ("images in small stripes and small objects have what was written", striped),
    ("snapshots under load have what was acknowledged before", snapshots_under_load),
    ("kill -9 of an OSD under load fails no write", killed_osd),
    ("kill -9 of all OSDs under load loses no write", killed_osds),
    ("a pool's quota is told, and refuses writes when it is full", quota),
]

for case in (iscsi_test_cu, encrypted, invalid_object_map, pinned, striped, snapshots_under_load, killed_osds):
    case.disturbs_nobody = True
