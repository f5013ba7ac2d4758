"""Stag's NFS server as `lab/nfs.py` sees it, call by call: exports that change under open files, media that are full, fail or vanish,
an ordinary user's server, and what a server says of itself."""

import json
import os
import tempfile
import threading

from lab import nfs, proc
from lab.report import Failed, Skip, expect
from lab.share import folder, share
from lab.target import Lab, Stag


def stag(server, verb, *words, ok=(0,)):
    return proc.run(Stag.binary, verb, "--control", server.control, *words, ok=ok)


def export(name, path, network="*", **settings):
    """The lines of an export, with one rule for its clients."""
    lines = ["[[export]]", f"name = {json.dumps(name)}", f"path = {json.dumps(path)}", "[[export.client]]", f'network = "{network}"']
    return "\n".join(lines + [f"{key} = {json.dumps(value)}" for key, value in {"squash": "none", **settings}.items()]) + "\n"


def applied(server, *exports):
    """Makes these the exports of the running server."""
    path = os.path.join(server.folder, "applied.toml")
    with open(path, "w") as file:
        file.write("".join(exports))
    told = json.loads(stag(server, "apply", "--json", path))
    expect(told["applied"], f"stag apply says {told}")


def changed_live(lab):
    """One client of version 3 and one of 4.1 keep a file open while its export goes through everything that `stag apply` may change."""
    one, two = folder(lab, "one"), folder(lab, "two")
    data = export("/data", one)
    with share(lab, {}, config=data) as server:
        three, four = nfs.Three(server.host, server.port), nfs.Session(server.host, server.port)
        root, _ = three.mount("/data")
        file, state, _ = four.open("/data", "file")
        four.write(file, state, 0, b"first")
        here = three.lookup(root, "file")

        def seen():
            """What each of them gets of a READ and a WRITE of the open file."""
            return (nfs.status_of(three.read, here, 0, 5), nfs.status_of(four.read, file, state, 0, 5),
                    nfs.status_of(three.write, here, 0, b"first"), nfs.status_of(four.write, file, state, 0, b"first"))

        def names():
            return sorted(entry["name"] for entry in json.loads(stag(server, "status", "--json"))["nfs"]["exports"])

        expect(seen() == (nfs.OK,) * 4, f"before: {seen()}")
        expect(nfs.status_of(three.mount, "/more") == nfs.NOENT, "an export that is not there yet is mounted")

        applied(server, data, export("/more", two), export("/scratch", "mem:4M"))
        expect(names() == ["/data", "/more", "/scratch"], f"stag status lists {names()}")
        expect(seen() == (nfs.OK,) * 4, f"with two exports more: {seen()}")
        for name in ("/more", "/scratch"):
            new, _ = three.mount(name)
            three.write(three.make(new, "by 3"), 0, b"three")
            made, made_state, _ = four.open(name, "by 4")
            four.write(made, made_state, 0, b"four")
        expect(sorted(os.listdir(two)) == ["by 3", "by 4"], f"the host sees {os.listdir(two)}")
        scratch, scratch_state = made, made_state

        applied(server, export("/scratch", "mem:4M"))
        expect(names() == ["/scratch"], f"stag status lists {names()}")
        expect(seen() == (nfs.STALE,) * 4, f"without the export: {seen()}")
        expect(nfs.status_of(three.mount, "/data") == nfs.NOENT, "an export that is gone is mounted")
        expect(nfs.status_of(four.find, "/data") == nfs.NOENT, "the name of an export that is gone is found")
        expect(four.read(scratch, scratch_state, 0, 4) == b"four", "the other export has lost its file")

        applied(server, data, export("/scratch", "mem:4M"))
        expect(seen() == (nfs.OK,) * 4, f"with the export again: {seen()}")
        expect(three.mount("/data")[0] == root, "the export's root has another handle")

        applied(server, export("/data", one, ro=True), export("/scratch", "mem:4M"))
        expect(seen() == (nfs.OK, nfs.OK, nfs.ROFS, nfs.ROFS), f"read-only: {seen()}")
        expect(nfs.status_of(three.make, root, "new") == nfs.ROFS, "a file is made in a read-only export")
        expect(nfs.status_of(four.open, "/data", "new") == nfs.ROFS, "a file is opened for writing in a read-only export")
        expect(nfs.status_of(four.open, "/data", "file", write=False, create=False) == nfs.OK, "a file is not opened for reading")

        applied(server, export("/data", one, network="192.0.2.0/24"), export("/scratch", "mem:4M"))
        expect(seen() == (nfs.ACCESS,) * 4, f"for another network: {seen()}")
        expect(nfs.status_of(three.mount, "/data") == nfs.ACCESS, "a client of another network has mounted")
        expect(four.read(scratch, scratch_state, 0, 4) == b"four", "the other export has lost its file")

        for number, (squash, owner) in enumerate((("all", (4321, 8765)), ("root", (4321, 8765)), ("none", (0, 0)))):
            applied(server, export("/data", one, squash=squash, anonuid=4321, anongid=8765), export("/scratch", "mem:4M"))
            three.make(root, f"three{number}")
            four.open("/data", f"four{number}")
            for name in (f"three{number}", f"four{number}"):
                about = os.stat(os.path.join(one, name))
                expect((about.st_uid, about.st_gid) == owner, f"squash {squash}: {name} belongs to {about.st_uid}, {about.st_gid}")
        expect(seen() == (nfs.OK,) * 4, f"at the end: {seen()}")

        refused = stag(server, "apply", os.path.join(server.folder, "missing.toml"), ok=None)
        expect(refused.code != 0 and seen() == (nfs.OK,) * 4, f"a file that is not there: {refused}")
        four.close_file(scratch, scratch_state)
        four.close_file(file, state)


