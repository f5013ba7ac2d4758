"""The daemon says what fails under units and exports: in its log, in `stag status`, by `stag status --check`; and keeps a failed flush in mind."""

import contextlib
import errno
import json
import os
import re
import shutil
import struct

from lab import proc, wire
from lab.failing import FailingFile
from lab.osd_session import Device
from lab.report import Skip, expect
from lab.share import share
from lab.target import IQN, Stag, Unit

from . import osd_data
from .session import CHECK_CONDITION, sense_of

MIB = 1 << 20
SYNCHRONIZE = struct.pack(">BBIBHB", 0x35, 0, 0, 0, 0, 0)


def write(session, lba, blocks=8, flags=0):
    cdb = struct.pack(">BBIBHB", 0x2A, flags, lba, 0, blocks, 0)
    return session.run(cdb, out=bytes([lba % 255 + 1]) * (512 * blocks))[0]


def flush(session):
    status, response, _ = session.run(SYNCHRONIZE)
    expect(status in (0, CHECK_CONDITION), f"SYNCHRONIZE CACHE: status {status:#x}")
    return status == 0


def status(target):
    return json.loads(proc.run(Stag.binary, "status", "--json", "--control", target.control))


def check(target):
    return proc.run(Stag.binary, "status", "--check", "--control", target.control, ok=None)


def acknowledge(target, lun=0, ok=(0,)):
    return proc.run(Stag.binary, "acknowledge", "--control", target.control, f"{IQN}/{lun}", ok=ok)


def lines(target, kind):
    """The log lines about one kind of failure."""
    with open(target.log_path, errors="replace") as file:
        plain = re.sub(r"\x1b\[[0-9;]*m", "", file.read())
    return [line for line in plain.splitlines() if "ERROR" in line and f'kind="{kind}"' in line]


def medium(lab):
    if lab.kind != "stag":
        raise Skip("stag's own health")
    if os.geteuid() != 0:
        raise Skip("a file that fails needs root")
    return FailingFile(os.path.join(lab.new_folder("failing"), "unit.img"), 16 * MIB)


def soon(condition, what):
    """Within a second, as the daemon promises; a machine that is busy otherwise gets a little more."""
    proc.wait_until(condition, 3, what)


KINDS = [  # What fails, with what; what the daemon calls it, and how bad it is.
    ("write", errno.ENOSPC, "full", "degraded", 1),
    ("write", errno.EDQUOT, "full", "degraded", 1),
    ("write", errno.EIO, "write", "degraded", 1),
    ("write", errno.EROFS, "write", "degraded", 1),
    ("write", errno.ENODEV, "gone", "failed", 2),
    ("read", errno.EIO, "read", "degraded", 1),
    ("fsync", errno.EIO, "flush", "failed", 2),
]


