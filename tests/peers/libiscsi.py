"""libiscsi's tools: discovery, INQUIRY, capacity, write protection, speed; over IPv4 and IPv6, with header digests."""

import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

from lab import proc, wire
from lab.report import Failed, Skip, expect
from lab.target import IQN, Stag, Unit


def discovery(lab):
    proc.need("iscsi-ls")
    with lab.serve(Unit(), Unit(mib=128, block_bytes=4096), Unit(removable=True)) as target:
        printed = proc.run("iscsi-ls", f"iscsi://{target.portal}")
        expect(IQN in printed and target.portal in printed, f"iscsi-ls does not name the target:\n{printed}")
        printed = proc.run("iscsi-ls", "-s", f"iscsi://{target.portal}")
        luns = re.findall(r"Lun:(\d+)\s+Type:DIRECT_ACCESS \(Size:(\d+)M\)", printed)
        sizes = [size for _, size in luns]
        expect(sizes == ["63", "127", "63"] or sizes == ["64", "128", "64"], f"iscsi-ls -s prints other units:\n{printed}")


def inquiry(lab):
    proc.need("iscsi-inq")
    with lab.serve(Unit(thin=True, serial="LAB0001")) as target:
        standard = proc.run("iscsi-inq", target.url())
        expect("Device Type:DIRECT_ACCESS" in standard, f"not a disk:\n{standard}")
        listed = proc.run("iscsi-inq", "-e", 1, "-c", 0, target.url())
        pages = [int(page, 16) for page in re.findall(r"Page:0x([0-9a-fA-F]+)", listed)]
        expect({0x00, 0x80, 0x83, 0xB0, 0xB1, 0xB2} <= set(pages), f"pages are missing in the list of pages:\n{listed}")
        expect(pages == sorted(pages), f"SPC-4 §7.8.11: pages come in ascending order:\n{listed}")
        for page in pages:
            if page not in (0x00, 0x80, 0x83, 0xB0, 0xB1, 0xB2):
                continue  # iscsi-inq cannot print the others; sg_vpd in the kernel lab does.
            printed = proc.run("iscsi-inq", "-e", 1, "-c", page, target.url())
            if page == 0x80:
                expect("LAB0001" in printed, f"the serial number is not what was configured:\n{printed}")


def capacity(lab):
    proc.need("iscsi-readcapacity16")
    with lab.serve(Unit(mib=100, physical_exponent=3), Unit(block_bytes=4096), Unit(thin=True)) as target:
        for number, mib in enumerate((100, 64, 64)):
            size = int(proc.run("iscsi-readcapacity16", "-s", target.url(number)).split()[-1])
            expect(size == mib << 20, f"unit {number} has {size} bytes, not {mib} MiB")
        printed = proc.run("iscsi-readcapacity16", target.url(0))
        expect(re.search(r"P_TYPE|LBPPB|PHYSICAL", printed, re.I) is not None, f"reads strangely:\n{printed}")


def write_protection(lab):
    proc.need("iscsi-swp", "qemu-io")
    with lab.serve(Unit(memory=True)) as target:
        proc.run("iscsi-swp", "-s", "on", target.url())
        on = proc.run("iscsi-swp", target.url())
        expect("SWP:1" in on, f"after iscsi-swp -s on, it prints:\n{on}")
        refused = proc.run("qemu-io", "-f", "raw", "-c", "write 0 512", target.url(), ok=None)
        expect("wrote 512/512" not in refused, f"a write went through with SWP set:\n{refused}")
        proc.run("iscsi-swp", "-s", "off", target.url())
        off = proc.run("iscsi-swp", target.url())
        expect("SWP:0" in off, f"after iscsi-swp -s off, it prints:\n{off}")
        wrote = proc.run("qemu-io", "-f", "raw", "-c", "write 0 512", target.url())
        expect("wrote 512/512" in wrote, f"no write after SWP was cleared:\n{wrote}")


def speed(target, *options, seconds=3):
    """I/Os a second, as iscsi-perf counts them."""
    printed = proc.run("iscsi-perf", "-t", seconds, *options, target.url(), timeout=seconds + 30)
    rates = [int(rate) for rate in re.findall(r"iops average (\d+)", printed)]
    expect(bool(rates), f"iscsi-perf prints no rate:\n{proc.tail(printed)}")
    expect("error" not in printed.lower(), f"iscsi-perf met errors:\n{proc.tail(printed)}")
    return rates[-1]


def perf(lab):
    proc.need("iscsi-perf")
    with lab.serve(Unit(memory=True, mib=256)) as target:
        rates = {name: speed(target, *options) for name, options in
                 {"4 KiB random, depth 32": ("-r", "-m", 32, "-b", 8), "4 KiB random, depth 1": ("-r", "-m", 1, "-b", 8),
                  "256 KiB, depth 8": ("-m", 8, "-b", 512)}.items()}
        print("       iscsi-perf: " + ", ".join(f"{name}: {rate}/s" for name, rate in rates.items()))
        expect(all(rate > 10 for rate in rates.values()), f"too slow to be sound: {rates}")