def shown(lab):
    """Exports and clients in `stag status` and `stag top`, with what they do."""
    with share(lab, {}, config=export("/data", folder(lab)) + export("/idle", "mem:1M")) as server:
        three, four = nfs.Three(server.host, server.port), nfs.Session(server.host, server.port)
        root, _ = three.mount("/data")
        file = three.make(root, "file")
        three.write(file, 0, bytes(100_000))
        peers = ["{}:{}".format(*client.stream.getsockname()) for client in (three, four)]
        told = json.loads(stag(server, "status", "--json"))["nfs"]
        found = {one["name"]: one for one in told["exports"]}
        expect(found["/data"]["written_bytes"] == 100_000 and found["/data"]["calls"] >= 2, f"stag status tells {found}")
        expect((found["/idle"]["calls"], found["/idle"]["path"]) == (0, "mem:1M"), f"stag status tells {found}")
        expect(sorted(one["peer"] for one in told["clients"]) == sorted(peers), f"{peers} are not {told['clients']}")
        printed = stag(server, "status")
        expect("export /data" in printed and all(peer in printed for peer in peers), f"stag status prints:\n{printed}")

        done = threading.Event()

        def works():
            while not done.wait(0.01):
                three.read(file, 0, 50_000)

        worker = threading.Thread(target=works)
        worker.start()
        try:
            top = json.loads(stag(server, "top", "--once", "--json"))
        finally:
            done.set()
            worker.join(60)
        exports = [one["name"] for one in top["exports"]]
        expect(exports == ["/data", "/idle"], f"stag top does not begin with the busiest: {exports}")
        rates = {one["name"]: one["rates"] for one in (*top["exports"], *top["clients"])}
        expect(rates["/data"]["read_bytes"] >= 50_000 and rates["/idle"]["read_bytes"] == 0, f"stag top shows {rates}")
        expect([one["name"] for one in top["clients"]] == peers, f"of the clients {peers} stag top shows {rates}")
        expect(rates[peers[0]]["others"] > 0 == rates[peers[1]]["others"], f"stag top shows {rates}")
        three.close()
        proc.wait_until(lambda: len(json.loads(stag(server, "status", "--json"))["nfs"]["clients"]) == 1, 30, "a client that left is not shown")