def told(lab):
    """Each failure: one log line with path, errno and block, the unit's state, and the status of --check, at once."""
    for operation, code, kind, state, exit_status in KINDS:
        with medium(lab) as file, lab.serve(Unit(path=file.path)) as target, wire.session(target) as session:
            well = check(target)
            expect(well.code == 0 and well.startswith("OK: "), f"--check before: {well.code} {well}")
            expect(write(session, 0) == 0, "the first write fails")
            file.fail[operation] = code
            for number in range(50):
                if operation == "write":
                    expect(write(session, 4096 + 8 * number) == CHECK_CONDITION, "a write that cannot be is GOOD")
                elif operation == "read":
                    cdb = struct.pack(">BBIBHB", 0x28, 0, 4096, 0, 8, 0)
                    expect(session.run(cdb, 4096)[0] == CHECK_CONDITION, "a read that cannot be is GOOD")
                else:
                    expect(not flush(session), "a flush that cannot be is GOOD")
            soon(lambda: lines(target, kind), f"a log line about {kind}")
            found = lines(target, kind)
            expect(len(found) == 1, f"{len(found)} lines:\n" + "\n".join(found))
            wanted = [file.path, IQN, "lun=0", os.strerror(code)] + ([] if kind == "flush" else ["lba=4096"])
            for word in wanted:
                expect(word in found[0], f"no {word} in {found[0]}")
            now = status(target)
            health = now["targets"][0]["units"][0]["health"]
            expect(health["state"] == state and health["refused"] == 50 and health["since_unix_s"], f"health {health}")
            expect(os.strerror(code) in health["last_error"], f"last error {health['last_error']}")
            problem, = [found for found in now["health"]["problems"] if found["kind"] == kind]
            expect(problem["errno"] == code and problem["count"] == 50 and problem["lun"] == 0, f"problem {problem}")
            told = check(target)
            expect(told.code == exit_status, f"--check ends with {told.code}: {told}")
            word = ("OK", "WARNING", "CRITICAL")[exit_status]
            expect(told.startswith(f"{word}: {IQN} LUN 0 ({file.path}): "), f"--check says {told}")
            expect("50 times" in proc.run(Stag.binary, "status", "--control", target.control), "no section in the text")
            file.fail.clear()
            acknowledge(target)
            expect(check(target).code == 0, "--check after it was acknowledged")
            expect(write(session, 8) == 0 and flush(session), "the unit fails after all was acknowledged")


def no_daemon(lab):
    """--check ends with 3, unknown, where no daemon answers."""
    if lab.kind != "stag":
        return
    gone = proc.run(Stag.binary, "status", "--check", "--control", os.path.join(lab.new_folder("none"), "no.sock"), ok=None)
    expect(gone.code == 3, f"--check without a daemon: {gone.code}")


def refused(target, when):
    with wire.session(target) as session:
        expect(write(session, 16) == 0 or target.units[0].cache == "writethrough", f"{when}: a plain write fails")
        expect(not flush(session), f"{when}: SYNCHRONIZE CACHE is GOOD again, and what was lost is forgotten")
    expect(check(target).code == 2, f"{when}: --check does not know of it")
    expect(status(target)["targets"][0]["units"][0]["health"]["refuses_flushes"], f"{when}: nor does status")


def kept_in_mind(lab):
    """After a failed flush SYNCHRONIZE CACHE is refused over takeover, restart and kill, until it is acknowledged."""
    for cache in ("writeback", "writethrough", "direct"):
        with medium(lab) as file, lab.serve(Unit(path=file.path, cache=cache)) as target:
            with wire.session(target) as session:
                expect(write(session, 0) == 0 and flush(session), "a unit that works does not")
                file.fail["fsync"] = errno.EIO
                write(session, 8)
                expect(not flush(session), "a flush that fails is GOOD")
            file.fail.clear()  # As Linux does: the next one would succeed.
            mark = file.path + ".flush-failed"
            expect(os.stat(mark).st_mode & 0o777 == 0o600, "the mark is not 0600")
            refused(target, f"{cache}, before")
            target.take_over()
            refused(target, f"{cache}, after a takeover")
            target.kill()
            target.restart()
            refused(target, f"{cache}, after kill -9")
            os.remove(mark)  # As if that medium could not keep it: the state directory does.
            # A daemon that cannot flush at its end says so by its status.
            target.process.terminate()
            expect(target.process.wait(30) == 1, f"{cache}: it ended with {target.process.returncode}")
            target.restart()
            refused(target, f"{cache}, after a restart without the mark beside the file")
            said = proc.run(Stag.binary, "acknowledge", "--dry-run", "--control", target.control, f"{IQN}/0")
            expect(f"- {IQN} LUN 0: flush\n" in said and "flushes may succeed again" in said, f"the plan says {said}")
            said = acknowledge(target)
            expect("acknowledged: flush" in said, f"acknowledge says {said}")
            with wire.session(target) as session:
                expect(write(session, 24, flags=8) == 0 and flush(session), f"{cache}: refused though acknowledged")
            expect(not os.path.exists(mark), "the mark is still there")
            target.take_over()
            with wire.session(target) as session:
                expect(flush(session), f"{cache}: refused again, by the daemon after")
            expect(check(target).code == 0, "--check after all")
            target.stop()
            target.restart()


