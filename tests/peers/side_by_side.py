"""The bench itself: a run of bench/peers that is over in moments leaves a whole report. No figure of it is judged."""

import argparse
import contextlib
import importlib.machinery
import importlib.util
import json
import os
import re
import sys
from unittest import mock
from xml.etree import ElementTree

from lab import proc
from lab.report import Skip, expect

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "bench"))


def too_short(entry):
    """Whether not one I/O ended in the moment that was measured, as may be where other things run beside."""
    return "no I/O ended within" in entry.get("unable", "")


def a_short_run_leaves_a_report_with_every_line(lab):
    from kit import matrix

    proc.need("tgtd", "istgt", "taskset", "fio")
    if lab.kind != "stag":
        raise Skip("bench/peers starts its targets itself")
    from lab.target import Stag
    load = os.path.join(os.path.dirname(Stag.binary), "stag-load")
    if not os.path.exists(load):
        raise Skip(f"{load} is missing: cargo build -p stag-load")
    out = os.path.join(lab.new_folder("bench"), "report")
    # One core will do: nothing here depends on a time.
    last_core = min(1, (os.cpu_count() or 1) - 1)
    printed = proc.run(
        sys.executable, os.path.join(ROOT, "bench/peers"), "--quick", "--stag", Stag.binary, "--load", load, "--no-install",
        "--no-spin", "--seconds", "0.05", "--sweep-seconds", "0.05", "--warmup", "0.01", "--unit-mib", "16", "--sessions", "40",
        "--client-core", last_core, "--out", out, timeout=500)
    plots = {f"{what}-{way}" for what in ("iops", "cpu") for way in ("read", "write")}
    page = os.path.join(out, "report/index.html")
    expect(os.path.exists(page), f"no page:\n{proc.tail(printed)}")

    with open(os.path.join(out, "results.json")) as file:
        results = json.load(file)
    lines = [line for line in matrix.LINES if line.quick] + matrix.sweep(True)
    measured = {(entry["line"], entry["target"]): entry for entry in results["runs"]}
    for line in lines:
        for target in ("stag", "tgt", "istgt", "floor", "fio"):
            if line.takes(target):
                expect((line.key, target) in measured, f"no entry for {line.words} of {target}")
        entry = measured[line.key, "stag"]
        why = results["disk"]["problem"] if line.unit == "disk" else ""
        expect("run" in entry and entry["run"]["ios"] > 0 or too_short(entry) or why and entry["unable"] == why, f"{line.words}: {entry}")
    unable = [entry for entry in results["runs"] if "unable" in entry and entry["target"] in ("stag", "tgt", "floor", "fio")
              and entry["unable"] != results["disk"]["problem"]]
    expect(all(map(too_short, unable)), f"could not be measured: {unable[:3]}")
    expect(4 * len(unable) < len(results["runs"]), f"{len(unable)} of {len(results['runs'])} could not be measured: {unable[:3]}")
    expect(results["sessions"]["stag"]["count"] == 40, f"{results['sessions']}")
    # So few sessions are pinged in a moment, and whether that is one of those measured, chance decides.
    expect(results["sessions"]["stag"]["pings_per_second_beside"] >= 0, f"pings were not counted: {results['sessions']['stag']}")
    expect(len(results["marks"]) == len(matrix.MARKS), "not every mark was judged")

    # The lab has each run once, and knows which machine they are of.
    kept = [json.load(open(os.path.join(out, name, "records", file))) for name in ("peers", "peers-sizes")
            for file in os.listdir(os.path.join(out, name, "records"))]
    expect(len(kept) == len([entry for entry in results["runs"] if ":" not in entry["line"]]), "the lab has not a record for every run")
    with open(os.path.join(out, "peers/run.json")) as file:
        expect(json.load(file)["machine"]["cpu"], "the results do not say which machine they are of")
    with open(os.path.join(out, "report.md")) as file:
        text = file.read()
    for line in lines:
        expect(f"| {line.words} |" in text, f"the report has no row for {line.words}")
    for row in re.findall(r"^\|.*\|$", text, re.M):
        expect("nan" not in row.lower(), f"the report has {row}")
    charts = os.listdir(os.path.join(out, "report/peers-sizes"))
    for plot in plots:
        of = [chart for chart in charts if chart.startswith(plot) and chart.endswith(".svg")]
        expect(of, f"no chart {plot}: {charts}")
        ElementTree.parse(os.path.join(out, "report/peers-sizes", of[0]))
        expect(f"(report/peers-sizes/{of[0]})" in text, f"the report does not show {of[0]}")

    # What was measured is not measured again.
    before = len(results["runs"])
    proc.run(sys.executable, os.path.join(ROOT, "bench/peers"), "--report", "--stag", Stag.binary, "--out", out, timeout=60)
    with open(os.path.join(out, "results.json")) as file:
        expect(len(json.load(file)["runs"]) == before, "writing the report again changed what was measured")


