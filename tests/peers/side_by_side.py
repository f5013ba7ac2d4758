"""The bench itself: a run of bench/peers that is over in moments leaves a whole report. No figure of it is judged."""

import csv
import json
import os
import re
import sys
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

    proc.need("tgtd", "istgt", "rsvg-convert", "taskset")
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
    files = set(os.listdir(out))
    plots = {f"{what}-{way}" for what in ("iops", "cpu") for way in ("read", "write")}
    wanted = {"report.md", "report.html", "results.json", "results.csv"}
    wanted |= {f"{plot}.{kind}" for plot in plots for kind in ("svg", "png")}
    expect(wanted <= files, f"missing: {wanted - files}\n{proc.tail(printed)}")

    with open(os.path.join(out, "results.json")) as file:
        results = json.load(file)
    lines = [line for line in matrix.LINES if line.quick] + matrix.sweep(True)
    measured = {(entry["line"], entry["target"]): entry for entry in results["runs"]}
    for line in lines:
        for target in ("stag", "tgt", "istgt", "floor"):
            if target != "floor" or line.floor:
                expect((line.key, target) in measured, f"no entry for {line.words} of {target}")
        entry = measured[line.key, "stag"]
        expect("run" in entry and entry["run"]["ios"] > 0 or too_short(entry), f"{line.words}: {entry}")
    unable = [entry for entry in results["runs"] if "unable" in entry and entry["target"] in ("stag", "tgt", "floor")]
    expect(all(map(too_short, unable)), f"could not be measured: {unable[:3]}")
    expect(4 * len(unable) < len(results["runs"]), f"{len(unable)} of {len(results['runs'])} could not be measured: {unable[:3]}")
    expect(results["sessions"]["stag"]["count"] == 40, f"{results['sessions']}")
    expect(len(results["marks"]) == len(matrix.MARKS), "not every mark was judged")

    with open(os.path.join(out, "results.csv"), newline="") as file:
        expect(len(list(csv.DictReader(file))) == len(results["runs"]), "the CSV has not a row for every run")
    with open(os.path.join(out, "report.md")) as file:
        text = file.read()
    for line in lines:
        expect(f"| {line.words} |" in text, f"the report has no row for {line.words}")
    for row in re.findall(r"^\|.*\|$", text, re.M):
        expect("nan" not in row.lower(), f"the report has {row}")
    for plot in plots:
        ElementTree.parse(os.path.join(out, f"{plot}.svg"))
        with open(os.path.join(out, f"{plot}.png"), "rb") as file:
            expect(file.read(8) == b"\x89PNG\r\n\x1a\n", f"{plot}.png is no PNG")
    with open(os.path.join(out, "report.html")) as file:
        page = file.read()
    expect(page.count("<tr>") == page.count("</tr>") and page.endswith("</html>\n"), "the page is cut short")
    expect(not re.search(r'(src|href)="(?!data:)', page), "the page needs another file")

    # What was measured is not measured again.
    before = len(results["runs"])
    proc.run(sys.executable, os.path.join(ROOT, "bench/peers"), "--report", "--out", out, timeout=60)
    with open(os.path.join(out, "results.json")) as file:
        expect(len(json.load(file)["runs"]) == before, "writing the report again changed what was measured")


CASES = [
    ("a short run of bench/peers leaves a report with every line", a_short_run_leaves_a_report_with_every_line),
]