def header_digest(lab):
    proc.need("iscsi-test-cu", "iscsi-perf")
    with lab.serve(Unit(memory=True)) as target:
        url = target.url(header_digest="crc32c")
        for suite in ("Read10", "Write10", "ModeSense6"):
            printed = proc.run("iscsi-test-cu", "-d", "-t", f"ALL.{suite}", url, url, timeout=90)
            expect(re.search(r"tests +\d+ +(\d+) +\1 +0 ", printed) is not None, f"{suite} with header digests:\n{proc.tail(printed)}")
        printed = proc.run("iscsi-perf", "-t", 1, "-r", "-m", 16, "-b", 8, url)
        expect("iops average" in printed, proc.tail(printed))


def ipv6(lab):
    proc.need("iscsi-ls", "iscsi-inq", "qemu-io")
    try:
        port = proc.free_port("::1")
    except OSError:
        raise Skip("no IPv6 on the loopback") from None
    with lab.serve(Unit(), host="::1", port=port) as target:
        printed = proc.run("iscsi-ls", f"iscsi://{target.portal}")
        expect(IQN in printed and "[::1]" in printed, f"discovery over IPv6:\n{printed}")
        proc.run("iscsi-inq", target.url())
        wrote = proc.run("qemu-io", "-f", "raw", "-c", "write -P 7 0 1M", "-c", "read -P 7 0 1M", target.url())
        expect("read 1048576/1048576" in wrote and "fail" not in wrote.lower(), wrote)


def many_sessions(lab):
    """Forty clients at once, each with its own session and initiator name, and then the same name from all."""
    proc.need("iscsi-inq")
    with lab.serve(Unit(memory=True)) as target:
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            jobs = [pool.submit(proc.run, "iscsi-inq", "-i", f"iqn.2026-01.example.lab:client{number % 30}", target.url())
                    for number in range(80)]
            for job in jobs:
                expect("DIRECT_ACCESS" in job.result(), "a client was not served")


def stays_idle(lab):
    """A target that serves nobody, and one with an idle session, uses no CPU."""
    with lab.serve(Unit(memory=True)) as target:
        time.sleep(1)
        used = proc.idle_seconds(target.cpu_seconds, 4, 0.04)
        expect(used < 0.04, f"{used:.2f} s of CPU in 4 s without any connection")
        with wire.session(target) as session:
            session.test_unit_ready()
            time.sleep(0.5)
            used = proc.idle_seconds(target.cpu_seconds, 4, 0.04)
            expect(used < 0.04, f"{used:.2f} s of CPU in 4 s with an idle session")


def clean_end(lab):
    """SIGTERM and SIGINT end the target with exit code 0 while sessions are open."""
    if lab.kind != "stag":
        return
    for number in (signal.SIGTERM, signal.SIGINT):
        with lab.serve(Unit()) as target:
            session = wire.session(target)
            session.write(0, b"\x5a" * 4096)
            target.process.send_signal(number)
            code = target.process.wait(60)
            expect(code == 0, f"{number.name}: exit code {code}\n{target.log()}")
            session.close()
            target.start()
            with wire.session(target) as after:
                expect(after.read(0, 8) == b"\x5a" * 4096, "what was written before is not there after")


def unprivileged(lab):
    """As in a container that was given nothing: another user, no capability, none to be had."""
    if lab.kind != "stag":
        return
    proc.need("iscsi-ls", "setpriv")
    folder = tempfile.mkdtemp(prefix="stag-nobody-")
    try:
        # Where the program lies may be nobody's to see.
        binary = shutil.copy(Stag.binary, folder)
        os.chmod(folder, 0o755)
        os.mkdir(os.path.join(folder, "own"))
        os.chown(os.path.join(folder, "own"), 65534, 65534)
        portal = f"127.0.0.1:{proc.free_port('127.0.0.1')}"
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
        process = subprocess.Popen(
            [*nobody, binary, "serve", "--listen", portal, "--control", f"{folder}/own/control", f"{folder}/own/disk,size=16M", "mem:16M"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            url = process.stdout.readline().strip()
            expect(url.startswith("iscsi://"), f"it printed {url!r} and ended with {process.poll()}")
            printed = proc.run("iscsi-ls", "-s", f"iscsi://{portal}")
            expect(printed.count("DIRECT_ACCESS") == 2, f"iscsi-ls -s prints other units:\n{printed}")
            proc.run(binary, "write", url, stdin=b"mine" * 1024)
            # Others, root too, do not trust a socket in a directory of anybody's.
            expect(proc.run(*nobody, binary, "status", "--control", f"{folder}/own/control") != "", "stag status tells nothing")
        finally:
            code = proc.end(process)
        expect(code == 0, f"it ended with {code} on SIGTERM")
    finally:
        shutil.rmtree(folder)


CASES = [
    ("iscsi-ls discovers the target and lists its units", discovery),
    ("iscsi-inq reads INQUIRY and every VPD page", inquiry),
    ("iscsi-readcapacity16 finds the sizes", capacity),
    ("iscsi-swp sets and clears software write protection", write_protection),
    ("iscsi-perf reads without errors", perf),
    ("header digests hold through reads, writes and mode pages", header_digest),
    ("IPv6: discovery, inquiry, reads and writes", ipv6),
    ("eighty logins from thirty initiators, twenty at once", many_sessions),
    ("an idle target uses no CPU", stays_idle),
    ("SIGTERM and SIGINT end it cleanly with sessions open", clean_end),
    ("a user without any privilege serves a file and memory", unprivileged),
]
