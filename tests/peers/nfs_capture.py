"""Wireshark's dissectors read what is said to Stag's NFS server: nothing is malformed, and each operation was seen. By libnfs and Stag's
own client, over TCP and RDMA, and by a client that takes and gives back all kinds of state. `kernel.nfs` does the same with Linux's client."""

import collections
import os

from lab import nfs, proc
from lab.report import expect
from lab.share import content, folder, round_trip, same, share
from lab.target import Stag
from peers import capture

# Numbers of operations: RFC 8881 §16 and §20, RFC 7862 §15, RFC 8276 §8.
FOUR = {"readdir": 26, **{name: number for name, (number, _) in nfs.OPERATIONS.items()}}
CB_RECALL, CB_SEQUENCE, CB_NOTIFY_LOCK = 4, 11, 13


def tshark(path, filter_, *fields):
    """What tshark reads in a capture. By their contents first: clients bind ports below 1024, and those of other protocols (TWAMP's 862,
    Lustre's 988) are among them."""
    words = [word for field in fields for word in ("-e", field)]
    printed = proc.run("tshark", "-o", "tcp.try_heuristic_first:TRUE", "-r", path, "-Y", filter_,
                       *(["-T", "fields", *words] if fields else []), timeout=240)
    return [line for line in printed.splitlines() if "Running as user" not in line]


# Where data goes by RDMA beside its message, Wireshark 4.0 fails to put some of them together, and calls them malformed: in the frame of the
# message, or in that of the last RDMA Write (0) or Read Response (2).
BESIDE = " && !(rpcordma.reads_count > 0 || rpcordma.writes_count > 0 || iwarp_rdma.opcode == 0 || iwarp_rdma.opcode == 2)"


def spoken(path):
    """How often each procedure of version 3, operation of version 4 and operation of a call-back was seen, of a capture in which nothing
    is malformed."""
    malformed = tshark(path, "_ws.malformed" + BESIDE)
    expect(not malformed, "tshark calls these malformed:\n" + "\n".join(malformed[:10]))
    fields = ("nfs.procedure_v3", "nfs.opcode", "nfs.cb.operation")
    counts = [collections.Counter() for _ in fields]
    for line in tshark(path, "rpc", *fields):
        for count, numbers in zip(counts, (line.split("\t") + [""] * 3)[:3]):
            count.update(int(number) for number in numbers.split(",") if number)
    return counts


def seen(what, count, *numbers):
    missing = [number for number in numbers if not count[number]]
    expect(not missing, f"{what}: {missing} were not seen, only {sorted(count)}")


@capture.whole
def over_tcp(lab):
    proc.need("tshark", "nfs-cp", "nfs-ls")
    with share(lab, {"/scratch": "mem:64M"}, port=2049) as server:
        def traffic():
            proc.run("nfs-cp", content(lab, 70_000), server.url("/scratch", "/file"))
            proc.run("nfs-ls", server.url("/scratch"))
            proc.run("nfs-cat", server.url("/scratch", "/file"), ok=None)
            proc.run("nfs-cat", server.url("/scratch", "/missing"), ok=None)
            for version in ("4.1", "4.2"):
                round_trip(lab, f"nfs://{server.host}:{server.port}/scratch", f"vers={version}")

        three, four, _ = spoken(capture.captured(server, traffic))
    seen("version 3", three, *(nfs.V3[name] for name in "lookup read write create fsinfo readdirplus".split()))
    seen("version 4", four, *(FOUR[name] for name in
                              "close getattr open read readdir write exchange_id create_session sequence putfh lookup".split()))


@capture.whole
def over_rdma(lab):
    """By software iWARP. Wireshark puts messages of RPC over RDMA together from their Sends; chunks go by RDMA beside them. The files
    are short: in frames of 64 KiB, which the loopback has, Wireshark misses where an FPDU begins."""
    proc.need("tshark")
    source = lab.new_folder("source")
    os.makedirs(os.path.join(source, "deep/er"))
    for number in range(12):
        with open(os.path.join(source, f"deep/er/file{number}"), "wb") as file:
            file.write(os.urandom(number * 997))
    os.symlink("deep/er/file1", os.path.join(source, "link"))
    with share(lab, {"/scratch": "mem:64M"}, port=20049) as server:
        def traffic():
            for version in ("3", "4.1", "4.2"):
                def at(path=""):
                    return f"nfs+rdma://{server.host}:{server.port}/scratch{path}?vers={version}"

                back = os.path.join(lab.new_folder("back"), "copy")
                proc.run(Stag.binary, "cp", "-rp", "--depth", "1", source, at("/copy"))
                proc.run(Stag.binary, "cp", "-r", "--depth", "1", at("/copy"), back)
                same(source, back)
                proc.run(Stag.binary, "ls", at("/copy/deep/er"))
                proc.run(Stag.binary, "cat", at("/missing"), ok=None)
                proc.run(Stag.binary, "rm", "-r", at("/copy"))

        path = capture.captured(server, traffic)
        three, four, _ = spoken(path)
        kinds = collections.Counter(int(kind) for line in tshark(path, "rpcordma", "rpcordma.msg_type") for kind in line.split(",") if kind)
    expect(kinds[0] > 300, f"messages of RPC over RDMA by their kinds: {kinds}")
    seen("version 3", three, *(nfs.V3[name] for name in "setattr lookup readlink read write create mkdir symlink remove rmdir readdirplus".split()))
    seen("version 4", four, *(FOUR[name] for name in "close getattr open read write sequence remove create setattr readdir".split()))