def without_a_place(lab):
    """Where the mark can be kept nowhere, a takeover carries it over all the same."""
    with medium(lab) as file:
        folder = os.path.dirname(file.path)
        # Where the mark would be written to first, there is a directory in both places.
        os.mkdir(file.path + ".flush-failed.new")
        with lab.serve(Unit(path=file.path)) as target, wire.session(target) as session:
            name = file.path.replace("/", "%2f")
            os.makedirs(os.path.join(os.environ["STATE_DIRECTORY"], "flush-failed", name + ".new"), exist_ok=True)
            file.fail["fsync"] = errno.EIO
            expect(not flush(session), "a flush that fails is GOOD")
            file.fail.clear()
            expect(not os.path.exists(os.path.join(folder, "unit.img.flush-failed")), "it was kept: the test tests nothing")
            session.close()
            target.take_over()
            refused(target, "after a takeover")
            acknowledge(target)


def lossy_device(lab):
    """A block device that loses what it has acknowledged: a loop device on a file system without room."""
    if lab.kind != "stag":
        raise Skip("stag's own health")
    if os.geteuid() != 0:
        raise Skip("a loop device needs root")
    folder = lab.new_folder("small")
    proc.run("mount", "-t", "tmpfs", "-o", "size=8M", "tmpfs", folder)
    device = None
    try:
        below = os.path.join(folder, "below.img")
        with open(below, "wb") as file:
            file.truncate(64 * MIB)
        made = proc.run("losetup", "--find", "--show", below, ok=None)
        if made.code != 0:
            raise Skip("no loop device")
        device = made.strip()
        for cache in ("writeback", "direct"):
            with lab.serve(Unit(path=device, cache=cache)) as target:
                with wire.session(target) as session:
                    failed = [write(session, 512 * number, 512) for number in range(64)]
                    done = flush(session)
                    if cache == "writeback":
                        expect(not done, "64 x 256 KiB are on a medium of 8 MiB")
                    else:
                        expect(CHECK_CONDITION in failed, "64 x 256 KiB are on a medium of 8 MiB")
                told = check(target)
                expect(told.code > 0 and device in told, f"{cache}: --check says {told.code} {told}")
                if cache == "writeback":
                    target.kill()
                    target.restart()
                    refused_device = check(target)
                    expect(refused_device.code == 2, f"after a restart: {refused_device}")
                    with wire.session(target) as session:
                        expect(not flush(session), "SYNCHRONIZE CACHE is GOOD after a restart")
                    expect(not os.path.exists(device + ".flush-failed"), "a mark was made in /dev")
                    acknowledge(target)
                    with wire.session(target) as session:
                        flush(session)  # What is lost is lost: Linux calls the next flush a success.
                acknowledge(target)
    finally:
        if device:
            proc.run("losetup", "-d", device, ok=None)
        proc.run("umount", "-l", folder, ok=None)


def room(lab):
    """A file system that fills up: a warning once, in status, and by --check; what was promised and is not there."""
    with medium(lab) as file:
        file.room = (10000, 500)  # 95 % of 39 MiB.
        with lab.serve(Unit(path=file.path)) as target:
            told = check(target)
            expect(told.code == 1 and told.startswith(f"WARNING: file system {file.path}: 95 % used"), f"{told.code} {told}")
            system, = status(target)["health"]["file_systems"]
            expect(system["provisioned"] == 16 * MIB and system["free"] == 500 * 4096, f"{system}")
            expect(system["overcommitted"] == 16 * MIB - system["allocated"] - 500 * 4096, f"{system}")
            soon(lambda: "nearly full" in target.log(50), "a warning in the log")
            file.room = (10000, 50)
            expect(check(target).code == 2, f"full: {check(target)}")
            file.room = (10000, 5000)
            expect(check(target).code == 0, f"half full: {check(target)}")
            expect(target.log(200).count("nearly full") == 1, "more than one warning")


