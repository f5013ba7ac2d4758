"""Ways to the same unit in memory, iSCSI over TCP and iSER: what is measured of each, the marks, and what becomes of it."""

import csv
import dataclasses
import json
import statistics

from . import matrix, plot, report
from .measure import near

KIB = 1 << 10

# Way -> (name, scheme, arguments of `stag bench`).
WAYS = {
    "tcp": ("iSCSI", "iscsi", ["--header-digest", "never", "--data-digest", "never"]),
    "tcp-digests": ("iSCSI, digests", "iscsi", ["--header-digest", "require", "--data-digest", "require"]),
    "iser": ("iSER", "iser", ["--rdma-crc", "never"]),
    "iser-crc": ("iSER, CRC", "iser", ["--rdma-crc", "require"]),
    "tgt-tcp": ("tgt, iSCSI", "iscsi", ["--header-digest", "never", "--data-digest", "never"]),
}
NAMES = {way: name for way, (name, *_) in WAYS.items()}


@dataclasses.dataclass(frozen=True)
class Line:
    key: str
    pattern: str  # "read" or "write", sequential
    block: int
    depth: int
    quick: bool

    @property
    def words(self):
        return f"{matrix.size(self.block)} {self.pattern}, depth {self.depth}"


SIZES = [512 << n for n in range(12)]
QUICK_SIZES = {512, 4 * KIB, 64 * KIB, KIB * KIB}
DEPTHS = [1, 2, 4, 8, 16, 32, 64]


def lines(quick):
    found = {}
    for pattern in ("read", "write"):
        for block in SIZES:
            found[pattern, block, 32] = block in QUICK_SIZES
        for depth in DEPTHS:
            found.setdefault((pattern, 4 * KIB, depth), depth in (1, 8))
    all_lines = [Line(f"{p[0]}{block}d{depth}", p, block, depth, is_quick) for (p, block, depth), is_quick in found.items()]
    return [line for line in all_lines if line.quick or not quick]


@dataclasses.dataclass(frozen=True)
class Mark:
    """`what` of `way`, compared with the same of `other`: at least, or at most, `aim` times as much."""

    words: str
    way: str
    other: str
    what: str
    lines: tuple
    aim: float
    most: bool = False

    def judge(self, view):
        """(line, ratio) of the worst line; nothing if none was measured."""
        found = []
        for key in self.lines:
            ours, theirs = view.get(key, self.way, self.what), view.get(key, self.other, self.what)
            if ours and theirs:
                found.append((ours / theirs, key))
        return (max if self.most else min)(found, default=None)

    def met(self, ratio):
        return ratio <= self.aim if self.most else ratio >= self.aim


LONG = tuple(f"{p}{block}d32" for p in "rw" for block in SIZES if block >= 64 * KIB)
SHORT = ("r4096d32", "w4096d32")
MARKS = [
    Mark("64 KiB and more: throughput with CRC, times iSCSI's with digests", "iser-crc", "tcp-digests", "mb_s", LONG, 1.0),
    Mark("64 KiB and more: target CPU per I/O with CRC, times iSCSI's with digests", "iser-crc", "tcp-digests", "target_us", LONG, 1.0, True),
    Mark("64 KiB and more: throughput without CRC, times iSCSI's without digests", "iser", "tcp", "mb_s", LONG, 1.0),
    Mark("4 KiB, depth 32: IOPS without CRC, times iSCSI's", "iser", "tcp", "iops", SHORT, 0.8),
    Mark("4 KiB, depth 32: IOPS with CRC, times iSCSI's with digests", "iser-crc", "tcp-digests", "iops", SHORT, 0.8),
]


def views(results):
    """The modes of the machine that there are runs of, the one with more of them first."""
    found = [report.View(results, is_near) for is_near in (True, False)]
    return sorted((view for view in found if view.cells), key=lambda view: -sum(map(len, view.cells.values())))


def _ways(view):
    there = {way for _, way in view.cells}
    return [way for way in WAYS if way in there]


def _cell(view, line, way, what, show):
    values = view.values(line.key, way, what)
    if not values:
        return "–"
    text = show(statistics.median(values))
    return f"{text} ({show(min(values))}–{show(max(values))})" if len(values) > 1 else text