def an_ordinary_user(lab):
    """A daemon without any privilege: its handles stay good over renames, restarts, kill -9 and a takeover, and so do open files."""
    user = 4242
    if os.geteuid() != 0:
        raise Skip("it takes root to become another user")
    # The lab's own folder is closed to others.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as top:
        os.chmod(top, 0o755)
        open_lab = Lab(lab.report, top, lab.kind)
        tree = open_lab.new_folder("tree")
        os.chown(tree, user, user)
        with share(open_lab, {"/d": tree}, user=user) as server:
            with open(f"/proc/{server.process.pid}/status") as file:
                about = {key: value.strip() for key, _, value in (line.partition(":") for line in file)}
            expect(about["Uid"].split() == [str(user)] * 4 and int(about["CapEff"], 16) == 0 == int(about["CapBnd"], 16), f"it runs as {about}")
            three, four = nfs.Three(server.host, server.port, uid=1000), nfs.Session(server.host, server.port, uid=1000)
            root, _ = three.mount("/d")
            directory = three.make_directory(root, "directory")
            deep = three.make_directory(directory, "deep")
            handles = {"quiet": three.make(deep, "quiet"), "moved": three.make(root, "moved"), "by others": three.make(deep, "by others")}
            for name, handle in handles.items():
                three.write(handle, 0, name.encode())
            opened, state, _ = four.open("/d/directory/deep", "opened")
            four.write(opened, state, 0, b"opened")

            def good():
                expect(three.getattr(root)[0] == three.getattr(directory)[0] == three.getattr(deep)[0] == 2, "a directory is something else")
                for name, handle in handles.items():
                    expect(three.read(handle, 0, 100) == name.encode(), f"the handle of {name} is another file's")
                expect(three.lookup(deep, "quiet") == handles["quiet"], "a LOOKUP gives another handle")

            def goes_on(word):
                four.write(opened, state, 0, word)
                expect(four.read(opened, state, 0, 100) == word == three.read(opened, 0, 100), "the open file is another one")

            good()
            about = os.stat(os.path.join(tree, "directory/deep/opened"))
            expect((about.st_uid, about.st_gid) == (user, user), f"a file belongs to {about.st_uid}, {about.st_gid}")
            for number, away in enumerate((server.take_over, server.stop, server.kill)):
                # Each time into another directory, and the directory above too.
                three.rename(root, "moved" if number == 0 else f"moved {number - 1}", deep, "between")
                three.rename(deep, "between", root, f"moved {number}")
                three.rename(root, "directory" if number == 0 else f"directory {number - 1}", root, f"directory {number}")
                four.rename(deep, "opened" if number == 0 else f"opened {number - 1}", deep, f"opened {number}")
                good()
                goes_on(b"before")
                away()
                if away == server.take_over:
                    # The session and its open file go on.
                    four.reconnect()
                else:
                    server.start()
                    four = nfs.Session(server.host, server.port, of=four, uid=1000)
                    state = four.reclaim(opened)
                    four.reclaimed()
                three.reconnect()
                good()
                goes_on(b"behind")
            # A move behind its back is found out, and mended by a LOOKUP.
            os.rename(os.path.join(tree, "directory 2/deep/by others"), os.path.join(tree, "elsewhere"))
            server.stop()
            server.start()
            three.reconnect()
            status = nfs.status_of(three.read, handles["by others"], 0, 100)
            expect(status == nfs.STALE, f"a file that was moved by others: READ is answered with {status}")
            found = three.lookup(root, "elsewhere")
            expect(three.read(found, 0, 100) == b"by others" == three.read(handles["by others"], 0, 100), "its handle is no good again")
            good()