def shrunk(lab):
    """A file that was cut is told, and a file that `stag apply --force` makes smaller is not."""
    if lab.kind != "stag":
        raise Skip("stag's own health")
    with lab.serve(Unit(mib=16)) as target, wire.session(target) as session:
        os.truncate(target.units[0].path, 8 * MIB)
        session.run(struct.pack(">BBIBHB", 0x28, 0, 30000, 0, 8, 0), 4096)
        session.test_unit_ready()
        told = check(target)
        expect(told.code == 2 and "shorter than the unit" in told, f"{told.code} {told}")
        os.truncate(target.units[0].path, 16 * MIB)
        session.run(bytes(6))
        session.run(bytes(6))
        told = check(target)
        # The machine's own disk may be nearly full: that is said as well.
        wrong = [line for line in told.splitlines() if not line.startswith(("OK: ", "WARNING: file system "))]
        expect(told and not wrong, f"after it has its size again: {told}")


@contextlib.contextmanager
def store(lab):
    """The directory of a store of objects, and its arena, which fails on request."""
    if lab.kind != "stag":
        raise Skip("stag's own health")
    if os.geteuid() != 0:
        raise Skip("a file that fails needs root")
    folder = lab.new_folder("store")
    # A directory with an arena and no metadata is a store that has lost something, unless it says that it is not finished.
    with open(os.path.join(folder, "unfinished"), "w"):
        pass
    with FailingFile(os.path.join(folder, "arena"), 64 * MIB) as arena:
        yield folder, arena


def objects(lab):
    """A store of objects whose data cannot be flushed: told, refused after a restart, and served all the same."""
    with store(lab) as (folder, arena):
        with lab.serve(Unit(path=folder, objects=True, options="capacity=64M")) as target:
            with wire.session(target) as session:
                device = Device(session)
                partition = osd_data.new_partition(device)
                object_ = osd_data.new_object(device, partition)
                device.good("FLUSH OSD", scope=2)
                osd_data.write(device, partition, object_, bytes(1 << 20))
                arena.fail["fsync"] = errno.EIO
                expect(device.run("FLUSH OSD", scope=2).status == CHECK_CONDITION, "FLUSH OSD of a medium that cannot is GOOD")
            arena.fail.clear()
            expect(check(target).code == 2, "--check does not know of it")
            target.kill()
            target.restart()
            expect(check(target).code == 2, "forgotten by a restart")
            with wire.session(target) as session:
                device = Device(session)
                device.good("CREATE PARTITION", partition=0)
                expect(device.run("FLUSH OSD", scope=2).status == CHECK_CONDITION, "FLUSH OSD is GOOD after a restart")
                acknowledge(target)
                device.good("FLUSH OSD", scope=2)
            expect(check(target).code == 0, f"after it was acknowledged: {check(target)}")


