"""`stag lab`: lists, runs over loopback and over an emulated link, is interrupted and goes on, reports and compares.

Figures are not judged here: a machine that runs tests is no place to measure.
"""

import csv
import json
import os
import re
import signal
import subprocess
import time
import tomllib
from html.parser import HTMLParser
from xml.etree import ElementTree

from lab import proc
from lab.report import Failed, Skip, expect
from lab.target import Stag

# Two points a round, of moments each.
TINY = """
format = 1
name = "tiny"
title = "Reads over TCP and iSER"
about = "Whether the lab works."
measure = "bench"
rounds = 2
timeout-s = 60
expect-s = 0.5
[settings]
pattern = "randread"
depth = 4
seconds = 0.1
warmup = 0.0
unit-size = "16M"
%s
[[axis]]
name = "transport"
values = ["iscsi", "iser"]
[[axis]]
name = "block"
unit = "B"
values = ["4k", "64k"]
quick = ["4k"]
[[plot]]
name = "iops"
title = "Reads a second"
quantity = "iops"
x = "block"
series = ["transport"]
[[finding]]
claim = "Something is read"
quantity = "iops"
at-least = 1
[[finding]]
claim = "Nothing is read"
quantity = "iops"
at-most = 1e-9
"""


def command(*words):
    if not Stag.binary:
        raise Skip("no stag binary: set STAG_BIN")
    return [Stag.binary, "lab", *[str(word) for word in words]]


def stag_lab(*words, code=0, timeout=240, cwd=None):
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=timeout, cwd=cwd)
    expect(done.returncode == code, f"stag lab {' '.join(map(str, words))}: exit code {done.returncode}\n"
                                    f"{proc.tail(done.stdout + done.stderr)}")
    return done.stdout, done.stderr


def tiny(folder, settings="", name="tiny.toml", **replace):
    path = os.path.join(folder, name)
    text = TINY % settings
    for old, new in replace.items():
        text = text.replace(old, new)
    with open(path, "w") as file:
        file.write(text)
    return path


def records(out, name="tiny"):
    found = {}
    for file in os.listdir(os.path.join(out, name, "records")):
        with open(os.path.join(out, name, "records", file)) as text:
            record = json.load(text)
            found[record["key"], record["round"]] = record
    return found


def measured(out, count):
    found = records(out)
    bad = {key: record["outcome"] for key, record in found.items() if "measured" not in record["outcome"]}
    expect(not bad, f"{bad}")
    expect(len(found) == count, f"{len(found)} records, not {count}")
    for record in found.values():
        values = record["outcome"]["measured"]["values"]
        expect(values["iops"]["value"] > 0 and values["iops"]["unit"], f"{values}")
    return found


def lists(lab):
    """Every experiment is listed, is a file that can be run, and has its claims and charts."""
    text, _ = stag_lab("list")
    listed = json.loads(stag_lab("list", "--json")[0])
    expect(listed, "no experiment comes with the program")
    repeating = [one for one in listed if one["paper"]]  # What `all` is.
    seconds = sum(one["quick"]["expected_s"] for one in repeating)
    # docs/src/lab/lab.md promises 20 minutes. NFS over long distances takes a quarter of them.
    expect(seconds <= 1200, f"all with --quick are expected to take {seconds:.0f} s")
    seconds = sum(one["full"]["expected_s"] for one in repeating)
    # Of that, 128 MB for each of up to eight threads of NFS take 20 minutes.
    expect(seconds <= 4800, f"all are expected to take {seconds:.0f} s")
    for one in listed:
        expect(re.search(rf"^{one['name']} ", text, re.M), f"{one['name']} is not in the list")
        file = tomllib.loads(stag_lab("list", "--show", one["name"])[0])
        expect(file["name"] == one["name"] and file["axis"], f"{one['name']}: {file.keys()}")
        expect(file.get("plot") or file.get("table"), f"{one['name']} shows nothing")
        # A paper's experiment repeats its claims; others may only draw.
        expect(file.get("finding") or not one["paper"], f"{one['name']} claims nothing")
    _, said = stag_lab("list", "--show", listed[0]["name"][:-1], code=2)
    expect("did you mean" in said, said)


