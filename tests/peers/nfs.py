"""libnfs's tools, QEMU, showmount and rpcinfo against Stag's exports. Stag's own client against Ganesha, and
against Stag; `stag conform` judges both servers."""

import json
import os
import shutil
import subprocess
import time

from lab import proc
from lab.ganesha import ganesha
from lab.report import expect
from lab.share import content, folder, kept, loaded, round_trip, same, share, xfs
from lab.target import Stag

from . import capture
from .conform import conform, failed


def exports(lab):
    """What is exported in each case: memory, and a directory."""
    return {"/scratch": "mem:64M", "/srv/tree": folder(lab)}


def copies(lab):
    proc.need("nfs-cp", "nfs-cat", "nfs-ls")
    with share(lab, exports(lab)) as server:
        for name in server.exports:
            for size in (0, 1, 4096, 1 << 20, (5 << 20) + 4321):
                there, here = content(lab, size), os.path.join(lab.new_folder("back"), "back")
                url = server.url(name, f"/file{size}")
                proc.run("nfs-cp", there, url)
                proc.run("nfs-cp", url, here)
                with open(there, "rb") as one, open(here, "rb") as other:
                    expect(one.read() == other.read(), f"{name}: {size} bytes came back as others")
            listed = proc.run("nfs-ls", server.url(name))
            lines = {line.split()[-1]: line.split() for line in listed.splitlines() if line.strip()}
            expect(sorted(lines) == sorted(f"file{size}" for size in (0, 1, 4096, 1 << 20, (5 << 20) + 4321)),
                   f"{name}: nfs-ls lists others:\n{listed}")
            expect(lines["file4096"][4] == "4096" and lines["file4096"][2:4] == ["1000", "1000"],
                   f"{name}: nfs-ls shows another size or owner:\n{listed}")


def a_directory_is_what_the_host_sees(lab):
    proc.need("nfs-cp", "nfs-ls")
    path = folder(lab)
    with share(lab, {"/d": path}) as server:
        there = content(lab, 300_000)
        proc.run("nfs-cp", there, server.url("/d", "/made"))
        about = os.stat(os.path.join(path, "made"))
        expect((about.st_size, about.st_uid, about.st_gid) == (300_000, 1000, 1000), f"the host sees {about}")
        os.makedirs(os.path.join(path, "below/deep"))
        for number in range(2000):
            open(os.path.join(path, "below", f"name-{number:04}"), "w").close()
        listed = proc.run("nfs-ls", server.url("/d", "/below"))
        expect(sum("name-" in line for line in listed.splitlines()) == 2000, "not all of 2,000 names are listed, each once")
        secret = os.path.join(lab.new_folder("outside"), "secret")
        with open(secret, "w") as file:
            file.write("secret")
        os.symlink(os.path.dirname(secret), os.path.join(path, "out"))
        refused = proc.run("nfs-cat", server.url("/d", "/out/../../outside/secret"), ok=None)
        expect(refused.code != 0 and "secret\n" not in refused, f"a path leads out of the export:\n{refused}")


def rules_for_clients(lab):
    proc.need("nfs-cp", "nfs-ls", "showmount")
    path = folder(lab)
    config = f"""[[export]]
name = "/ro"
path = "{path}"
[[export.client]]
network = "127.0.0.0/8"
ro = true
[[export]]
name = "/elsewhere"
path = "mem:1M"
[[export.client]]
network = "192.0.2.0/24"
[[export]]
name = "/squashed"
path = "{folder(lab)}"
[[export.client]]
network = "*"
squash = "all"
anonuid = 4321
anongid = 8765
[[export]]
name = "/slow"
path = "mem:64M"
[[export.client]]
network = "*"
bandwidth = "4M"
burst = 0
"""
    with share(lab, {}, config=config) as server:
        there = content(lab, 1000)
        refused = proc.run("nfs-cp", there, server.url("/ro", "/file"), ok=None)
        expect(refused.code != 0 and not os.listdir(path), f"a read-only client has written:\n{refused}")
        refused = proc.run("nfs-ls", server.url("/elsewhere"), ok=None)
        expect(refused.code != 0, f"a client of another network has mounted:\n{refused}")
        proc.run("nfs-cp", there, server.url("/squashed", "/file"))
        listed = proc.run("nfs-ls", server.url("/squashed"))
        expect(listed.split()[2:4] == ["4321", "8765"], f"a squashed client's file belongs to others:\n{listed}")
        audited(server)
        begun = time.monotonic()
        proc.run("nfs-cp", content(lab, 8 << 20), server.url("/slow", "/file"))
        took = time.monotonic() - begun
        # All but the first WRITE, of 1 MiB at most, wait for their time.
        expect(took > 1.7, f"8 MiB at 4 MiB/s were written in {took:.1f} s")