def _measured(view, results):
    keys = {key for key, _ in view.cells}
    return [line for line in lines(results["options"]["quick"]) if line.key in keys]


def _tables(view, results):
    """(heading, head, rows)."""
    ways = _ways(view)
    head = ["", *[NAMES[way] for way in ways]]
    percent = "{:.0f} %".format
    tables = [
        ("I/Os a second", "iops", report.rate),
        ("Target CPU, % of its core", "target_busy", percent),
        ("Initiator CPU, % of its core", "client_busy", percent),
        ("Target CPU per I/O, µs", "target_us", report.micros),
        ("Initiator CPU per I/O, µs", "client_us", report.micros),
        ("Latency p50, µs", "p50_us", report.micros),
    ]
    measured = _measured(view, results)
    return [(title, head, [[line.words, *[_cell(view, line, way, what, show) for way in ways]] for line in measured])
            for title, what, show in tables]


def judged(results):
    """Each mark by the runs on cores that share a cache, or by the others where it was not measured there."""
    found = []
    for mark in MARKS:
        entry = {"words": mark.words, "aim": mark.aim, "most": mark.most, "reached": None, "met": None}
        for view in sorted(views(results), key=lambda view: not view.is_near):
            worst = mark.judge(view)
            if worst:
                ratio, key = worst
                line = next(line for line in lines(False) if line.key == key)
                entry |= {"reached": ratio, "met": mark.met(ratio), "line": line.words, "near": view.is_near}
                break
        found.append(entry)
    return found


def _marks_table(results):
    rows = []
    for mark in judged(results):
        sign = "≤" if mark["most"] else "≥"
        if mark["reached"] is None:
            rows.append([mark["words"], f"{sign} {mark['aim']:g}×", "", "not measured", ""])
        else:
            apart = "" if mark["near"] else " (cores apart)"
            rows.append([mark["words"], f"{sign} {mark['aim']:g}×", f"{mark['reached']:.2f}×{apart}",
                         "met" if mark["met"] else "**not met**", mark["line"]])
    return ["mark", "aim", "worst", "", "where"], rows


def plots(view, results):
    """File name -> (title, SVG)."""
    machine, found = results["machine"], {}
    subtitle = f"memory unit, loopback, one core each; {machine['cpu']}, Linux {machine['kernel'].split('-')[0]}"
    measured = _measured(view, results)
    figures = [("iops", "I/Os a second", "I/Os a second", True), ("target_busy", "target CPU", "% of the target's core", False),
               ("client_busy", "initiator CPU", "% of the initiator's core", False),
               ("target_us", "target CPU per I/O", "processor time of the target, µs per I/O", True)]
    for pattern in ("read", "write"):
        of_size = [line for line in measured if line.pattern == pattern and line.depth == 32]
        of_depth = [line for line in measured if line.pattern == pattern and line.block == 4 * KIB]
        for what, title, words, log in figures:
            for name, some, across, x_words, detail in (
                ("size", of_size, lambda line: line.block, "bytes of one I/O", "depth 32"),
                ("depth", of_depth, lambda line: line.depth, "commands in flight", "4 KiB"),
            ):
                if what in ("target_us", "client_busy") and name == "depth":
                    continue
                series = {}
                for way in _ways(view):
                    points = []
                    for line in some:
                        values = [value for value in view.values(line.key, way, what) if value > 0]
                        if values:
                            points.append((across(line), statistics.median(values), min(values), max(values)))
                    if points:
                        series[way] = points
                full = f"Sequential {pattern}s, {detail}: {title}"
                if svg := plot.lines(full, subtitle, words, series, NAMES, log, x_words):
                    found[f"{what.replace('_', '-')}-{pattern}-{name}.svg"] = (full, svg)
    return found