def store_faults(lab):
    """A store of objects whose medium is full, or fails to read: a log line, status and --check, with its place."""
    with store(lab) as (folder, arena):
        with lab.serve(Unit(path=folder, objects=True, options="capacity=64M")) as target:
            with wire.session(target) as session:
                device = Device(session)
                partition = osd_data.new_partition(device)
                object_ = osd_data.new_object(device, partition)
                osd_data.write(device, partition, object_, bytes(range(256)) * 4096)
                device.good("FLUSH OSD", scope=2)
            target.stop()
            target.restart()  # What the system had cached is gone.
            for operation, code, kind in (("read", errno.EIO, "read"), ("write", errno.ENOSPC, "full")):
                with wire.session(target) as session:
                    device = Device(session)
                    arena.fail[operation] = code
                    what = {"data": bytes(1 << 20)} if operation == "write" else {"data_in": 1 << 20}
                    for _ in range(5):
                        answer = device.run(operation.upper(), partition=partition, object=object_, length=1 << 20, start=0, **what)
                        expect(answer.status == CHECK_CONDITION, f"{operation} on a medium that cannot is GOOD: {answer}")
                    soon(lambda: lines(target, kind), f"a log line about {kind}")
                    found = lines(target, kind)
                    expect(len(found) == 1, "\n".join(found))
                    for word in (folder, IQN, "lun=0", os.strerror(code)):
                        expect(word in found[0], f"no {word} in {found[0]}")
                    now = status(target)
                    problem, = now["health"]["problems"]
                    expect((problem["kind"], problem["errno"], problem["lun"]) == (kind, code, 0) and problem["count"] >= 5,
                           f"problem {problem}")
                    expect(now["targets"][0]["units"][0]["health"]["state"] == "degraded", f"{now['targets'][0]['units'][0]}")
                    told = check(target)
                    expect(told.code == 1 and told.startswith(f"WARNING: {IQN} LUN 0 ("), f"{told.code} {told}")
                    arena.fail.clear()
                    acknowledge(target)
                    expect(check(target).code == 0, f"after it was acknowledged: {check(target)}")
                    osd_data.write(device, partition, object_, bytes(range(256)) * 4096)
                    expect(osd_data.read(device, partition, object_, 1 << 20) == bytes(range(256)) * 4096, "it reads other bytes")


def store_lost(lab):
    """A file of a store of objects that is removed: told, and nothing is durable in it any more."""
    if lab.kind != "stag":
        raise Skip("stag's own health")
    for file in ("metadata.redb", "arena", "journal"):
        folder = lab.new_folder("store")
        with lab.serve(Unit(path=folder, objects=True, options="capacity=64M")) as target, wire.session(target) as session:
            device = Device(session)
            partition = osd_data.new_partition(device)
            device.good("FLUSH OSD", scope=2)
            os.remove(os.path.join(folder, file))
            expect(device.run("FLUSH OSD", scope=2).status == CHECK_CONDITION, f"FLUSH OSD without {file} is GOOD")
            osd_data.new_object(device, partition)
            told = proc.wait_until(lambda: (lambda now: now.code == 2 and now)(check(target)), 30, f"{file} is gone: told")
            expect(f"{IQN} LUN 0 (osd:{folder})" in told and len(lines(target, "unusable")) == 1, told)
            session.close()
            # A daemon that cannot flush at its end says so by its status. A new store takes the place of the old one.
            target.process.terminate()
            expect(target.process.wait(30) == 1, f"it ended with {target.process.returncode}")
            shutil.rmtree(folder)
            target.restart()