def audited(server):
    """The log tells who came to which export, and who was refused, in every version."""
    def lines(what, name):
        return [line for line in server.log(1000).splitlines()
                if "stag::audit" in line and f'what="{what}"' in line and f'"{name}"' in line]

    expect(len(lines("mount", "/ro")) == 1 and not lines("mount", "/elsewhere"), f"the log of mounts:\n{server.log()}")
    before = len(lines("refused", "/elsewhere"))
    expect(before, f"the log has no refusal:\n{server.log()}")
    at = f"nfs://{server.host}:{server.port}"
    refused = proc.run(Stag.binary, "ls", f"{at}/elsewhere?vers=4.1", ok=None)
    expect(refused.code != 0, f"a client of another network looks at an export by version 4.1:\n{refused}")
    expect(len(lines("refused", "/elsewhere")) > before, f"the log has no refusal of version 4.1:\n{server.log()}")
    # The one of version 3 from the same address has been told a moment ago.
    expect(not lines("mount", "/slow"), f"the log of mounts:\n{server.log()}")
    for _ in range(2):
        proc.run(Stag.binary, "ls", f"{at}/slow?vers=4.1")
    expect(len(lines("mount", "/slow")) == 1, f"the log of mounts of version 4.1:\n{server.log()}")


def slow_calls(lab):
    """`stag slow` tells the calls of libnfs that wait for a limit of service, of version 3, and those of stag's own client, of version 4.1."""
    proc.need("nfs-cp", "nfs-cat")
    # A second for each 256 KiB: READs and WRITEs of libnfs have up to 1 MiB.
    config = """[[export]]
name = "/slow"
path = "mem:64M"
[[export.client]]
network = "*"
bandwidth = "256K"
burst = 0
[[export]]
name = "/quick"
path = "mem:64M"
"""
    with share(lab, {}, config=config) as server:
        def told(state=None):
            said = json.loads(proc.run(Stag.binary, "slow", "--json", "--most", "200", "--control", server.control))
            return [one for one in said if one["protocol"] == "nfs" and state in (None, one["state"])]

        def runs(*words):
            """The calls of a command that are told while it runs, and after that all that were."""
            # A pipe that nobody reads would hold the command up.
            out = os.path.join(lab.new_folder("out"), "out")
            with open(out, "wb") as file:
                process = subprocess.Popen(words, stdout=file, stderr=subprocess.PIPE)
            try:
                waits = proc.wait_until(lambda: told("order"), 60, f"a call of {words[0]} waits")
                shown = proc.run(Stag.binary, "slow", "--control", server.control)
                _, error = process.communicate(timeout=120)
            finally:
                proc.end(process)
            expect(process.returncode == 0, f"{words[0]} failed: {error}")
            expect(" of /slow from 127.0.0.1:" in shown and "STILL IN ORDER" in shown, shown)
            return waits, out

        there = content(lab, 2 << 20)
        proc.run("nfs-cp", there, server.url("/quick", "/file"))
        proc.run("nfs-cat", server.url("/quick", "/file"))
        expect(not [one for one in told() if one["order_s"] > 0], f"calls without a limit have waited for one: {told()}")
        waits, _ = runs("nfs-cp", there, server.url("/slow", "/file"))
        for one in waits:
            expect(one["export"] == "/slow" and one["version"] == 3 and one["operations"] == ["write"], f"{one}")
            expect(one["client"].startswith("127.0.0.1:") and one["order_s"] >= 1 and one["order_s"] > one["medium_s"], f"{one}")
        ended = [one for one in told("ended") if one["export"] == "/slow"]
        expect(ended and all(one["operations"] == ["write"] and one["send_s"] is not None for one in ended), f"{ended}")
        waits, read = runs("nfs-cat", server.url("/slow", "/file"))
        with open(there, "rb") as one, open(read, "rb") as other:
            expect(one.read() == other.read(), "nfs-cat reads other bytes")
        expect(any(one["operations"] == ["read"] for one in waits), f"{waits}")
        waits, _ = runs(Stag.binary, "cat", f"nfs://{server.host}:{server.port}/slow/file?vers=4.1&uid=1000&gid=1000")
        four = [one for one in waits if one["version"] == 4]
        expect(four and four[0]["operations"][0] == "sequence" and four[0]["operation"] == "read" and four[0]["export"] == "/slow", f"{waits}")