def blocks(results, shown_plots):
    machine, options = results["machine"], results["options"]
    between = sorted(entry["core_ns"] for entry in results["runs"] if entry.get("core_ns") is not None)
    where = f"a cache line goes from one core to the other in {between[0]}–{between[-1]} ns" if between else "one core for both"
    out = [
        ("heading", 1, "iSCSI over TCP and iSER over software iWARP, side by side"),
        ("text", f"{machine['cpu']}{' (virtual)' if machine['virtual'] else ''}, {machine['cores']} cores, {machine['memory_gib']} GiB,"
                 f" Linux {machine['kernel']}, {machine['date']}; {where} (measured before and after each line)."),
        ("text", "Versions: " + ", ".join(f"{name} {version}" for name, version in results["versions"].items() if version) + "."),
        ("text", f"The target on core {options['target_core']}, `stag bench` on core {options['client_core']}"
                 + (", both before everything else (SCHED_FIFO)" if options["realtime"] else "")
                 + f"; loopback; {options['unit_mib']} MiB in memory, tgt's a file on tmpfs; {options['rounds']} round"
                 + ("s" if options["rounds"] > 1 else "") + f" of {options['seconds']:g} s each, the ways in turn within each line."
                 " Reads are received and dropped by the initiator. Figures are medians, with the least and the most in parentheses."
                 " Software iWARP runs over the kernel's TCP, as iSCSI does: there is no RDMA hardware here. iSER without CRC is to be"
                 " held against iSCSI without digests, with CRC against iSCSI with digests."),
        ("heading", 2, "Marks"), ("table", *_marks_table(results)),
    ]
    if options["quick"]:
        out.insert(1, ("text", "A quick run: fewer sizes and depths, one short round."))
    out += [("plot", name, title) for name, (title, _) in shown_plots.items()]
    for view in views(results):
        if len(views(results)) > 1:
            out.append(("heading", 2, f"While the two cores {'share a cache' if view.is_near else 'do not share a cache'}"))
        for title, head, rows in _tables(view, results):
            out += [("heading", 3 if len(views(results)) > 1 else 2, title), ("table", head, rows)]
    unable = {(entry["target"], entry["unable"]) for entry in results["runs"] if "unable" in entry}
    if unable:
        out.append(("heading", 2, "Not measured"))
        out += [("text", f"{NAMES.get(way, way)}: {why}") for way, why in sorted(unable)]
    if results.get("moved"):
        words = ["received where it belongs", "received and handed on there", "copied in user space", "of all three, in the unit's memory", "sent from where it is",
                 "copied in user space before it was sent"]
        keys = ["in_place", "by_reference", "copied_in", "placed", "sent", "copied_out"]
        rows = [[NAMES[way], *[f"{moved.get(key, 0) / 1e9:,.2f} GB" for key in keys]] for way, moved in results["moved"].items()]
        out += [("heading", 2, "The target's own account of payload over iSER"), ("table", ["", *words], rows)]
        out.append(("text", "Counted by its queue pairs, Sends included. Under a CRC a unit's memory, which others may write meanwhile, is"
                    " copied before it is sent: the CRC must be that of the bytes that leave. What comes for it is copied there once its CRC has been found right."))
    return out


FIELDS = ["ios", "iops", "mb_s", "p50_us", "p99_us", "max_us", "target_us", "target_busy", "client_us", "client_busy"]


def write(results, out):
    """Everything, into the folder `out`."""
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    with open(out / "results.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["line", "pattern", "block", "depth", "way", "round", "core_ns", *FIELDS, "unable"])
        known = {line.key: line for line in lines(False)}
        for entry in results["runs"]:
            line, run = known[entry["line"]], entry.get("run", {})
            writer.writerow([line.key, line.pattern, line.block, line.depth, entry["target"], entry["round"], entry.get("core_ns"),
                             *[run.get(field) for field in FIELDS], entry.get("unable", "")])
    # The plots show cores that share a cache, where that was measured as much as the other.
    found = sorted(views(results), key=lambda view: (-len(_measured(view, results)), not view.is_near))
    shown = plots(found[0], results) if found else {}
    for name, (_, svg) in shown.items():
        (out / name).write_text(svg)
    parts = blocks(results, shown)
    (out / "report.md").write_text(report.to_markdown(parts))
    (out / "report.html").write_text(report.to_html(parts, shown))


def is_stable(before, after):
    return near(before) == near(after)