def runs_and_goes_on(lab):
    """Ctrl-C ends a run and all it has started; the same command goes on, and then has nothing left to do."""
    folder = lab.new_folder("lab")
    out = os.path.join(folder, "out")
    path = tiny(folder, **{"seconds = 0.1": "seconds = 0.4"})
    process = subprocess.Popen(command("run", path, "--out", out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        proc.wait_until(lambda: os.path.isdir(os.path.join(out, "tiny", "records")) and records(out), 90, "a first record")
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    expect(process.returncode == 130 and "goes on" in said, f"exit code {process.returncode}: {said}")
    left = proc.run("ps", "-eo", "pid,args", ok=None)
    expect(f"--out {out}" not in left and out not in left, f"something runs on:\n{left}")
    before = records(out)
    expect(0 < len(before) < 8, f"{len(before)} records")

    done = subprocess.run(command("run", path, "--out", out), capture_output=True, text=True, timeout=240)
    after = measured(out, 8)  # Which says why a point failed.
    expect(done.returncode == 0, f"exit code {done.returncode}\n{proc.tail(done.stdout + done.stderr)}")
    text = done.stdout
    for key, record in before.items():
        expect(after[key]["began"] == record["began"], f"{key} was measured again")
    # Rounds that other programs disturbed decide nothing, and this machine may be busy.
    for claim, verdict in (("Something is read", "holds"), ("Nothing is read", "does not hold")):
        expect(re.search(rf"^({verdict}|cannot be told) +tiny: {claim} \(our own mark\)$", text, re.M), text)
    start = time.monotonic()
    text, _ = stag_lab("run", path, "--out", out)
    expect("0 measured, 8 recorded before" in text, text)
    expect(time.monotonic() - start < 60, "a run with nothing to do takes its time")
    _, said = stag_lab("run", path, "--out", out, "--quick", code=1)
    expect("--quick is not the same" in said, said)
    for wrong in (["run", path, "--only", "block=8k"], ["run", path, "--only", "depth=1"], ["run", "no-such-experiment"]):
        stag_lab(*wrong, code=2)
    lab.lab_results = out


def children(pid):
    """Processes that it has started and that do something yet."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(entry))
    return found


def alive(pids):
    left = []
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] not in "ZX":
                    left.append(pid)
        except OSError:
            pass
    return left


def ends_at_once(lab):
    """A second Ctrl-C, and SIGKILL too, leave nothing that runs on; the same command then goes on, and tries again what failed if asked."""
    folder = lab.new_folder("lab")
    out = os.path.join(folder, "out")
    path = tiny(folder, **{"seconds = 0.1": "seconds = 3"})
    for signals, status in (([signal.SIGINT, signal.SIGINT], 130), ([signal.SIGKILL], -9)):
        process = subprocess.Popen(command("run", path, "--out", out), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            proc.wait_until(lambda: len(children(process.pid)) >= 2, 90, "a target and a client")
            started = children(process.pid)
            for number in signals:
                process.send_signal(number)
                time.sleep(0.05)
            process.communicate(timeout=120)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        expect(process.returncode == status, f"{signals}: exit code {process.returncode}")
        proc.wait_until(lambda: not alive(started), 30, f"the end of {started} after {signals}")
    before = len(records(out))
    expect(before <= 1, f"{before} records though every point was ended")
    # The rest of it in moments: another file would be another run.
    only = ["--only", "block=4k", "--only", "transport=iscsi", "--rounds", "1"]
    stag_lab("run", path, "--out", out, *only)
    expect(len(records(out)) == 1, "it did not go on")
    name, = os.listdir(os.path.join(out, "tiny", "records"))
    place = os.path.join(out, "tiny", "records", name)
    with open(place) as file:
        record = json.load(file)
    record["outcome"] = {"failed": "the target died"}
    with open(place, "w") as file:
        json.dump(record, file)
    text, _ = stag_lab("run", path, "--out", out, *only)
    expect("0 measured, 1 recorded before" in text, text)
    text, _ = stag_lab("run", path, "--out", out, *only, "--retry")
    expect("tiny: 1 measured" in text and "measured" in str(records(out).values()), text)


def by_a_peer(lab):
    """tgt serves a file in the folder of a point, whose name has commas."""
    if not any(os.access(os.path.join(at, "tgtd"), os.X_OK) for at in ("/usr/sbin", "/usr/bin", "/sbin")):
        raise Skip("tgt is not installed")
    folder = lab.new_folder("lab")
    out = os.path.join(folder, "out,put")
    path = tiny(folder, 'server = "tgt"\nunit = "file"')
    stag_lab("run", path, "--out", out, "--quick", "--no-report", "--only", "transport=iscsi")
    measured(out, 2)


def of_nfs(lab):
    """A file of an export in memory is read and written in each version, over TCP and RDMA, in calls and segments as asked for."""
    folder = lab.new_folder("lab")
    out = os.path.join(folder, "out")
    text = TINY % 'version = "3"\ncall = "64k"\nrdma-reads = 4\nrdma-segment = "4k"\nspan-each = "1M"\nios-each = 8'
    for old, new in {'"bench"': '"nfs"', '"iscsi", "iser"': '"tcp", "rdma"', 'unit-size = "16M"': "", '"randread"': '"write"',
                     '["4k", "64k"]': '["4k", "2M"]', 'quick = ["4k"]': ""}.items():
        expect(old in text, f"{old} is not in the experiment")
        text = text.replace(old, new)
    path = os.path.join(folder, "tiny.toml")
    with open(path, "w") as file:
        file.write(text)
    stag_lab("run", path, "--out", out, "--rounds", "1", "--no-report")
    for key, record in measured(out, 4).items():
        run = record["outcome"]["measured"]["raw"]
        # With ios-each, no time ends the run.
        expect(run["ios"] == 32 and run["writes"] == 32, f"{key}: {run}")


def over_a_link(lab):
    """The same over an emulated link: its round trip is in the record, and in each latency."""
    folder = lab.new_folder("lab")
    out = os.path.join(folder, "out")
    path = tiny(folder, 'link = "metro"\nlink-delay = "2ms"')
    stag_lab("run", path, "--out", out, "--quick", "--no-report")
    found = records(out)
    missing = {record["outcome"].get("missing") for record in found.values()} - {None}
    if missing:
        raise Skip("; ".join(missing))
    for key, record in measured(out, 4).items():
        trip = record["link"]["measured"]["round_trip_us"]["median"]
        # How much longer it is depends on what else the machine does.
        expect(trip >= 3800, f"{key}: a round trip of {trip} µs")
        latency = record["outcome"]["measured"]["values"]["p50_us"]["value"]
        expect(latency >= 3800, f"{key}: {latency} µs over a round trip of 4 ms")
    lab.link_results = out


class Page(HTMLParser):
    """Whether every tag is closed in its turn, and what the page would fetch."""

    VOID = {"meta", "br", "link", "img", "input", "hr"}

    def __init__(self, text):
        super().__init__()
        self.open, self.wrong, self.fetched = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name in ("src", "href") and not (value.startswith("#") or value.startswith("data:")):
                self.fetched.append(value)
        if tag in ("script", "link", "iframe", "object"):
            self.fetched.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        if not self.open or self.open[-1] != tag:
            self.wrong.append((tag, self.open[-3:], self.getpos()))
        else:
            self.open.pop()


def reports(lab):
    """The page needs no other file; JSON, CSV, SVG and PNG are beside it, whole."""
    out = getattr(lab, "lab_results", None) or Failed("the run before failed")
    if isinstance(out, Failed):
        raise out
    report = os.path.join(out, "report")
    text, _ = stag_lab("report", out, "--json")
    whole = json.loads(text)
    tiny_one = whole["experiments"][0]
    told = [finding["verdict"] for finding in tiny_one["findings"]]
    # A point that was disturbed in each round tells nothing. One point can contradict a claim.
    calm = [point["disturbed_rounds"] < len(point["figures"]["iops"]["rounds"]) for point in tiny_one["points"]]
    expect(told == ["holds" if all(calm) else "cannot-be-told", "does-not-hold" if any(calm) else "cannot-be-told"], f"{tiny_one['findings']}")
    expect({finding["class"] for finding in tiny_one["findings"]} == {"ours"}, f"{tiny_one['findings']}")
    expect(len(tiny_one["points"]) == 4 and tiny_one["machine"]["cpu"], f"{tiny_one['points']}")
    # Rounds on cores that a hypervisor has moved apart, or together, do not count.
    expect(all(1 <= len(point["figures"]["iops"]["rounds"]) <= 2 for point in tiny_one["points"]), "not two rounds a point")
    with open(os.path.join(report, "index.html")) as file:
        page = file.read()
    seen = Page(page)
    expect(not seen.wrong and not seen.open, f"{seen.wrong[:3]} {seen.open}")
    expect(not seen.fetched and "url(" not in page and "@import" not in page, f"the page fetches {seen.fetched}")
    expect("Something is read" in page and "prefers-color-scheme" in page, "the page lacks its claims")
    markdown, _ = stag_lab("report", out, "--markdown")
    here = "**holds**" if all(calm) else "cannot be told"
    expect(f"| Something is read | our own mark | {here} | I/Os a second" in markdown and "`tiny`" in markdown, markdown)
    with open(os.path.join(report, "results.md")) as file:
        expect(file.read() == markdown, "results.md is not what was printed")
    ElementTree.parse(os.path.join(report, "tiny", "iops.svg"))
    with open(os.path.join(report, "tiny", "iops.png"), "rb") as file:
        expect(file.read(8) == b"\x89PNG\r\n\x1a\n", "iops.png is no PNG")
    with open(os.path.join(report, "tiny", "samples.csv"), newline="") as file:
        rows = list(csv.DictReader(file))
    expect(len(rows) == 8 and all(float(row["iops"]) > 0 and row["outcome"] == "measured" for row in rows), f"{rows[:2]}")
    stag_lab("report", lab.new_folder("empty"), code=1)


def compares(lab):
    """A result does not differ from itself; one of a link of 4 ms differs from one of loopback, and is worse."""
    out = getattr(lab, "lab_results", None)
    if not out:
        raise Failed("the run before failed")
    same = json.loads(stag_lab("compare", out, out, "--json")[0])
    lines = same["pairs"][0]["lines"]
    expect(lines and all(line["change"] == "noise" and line["ratio"]["value"] == 1 for line in lines), f"{lines[:2]}")
    far = getattr(lab, "link_results", None)
    if far:
        pair = json.loads(stag_lab("compare", out, far, "--json")[0])["pairs"][0]
        iops = [line for line in pair["lines"] if line["quantity"] == "iops"]
        # On a machine that has much else to do, noise may be more than the link's 4 ms; then that is said, and nothing else.
        for line in iops:
            told = "worse" if line["ratio"]["most"] < 1 else "better" if line["ratio"]["least"] > 1 else "noise"
            expect(line["change"] == told and line["ratio"]["least"] <= line["ratio"]["value"] <= line["ratio"]["most"], f"{line}")
        expect(len(iops) == 2 and all(line["change"] != "better" for line in iops), f"{iops}")
        expect(any("--quick" in beware for beware in pair["beware"]), f"{pair['beware']}")
        text, _ = stag_lab("compare", out, far)
        worse = [line for line in pair["lines"] if line["change"] == "worse"]
        expect("differ by more than noise" in text and text.count("\n  worse ") == len(worse), text)


CASES = [
    ("the lab lists its experiments, and each is a whole file", lists),
    ("a run that is interrupted goes on where it was", runs_and_goes_on),
    ("a second Ctrl-C and SIGKILL end all that was started", ends_at_once),
    ("a run by a peer on a file whose path has commas", by_a_peer),
    ("a run of NFS over TCP and RDMA, in calls and segments", of_nfs),
    ("a run over an emulated link has its round trip", over_a_link),
    ("the report opens without any other file", reports),
    ("a comparison tells what is more than noise and nothing else", compares),
]