def portmapper(lab):
    """A client that asks port 111 needs nothing else there."""
    proc.need("showmount", "rpcinfo", "nfs-ls")
    config = '[nfs]\nlisten = ["127.0.0.1:111", "127.0.0.1:2049"]\n'
    with share(lab, {"/a": "mem:1M", "/b": "mem:1M"}, port=2049, config=config) as server:
        # --nfs replaces the addresses of the file.
        server.stop()
        server.command = lambda: [word for word in type(server).command(server) if word not in ("--nfs", "127.0.0.1:2049")]
        server.start()
        printed = proc.run("rpcinfo", "-T", "tcp", "127.0.0.1", 100003, 3)
        expect("ready and waiting" in printed, f"rpcinfo finds no NFS:\n{printed}")
        printed = proc.run("rpcinfo", "-p", "127.0.0.1")
        expect("100005" in printed and "2049" in printed, f"rpcinfo -p lists no MOUNT at 2049:\n{printed}")
        printed = proc.run("showmount", "--no-headers", "-e", "127.0.0.1")
        expect(sorted(line.split()[0] for line in printed.splitlines()) == ["/a", "/b"], f"showmount lists:\n{printed}")
        proc.run("nfs-ls", "nfs://127.0.0.1/a?version=3")
        printed = proc.run("showmount", "--no-headers", "-a", "127.0.0.1")
        expect("/a" in printed, f"showmount -a lists:\n{printed}")


