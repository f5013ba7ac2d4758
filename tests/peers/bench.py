"""`stag bench` against tgt, istgt and Stag: what it measures, what it refuses, and whether it finds what a target loses.

Rates are not judged here: a machine that runs tests is no place to measure.
"""

import csv
import io
import json
import os
import re
import signal
import subprocess
import threading
import time

from lab import proc, tools
from lab.report import Failed, Skip, as_needed, enough, expect
from lab.target import Lab, Stag, Target, Tgt, Unit

MIB = 1 << 20
FIELDS = {"urls", "copies", "pattern", "read_percent", "zipf", "bs", "depth", "connections", "sessions", "initiators", "threads",
          "rate", "verify", "seconds", "ios", "reads", "writes", "iops", "mb_s", "lat_us", "client_us",
          "client_cpu_percent", "target_us", "target_cpu_percent", "unsent", "errors", "first_error", "reconnects",
          "verified_blocks", "retries", "snacks", "reassigns", "replaced_connections", "tuning", "entries_per_io",
          "histogram_ns", "intervals", "machine", "receive"}
LATENCIES = ["min", "mean", "p50", "p90", "p99", "p999", "p9999", "max"]


class Istgt(Target):
    """istgt with a configuration of its own; its units are files."""

    BASE = "iqn.2026-01.org.example"

    def start(self):
        proc.need("istgt")
        lines = ["[Global]", f'  NodeBase "{self.BASE}"', f"  PidFile {self.folder}/pid", f"  AuthFile {self.folder}/auth",
                 "  Timeout 30", "  NopInInterval 20", "  DiscoveryAuthMethod Auto", "  MaxSessions 64",
                 "  MaxConnections 4", "  MaxR2T 32", "  MaxOutstandingR2T 16", "  DefaultTime2Wait 2",
                 "  DefaultTime2Retain 60", "  FirstBurstLength 65536", "  MaxBurstLength 262144",
                 "  MaxRecvDataSegmentLength 65536", "  InitialR2T Yes", "  ImmediateData Yes", "  DataPDUInOrder Yes",
                 "  DataSequenceInOrder Yes", "  ErrorRecoveryLevel 0", "[UnitControl]", "  AuthMethod Auto",
                 f"  Portal UC1 127.0.0.1:{proc.free_port()}", "  Netmask 127.0.0.1", "[PortalGroup1]",
                 f"  Portal DA1 {self.portal}", "[InitiatorGroup1]", '  InitiatorName "ALL"', "  Netmask 127.0.0.0/8",
                 "[LogicalUnit1]", "  TargetName disk", "  Mapping PortalGroup1 InitiatorGroup1", "  AuthMethod None",
                 "  AuthGroup None", "  UseDigest Auto", "  UnitType Disk", "  QueueDepth 64"]
        for number, unit in enumerate(self.units):
            with open(unit.path, "ab") as file:
                file.truncate(unit.mib * MIB)
            lines.append(f"  LUN{number} Storage {unit.path} {unit.mib}MB")
        with open(os.path.join(self.folder, "istgt.conf"), "w") as file:
            file.write("\n".join(lines) + "\n")
        open(os.path.join(self.folder, "auth"), "a").close()
        log = open(self.log_path, "ab")
        self.process = subprocess.Popen(["istgt", "-D", "-c", file.name], stdout=log, stderr=log)

        def ready():
            self.check_alive()
            return proc.run("sh", "-c", f"ss -Hltn sport = :{self.port}", ok=None).strip() != ""

        proc.wait_until(ready, 60, "istgt listens")
        self.urls = [f"iscsi://{self.portal}/{self.BASE}:disk/{number}" for number in range(len(self.units))]

    def stop(self):
        self.check_alive()
        proc.end(self.process, 3)


KINDS = {"tgt": Tgt, "istgt": Istgt, "stag": Stag}