def exports(lab):
    """An export whose file system fills up, whose flush fails, whose folder vanishes: log, status, --check, with its name."""
    if lab.kind != "stag":
        raise Skip("stag's own health")
    if os.geteuid() != 0:
        raise Skip("mounts need root")
    top = lab.new_folder("small")
    folder = os.path.join(top, "folder")
    proc.run("mount", "-t", "tmpfs", "-o", "size=8M", "tmpfs", top)
    try:
        os.mkdir(folder, 0o777)
        os.chmod(folder, 0o777)
        with open(os.path.join(folder, "ballast"), "wb") as file:
            file.write(bytes(15 * MIB // 2))
        with share(lab, {"/data": folder}) as server:
            soon(lambda: "nearly full" in server.log(50), "a warning in the log")
            told = check(server)
            expect(told.code == 1 and told.startswith(f"WARNING: file system {top}: 9"), f"{told.code} {told}")
            url = f"nfs://{server.host}:{server.port}/data/file?vers=4.2"
            failed = proc.run(Stag.binary, "write", url, stdin=os.urandom(2 * MIB), ok=None)
            expect(failed.code == 1, f"2 MiB are on a medium that had 0.5 MiB: {failed}")
            soon(lambda: lines(server, "full"), "a log line about a full medium")
            found = lines(server, "full")
            expect(len(found) == 1 and 'export="/data"' in found[0] and folder in found[0] and os.strerror(errno.ENOSPC) in found[0]
                   and "target=" not in found[0], "\n".join(found))
            now = status(server)
            health = now["nfs"]["exports"][0]["health"]
            expect(health["state"] == "degraded" and health["refused"] >= 1, f"health {health}")
            problem, = now["health"]["problems"]
            expect((problem["export"], problem["kind"], problem["errno"]) == ("/data", "full", errno.ENOSPC), f"problem {problem}")
            told = check(server)
            expect(told.code == 2 and f"WARNING: export /data ({folder}): the medium is full" in told, f"{told.code} {told}")
            for name in os.listdir(folder):
                os.remove(os.path.join(folder, name))
            said = proc.run(Stag.binary, "acknowledge", "--control", server.control, "/data")
            expect("acknowledged: full" in said, f"acknowledge says {said}")
            expect(check(server).code == 0, f"after it was emptied: {check(server)}")
            os.rmdir(folder)
            told = proc.wait_until(lambda: (lambda now: now.code == 2 and now)(check(server)), 30, "a folder that vanished is told")
            expect(told.startswith(f"CRITICAL: export /data ({folder}): the folder was removed"), told)
            expect(len(lines(server, "unusable")) == 1, "no line about the folder")
    finally:
        proc.run("umount", "-l", top, ok=None)


def export_on_a_failing_disk(lab):
    """An export on a disk that cannot be flushed: its client gets an error, and log, status and --check tell it."""
    with medium(lab) as file:
        folder = lab.new_folder("mounted")
        proc.run("mkfs.ext4", "-q", "-E", "root_owner=0:0", file.path)
        if proc.run("mount", "-o", "loop", file.path, folder, ok=None).code != 0:
            raise Skip("no loop device")
        try:
            os.mkdir(os.path.join(folder, "data"), 0o777)
            os.chmod(os.path.join(folder, "data"), 0o777)
            with share(lab, {"/data": os.path.join(folder, "data")}) as server:
                url = f"nfs://{server.host}:{server.port}/data/file?vers=4.2"
                proc.run(Stag.binary, "write", url, stdin=os.urandom(65536))
                expect(status(server)["nfs"]["exports"][0]["health"]["state"] == "ok", "it is not well before")
                file.fail["fsync"] = file.fail["write"] = errno.EIO
                failed = proc.run(Stag.binary, "write", url, stdin=os.urandom(65536), ok=None)
                expect(failed.code == 1, f"a write that cannot be durable ends well: {failed}")
                soon(lambda: lines(server, "write"), "a log line")
                found = lines(server, "write")
                expect('export="/data"' in found[0] and os.strerror(errno.EIO) in found[0], "\n".join(found))
                problem = status(server)["health"]["problems"][0]
                expect((problem["export"], problem["kind"], problem["errno"]) == ("/data", "write", errno.EIO), f"problem {problem}")
                told = check(server)
                expect(told.code >= 1 and "export /data (" in told, f"{told.code} {told}")
        finally:
            file.fail.clear()
            proc.run("umount", "-l", folder, ok=None)


CASES = [
    ("each failure of a medium: one log line, status, --check", told),
    ("--check without a daemon is unknown", no_daemon),
    ("a failed flush is kept in mind until it is acknowledged", kept_in_mind),
    ("a failed flush that can be kept nowhere is carried over", without_a_place),
    ("a block device that loses writes", lossy_device),
    ("a file system that fills up", room),
    ("a file that shrank", shrunk),
    ("objects whose data cannot be flushed", objects),
    ("objects whose medium is full or fails to read", store_faults),
    ("objects whose files are removed", store_lost),
    ("an export that fills up and vanishes", exports),
    ("an export on a disk that cannot be flushed", export_on_a_failing_disk),
]