@capture.whole
def state(lab):
    """All that a client of 4.2 can hold and do, with its refusals, and the server's calls to it."""
    proc.need("tshark")
    config = f'[[export]]\nname = "/d"\npath = "{folder(lab)}"\nexclusive = true\n'
    with share(lab, {}, port=2049, config=config) as server:
        def traffic():
            one, other = (nfs.Session(server.host, server.port, 2) for _ in range(2))
            file, mine, _ = one.open("/d", "file")
            one.write(file, mine, 0, os.urandom(200_000))
            locks = one.lock(file, mine, 10, 20)
            _, theirs, _ = other.open("/d", "file")
            expect(nfs.status_of(other.test_lock, file, 0, 100) == nfs.DENIED, "LOCKT finds no lock")
            expect(nfs.status_of(other.lock, file, theirs, 0, 100, nfs.WRITE_LOCK + 2) == nfs.DENIED, "both lock")
            one.unlock(file, locks, 0, nfs.TO_THE_END)
            while not other.notified:
                other.listen(60)
            other.unlock(file, other.lock(file, theirs, 0, 100, owner="another"), 0, 100)
            for name, arguments in (("allocate", mine + nfs.u64(0, 1 << 20)), ("deallocate", mine + nfs.u64(4096, 8192)),
                                    ("seek", mine + nfs.u64(0) + nfs.u32(1)), ("seek", mine + nfs.u64(0) + nfs.u32(0)),
                                    ("setxattr", nfs.u32(0) + nfs.opaque("name") + nfs.opaque("value")), ("getxattr", nfs.opaque("name")),
                                    ("listxattrs", nfs.u64(0) + nfs.u32(4096)), ("removexattr", nfs.opaque("name"))):
                one.ask(*one.to(file), nfs.op(name, arguments))
            missing = nfs.status_of(one.ask, *one.to(file), nfs.op("getxattr", nfs.opaque("name")))
            expect(missing == 10095, f"an attribute that is gone: {missing}")
            copy, into, _ = one.open("/d", "copy")
            pair = (*one.to(file), nfs.op("savefh"), *one.to(copy))
            one.ask(*pair, nfs.op("copy", mine + into + nfs.u64(0, 0, 100_000) + nfs.u32(1, 1, 0)))
            nfs.status_of(one.ask, *pair, nfs.op("clone", mine + into + nfs.u64(0, 0, 65536)))
            one.ask(*one.to("/d"), nfs.op("secinfo", nfs.opaque("file")))
            for session, state_ in ((one, mine), (one, into), (other, theirs)):
                session.close_file(copy if state_ == into else file, state_)
            _, reading, given = other.open("/d", "file", write=False, create=False)
            expect(given, "no delegation is given")
            expect(nfs.status_of(one.open, "/d", "file") == nfs.DELAY, "a delegated file is opened for writing")
            while not other.recalled:
                other.listen(60)
            expect(other.recalled == [(given, file)], f"recalled: {other.recalled}")
            other.ask(*other.to(file), nfs.op("delegreturn", given))
            other.close_file(file, reading)
            for session in (one, other):
                session.end()

        _, four, back = spoken(capture.captured(server, traffic))
    seen("version 4", four, *(FOUR[name] for name in
                              "lock lockt locku delegreturn allocate deallocate copy clone seek getxattr setxattr listxattrs removexattr secinfo "
                              "reclaim_complete destroy_session destroy_clientid".split()))
    seen("calls to the client", back, CB_SEQUENCE, CB_RECALL, CB_NOTIFY_LOCK)


CASES = [
    ("tshark decodes NFS 3, 4.1 and 4.2", over_tcp),
    ("tshark decodes NFS 3, 4.1 and 4.2 over RDMA", over_rdma),
    ("tshark decodes locks, delegations, call-backs, copies, holes and attributes", state),
]