def memory_goes_on(lab):
    """A tree in memory goes to the next daemon, and the one behind it: handles, open files, locks, places in listings. A successor that has
    no place for it is refused, and one that cannot serve gives it back."""
    with share(lab, {"/m": "mem:64M"}) as server:
        three, four, other = nfs.Three(server.host, server.port), nfs.Session(server.host, server.port), nfs.Session(server.host, server.port)
        root, _ = three.mount("/m")
        directory = three.make_directory(root, "directory")
        file, data = three.make(directory, "file"), os.urandom(10_000_000)
        for at in range(0, len(data), 500_000):
            three.write(file, at, data[at:at + 500_000], nfs.UNSTABLE)
        _, _, verifier = three.write(file, len(data), b"end", nfs.UNSTABLE)
        opened, state, _ = four.open("/m/directory", "opened")
        locks = four.lock(opened, state, 10, 20)
        _, theirs, _ = other.open("/m/directory", "opened")

        def good():
            for client in (three, four, other):
                client.reconnect()
            expect(three.commit(file) == verifier, "what was written has to be written again")
            back = b"".join(three.read(file, at, 500_000) for at in range(0, len(data), 500_000))
            expect(back == data and three.lookup(directory, "file") == file, "the file is another one")
            four.write(opened, state, 10, b"mine")
            expect(four.read(opened, state, 10, 4) == b"mine", "the open file is another one")
            expect(nfs.status_of(other.lock, opened, theirs, 0, 100) == nfs.DENIED, "the lock is gone")

        for _ in range(2):
            server.take_over()
            good()
        for path, said in (("mem:8M", "no place for the files of export /m"), ("/nowhere", None)):
            refused = proc.run(Stag.binary, "serve", "--control", server.control, "--nfs", f"{server.host}:{server.port}",
                               "--export", f"/m={path}" if said else "/m=mem:64M", *(() if said else ("--export", f"/n={path}")), "--takeover", ok=None)
            expect(refused.code != 0 and (not said or said in refused), f"{path}: {refused}")
            # The one of before takes a moment to see that the other is gone.
            proc.wait_until(lambda: stag(server, "status", ok=None).code == 0, 30, "the daemon of before serves")
            good()
        four.unlock(opened, locks, 0, nfs.TO_THE_END)
        other.lock(opened, theirs, 0, 100)


def paths_of_mount(lab):
    """MNT of directories below an export's root, with slashes too many, and of what is no directory."""
    path = folder(lab)
    os.makedirs(os.path.join(path, "sub/deep"))
    open(os.path.join(path, "sub/file"), "w").close()
    os.symlink("/", os.path.join(path, "sub/link"))
    with share(lab, {"/srv/tree": path, "/srv/tree/sub/other": "mem:1M"}) as server:
        three = nfs.Three(server.host, server.port)
        root, flavors = three.mount("/srv/tree")
        expect(flavors == [1], f"MNT names these flavors: {flavors}")
        sub = three.lookup(root, "sub")
        deep = three.lookup(sub, "deep")
        for wanted, names in ((root, ("/srv/tree/", "//srv///tree", "/srv/tree//", "/srv/./tree/.", "srv/tree")),
                              (sub, ("/srv/tree/sub", "/srv/tree//sub//")), (deep, ("/srv/tree/sub/deep/", "//srv//tree//sub//deep///"))):
            for name in names:
                expect(three.mount(name)[0] == wanted, f"MNT of {name} gives another directory's handle")
        other, _ = three.mount("/srv//tree/sub/other/")
        expect(other not in (root, sub, deep) and three.getattr(other)[0] == 2, "the export below another one is not mounted")
        for name, status in (("/srv", nfs.NOENT), ("/", nfs.NOENT), ("", nfs.NOENT), ("/srv/tree/missing", nfs.NOENT), ("/srv/tree/sub/file", 20),
                             ("/srv/tree/sub/file/", 20), ("/srv/tree/sub/link", 20), ("/srv/tree/sub/link/etc", 20), ("/srv/tree/..", nfs.ACCESS),
                             ("/srv/tree/sub/../sub", nfs.ACCESS), ("/srv/tree/" + "x" * 300, 63)):
            found = nfs.status_of(three.mount, name)
            expect(found == status, f"MNT of {name} is answered with {found}, not {status}")


