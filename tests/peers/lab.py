"""`stag lab`: lists, runs over loopback and over an emulated link, is interrupted and goes on, reports and compares.

Figures are not judged here: a machine that runs tests is no place to measure.
"""

import csv
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import time
import tomllib
from html.parser import HTMLParser
from xml.etree import ElementTree

from lab import proc
from lab.report import Failed, Skip, expect
from lab.target import Stag

from . import bench
from .dashboard import Browser

# Two points a round, of moments each.
TINY = """
format = 1
name = "tiny"
title = "Reads over TCP and iSER"
about = "Whether the lab works."
measure = "bench"
awake = false
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
reference = "A paper"
[[plot]]
name = "latency"
title = "Latencies"
kind = "cdf"
series = ["transport", "block"]
[[reference]]
title = "A paper"
x = "size"
columns = ["size", "iser", "a card"]
rows = [["4 KB", 10000, 20000], ["64 KB", "–", 5000]]
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


def measured(out, count, name="tiny"):
    found = records(out, name)
    bad = {key: record["outcome"] for key, record in found.items() if "measured" not in record["outcome"]}
    expect(not bad, f"{bad}")
    expect(len(found) == count, f"{len(found)} records, not {count}")
    for record in found.values():
        values = record["outcome"]["measured"]["values"]
        rate = values.get("iops") or values["mb_s"]  # A copy has no I/Os that it tells.
        expect(rate["value"] > 0 and rate["unit"], f"{values}")
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
    # lab.md says: about two hours. 128 MB for each of up to eight threads of NFS take 25 minutes.
    expect(seconds <= 7500, f"all are expected to take {seconds:.0f} s")
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


def of_others(lab):
    """fio, iscsi-perf and nfs-cp against tgt, istgt and Ganesha, from one file: nothing of Stag serves or loads."""
    proc.need("fio", "tgtd", "istgt", "iscsi-perf", "iscsi-inq", "nfs-cp", "qemu-nbd", "nbdinfo", "ganesha.nfsd", "rpcbind", "nfs-ls")
    if os.geteuid() != 0:
        raise Skip("Ganesha needs root")
    out = os.path.join(lab.new_folder("lab"), "out")
    stag_lab("run", "foreign", "--out", out, "--quick", "--rounds", "1", "--only", "block=4k", "--only", "depth=16")
    for (key, _), record in measured(out, 9, "foreign").items():
        values = record["outcome"]["measured"]["values"]
        if "client=fio" not in key:
            expect(values["iops" if "client=iscsi-perf" in key else "mb_s"]["value"] > 0, f"{key}: {sorted(values)}")
            continue
        expect({"iops", "mb_s", "p50_us", "p99_us", "target_us", "client_us"} <= set(values), f"{key}: {sorted(values)}")
        expect(record["outcome"]["measured"]["raw"]["client"]["jobs"][0]["error"] == 0, f"{key}: fio's I/Os failed")


# A machine that ssh reaches serves a file by nbdkit.
DISTANT = """
format = 1
name = "distant"
title = "A server on another machine"
measure = "commands"
rounds = 1
settings = { unit-size = "1M", more = MORE }
[server.nbdkit]
host = { ssh = SSH, address = "127.0.0.1" }
needs = { nbdkit = "nbdkit" }
env = { SAID = "it's 'said'" }
files = { "serve.sh" = 'echo "$SAID" > {folder}/said; echo started; exec nbdkit --foreground --port={port} --ipaddr={address} file {unit}' }
start = ["sh", "{folder}/serve.sh"]
ready = "^started$"
setup = [["nbdinfo", "--size", "nbd://{address}:{port}"]]
url = "nbd://{address}:{port}"
run = ["sh", "-c", 'cat {folder}/said; stat -Lc "%s bytes" {unit}']
figures.size = { text = "it's 'said'\\n([0-9]+) bytes", unit = "B" }
[client.fio]
needs = { fio = "fio" }
run = ["fio", "--name=lab", "--ioengine=nbd", "--uri={url}", "--rw=read", "--bs=4k", "--size={unit-size}", "--output-format=json", "{more}"]
figures.ios = { json = "/jobs/0/read/total_ios" }
figures.iops = { json = "/jobs/0/read/iops", unit = "IOPS", better = "higher" }
"""


def over_ssh(lab):
    """The server on a machine that ssh reaches: its files, its unit and its figures, and nothing of it stays, however the lab ends."""
    proc.need("ssh", "sshd", "ssh-keygen", "nbdkit", "nbdinfo", "fio")
    if os.geteuid() != 0:
        raise Skip("an ssh server needs root")
    folder = lab.new_folder("lab")
    keys = {name: os.path.join(folder, name) for name in ("host", "user")}
    for key in keys.values():
        proc.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
    os.makedirs("/run/sshd", exist_ok=True)
    port = str(proc.free_port())
    # An ssh server insists on its whole path.
    server = subprocess.Popen([shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin"), "-D", "-f", "/dev/null", "-h", keys["host"], "-p", port,
                               *(word for option in ("ListenAddress=127.0.0.1", "StrictModes=no", "UsePAM=no", f"AuthorizedKeysFile={keys['user']}.pub")
                                 for word in ("-o", option))], stderr=subprocess.DEVNULL)
    way = ["-p", port, "-i", keys["user"], "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "root@127.0.0.1"]

    def written(name, more):
        path = os.path.join(folder, name)
        with open(path, "w") as file:
            file.write(DISTANT.replace("MORE", json.dumps(more)).replace("SSH", json.dumps(way)))
        return path

    def remains():
        return glob.glob("/tmp/stag-lab-??????") + proc.run("pgrep", "--full", "nbdkit --foreground --port", ok=None).split()
    try:
        proc.wait_until(lambda: proc.run("ssh", *way, "true", ok=None).code == 0, 30, "the ssh server answers")
        before = remains()
        out = os.path.join(folder, "out")
        stag_lab("run", written("distant.toml", []), "--out", out, "--no-report")
        (record,) = measured(out, 1, "distant").values()
        values = record["outcome"]["measured"]["values"]
        expect((values["ios"]["value"], values["size"]["value"]) == (256, 1 << 20), f"{values}")
        expect("target_percent" not in values, "processor time of another machine is told")
        expect(remains() == before, f"{remains()} stay")

        path = written("long.toml", ["--time_based", "--runtime=300"])
        process = subprocess.Popen(command("run", path, "--out", out + "-long"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            proc.wait_until(lambda: len(remains()) >= len(before) + 2, 60, "the server is started")
        finally:
            process.kill()
            process.wait()
        proc.wait_until(lambda: not [one for one in remains() if one.isdigit() and one not in before], 30, "the server has ended with the lab")
    finally:
        proc.end(server)


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


def verifies(lab):
    """Results that somebody hands on follow from what the tools printed, and what does not is named."""
    out = getattr(lab, "lab_results", None) or Failed("the run before failed")
    if isinstance(out, Failed):
        raise out
    handed_on = os.path.join(lab.new_folder("lab"), "handed-on")
    shutil.copytree(out, handed_on)
    stag_lab("report", handed_on)
    proc.run("sh", "-c", "cd \"$1\" && sha256sum --check --strict --quiet SHA256SUMS", "sh", handed_on)
    found = json.loads(stag_lab("verify", handed_on, "--json")[0])
    expect(found["wrong"] == [] and found["records"] == found["distributions"] == 8 and found["recomputed"] >= 8 * 6 and found["verdicts"] == 2, f"{found}")
    folder = os.path.join(handed_on, "tiny", "records")
    # Both rounds of a point: one that was disturbed may not count.
    for name in sorted(os.listdir(folder))[:2]:
        with open(os.path.join(folder, name)) as file:
            record = json.load(file)
        record["outcome"]["measured"]["values"]["iops"]["value"] *= 2
        with open(os.path.join(folder, name), "w") as file:
            json.dump(record, file)
    text, _ = stag_lab("verify", handed_on, code=1)
    for words in (f"{name} has changed", "iops is ", " as published, and "):
        expect(words in text, f"{words} is not in {text}")


def published(lab):
    """Those of the repository: what judges runs today judges them as was published."""
    archives = glob.glob(os.path.join(os.path.dirname(__file__), "../../tools/lab/results/*.tar.xz"))
    expect(archives, "the repository has no results")
    for archive in archives:
        folder = lab.new_folder("published")
        proc.run("tar", "-xf", archive, "-C", folder)
        stag_lab("verify", os.path.join(folder, "lab-results"))


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


# Elements beyond the window, tables that hide a column, and texts without room, with everything
# that can be opened open.
CLIPPED = """
document.querySelectorAll('details').forEach(one => one.open = true);
const width = document.documentElement.clientWidth;
const out = [...document.body.querySelectorAll('*')].filter(one => !one.ownerSVGElement).filter(one => {
    const place = one.getBoundingClientRect();
    const outside = place.width && (place.left < -0.5 || place.right > width + 0.5);
    const hides = getComputedStyle(one).overflowX !== 'visible' && one.scrollWidth > one.clientWidth + 1;
    return (outside || hides) && !one.closest('pre');
});
const told = out.slice(0, 5).map(one => [one.tagName, one.className, one.clientWidth, one.scrollWidth, one.textContent.slice(0, 50)]);
return [document.documentElement.scrollWidth - width, told];
"""
# For each mark of each chart its title, and that of what lies at its middle: marks may cover each
# other.
HOVERED = """
return [...document.querySelectorAll('figure svg')].map(svg => [...svg.querySelectorAll('circle, rect, polygon')]
    .filter(mark => mark.querySelector('title')).map(mark => {
        mark.scrollIntoView({block: 'center'});
        const place = mark.getBoundingClientRect();
        const there = document.elementFromPoint(place.left + place.width / 2, place.top + place.height / 2);
        return [mark, there].map(one => one && one.querySelector('title') ? one.querySelector('title').textContent : '');
    }));