class serve:
    """A running target of some kind, in a folder of its own."""

    def __init__(self, lab, kind, *units):
        folder = Lab(lab.report, lab.new_folder(kind), "stag").new_folder()
        self.target = KINDS[kind](folder, list(units) or [Unit(mib=16)], "127.0.0.1", proc.free_port(), None, {})

    def __enter__(self):
        self.target.start()
        return self.target

    def __exit__(self, kind, *_):
        if kind is None:
            self.target.stop()
        elif self.target.process and self.target.alive():
            self.target.kill()


def against(*kinds):
    """Runs a case against each kind of target that is installed; one at least has to be."""
    def decorate(case):
        def each(lab):
            ran, missing = 0, []
            for kind in kinds:
                try:
                    case(lab, kind)
                    ran += 1
                except Skip as reason:
                    missing.append(str(reason))
                    if os.environ.get("CI") == "true":
                        raise
                except Failed as reason:
                    raise Failed(f"against {kind}: {reason}") from None
            if not ran:
                raise Skip("; ".join(missing))
        return each
    return decorate


def command(*words):
    if not Stag.binary:
        raise Skip("no stag binary: set STAG_BIN")
    return [Stag.binary, "bench", *[str(word) for word in words]]


def bench(*words, code=0, timeout=240):
    """Runs to the end; the runs of the JSON document, and what was said on stderr."""
    process = subprocess.run(command(*words, "--json"), capture_output=True, text=True, timeout=timeout)
    expect(process.returncode == code, f"stag bench {' '.join(map(str, words))}: exit code {process.returncode}\n"
                                       f"{proc.tail(process.stdout + process.stderr)}")
    return (json.loads(process.stdout)["runs"] if process.stdout else []), process.stderr


