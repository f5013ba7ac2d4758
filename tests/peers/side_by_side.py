"""The bench itself: the experiments of bench/peers, with moments for each point, leave a whole report. No figure of them is judged."""

import json
import os
import re
import tomllib
from xml.etree import ElementTree

from lab import proc
from lab.report import Skip, expect
from lab.target import Stag

NAMES = ("peers", "peers-sizes", "peers-idle")
# Moments, little memory and few sessions instead of what a measurement needs.
LESS = {"seconds": "0.05", "warmup": "0.01", "unit-size": '"16M"', "held": "40", "spin": "0", "pings-s": "0.0"}


# One line of each kind, since a point costs seconds: its target starts anew.
LINES = '["r4k32", "w4k32", "c4", "f4k32"]'


def shortened(text):
    text = re.sub(r'(name = "line"\n(?:(?!\[\[).*\n)*?)quick = \[[^\]]*\]', rf"\1quick = {LINES}", text)
    for name, value in LESS.items():
        text = re.sub(rf'(?<![\w-]){name} = ("[^"]*"|[\d.]+)', f"{name} = {value}", text)
    return text


def skipped(experiment, point):
    """Whether the experiment leaves this point out."""
    def fits(axis, wanted):
        return point[axis] in (wanted if isinstance(wanted, list) else [wanted])
    return any(all(fits(*one) for one in skip["where"].items()) for skip in experiment.get("skip", []))


def points(experiment):
    found = [{}]
    for axis in experiment["axis"]:
        found = [{**point, axis["name"]: value} for point in found for value in axis.get("quick", axis["values"])]
    return [point for point in found if not skipped(experiment, point)]


def a_short_run_leaves_a_report_with_every_line(lab):
    proc.need("tgtd", "istgt", "taskset", "fio")
    if lab.kind != "stag":
        raise Skip("bench/peers starts its targets itself")
    if not os.path.exists(os.path.join(os.path.dirname(Stag.binary), "stag-load")):
        raise Skip("stag-load is missing: cargo build -p stag-load")
    folder = lab.new_folder("bench")
    out, texts = os.path.join(folder, "out"), {}
    for name in NAMES:
        texts[name] = shortened(proc.run(Stag.binary, "lab", "list", "--show", name))
        with open(os.path.join(folder, f"{name}.toml"), "w") as file:
            file.write(texts[name])
    proc.run(Stag.binary, "lab", "run", "--quick", "--quiet", "--out", out,
             *[os.path.join(folder, f"{name}.toml") for name in NAMES], timeout=900, ok=None)

    lost, total = [], 0
    for name in NAMES:
        experiment = tomllib.loads(texts[name])
        records = {}
        for file in os.listdir(os.path.join(out, name, "records")):
            with open(os.path.join(out, name, "records", file)) as file:
                record = json.load(file)
            records[tuple(sorted((axis, str(value)) for axis, value in record["coordinates"].items()))] = record
        wanted = points(experiment)
        expect(len(records) == len(wanted), f"{name}: {len(records)} records of {len(wanted)} points")
        for record in records.values():
            total += 1
            if "measured" in record["outcome"]:
                values = record["outcome"]["measured"]["values"]
                expect(values["iops"]["value"] > 0, f"{name}, {record['key']}: {values}")
                expect("target_us" in values or "held_percent" in values, f"{name}, {record['key']}: {values}")
            # A file system in memory has no lines on a disk; a moment may end no I/O where other programs run.
            elif "missing" not in record["outcome"]:
                lost.append((record["key"], record["outcome"]["failed"]))
        idle = next((r["outcome"]["measured"]["values"] for r in records.values()
                     if r["coordinates"]["target"] == "stag" and "sessions" in r["outcome"].get("measured", {}).get("values", {})), None)
        expect(name != "peers-idle" or idle and idle["sessions"]["value"] == 40, f"idle sessions of Stag: {records}")
        with open(os.path.join(out, name, "run.json")) as file:
            expect(json.load(file)["machine"]["cpu"], "the results do not say which machine they are of")
    unlucky = [why for _, why in lost if "no I/O ended" in why]
    # tgt and istgt may refuse what Stag does; Stag, raw TCP and fio may not.
    others = [one for one in lost if one[1] not in unlucky and "istgt" not in one[0] and "tgt" not in one[0]]
    expect(not others, f"could not be measured: {others[:3]}")
    expect(4 * len(lost) < total, f"{len(lost)} of {total} could not be measured: {lost[:3]}")

    with open(os.path.join(out, "report/report.json")) as file:
        report = json.load(file)
    for name in NAMES:
        found = next(one for one in report["experiments"] if one["name"] == name)
        claims = tomllib.loads(texts[name]).get("finding", [])
        expect(len(found["findings"]) == len(claims), f"{name}: not every mark was judged")
    charts = [chart for chart in os.listdir(os.path.join(out, "report/peers-sizes")) if chart.endswith(".svg")]
    for plot in (f"{what}-{way}" for what in ("iops", "cpu") for way in ("read", "write")):
        expect(any(chart.startswith(plot) for chart in charts), f"no chart {plot}: {charts}")
    for chart in charts:
        ElementTree.parse(os.path.join(out, "report/peers-sizes", chart))
    expect(os.path.exists(os.path.join(out, "report/index.html")), "no page")


CASES = [
    ("a short run of bench/peers leaves a report with every line", a_short_run_leaves_a_report_with_every_line),
]