def sample(iops, **more):
    return {"client": "a test", "ios": 1, "iops": iops, "mb_s": 1, "p50_us": 1, "p99_us": 1, "max_us": 1, "target_us": 1, "target_busy": 1,
            "client_us": 1, "client_busy": 1, **more}


def results_of(runs, sessions):
    return {"format": 1, "machine": {"cpu": "a test's", "virtual": True, "cores": 2, "memory_gib": 1, "kernel": "6.1", "date": "2026-01-01",
                                     "mitigations": {}},
            "versions": {}, "options": {"target_core": 0, "client_core": 1, "realtime": False, "unit_mib": 1, "seconds": 1, "sweep_seconds": 1,
                                        "spin": True, "sessions": 10_000},
            "runs": [{"line": line, "target": target, "round": 0, "core_ns": 30, **found} for line, target, found in runs],
            "idle": {"stag": 0.0}, "sessions": {"stag": sessions}, "disk": {"file_system": "ext4", "problem": ""}}


def table(text, title):
    """The rows of the table under a heading of a report."""
    return text.split(f" {title}\n")[1].split("\n#")[0] if f" {title}\n" in text else ""


def disks_and_pings_are_reported_and_judged(lab):
    from kit import report

    held = {"count": 10_000, "logins_per_second": 1000, "bytes_per_session": 8192, "idle_percent": 0.4, "iops_alone": 100, "iops_beside": 96,
            "slowdown": 0.96}
    runs = [("d4k32", "stag", {"run": sample(91_000)}), ("d4k32", "fio", {"run": sample(100_000)}),
            ("d64k", "stag", {"run": sample(80_000)}), ("d64k", "fio", {"run": sample(100_000)}),
            ("dw4k32", "stag", {"unable": "a reason"}), ("dw4k32", "fio", {"unable": "a reason"}),
            ("b4k32", "stag", {"run": sample(500_000, own_us=0.25)})]
    results = results_of(runs, {**held, "pings_per_second": 99.6, "pings_per_second_beside": 87.4})
    judged = {mark["words"]: mark for mark in report.marks(results)}
    for words, met in (("4 KiB random read of a file on a disk", True), ("64 KiB sequential read of a file on a disk", False),
                       ("4 KiB random write of a file on a disk", None), ("stag bench,", True), ("Idle sessions,", True)):
        found = [mark for name, mark in judged.items() if name.startswith(words)]
        expect(len(found) == 1 and found[0]["met"] is met, f"{words}: {found}")
    text = report.to_markdown(report.blocks(results, []))
    disk = table(text, "A file past the page cache (ext4, O_DIRECT)")
    expect("| 91.0K | 100K | 0.91× |" in disk and "a reason" in text and "fio" not in table(text, "Latency, µs"), text)
    idle = table(text, "Idle")
    expect("| 0.40 % | 100 | 1,000 |" in idle and idle.rstrip().endswith("| 87 |"), idle)
    expect("0.25 µs" in table(text, "The client, against Stag"), text)
    # What was measured before pings were counted can be reported still.
    idle = table(report.to_markdown(report.blocks(results_of(runs, held), [])), "Idle")
    expect("| 0.40 % |  | 1,000 |" in idle, idle)