def registered(lab):
    """Debian's rpcbind knows where NFS and MOUNT are: over a restart of it, a takeover, and until the end."""
    proc.need("rpcbind", "rpcinfo", "showmount", "nfs-ls", "unshare")
    run, process = lab.new_folder("run"), None
    os.chmod(run, 0o755)
    socket = os.path.join(run, "rpcbind.sock")

    def rpcbind():
        nonlocal process
        process = subprocess.Popen(["unshare", "-m", "--propagation", "private", "bash", "-c", f"mount --bind {run} /run && exec rpcbind -f"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        proc.wait_until(lambda: os.path.exists(socket) and proc.run("rpcinfo", "127.0.0.1", ok=None).code == 0, 20, "rpcbind is up")

    def listed():
        lines = [line.split() for line in proc.run("rpcinfo", "127.0.0.1").splitlines()[1:]]
        return sorted((line[0], line[1], line[2], line[3]) for line in lines if line[0] in ("100003", "100005"))

    host, port = "127.0.0.1", proc.free_port("127.0.0.1")
    ours = sorted((program, version, "tcp", f"{host}.{port >> 8}.{port & 255}")
                  for program, version in (("100003", "3"), ("100003", "4"), ("100005", "3")))
    rpcbind()
    try:
        config = f'[nfs]\nrpcbind = "{socket}"\n'
        with share(lab, {"/a": folder(lab)}, port=port, config=config) as server:
            proc.wait_until(lambda: listed() == ours, 30, "NFS and MOUNT are registered")
            expect("ready and waiting" in proc.run("rpcinfo", "-T", "tcp", host, 100003, 3), "rpcinfo does not reach NFS")
            expect(proc.run("showmount", "--no-headers", "-e", host).split()[0] == "/a", "showmount does not reach MOUNT")
            proc.run("nfs-ls", f"nfs://{host}/a?version=3")
            server.take_over()
            time.sleep(3)
            expect(listed() == ours, f"after a takeover, registered are {listed()}")
            proc.end(process)
            rpcbind()
            proc.wait_until(lambda: listed() == ours, 60, "NFS and MOUNT are registered again")
        expect(listed() == [], f"registered after the end: {listed()}")
    finally:
        proc.end(process)


def groups_of_the_machine(lab):
    """A user of 20 groups, of which a client can tell 16; and a client that tells one which its user does not have."""
    path, groups = folder(lab), range(7000, 7020)
    config = """[nfs]
manage-gids = true
"""
    for group in (7000, 7019, 7100):
        at = os.path.join(path, f"of{group}")
        with open(at, "w") as file:
            file.write("text")
        os.chown(at, 0, group)
        os.chmod(at, 0o640)
    with share(lab, {"/d": path}, config=config, groups=groups) as server:
        for version in ("3", "4.2"):
            for group, claimed, code in ((7000, 2000, 0), (7019, 2000, 0), (7100, 2000, 1)):
                url = f"nfs://{server.host}:{server.port}/d/of{group}?vers={version}&uid=2000&gid={claimed}"
                read = proc.run("setpriv", "--groups", "7100", Stag.binary, "cat", url, ok=None)
                expect(read.code == code and (read == "text") == (code == 0), f"{version}, group {group}: {read.code}, {read}")


def failed_takeover(lab):
    """A daemon that cannot serve after it has taken over gives everything back, NFS too."""
    proc.need("nfs-cp", "nfs-ls")
    with share(lab, {"/d": folder(lab)}) as server:
        proc.run("nfs-cp", content(lab, 1000), server.url("/d", "/file"))
        refused = proc.run(Stag.binary, "serve", "--control", server.control, "--nfs", f"{server.host}:{server.port}",
                           "--export", "/d=/nowhere/at/all", "--takeover", ok=None)
        expect(refused.code != 0, f"a directory that is not there is exported:\n{refused}")
        listed = proc.run("nfs-ls", server.url("/d"), timeout=30)
        expect("file" in listed, f"the daemon of before lists:\n{listed}")


@capture.whole
def qemu(lab):
    """QEMU's driver asks the portmapper for the ports."""
    proc.need("qemu-img", "qemu-io")
    raw = content(lab, 5_000_192)
    with share(lab, exports(lab), port=2049, ports=[111]) as server:
        for name in server.exports:
            at = f"nfs://{server.host}{name}/disk.qcow2"
            proc.run("qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, at)
            proc.run("qemu-img", "check", at)
            # An image ends at a sector.
            proc.run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", raw, at)
            proc.run("qemu-io", "-c", "write -P 7 64k 128k", "-c", "flush", "-c", "read -P 7 64k 128k", at)
            different = proc.run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", raw, at, ok=None)
            expect(different.code == 1, f"qemu-img compare sees no difference:\n{different}")


def client_of_ganesha(lab):
    path = folder(lab)
    with ganesha(lab, path):
        for base, settings in ((f"nfs://127.0.0.1{path}", "vers=3"), ("nfs://127.0.0.1/export", "vers=4.1"),
                               ("nfs://127.0.0.1/export", "vers=4.2")):
            round_trip(lab, base, settings)
            # Its VFS leaves the times of links as they are.
            kept(lab, base, settings, links=False)
            loaded(base, settings)
        listed = proc.run(Stag.binary, "ls", "nfs://127.0.0.1")
        expect(listed == f"nfs://127.0.0.1{path}\n", f"stag ls lists the exports:\n{listed}")


def client_of_stag(lab):
    with share(lab, exports(lab)) as server:
        for name in server.exports:
            for version in ("3", "4.1", "4.2"):
                base, settings = f"nfs://{server.host}:{server.port}{name}", f"vers={version}&uid=1000&gid=1000"
                round_trip(lab, base, settings)
                loaded(base, settings)


def copies_are_kept(lab):
    """Owners are given by root alone, which an export has to allow."""
    exports_ = "".join(f"""[[export]]
name = "{name}"
path = "{path}"
[[export.client]]
network = "*"
squash = "none"
""" for name, path in exports(lab).items())
    with share(lab, {}, config=exports_) as server:
        for name in ("/scratch", "/srv/tree"):
            for version in ("3", "4.2"):
                kept(lab, f"nfs://{server.host}:{server.port}{name}", f"vers={version}")


def tuned(lab):
    """`stag tune` measures the path to a file, over TCP and RDMA, and changes a file only where it may."""
    path = folder(lab)
    with open(os.path.join(path, "there"), "wb") as file:
        file.write(os.urandom(4 << 20))
    short = ("--json", "--quiet", "--time", "0.2", "--pings", "3", "--most", "64M")
    with share(lab, {"/d": path}) as server:
        for scheme, version in (("nfs", "3"), ("nfs", "4.2"), ("nfs+rdma", "4.2")):
            def at(name):
                return f"{scheme}://{server.host}:{server.port}/d/{name}?vers={version}&uid=0&gid=0"

            told = json.loads(proc.run(Stag.binary, "tune", *short, at("there")))
            chosen, allowed = told["chosen"], told["allowed"]
            expect(told["after"]["read_mb_s"] > 0 and told["after"]["write_mb_s"] is None, f"it measured {told}")
            expect(0 < chosen["depth"] <= allowed["calls"] and 4096 <= chosen["bs"] <= allowed["read_bytes"], f"it chose {chosen}")
            expect(f"vers={version}," in told["words"]["mount"], f"words: {told['words']}")
            bench = proc.run(Stag.binary, "bench", "--time", "0.2", "--span", "4M", "--json", *told["bench_arguments"], at("there"))
            expect(json.loads(bench)["runs"][0]["ios"] > 0, f"stag bench with what was chosen: {bench}")
            missing = proc.run(Stag.binary, "tune", *short, at("missing"), ok=None)
            expect(missing.code == 1 and "no such file" in missing, f"a file that is not there: {missing}")
            told = json.loads(proc.run(Stag.binary, "tune", *short, "--destroy", "--span", "8M", at("made")))
            expect(told["after"]["write_mb_s"] > 0 and told["file"]["bytes"] == 8 << 20, f"it measured {told}")
            expect(os.path.getsize(os.path.join(path, "made")) == 8 << 20, "the file has another size")
            os.remove(os.path.join(path, "made"))
            refused = proc.run(Stag.binary, "tune", "--apply-to", os.path.join(path, "iscsid.conf"), at("there"), ok=None)
            expect(refused.code == 2 and "--apply-to" in refused, f"--apply-to: {refused}")


def client_of_stag_over_rdma(lab):
    """Over software iWARP, at the port of TCP."""
    with share(lab, exports(lab)) as server:
        for name in server.exports:
            for version in ("3", "4.1", "4.2"):
                base, settings = f"nfs+rdma://{server.host}:{server.port}{name}", f"vers={version}&uid=1000&gid=1000"
                round_trip(lab, base, settings)
                loaded(base, settings)
        listed = proc.run(Stag.binary, "ls", f"nfs+rdma://{server.host}:{server.port}")
        expect(sorted(listed.split()) == sorted(f"nfs+rdma://{server.host}:{server.port}{name}" for name in server.exports),
               f"stag ls lists the exports:\n{listed}")


def restarts(lab):
    """A server that dies in the middle of a copy, and comes back."""
    path = folder(lab)
    source = lab.new_folder("source")
    for number in range(6):
        with open(os.path.join(source, f"file{number}"), "wb") as file:
            file.write(os.urandom(60 << 20))
    with share(lab, {"/d": path}) as server:
        for version in ("3", "4.2"):
            there = f"nfs://{server.host}:{server.port}/d/copy{version}?vers={version}&uid=1000&gid=1000"
            back = os.path.join(lab.new_folder("back"), "copy")
            for one, other, written in ((source, there, os.path.join(path, f"copy{version}")), (there, back, back)):
                copy = subprocess.Popen([Stag.binary, "cp", "-r", "--depth", "2", one, other], stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)

                def begun():
                    sizes = [os.path.getsize(os.path.join(written, name)) for name in os.listdir(written)] \
                        if os.path.isdir(written) else []
                    return copy.poll() is not None or sum(sizes) > 20 << 20

                proc.wait_until(begun, 60, "the copy has begun", step=0.005)
                under_way = copy.poll() is None
                server.kill()
                time.sleep(1)
                server.start()
                printed, _ = copy.communicate(timeout=180)
                expect(copy.returncode == 0, f"{version}: the copy failed:\n{printed}")
                expect(under_way, f"{version}: the copy was done before the server died")
            same(source, back)


def lost(lab):
    """A server that dies in the middle of copies, and is missed for longer than a client waits. When it is back, they are resumed."""
    path = folder(lab)
    source = lab.new_folder("source")
    for number in range(8):
        with open(os.path.join(source, f"file{number}"), "wb") as file:
            file.write(os.urandom(8 << 20))
    name = os.path.basename(source)
    # So slow that all copies are in the middle at one time.
    config = f"""[nfs]
lease = 10
[[export]]
name = "/d"
path = "{path}"
[[export.client]]
network = "*"
bandwidth = "32M"
burst = 0
"""
    with share(lab, {}, config=config) as server:
        def size(top):
            return sum(os.path.getsize(os.path.join(top, name)) for name in os.listdir(top)) if os.path.isdir(top) else 0

        # Each goes into a directory that is there, under its own name: so the same words resume it.
        copies, total = [], size(source)
        for version in ("3", "4.2"):
            there, back = f"there{version}", lab.new_folder("back")
            shutil.copytree(source, os.path.join(path, f"from{version}", name))
            os.mkdir(os.path.join(path, there))
            os.chmod(os.path.join(path, there), 0o777)

            def at(below):
                return f"nfs://{server.host}:{server.port}/d/{below}?vers={version}&uid=1000&gid=1000"

            copies += [(source, at(there), os.path.join(path, there, name)), (at(f"from{version}/{name}"), back, os.path.join(back, name))]
        running = [subprocess.Popen([Stag.binary, "cp", "-rp", "--depth", "1", "--reconnect", "5", one, other], stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True) for one, other, _ in copies]
        try:
            # A file is done, and others are not.
            proc.wait_until(lambda: all(size(written) > total // 3 for _, _, written in copies), 120, "the copies have begun", step=0.005)
            server.kill()
            sizes = [size(written) for _, _, written in copies]
            expect(all(written < total for written in sizes), f"copies were done before the server died: {sizes} of {total}")
            for process in running:
                printed, _ = process.communicate(timeout=400)
                expect(process.returncode == 1 and "the copy ends here" in printed, f"a copy without a server ends with {process.returncode}:\n{printed}")
        finally:
            for process in running:
                proc.end(process)
        server.start()
        for one, other, written in copies:
            printed = proc.run(Stag.binary, "cp", "-r", "--resume", one, other, timeout=300)
            expect("copied before" in printed, f"{one} to {other}: nothing was left of the first copy: {printed}")
            same(source, written)
            compared(one, other, written)


def compared(one, other, written):
    """--check finds no difference between a tree and its copy, which lies in `written`; and then each that is made there."""
    def check():
        return proc.run(Stag.binary, "cp", "-r", "--check", one, other, ok=None)
    said = check()
    expect(said.code == 0, f"the copy is compared: {said.code}: {said}")
    with open(os.path.join(written, "file1"), "r+b") as file:
        byte = file.read(1)[0]
        file.seek(0)
        file.write(bytes([byte ^ 1]))
    os.truncate(os.path.join(written, "file2"), 1000)
    os.remove(os.path.join(written, "file3"))
    os.mkdir(os.path.join(written, "more"))
    os.remove(os.path.join(written, "file4"))
    os.symlink("file5", os.path.join(written, "file4"))
    said = check()
    for words in ["/file1", " in 1 of 8388608 bytes, the first at byte 0", "/file2", "/file3", " is not in ", "/more", "is a symbolic link, and ",
                  "5 files or directories"]:
        expect(words in said, f"no {words} in {said}")
    expect(said.code == 1 and "/file5" not in said, f"{said.code}: {said}")


def passes(url, *not_applicable):
    """Fails unless every check passed, but for these, which do not apply."""
    code, told = conform(url)
    wrong = {name: check for name, check in failed(told, ("fail", "warning", "untested", "not-applicable")).items()
             if check["outcome"] != "not-applicable" or name not in not_applicable}
    expect(not wrong and code == 0, f"exit code {code}: {wrong}")
    expect("left_behind" not in told and told["summary"]["passed"] >= 255, f"{told['summary']}, {told.get('left_behind')}")


def conformance_of_stag(lab):
    with share(lab, exports(lab)) as server:
        for name, path in server.exports.items():
            # CLONE depends on the file system; memory has none.
            passes(f"nfs://{server.host}:{server.port}{name}?uid=0&gid=0", "v42/clone", "v4-opens/removed-while-open")
            passes(f"nfs+rdma://{server.host}:{server.port}{name}?uid=0&gid=0", "v42/clone", "v4-opens/removed-while-open",
                   "rpc/many-fragments", "rpc/byte-by-byte", "rpc/several-in-one-segment")
            expect(path.startswith("mem:") or not os.listdir(path), "the run has left files in the export")


def conformance_on_xfs(lab):
    """XFS shares blocks between files: CLONE is checked too."""
    with xfs(lab) as path, share(lab, {"/d": path}) as server:
        passes(f"nfs://{server.host}:{server.port}/d?uid=0&gid=0", "v4-opens/removed-while-open")
        expect(not os.listdir(path), "the run has left files in the export")


# What NFS-Ganesha 4.3 does otherwise than the RFCs ask.
GANESHA = {
    "vers=3": {"rpc/version-of-rpc", "v3-names/longest-name", "v3-listing/too-small"},
    "vers=4.2": {"rpc/version-of-rpc", "v4-sessions/bad-highest-slot", "v4-compound/nothing-saved", "v4-opens/downgrade",
                 "v4-opens/bad-stateid", "v4-opens/stateid-of-another-client", "v4-opens/test-stateid",
                 "v4-opens/free-stateid-unknown"},
}


def conformance_of_ganesha(lab):
    path = folder(lab)
    with ganesha(lab, path):
        for version, known in GANESHA.items():
            export = path if version == "vers=3" else "/export"
            code, told = conform(f"nfs://127.0.0.1{export}?{version}&uid=0&gid=0")
            found = failed(told)
            expect(set(found) == known and code == 1, f"{version}, exit code {code}: more than known: "
                   f"{ {name: found[name] for name in set(found) - known} }; not found: {sorted(known - set(found))}")
            untested = failed(told, ("untested",))
            expect(not untested and not os.listdir(path), f"not tested: {untested}; left: {os.listdir(path)}")


CASES = [
    ("libnfs: files are copied there and back", copies),
    ("libnfs: a directory is what the host sees, and no more", a_directory_is_what_the_host_sees),
    ("libnfs: rules for clients hold", rules_for_clients),
    ("libnfs: stag slow tells calls that wait for a limit", slow_calls),
    ("rpcbind lists NFS and MOUNT until the server ends", registered),
    ("a user has the 20 groups that the machine knows", groups_of_the_machine),
    ("libnfs: a daemon that fails to take over leaves the old one exporting", failed_takeover),
    ("showmount and rpcinfo ask the portmapper", portmapper),
    ("QEMU's nfs driver writes and checks an image", qemu),
    ("stag cp, ls, cat, rm and bench with Ganesha, 3, 4.1 and 4.2", client_of_ganesha),
    ("stag cp, ls, cat, rm and bench with Stag, 3, 4.1 and 4.2", client_of_stag),
    ("stag cp -rp keeps times, modes and owners, goes on after errors, and resumes", copies_are_kept),
    ("stag tune measures the path to a file", tuned),
    ("stag conform passes Stag whole, over memory and a directory", conformance_of_stag),
    ("stag conform passes Stag whole over XFS, CLONE too", conformance_on_xfs),
    ("stag conform finds in Ganesha what is known, and no more", conformance_of_ganesha),
    ("stag cp, ls, cat, rm and bench with Stag over RDMA, 3, 4.1 and 4.2", client_of_stag_over_rdma),
    ("stag cp goes on when the server dies and comes back", restarts),
    ("stag cp --resume goes on after a server that was lost for good", lost),
]
