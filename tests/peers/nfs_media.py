"""Media under Stag's NFS server that are full, fail, vanish, or lose power: what a client of version 3 and one of 4.1 are told of them,
and of another export of the same daemon."""

import contextlib
import errno
import json
import os
import shutil

from lab import nfs, proc
from lab.failing import FailingFile
from lab.report import Skip, expect
from lab.share import folder, mounted, share
from lab.target import Stag

MIB = 1 << 20


class Names:
    """Changes of names below one export: the same calls in both versions."""

    def make_directory(self, name):
        return self.rpc.make_directory(self.root, name)

    def remove(self, name):
        self.rpc.remove(self.root, name)

    def rename(self, name, new):
        self.rpc.rename(self.root, name, self.root, new)

    def link(self, file, name):
        self.rpc.link(file, self.root, name)

    def symlink(self, name, path):
        self.rpc.symlink(self.root, name, path)


class Three(Names):
    """Version 3 below one export."""

    def __init__(self, server, export):
        self.rpc = nfs.Three(server.host, server.port)
        self.root, _ = self.rpc.mount(export)
        self.write, self.read, self.commit = self.rpc.write, self.rpc.read, self.rpc.commit

    def make(self, name):
        return self.rpc.make(self.root, name)

    def find(self, name):
        return self.rpc.lookup(self.root, name)

    def remove_directory(self, name):
        self.rpc.remove_directory(self.root, name)

    def set_attributes(self, file, mode, size):
        self.rpc.setattr(file, mode, size)

    def attributes(self, file):
        return self.rpc.getattr(file)

    def end(self):
        self.rpc.close()


class Four(Names):
    """Version 4.1 below one export; files are opened for writing as they are made or found."""

    def __init__(self, server, export):
        self.rpc, self.export, self.states = nfs.Session(server.host, server.port), export, {}
        self.root, self.commit = self.rpc.find(export), self.rpc.commit
        self.attributes = self.rpc.attributes

    def make(self, name):
        file, self.states[file], _ = self.rpc.open(self.root, name)
        return file

    def find(self, name):
        return self.rpc.find(self.root, name)

    def write(self, file, *what):
        return self.rpc.write(file, self.states[file], *what)

    def read(self, file, offset, length):
        return self.rpc.read(file, self.states[file], offset, length)

    remove_directory = Names.remove

    def set_attributes(self, file, mode, size):
        self.rpc.setattr(file, self.states[file], mode, size)

    def end(self):
        """Leaves nothing to be claimed after a restart."""
        for file, state in self.states.items():
            self.rpc.close_file(file, state)
        self.rpc.end()


VERSIONS = ((3, Three), (4, Four))


class Other:
    """Another export of the daemon, which must go on as if nothing had happened."""

    def __init__(self, server, export):
        self.clients = [kind(server, export) for _, kind in VERSIONS]
        self.files = [client.make(f"other {number}") for number, client in enumerate(self.clients)]
        self.verifiers, self.round = [client.commit(file) for client, file in zip(self.clients, self.files)], 0

    def goes_on(self):
        self.round += 1
        data = f"round {self.round:4}".encode()
        for client, file, verifier in zip(self.clients, self.files, self.verifiers):
            for stable in (nfs.UNSTABLE, nfs.FILE_SYNC):
                expect(client.write(file, 0, data, stable)[0] == len(data), "the other export takes less than it was given")
            expect(client.commit(file) == verifier, "the other export has another write verifier")
            expect(client.read(file, 0, 100) == data, "the other export returns other data")

    def end(self):
        for client in self.clients:
            client.end()


def unrestricted(*exports):
    return "".join(f"""[[export]]
name = "{name}"
path = "{path}"
[[export.client]]
network = "*"
squash = "none"
""" for name, path in exports)