def same_server(lab):
    """server_owner and server_scope are the same at each address, over restarts and takeovers: so a client may use all addresses for one
    session. Another server has others."""
    other_port = proc.free_port()
    with share(lab, {"/d": folder(lab)}, ports=[other_port]) as server, share(lab, {"/d": "mem:1M"}) as another:
        def told(port):
            client = nfs.Four(server.host, port)
            _, _, owner = client.exchange_id(f"python {os.urandom(8).hex()}", os.urandom(8))
            client.close()
            return owner

        first = told(server.port)
        minor, major, scope = first
        expect(major and scope, f"a server without a name: {first}")
        expect(told(other_port) == first, "the other address is another server")
        expect(told(another.port)[1] != major and told(another.port)[2] != scope, "another server has the same name")
        for away in (server.take_over, server.stop, server.kill):
            away()
            if away != server.take_over:
                server.start()
            expect(told(server.port) == first == told(other_port), f"after {away.__name__} it is another server: {told(server.port)}, {first}")
        # One session over both addresses.
        four = nfs.Session(server.host, server.port)
        file, state, _ = four.open("/d", "file")
        four.at = (server.host, other_port)
        four.reconnect()
        four.write(file, state, 0, b"by the other address")
        four.at = (server.host, server.port)
        four.reconnect()
        expect(four.read(file, state, 0, 100) == b"by the other address", "the session is not the same at both addresses")
        four.close_file(file, state)


def security(lab):
    """SECINFO and SECINFO_NO_NAME name AUTH_SYS first, then AUTH_NONE, above exports and in them, and take the current file away."""
    with share(lab, {"/srv/tree": folder(lab)}) as server:
        four = nfs.Session(server.host, server.port)
        four.make_directory("/srv/tree", "directory")
        for where, name in (("/", "srv"), ("/srv", "tree"), ("/srv/tree", "directory")):
            asked = (nfs.op("secinfo", nfs.opaque(name)), nfs.op("secinfo_no_name", nfs.u32(0)), nfs.op("secinfo_no_name", nfs.u32(1)))
            # The root has no parent.
            for operation in asked[:2] if where == "/" else asked:
                flavors = four.ask(*four.to(where), operation)[-1]
                expect(flavors == [1, 0], f"{where}: flavors {flavors}")
                try:
                    four.ask(*four.to(where), operation, nfs.op("getfh"))
                except nfs.Status as wrong:
                    expect((wrong.status, wrong.operation) == (10020, 10), f"GETFH after SECINFO: {wrong}")
                else:
                    raise Failed("SECINFO has left a current file")
        expect(nfs.status_of(four.ask, *four.to("/srv"), nfs.op("secinfo", nfs.opaque("missing"))) == nfs.NOENT, "SECINFO of no file")
        parent = nfs.status_of(four.ask, *four.to("/"), nfs.op("secinfo_no_name", nfs.u32(1)))
        expect(parent == nfs.NOENT, f"SECINFO_NO_NAME of the root's parent is answered with {parent}")
        anonymous = nfs.Session(server.host, server.port)
        anonymous.credential = nfs.u32(0, 0)
        expect(anonymous.find("/srv/tree") == four.find("/srv/tree"), "AUTH_NONE is named, and not taken")


CASES = [
    ("stag apply changes exports under two clients with open files", changed_live),
    ("stag status and stag top show exports and clients", shown),
    ("MNT takes paths below an export, and slashes too many", paths_of_mount),
    ("all addresses are one server, before and after restarts and takeovers", same_server),
    ("SECINFO names the flavors that are taken", security),
    ("a tree in memory goes on over takeovers, and those that fail", memory_goes_on),
    ("an ordinary user's daemon keeps handles and open files", an_ordinary_user),
]