class running:
    """A bench in the background."""

    def __init__(self, *words):
        self.process = subprocess.Popen(command(*words, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self, code, timeout=240):
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise Failed("stag bench hangs") from None
        expect(self.process.returncode == code, f"exit code {self.process.returncode}:\n{proc.tail(out + err)}")
        return (json.loads(out)["runs"][0] if out else None), err

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def patiently(case):
    """Tries some times: a machine that is busy with something else stalls by itself."""
    def tries(*arguments):
        for left in (4, 3, 2, 1, 0):
            try:
                return case(*arguments)
            except Failed:
                if not left:
                    raise
    return tries


def wait_reading(target):
    """Until a bench that fills first has come to its reads. Returns a time when it had not."""
    begun = time.monotonic()

    def reads():
        nonlocal begun
        before = time.monotonic()
        if counted() > 100:
            return True
        begun = before
        return False

    def counted():
        told = proc.run(Stag.binary, "status", "--control", target.control, "--json")
        return json.loads(told)["targets"][0]["units"][0]["io"]["reads"]
    proc.wait_until(reads, 90, "it reads")
    return begun


@against("tgt", "istgt", "stag")
@patiently
def patterns(lab, kind):
    with serve(lab, kind) as target:
        # istgt takes a second for each logout.
        sizes, depths = ("512,4k,64k", "1,16") if kind == "stag" else ("4k,64k", "16")
        runs, _ = bench(target.urls[0], "--pattern", "read,randread,write,randwrite,rw,randrw", "--bs", sizes,
                        "--depth", depths, "--time", 0.4, "--destroy", "--target-pid", target.pid)
        expect(len(runs) == (36 if kind == "stag" else 12), f"{len(runs)} runs")
        for run in runs:
            name = f"{run['pattern']} {run['bs']} depth {run['depth']}"
            expect(set(run) == FIELDS, f"{name}: fields {set(run) ^ FIELDS}")
            lat = run["lat_us"]
            expect(sorted(lat) == sorted(LATENCIES), f"{name}: {lat}")
            expect(run["ios"] > 0 and run["errors"] == 0 and run["ios"] == run["reads"] + run["writes"], f"{name}: {run}")
            ordered = [lat[key] for key in LATENCIES if key != "mean"]
            expect(ordered == sorted(ordered) and lat["min"] > 0, f"{name}: {lat}")
            expect(abs(run["iops"] * run["seconds"] - run["ios"]) < 1 + run["ios"] / 1000, f"{name}: {run}")
            reads = {"read": True, "randread": True, "write": False, "randwrite": False}.get(run["pattern"])
            expect(reads is None or (run["writes"] == 0) == reads and (run["reads"] == 0) != reads, f"{name}: {run}")
            expect(run["target_us"] > 0 and run["client_us"] > 0, f"{name}: {run}")


@against("tgt", "istgt", "stag")
def sessions(lab, kind):
    with serve(lab, kind, Unit(mib=16), Unit(mib=16)) as target:
        words = ["--initiators", 2, "--sessions", 2, "--threads", 2, "--pattern", "randrw", "--zipf", 0.99, "--depth", 8]
        runs, _ = bench(*target.urls, *words, "--count", 5000, "--verify", "--destroy")
        run = runs[0]
        expect((run["sessions"], run["ios"]) == (8, 5000), f"{run}")
        expect(run["verified_blocks"] > 0, f"{run}")
        connections = 1 if kind == "tgt" else 2
        runs, _ = bench(target.urls[0], "--connections", connections, "--depth", 32, "--time", 0.3, "--bs", "512..4k")
        expect([run["bs"] for run in runs] == [512, 1024, 2048, 4096], f"{runs}")


@against("tgt", "istgt", "stag")
def fills(lab, kind):
    """Also before runs that only read."""
    with serve(lab, kind) as target:
        bench(target.urls[0], "--fill", "--pattern", "randread", "--bs", "64k", "--count", 1, "--destroy")
        with open(target.units[0].path, "rb") as file:
            for place in range(0, 16 * MIB, 65536):
                expect(any(file.read(65536)), f"nothing was written at {place}")


@against("tgt", "istgt", "stag")
def verifies(lab, kind):
    with serve(lab, kind) as target:
        for bs in (512, 4096, 65536):
            runs, _ = bench(target.urls[0], "--fill", "--pattern", "randrw", "--bs", bs, "--depth", 32, "--time", 0.7,
                            "--verify", "--destroy")
            # The end reads everything that was written, and everything was.
            expect(runs[0]["verified_blocks"] >= 16 * MIB // 512 and runs[0]["errors"] == 0, f"{runs[0]}")


def in_good_time(since, seconds):
    """What was done to a run of so many seconds was done before it could be over."""
    took = time.monotonic() - since
    enough(took < seconds - 1, f"it took {took:.1f} s to do something within {seconds} s")


def wait_filled(unit):
    """Until a bench has filled the unit, from its beginning to its end. Returns a time from which it was not filled yet."""
    begun = time.monotonic()

    def filled():
        nonlocal begun
        before = time.monotonic()
        if is_filled():
            return True
        begun = before
        return False

    def is_filled():
        with open(unit.path, "rb") as file:
            data = file.read()
        return len(data) == unit.mib * MIB and all(any(data[at:at + 512]) for at in range(0, len(data), 65536)) and any(data[-512:])
    proc.wait_until(filled, 90, "the unit is filled")
    time.sleep(0.3)
    return begun


@as_needed(3, 20)
def finds_corruption(lab, seconds):
    unit = Unit(mib=8)
    with serve(lab, "stag", unit) as target:
        with running(target.urls[0], "--fill", "--pattern", "randread", "--time", seconds, "--verify", "--destroy",
                     "--max-errors", 1000000) as run:
            filled = wait_filled(unit)
            with open(unit.path, "r+b") as file:
                file.seek(1234 * 512 + 100)
                byte = file.read(1)
                file.seek(1234 * 512 + 100)
                file.write(bytes([byte[0] ^ 0x40]))
            in_good_time(filled, seconds)
            report, err = run.end(1)
        expect(report["errors"] > 0, f"{report}")
        expect("LBA 1234: expected generation 1, found 1 with a wrong byte at 100" in err, err)
        others = [line for line in err.splitlines() if "expected generation" in line and "LBA 1234:" not in line]
        expect(not others, f"{others}")


@as_needed(4, 20)
def finds_a_lost_write(lab, seconds):
    """What is on the medium is set back by a second: of some two hundred writes, all but a few were the last of their place."""
    unit = Unit(mib=4)
    with serve(lab, "stag", unit) as target:
        with running(target.urls[0], "--fill", "--pattern", "randwrite", "--rate", 200, "--depth", 4, "--time", seconds,
                     "--verify", "--destroy", "--max-errors", 1000000) as run:
            filled = wait_filled(unit)
            time.sleep(1)
            with open(unit.path, "rb") as file:
                old = file.read()
            time.sleep(1.2)
            with open(unit.path, "r+b") as file:
                file.write(old)
            in_good_time(filled, seconds)
            report, err = run.end(1)
        expect(report["errors"] > 8 and "expected generation 2, found 1: an acknowledged write was lost" in err, err)


@as_needed(5, 30)
def finds_a_lost_medium(lab, seconds):
    """A unit in memory forgets everything when its target dies: the first read that follows must tell."""
    with serve(lab, "stag", Unit(mib=8, memory=True)) as target:
        with running(target.urls[0], "--fill", "--pattern", "randread", "--time", seconds, "--verify", "--destroy") as run:
            begun = wait_reading(target)
            target.kill()
            target.restart()
            in_good_time(begun, seconds)
            report, err = run.end(1)
        expect(report["reconnects"] == 1 and "found zeros: an acknowledged write was lost" in err, f"{report}\n{err}")


@against("tgt", "stag")
@as_needed(8, 60)
def survives_kills(lab, kind, seconds):
    with serve(lab, kind, Unit(mib=16), Unit(mib=16)) as target:
        begun = time.monotonic()
        with running(*target.urls, "--fill", "--pattern", "randrw", "--depth", 16, "--time", seconds, "--verify", "--destroy",
                     "--sessions", 2) as run:
            time.sleep(1.5)
            for _ in range(3):
                time.sleep(0.7)
                in_good_time(begun, seconds)
                expect(run.process.poll() is None, "it has ended with its target")
                target.kill()
                target.restart()
            report, err = run.end(0)
        # One that the next death finds still on its way back is made anew once for both.
        expect(report["reconnects"] >= 4, f"{report['reconnects']} sessions were made anew")
        expect(report["errors"] == 0 and report["verified_blocks"] > 0, f"{report}\n{err}")


def stall(target, after, seconds):
    """Stops the target for a while."""
    def work():
        time.sleep(after)
        target.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        target.process.send_signal(signal.SIGCONT)
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@against("tgt", "stag")
@patiently
def counts_what_a_stall_delays(lab, kind):
    """Half a second of four: an eighth of the I/Os of a fixed rate were late. A closed loop sends one in that time."""
    with serve(lab, kind) as target:
        for rate in (["--rate", 1000], []):
            thread = stall(target, 1.5, 0.5)
            runs, _ = bench(target.urls[0], "--depth", 1, "--time", 4, *rate)
            thread.join()
            lat, run = runs[0]["lat_us"], runs[0]
            expect(lat["max"] > 300_000, f"nothing was stalled: {lat}")
            if rate:
                expect(3990 <= run["ios"] + run["unsent"] <= 4010, f"{run}")
                expect(lat["p90"] > 20_000 and lat["p99"] > 300_000, f"the stall hides itself: {lat}")
                expect(lat["p50"] < 20_000, f"{lat}")
            else:
                expect(lat["p99"] < 100_000, f"{lat}")


@patiently
def keeps_a_rate(lab):
    with serve(lab, "stag") as target:
        for threads, rate in ((1, 500), (2, 3000)):
            runs, _ = bench(target.urls[0], "--sessions", 4, "--threads", threads, "--rate", rate, "--time", 1)
            expect(abs(runs[0]["iops"] - rate) < rate / 50, f"{runs[0]}")


def found_by_hdrhistogram(text, run):
    """HdrHistogram for Python writes the same head and foot, and finds our percentiles in what our rows count."""
    histogram = tools.python_package("hdrh.histogram").histogram.HdrHistogram(1, 600 * 10**9, 3)
    table, _, foot = text.partition("\n#")
    rows = [[float(word) for word in line.split()] for line in table.splitlines()[2:]]
    before = 0
    for us, _, count, *_ in rows:
        if count > before:
            histogram.record_value(round(us * 1000), int(count - before))
        before = count
    written = io.BytesIO()
    histogram.output_percentile_distribution(written, 1000)
    theirs = written.getvalue().decode()
    expect(text.splitlines()[:2] == theirs.splitlines()[:2], text[:100])
    # Their total has another name and digits than HdrHistogram's own, which others read.
    ours, theirs = ({name.replace("Total count", "TotalCount"): float(number) for name, number in re.findall(r"(\w[\w ]*?) += +([\d.]+)", of)}
                    for of in (foot, theirs.partition("\n#")[2]))
    expect(set(ours) == set(theirs), f"{ours} {theirs}")
    for name in ("Max", "TotalCount", "Buckets", "SubBuckets"):
        expect(abs(ours[name] - theirs[name]) <= ours[name] / 1000, f"{name}: {ours} {theirs}")
    expect(abs(ours["Mean"] - run["lat_us"]["mean"]) < 0.01, f"{ours}, {run['lat_us']}")
    low = 0.0
    for us, part, _, *inverse in rows:
        found = histogram.get_value_at_percentile(part * 100) / 1000
        # They round to the next command, which may be of the row before.
        expect(low * 0.999 <= found <= us * 1.001 + 0.001, f"{part}: {found} µs instead of {us}")
        expect(not inverse or abs(inverse[0] * (1 - part) - 1) < 0.01, f"{part}: {inverse}")
        low = us


def by_intervals(lab):
    """A line for each interval on stderr, the same in JSON; a target that stands still has intervals without I/Os. The latencies add up."""
    with serve(lab, "stag") as target:
        log = os.path.join(lab.new_folder("hgrm"), "latency.hgrm")
        words = command(target.urls[0], "--time", 3, "--depth", 4, "--interval", "500ms", "--histogram", log, "--json")
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lines = [process.stderr.readline()]
        target.process.send_signal(signal.SIGSTOP)
        try:
            lines += [process.stderr.readline() for _ in range(3)]
        finally:
            target.process.send_signal(signal.SIGCONT)
        printed, rest = process.communicate(timeout=60)
        expect(process.returncode == 0, f"{process.returncode}: {rest}")
        run = json.loads(printed)["runs"][0]
        told = [line for line in [*lines, *rest.splitlines()] if " IOPS " in line]
        intervals = run["intervals"]
        expect(len(told) == len(intervals) >= 4, f"{told} {intervals}")
        expect(sum(one["ios"] for one in intervals) == run["ios"], f"{intervals} of {run['ios']}")
        expect(abs(sum(one["seconds"] for one in intervals) - run["seconds"]) < 1e-3, f"{intervals}")
        expect(any(one["ios"] == 0 for one in intervals), f"the target stood still: {intervals}")
        counts = [int(word.split(":")[1]) for word in run["histogram_ns"].split()]
        expect(sum(counts) == run["ios"], f"{run}")
        with open(log) as file:
            text = file.read()
        expect(text.split()[:4] == ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"], text[:200])
        last = text.split("\n#")[0].splitlines()[-1].split()
        found_by_hdrhistogram(text, run)
        full = subprocess.run(command(target.urls[0], "--time", 0.2, "--histogram", "/dev/full", "--json"), capture_output=True, text=True, timeout=60)
        expect(full.returncode == 1 and "/dev/full: No space left" in full.stderr, f"{full.returncode}: {full.stderr}")
        expect(json.loads(full.stdout)["runs"][0]["ios"] > 0, f"what was measured is not told: {full.stdout}")
        expect(last[1:] == ["1.000000000000", str(run["ios"])] and abs(float(last[0]) - run["lat_us"]["max"]) < 0.01, f"{last}, {run['lat_us']}")


def comma_separated(lab):
    with serve(lab, "stag") as target:
        printed = proc.run(*command(target.urls[0], "--bs", "512..4k", "--depth", "1,4", "--time", 0.1, "--csv"))
        rows = list(csv.DictReader(io.StringIO(printed)))
        expect(len(rows) == 8 and None not in rows[0] and None not in rows[0].values(), printed)
        for row in rows:
            expect(row["urls"] == target.urls[0] and float(row["iops"]) > 0 and float(row["lat_p999_us"]) > 0, str(row))
            expect(row["target_us"] == "" and row["errors"] == "0", str(row))
        table = proc.run(*command(target.urls[0], "--bs", "4k,1M", "--time", 0.1))
        expect(table.count("randread") == 2 and " 1M " in table, table)


def refuses(lab):
    with serve(lab, "stag", Unit(mib=16, block_bytes=4096), Unit(mib=16, read_only=True)) as target:
        url, read_only = target.urls
        for words, code, says in (
                ([url, "--pattern", "randwrite"], 2, "--destroy"),
                ([url, "--fill"], 2, "--destroy"),
                ([url, "--verify"], 2, "--destroy"),
                ([url, "--verify", "--destroy"], 2, "pattern that writes"),
                ([url, "--bs", 512], 2, "no whole number of its blocks of 4096"),
                ([url, "--zipf", 1.1, "--pattern", "read"], 2, "random"),
                ([url, "--span", "2k"], 2, "no room"),
                ([url, "--target-comm", "no-such-process"], 2, "no process is called"),
                ([url, "--depth", 0], 2, "1 to 4096"),
                ([url, "--interval", "50ms"], 2, "0.1s to 3600s"),
                ([url, "--depth", "1,2", "--histogram", "/tmp/no"], 2, "of one run"),
                ([url, "--histogram", "/no/such/folder"], 1, "/no/such/folder"),
                ([url.replace(IQN_END, "nobody")], 5, "log in"),
                ([f"iscsi://127.0.0.1:{proc.free_port()}/iqn.2026-01.org.example:x/0"], 5, "connect"),
                ([read_only, "--pattern", "write", "--destroy", "--time", 1], 1, "write of 8 blocks at LBA 0"),
        ):
            _, err = bench(*words, code=code)
            expect(says in err, f"{words}: {err}")
            expect("panicked" not in err, err)
        # Nothing was written by what was refused.
        with open(target.units[0].path, "rb") as file:
            expect(not any(file.read()), "a refused run has written")


IQN_END = "disks"

CASES = [
    ("stag bench: every pattern, sizes and depths, on tgt, istgt and Stag", patterns),
    ("stag bench: units, initiators, sessions, connections, threads, on tgt, istgt and Stag", sessions),
    ("stag bench --fill: writes all of tgt's, istgt's and Stag's units", fills),
    ("stag bench --verify: finds tgt, istgt and Stag without fault", verifies),
    ("stag bench --verify: a flipped bit under the target is found and named", finds_corruption),
    ("stag bench --verify: a write that is undone is found", finds_a_lost_write),
    ("stag bench --verify: a medium that was lost is found after reconnecting", finds_a_lost_medium),
    ("stag bench --verify: goes on when tgt and Stag are killed, and finds everything", survives_kills),
    ("stag bench --rate: a stalled tgt or Stag is seen in the percentiles", counts_what_a_stall_delays),
    ("stag bench --rate: the rate is kept, by one thread or two", keeps_a_rate),
    ("stag bench --interval: every I/O is in one interval, and those of a target that stands still are empty", by_intervals),
    ("stag bench --csv and the table", comma_separated),
    ("stag bench: what it refuses, and how it says so", refuses),
]