def bench_peers():
    """bench/peers as a module."""
    loader = importlib.machinery.SourceFileLoader("bench_peers", os.path.join(ROOT, "bench/peers"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


def memory_of_idle_sessions_is_told_by_the_first_that_a_target_held(lab):
    """What a target has taken from the system for its first idle sessions it keeps, and later ones seem to cost nothing."""
    from kit import measure, report
    from kit.targets import Running, Unable

    peers = bench_peers()

    class Growing(Running):
        """It holds so many sessions, takes 8 KiB for each, also for those of logins that came to no end, and gives nothing back."""
        most, grown = 100, 0

        def check(self):
            pass

        def memory_bytes(self):
            return 1 << 20 | self.grown

    @contextlib.contextmanager
    def held(options, running, count):
        running.grown = max(running.grown, 8192 * min(count, running.most))
        if count > running.most:
            raise Unable("the logins do not come to an end")
        yield mock.Mock(login_seconds=1, pings=lambda: 0)

    def measured(most, nanoseconds):
        """What is found of 100 sessions, or as many as it holds, where the cores are so far apart at each look."""
        run = peers.Run.__new__(peers.Run)
        run.options = argparse.Namespace(sessions=100, seconds=0, wait=0)
        run.results, run.waited = {}, 0
        target = Growing("stag", None, {})
        target.most = most
        with mock.patch.multiple(measure, held=held, by_load=lambda *_: {"iops": 1}, idle=lambda *_: {"stag": 0.0},
                                 core_ns=mock.Mock(side_effect=nanoseconds)), \
                mock.patch.object(run, "save"), mock.patch.object(peers, "say"):
            run.sessions([target])
        return run.results["sessions"]["stag"]

    for nanoseconds in ([30, 30], [30, 160, 30, 30]):
        found = measured(100, nanoseconds)
        expect((found["count"], found["bytes_per_session"]) == (100, 8192), f"{nanoseconds}: {found}")
    # Of those that it holds after it could not hold more nobody knows.
    found = measured(50, [30] * 4)
    expect((found["count"], found["bytes_per_session"]) == (10, None), f"{found}")
    idle = table(report.to_markdown(report.blocks(results_of([("r4k32", "stag", {"run": sample(1)})], found), [])), "Idle")
    expect("| – | 0.00 % |" in idle, idle)


def what_fio_says_is_a_run_like_others(lab):
    from kit import matrix, measure
    from kit.targets import Nothing, Unable

    line = next(line for line in matrix.LINES if line.key == "dw4k32")
    side = {"total_ios": 80_000, "iops": 40_000.0, "bw_bytes": 163_840_000, "runtime": 2000,
            "clat_ns": {"max": 9_000_000, "percentile": {"50.000000": 700_000, "99.000000": 2_000_000}}}
    job = {"error": 0, "usr_cpu": 10.0, "sys_cpu": 30.0, "write": side, "read": {"total_ios": 0}}
    run = measure.fio_run({"jobs": [job]}, line)
    expect((run["iops"], run["mb_s"], run["p50_us"], run["p99_us"], run["max_us"]) == (40_000, 163.84, 700, 2000, 9000), f"{run}")
    expect(abs(run["target_us"] - 10) < 1e-9 and run["target_busy"] == 40, f"{run}")
    for change, kind in (({"error": 5}, Unable), ({"write": {**side, "total_ios": 0}}, Nothing)):
        try:
            expect(False, f"{change} made {measure.fio_run({'jobs': [{**job, **change}]}, line)}")
        except Unable as why:
            expect(type(why) is kind, f"{change}: {why!r}")


def what_a_bench_costs_is_not_told_from_too_few_ticks(lab):
    from kit import measure

    expect(measure.own_us(0.3, 0.7, 1_000_000) == 0.3, "0.3 s of a million I/Os")
    expect(measure.own_us(0.0, 0.1, 100_000) is None, "a tenth of a second tells nothing")


def lines_are_measured_with_those_that_can_do_them(lab):
    from kit import matrix

    takes = {line.key: {name for name in ("stag", "tgt", "istgt", "floor", "fio") if line.takes(name)} for line in matrix.LINES}
    expect(takes["r4k32"] == {"stag", "tgt", "istgt", "floor"}, f"{takes['r4k32']}")
    expect(takes["f4k32"] == takes["half"] == {"stag", "tgt", "istgt"}, f"{takes['f4k32']}, {takes['half']}")
    expect(takes["d4k32"] == takes["dw4k32"] == takes["d64k"] == {"stag", "fio"}, f"{takes['d4k32']}")
    expect(takes["b4k32"] == {"stag"}, f"{takes['b4k32']}")


def a_file_in_memory_is_no_disk(lab):
    from pathlib import Path

    from kit import targets

    folder = Path("/dev/shm")
    if targets.file_system(folder) != "tmpfs":
        raise Skip("/dev/shm is no tmpfs")
    options = argparse.Namespace(disk=folder, unit_bytes=1 << 20, disk_bytes=1 << 20)
    with targets.disk_file(options) as (path, problem):
        expect(path is None and "memory" in problem, f"{path}, {problem}")
    options.disk = Path("/proc/nowhere")
    with targets.disk_file(options) as (path, problem):
        expect(path is None and "/proc/nowhere" in problem, f"{path}, {problem}")


CASES = [
    ("a disk and pings are reported and judged", disks_and_pings_are_reported_and_judged),
    ("memory of idle sessions is told by the first that a target held", memory_of_idle_sessions_is_told_by_the_first_that_a_target_held),
    ("what fio says is a run like others", what_fio_says_is_a_run_like_others),
    ("what a bench costs is not told from too few ticks", what_a_bench_costs_is_not_told_from_too_few_ticks),
    ("lines are measured with those that can do them", lines_are_measured_with_those_that_can_do_them),
    ("a file in memory is no disk", a_file_in_memory_is_no_disk),
    ("a short run of bench/peers leaves a report with every line", a_short_run_leaves_a_report_with_every_line),
]