"""


def fits_screens(lab):
    """On screens of 360 to 1920 pixels nothing of the report is cut off, and every point of a chart says what it is."""
    out = getattr(lab, "lab_results", None)
    if not out:
        raise Failed("the run before failed")
    page = os.path.join(out, "report", "index.html")
    for width in (360, 768, 1280, 1920):
        browser = Browser("file://", width=max(width, 500))
        try:
            # Chromium has no window below 500 pixels.
            screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            browser.do("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": screen})
            browser.go(page)
            expect(abs(browser.run("return innerWidth") - width) <= 1, "the window has another width")
            beyond, clipped = browser.run(CLIPPED)
            expect(beyond <= 0 and not clipped, f"at {width} pixels: {beyond} beyond the page, {clipped}")
            lines, latencies = browser.run(HOVERED)
            for text in ("iscsi, 4 KiB: ", "iser, 64 KiB: ", "iser (paper), 4 KiB: 10K", "a card (paper), 64 KiB: 5000"):
                expect(any(own.startswith(text) for own, _ in lines), f"at {width} pixels no point says {text!r}: {lines}")
            expect(all(" % within " in own for own, _ in latencies) and len(latencies) >= 12, f"at {width} pixels: {latencies}")
            both = lines + latencies
            expect(all(hovered for _, hovered in both), f"at {width} pixels a point says nothing: {both}")
            expect(sum(own == hovered for own, hovered in both) >= len(both) / 2, f"at {width} pixels: {both}")
        finally:
            browser.close()


# A document of charts. pdfLaTeX ends at what it cannot typeset, and warns of a chart without room
# or range.
LATEX = r"""\documentclass{article}
\usepackage[margin=2cm]{geometry}
\usepackage{pgfplots}
\pgfplotsset{compat=1.16}
\begin{document}
%s
\end{document}
"""


def for_latex(lab):
    """pdfLaTeX typesets lines, bars and distributions, of one point and of several, whatever characters their names have."""
    proc.need("pdflatex")
    if not os.path.exists("/usr/share/texlive/texmf-dist/tex/latex/pgfplots/pgfplots.sty"):
        raise Skip("no pgfplots (tests/install-peers installs it)")
    folder = lab.new_folder("latex")
    names = r"50 % of {a_b} & $c #d^2 ~ <\\e> ≤ 1 ≥ −2 ≈ µ ± “é” – [f], \"g\" → h"
    bars = '[[plot]]\nname = "bars"\ntitle = "Bars"\nkind = "bars"\nquantity = "iops"\nx = "block"\nseries = ["transport"]\n[[plot]]\nname = "iops"'
    path = tiny(folder, **{"Reads a second": names, '[[plot]]\nname = "iops"': bars,
                           'values = ["iscsi", "iser"]': f'values = ["iscsi", "iser"]\nlabels = {{ iser = "{names}" }}'})
    for out, more in (("one", ["--quick"]), ("several", [])):
        stag_lab("run", path, "--out", os.path.join(folder, out), "--rounds", "2", "--no-report", *more)
        stag_lab("report", os.path.join(folder, out), "--pgf")
    charts = sorted(glob.glob(os.path.join(folder, "*", "report", "tiny", "*.pgf")))
    expect([os.path.basename(chart) for chart in charts] == ["bars.pgf", "iops.pgf", "latency.pgf"] * 2, f"{charts}")
    with open(os.path.join(folder, "all.tex"), "w") as file:
        file.write(LATEX % "\n".join(f"\\begin{{center}}\\input{{{os.path.relpath(chart, folder)}}}\\end{{center}}" for chart in charts))
    done = subprocess.run(["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"], cwd=folder, capture_output=True, text=True,
                          errors="replace", timeout=120)
    expect(done.returncode == 0, f"pdflatex: exit code {done.returncode}\n{proc.tail(done.stdout)}")
    warnings = re.findall(r".*Warning: .*|Missing character.*|Overfull .*", done.stdout)
    expect(not warnings, f"{warnings}")


def of_printed_runs(lab):
    """Two runs of stag bench by hand are drawn and compared: one with a stalled target is slower, one beside itself cannot be told."""
    folder = lab.new_folder("printed")
    names = {}
    with bench.serve(lab, "stag") as target:
        for name, words in (("free", []), ("bound", ["--rate", 200])):
            words = [target.urls[0], "--time", 2, "--depth", 4, "--interval", "200ms", "--json", *words]
            names[name] = os.path.join(folder, f"{name}.json")
            # stderr has the intervals.
            with open(names[name], "w") as file:
                subprocess.run(bench.command(*words), stdout=file, stderr=subprocess.DEVNULL, timeout=60, check=True)
    text, _ = stag_lab("chart", *names.values(), "--out", folder, "--pgf")
    for chart in ("free-latency", "free-iops", "free-p99"):
        svg = os.path.join(folder, f"{chart}.svg")
        expect(svg in text, text)
        marks = [one.text for one in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}title")]
        expect(any("bound: randread, 4 KiB, depth 4" in one for one in marks), f"{chart}: {marks[:5]}")
        with open(os.path.join(folder, f"{chart}.pgf")) as file:
            expect("\\end{tikzpicture}" in file.read(), f"{chart}.pgf is not whole")
    pair = json.loads(stag_lab("compare", names["free"], names["bound"], "--json")[0])["pairs"][0]
    change = {line["quantity"]: line["change"] for line in pair["lines"]}
    expect(change["iops"] == "worse" and any("rate is not the same" in one for one in pair["beware"]), f"{pair}")
    text, _ = stag_lab("compare", names["free"], names["free"])
    expect("cannot be told" in text and "worse" not in text and "better" not in text, text)
    stag_lab("chart", os.path.join(folder, "none.json"), code=1)


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
    ("a run of nothing but others' programs", of_others),
    ("a server on a machine that ssh reaches", over_ssh),
    ("a run of NFS over TCP and RDMA, in calls and segments", of_nfs),
    ("a run over an emulated link has its round trip", over_a_link),
    ("the report opens without any other file", reports),
    ("the report has room on screens of 360 to 1920 pixels, and its points say what they are", fits_screens),
    ("charts for LaTeX are typeset by pdfLaTeX", for_latex),
    ("runs that stag bench printed are drawn and compared", of_printed_runs),
    ("results are verified from what the tools printed", verifies),
    ("the published results follow from their records", published),
    ("a comparison tells what is more than noise and nothing else", compares),
]