def filled(client, what, stable, room, refused):
    """Writes a file until there is no more room, which the client is told by the status `refused`; what was taken is kept."""
    file, at = client.make("file"), 0
    while not (status := nfs.status_of(client.write, file, at, bytes(64 << 10), stable)):
        at += 64 << 10
        expect(at <= room, f"{what}: {room} bytes of room take more")
    expect(status == refused, f"{what}: WRITE without room is answered with {status}")
    expect(at >= room // 2, f"{what}: full after {at} bytes")
    expect(nfs.status_of(client.commit, file) == nfs.OK, f"{what}: what was taken is not kept")


def full(lab):
    """A medium of 1 MiB and 24 names: NOSPC, by whatever way it is filled, and it takes more once there is room."""
    with mounted(lab, "none", "-t", "tmpfs", "-o", "size=1M,nr_inodes=24") as small, \
            share(lab, {}, config=unrestricted(("/small", small), ("/other", folder(lab, "other")), ("/memory", "mem:1M"))) as server:
        other = Other(server, "/other")
        for version, kind in VERSIONS:
            for export in ("/small", "/memory"):
                client = kind(server, export)
                for stable in (nfs.FILE_SYNC, nfs.UNSTABLE):
                    filled(client, f"{version}, {export}", stable, MIB, nfs.NOSPC)
                    other.goes_on()
                    client.remove("file")
                    file = client.make("file")
                    expect(client.write(file, 0, bytes(64 << 10), stable)[0] == 64 << 10, f"{version}, {export}: not used again")
                    client.remove("file")
            client = kind(server, "/small")
            for make, remove in ((client.make, client.remove), (client.make_directory, client.remove_directory)):
                names = []
                while not (status := nfs.status_of(make, f"name{len(names)}")):
                    names.append(f"name{len(names)}")
                    expect(len(names) < 100, f"{version}: 24 names of room take more")
                expect(status == nfs.NOSPC, f"{version}: a name without room is answered with {status}")
                other.goes_on()
                for name in names:
                    remove(name)
        told = {one["name"]: one["errors"] for one in json.loads(
            proc.run(Stag.binary, "status", "--control", server.control, "--json"))["nfs"]["exports"]}
        expect(told["/small"] >= 8 and told["/other"] == 0, f"stag status counts errors of exports: {told}")


def quota(lab):
    """A directory with a quota on a file system that has room: DQUOT, and room again once the file is gone."""
    proc.need("mkfs.btrfs", "btrfs")
    image = os.path.join(lab.new_folder("btrfs"), "image")
    with open(image, "wb") as file:
        file.truncate(200 * MIB)
    proc.run("mkfs.btrfs", "-q", image)
    with mounted(lab, image, "-o", "loop") as top:
        bounded = os.path.join(top, "bounded")
        proc.run("btrfs", "quota", "enable", top)
        proc.run("btrfs", "subvolume", "create", bounded)
        proc.run("btrfs", "qgroup", "limit", "4M", bounded)
        os.chmod(bounded, 0o777)
        other = os.path.join(top, "other")
        os.mkdir(other, 0o777)
        with share(lab, {}, config=unrestricted(("/bounded", bounded), ("/other", other))) as server:
            other = Other(server, "/other")
            for version, kind in VERSIONS:
                client = kind(server, "/bounded")
                for stable in (nfs.FILE_SYNC, nfs.UNSTABLE):
                    filled(client, f"{version}, {stable}", stable, 4 * MIB, nfs.DQUOT)
                    other.goes_on()
                    health = json.loads(proc.run(Stag.binary, "status", "--control", server.control, "--json"))["health"]
                    expect([one["mount"] for one in health["file_systems"]] == [top] and health["state"] == "ok",
                           f"a quota is not the medium's room, and subvolumes are one file system: {health}")
                    client.remove("file")

                    def room_again():
                        proc.run("btrfs", "filesystem", "sync", top)
                        return nfs.status_of(client.make, "file") == nfs.OK

                    # Btrfs gives room back some time after it was freed.
                    proc.wait_until(room_again, 60, "a file can be made again")
                    file = client.find("file")
                    expect(client.write(file, 0, bytes(64 << 10), stable)[0] == 64 << 10, f"{version}: not used again")
                    client.remove("file")


@contextlib.contextmanager
def failing(lab):
    """A directory of a file system without a journal on a medium that fails on demand; the medium, and where it is mounted."""
    with FailingFile(os.path.join(lab.new_folder("failing"), "image"), 64 * MIB) as medium:
        proc.run("mkfs.ext4", "-q", "-F", "-O", "^has_journal", medium.path)
        # Past the page cache of the medium itself.
        made = proc.run("losetup", "--direct-io=on", "--find", "--show", medium.path, ok=None)
        if made.code != 0:
            raise Skip(f"no loop device: {made}")
        device = made.strip()
        try:
            with mounted(lab, device) as at:
                yield medium, at
        finally:
            medium.fail.clear()
            proc.run("losetup", "-d", device, ok=None)


def io_errors(lab):
    """EIO of READ, WRITE and COMMIT is told, and what was lost is sent again by whoever minds the verifier."""
    with failing(lab) as (medium, at), \
            share(lab, {}, config=unrestricted(("/bad", at), ("/other", folder(lab, "other")))) as server:
        other = Other(server, "/other")
        for version, kind in VERSIONS:
            client = kind(server, "/bad")
            for number, what in enumerate(("write", "fsync")):
                file, data = client.make(f"file{version}{number}"), os.urandom(200_000)
                client.write(file, 0, bytes(200_000))
                _, committed, before = client.write(file, 0, data, nfs.UNSTABLE)
                expect(committed == nfs.UNSTABLE, f"{version}: an UNSTABLE write is committed")
                medium.fail[what] = errno.EIO
                status = nfs.status_of(client.commit, file)
                expect(status == nfs.IO, f"{version}, {what}: COMMIT is answered with {status}")
                other.goes_on()
                status = nfs.status_of(client.write, file, 0, b"more", nfs.FILE_SYNC)
                expect(status == nfs.IO, f"{version}, {what}: a WRITE for FILE_SYNC is answered with {status}")
                medium.fail.clear()
                # The medium is well again. The kernel forgets what it could not write, so the verifier must be another one.
                after = client.commit(file)
                expect(after != before, f"{version}, {what}: the verifier is the same after a lost write")
                expect(client.write(file, 0, data, nfs.UNSTABLE)[2] == after == client.commit(file), f"{version}: another verifier")
                expect(client.read(file, 0, 200_000) == data, f"{version}, {what}: other data")
            client.end()
        expect("the medium failed to write" in server.log(500), f"the log does not say so:\n{server.log()}")
        other.end()
        # What is not in memory is read from the medium.
        server.stop()
        proc.run("umount", at)
        proc.run("mount", proc.run("losetup", "-n", "-O", "NAME", "-j", medium.path).strip(), at)
        server.start()
        other = Other(server, "/other")
        for version, kind in VERSIONS:
            client = kind(server, "/bad")
            file = client.make(f"file{version}1") if version == 4 else client.find(f"file{version}1")
            medium.fail["read"] = errno.EIO
            status = nfs.status_of(client.read, file, 0, 100_000)
            expect(status == nfs.IO, f"{version}: READ is answered with {status}")
            other.goes_on()
            medium.fail.clear()
            expect(len(client.read(file, 0, 100_000)) == 100_000, f"{version}: not read once the medium is well")


def vanished(lab):
    """A directory that is taken away: STALE for all that was in it, and for its root."""
    top = folder(lab, "top")
    path = os.path.join(top, "tree")
    os.mkdir(path)
    os.chmod(path, 0o777)
    with share(lab, {}, config=unrestricted(("/gone", path), ("/other", folder(lab, "other")))) as server:
        other, clients = Other(server, "/other"), [(version, kind(server, "/gone")) for version, kind in VERSIONS]
        files = [client.make(f"file{version}") for version, client in clients]
        for (_, client), file in zip(clients, files):
            client.write(file, 0, b"data")
        shutil.rmtree(path)
        for (version, client), file in zip(clients, files):
            for what, function, *arguments in (("GETATTR of the root", client.attributes, client.root), ("LOOKUP", client.find, f"file{version}"),
                                               ("CREATE", client.make, "new"), ("MKDIR", client.make_directory, "new")):
                status = nfs.status_of(function, *arguments)
                expect(status == nfs.STALE, f"{version}: {what} is answered with {status}")
            # Version 4 has it open; a file of version 3 is gone with its name.
            status = nfs.status_of(client.read, file, 0, 10)
            expect(status in ((nfs.OK, nfs.STALE) if version == 4 else (nfs.STALE,)), f"{version}: READ is answered with {status}")
            other.goes_on()
        expect("the folder was removed" in server.log(500), f"the log does not say so:\n{server.log()}")


def content(top):
    """All that is below a directory: of each name its type, mode and number of links, and what it contains."""
    found = {}
    for place, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(place, name)
            about = os.lstat(path)
            inside = os.readlink(path) if os.path.islink(path) else None
            if os.path.isfile(path) and not inside:
                with open(path, "rb") as file:
                    inside = file.read()
            found[os.path.relpath(path, top)] = (about.st_mode, about.st_nlink, inside)
    return found


def lost_by_a_power_cut(lab, kind, asynchronous):
    """Operations that are answered, and those of them whose effect was not on the medium then. After each one the medium is copied as it
    is, and the copy mounted, as when the power is back."""
    image, asked, lost = os.path.join(lab.new_folder("image"), "image"), [], []
    with open(image, "wb") as file:
        file.truncate(32 * MIB)
    proc.run("mkfs.ext4", "-q", image)
    # Linux would flush names by itself each 5 s.
    with mounted(lab, image, "-o", "loop,commit=300") as at:
        os.rmdir(os.path.join(at, "lost+found"))
        config = unrestricted(("/medium", at))
        if asynchronous:
            config = config.replace("path =", "async = true\npath =")
        with share(lab, {}, config=config) as server:
            client = kind(server, "/medium")

            def answered(what, function, *arguments):
                result = function(*arguments)
                asked.append(what)
                copy = os.path.join(os.path.dirname(image), "copy")
                proc.run("cp", "--sparse=always", image, copy)
                with mounted(lab, copy, "-o", "loop") as after:
                    there, here = content(after), content(at)
                if there != here:
                    lost.append(what)
                return result

            file = answered("CREATE", client.make, "file")
            answered("WRITE for FILE_SYNC", client.write, file, 0, os.urandom(100_000), nfs.FILE_SYNC)
            answered("WRITE for DATA_SYNC", client.write, file, 50_000, os.urandom(100_000), nfs.DATA_SYNC)
            client.write(file, 0, os.urandom(1000), nfs.UNSTABLE)
            client.write(file, 200_000, os.urandom(100_000), nfs.UNSTABLE)
            answered("COMMIT", client.commit, file)
            answered("SETATTR", client.set_attributes, file, 0o600, 60_000)
            answered("RENAME", client.rename, "file", "renamed")
            answered("LINK", client.link, file, "link")
            answered("SYMLINK", client.symlink, "symlink", "some/where")
            answered("MKDIR", client.make_directory, "directory")
            answered("RMDIR", client.remove_directory, "directory")
            answered("REMOVE", client.remove, "link")
            # Over another file, which has data.
            client.write(client.make("over"), 0, b"over", nfs.FILE_SYNC)
            answered("RENAME over a file", client.rename, "renamed", "over")
            client.end()
    return asked, lost


def power(lab):
    """What was answered is on the medium. The same test finds what `async` leaves out."""
    proc.need("mkfs.ext4")
    for version, kind in VERSIONS:
        asked, lost = lost_by_a_power_cut(lab, kind, False)
        expect(not lost, f"{version}: answered, and not on the medium: {lost}")
        again, lost = lost_by_a_power_cut(lab, kind, True)
        expect(lost == again == asked, f"{version}: with `async` only these are not on the medium: {lost}")


CASES = [
    ("a full medium is NOSPC, and used again once there is room", full),
    ("a quota is DQUOT, and used again once there is room", quota),
    ("EIO is told, and changes the write verifier", io_errors),
    ("a directory that vanishes is STALE", vanished),
    ("answered operations are on the medium, but not those of async", power),
]
