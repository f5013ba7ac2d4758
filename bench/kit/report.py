"""The report: marks and tables as Markdown. Charts, the page and the files of results are the lab's."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

from . import matrix
from .measure import near
from .targets import NAMES, SESSIONLESS

ORDER = ["stag", "tgt", "istgt", "floor", "null", "fio"]


def rate(value):
    if value >= 999_500:
        return f"{value / 1e6:.2f}M"
    return f"{value / 1e3:.0f}K" if value >= 99_500 else f"{value / 1e3:.1f}K" if value >= 995 else f"{value:.0f}"


def micros(value):
    return f"{value:.2f}" if value < 100 else f"{value:,.0f}"


class View:
    """The results of one mode of the machine: the two cores share a cache (`near`) or do not."""

    def __init__(self, results, is_near):
        self.results, self.is_near = results, is_near
        self.cells, self.unable = {}, {}
        for entry in results["runs"]:
            if "unable" in entry:
                self.unable[entry["line"], entry["target"]] = entry["unable"]
            elif near(entry["core_ns"]) == is_near:
                self.cells.setdefault((entry["line"], entry["target"]), []).append(entry["run"])

    def values(self, line, target, what):
        return [run[what] for run in self.cells.get((line, target), []) if run.get(what) is not None]

    def get(self, line, target, what):
        values = self.values(line, target, what)
        return statistics.median(values) if values else None

    def sessions(self, target, what):
        return self.results.get("sessions", {}).get(target, {}).get(what)

    def idle(self, target):
        return self.results.get("idle", {}).get(target)

    @property
    def targets(self):
        found = {target for _, target in [*self.cells, *self.unable]}
        return [name for name in ORDER if name in found and name != "fio"]


def views(results):
    """The modes that there are runs of, the one with more of them first."""
    found = [View(results, is_near) for is_near in (True, False)]
    return sorted((view for view in found if view.cells), key=lambda view: -sum(map(len, view.cells.values())))


def marks(results):
    """Each mark judged by the runs on cores that share a cache, or, if it was not measured there, by the others."""
    judged = []
    found = sorted(views(results), key=lambda view: not view.is_near)
    for mark in matrix.MARKS:
        for view in found:
            value = mark.value(view)
            if value is not None:
                judged.append({"words": mark.words, "aim": mark.aim, "unit": mark.unit, "most": mark.most, "reached": value,
                               "met": mark.met(value), "floor": mark.floor(view) if mark.floor else "", "near": view.is_near})
                break
        else:
            judged.append({"words": mark.words, "aim": mark.aim, "unit": mark.unit, "most": mark.most, "reached": None,
                           "met": None, "floor": "", "near": None})
    return judged


def _amount(value, unit):
    if unit == "IOPS":
        return rate(value)
    return f"{value:.2f} %" if unit == "%" else f"{value:.2f}{'×' if unit == '×' else ' ' + unit}"


def _marks_table(results):
    rows = []
    for mark in marks(results):
        sign = "≤" if mark["most"] else "≥"
        if mark["reached"] is None:
            reached, met, floor = "", "not measured", ""
        else:
            reached = _amount(mark["reached"], mark["unit"]) + ("" if mark["near"] else " (cores apart)")
            met = "met" if mark["met"] else "**not met**"
            floor = "" if mark["met"] else mark["floor"]
        rows.append([mark["words"], f"{sign} {_amount(mark['aim'], mark['unit'])}", reached, met, floor])
    return ["mark", "aim", "reached", "", "raw TCP in the same run, where it is not met"], rows


LIO = ("LIO, Linux's own target, runs in a kernel only, and the kernel of a machine that is measured is not ours to change. In the"
       " tests' own kernel (User Mode Linux) it could run, but there target and client share one processor, and a system call takes"
       " some 50 µs, two hundred times as long as here. LIO makes none for an I/O and every target in user space does: a"
       " comparison there would tell what that kernel's system calls cost and nothing else.")


class Notes:
    """Footnotes: why a target has no figure."""

    def __init__(self):
        self.texts = []

    def mark(self, text):
        if text not in self.texts:
            self.texts.append(text)
        return f"– [{self.texts.index(text) + 1}]"


def _cell(view, line, target, what, show, notes, wide=True):
    values = view.values(line.key, target, what)
    if not values:
        if not line.takes(target):
            return ""
        why = view.unable.get((line.key, target))
        return notes.mark(f"{NAMES[target]}: {why}") if why else "–"
    middle = show(statistics.median(values))
    return middle if len(values) == 1 or not wide else f"{middle} ({show(min(values))}–{show(max(values))})"


def _ratio(view, line, over, what="iops", digits=1):
    ours, theirs = view.get(line.key, "stag", what), view.get(line.key, over, what)
    return f"{ours / theirs:.{digits}f}×" if ours and theirs else ""


def _lines(view, sweep):
    have = {key for key, _ in [*view.cells, *view.unable]}
    return [line for line in (matrix.sweep(False) if sweep else matrix.LINES) if line.key in have and line.unit != "disk"]


def _speed_table(view, notes, sweep=False):
    names = view.targets
    peers = [name for name in names if name in ("tgt", "istgt")]
    has_floor = "floor" in names
    head = ["workload", *[NAMES[name] for name in names], *[f"Stag / {NAMES[name]}" for name in peers]]
    head += ["Stag / raw TCP"] if has_floor else []
    rows = []
    for line in _lines(view, sweep):
        row = [line.words, *[_cell(view, line, name, "iops", rate, notes) for name in names]]
        row += [_ratio(view, line, name) for name in peers]
        row += [_ratio(view, line, "floor", digits=2)] if has_floor else []
        rows.append(row)
    return head, rows


def _cpu_table(view, notes, sweep=False):
    names = view.targets
    peers = [name for name in names if name in ("tgt", "istgt")]
    has_floor = "floor" in names
    head = ["workload", *[f"{NAMES[name]}" for name in names], *[f"{NAMES[name]} / Stag" for name in peers]]
    head += ["× floor"] if has_floor else []
    rows = []
    for line in _lines(view, sweep):
        row = [line.words]
        for name in names:
            text = _cell(view, line, name, "target_us", micros, notes)
            busy = view.get(line.key, name, "target_busy")
            row.append(f"{text}, {busy:.0f} %" if busy is not None and name != "floor" else text)
        for name in peers:
            ours, theirs = (view.get(line.key, who, "target_us") for who in ("stag", name))
            row.append(f"{theirs / ours:.1f}×" if ours and theirs else "")
        row += [_ratio(view, line, "floor", "target_us", 2)] if has_floor else []
        rows.append(row)
    return head, rows


def _disk_table(view, notes):
    """What a unit on a file gets past the page cache, beside what the file itself gives."""
    have = {key for key, _ in [*view.cells, *view.unable]}
    head = ["workload", "Stag", "fio, local", "Stag / fio", "Stag: CPU an I/O, µs", "fio: CPU an I/O, µs"]
    return head, [[line.words, *[_cell(view, line, name, "iops", rate, notes) for name in ("stag", "fio")],
                   _ratio(view, line, "fio", digits=2),
                   *[_cell(view, line, name, "target_us", micros, notes, wide=False) for name in ("stag", "fio")]]
                  for line in matrix.LINES if line.unit == "disk" and line.key in have]


def _latency_table(view, notes):
    names = view.targets
    head = ["workload", *[f"{NAMES[name]}: p50, p99" for name in names]]
    rows = []
    for line in _lines(view, False):
        row = [line.words]
        for name in names:
            p50 = _cell(view, line, name, "p50_us", micros, notes, wide=False)
            p99 = view.get(line.key, name, "p99_us")
            row.append(f"{p50}, {micros(p99)}" if p99 is not None else p50)
        rows.append(row)
    return head, rows


def _client_table(view):
    rows = []
    for line in _lines(view, False):
        ours, busy = view.get(line.key, "stag", "client_us"), view.get(line.key, "stag", "client_busy")
        if ours is not None:
            client = view.cells[line.key, "stag"][0]["client"]
            second = [view.get(f"{line.key}:second", "stag", what) for what in ("iops", "client_us")]
            second = f"{rate(second[0])}, {second[1]:.2f} µs" if second[0] else ""
            own = view.get(line.key, "stag", "own_us")
            rows.append([line.words, client, f"{micros(ours)} µs, {busy:.0f} %", f"{own:.2f} µs" if own is not None else "",
                         rate(view.get(line.key, "stag", "iops")), second])
    return ["workload", "client", "its CPU per I/O, busy", "of it outside of the kernel", "IOPS", "the other client: IOPS, CPU per I/O"], rows


def _pings(held, what):
    """Runs of before they were counted do not say."""
    return f"{held[what]:,.0f}" if what in held else ""


def memory_of_each(held):
    """Of idle sessions; nothing where the target had held some before, and its memory had grown for those already."""
    memory = held["bytes_per_session"]
    return "" if memory is None else f"{memory / 1024:.1f} KiB"


def _idle_table(results, notes):
    head = ["", "idle, % of a core", "idle sessions", "memory of each", "% of a core meanwhile", "pings a second", "logins a second",
            "IOPS beside them, times alone", "pings a second beside them"]
    rows = []
    for name in ORDER:
        if name not in results.get("idle", {}) or name in SESSIONLESS:
            continue
        held = results.get("sessions", {}).get(name)
        why = notes.mark(f"{NAMES[name]}, {results['options']['sessions']:,} idle sessions: {held['unable']}") if held and "unable" in held else ""
        if held and "bytes_per_session" not in held:
            cells = [why] + [""] * 6
        elif held:
            cells = [f"{held['count']:,} {why.removeprefix('– ')}".strip(), memory_of_each(held) or "–", f"{held['idle_percent']:.2f} %",
                     _pings(held, "pings_per_second"), f"{held['logins_per_second']:,.0f}",
                     f"{held['slowdown']:.2f}× ({rate(held['iops_alone'])} → {rate(held['iops_beside'])})",
                     _pings(held, "pings_per_second_beside")]
        else:
            cells = [""] * 7
        rows.append([NAMES[name], f"{results['idle'][name]:.2f} %", *cells])
    return head, rows


def _rounds(results):
    """How often lines were measured, over both modes: an interrupted run has some more often than others."""
    counts = {}
    for entry in results["runs"]:
        if entry["target"] == "stag" and "run" in entry:
            counts[entry["line"]] = counts.get(entry["line"], 0) + 1
    least, most = min(counts.values(), default=0), max(counts.values(), default=0)
    return f"{least} to {most} rounds" if least < most else f"{most} round{'s' if most != 1 else ''}"


def _method(results):
    machine, options = results["machine"], results["options"]
    between = sorted(entry["core_ns"] for entry in results["runs"] if entry.get("core_ns") is not None)
    where = (f"a cache line goes from one core to the other in {between[0]}–{between[-1]} ns (measured before and after each"
             " line)" if between else "one core for both")
    return [
        f"{machine['cpu']}{' (virtual)' if machine['virtual'] else ''}, {machine['cores']} cores, {machine['memory_gib']} GiB,"
        f" Linux {machine['kernel']}, {machine['date']}; {where}.",
        "Mitigations: " + ("; ".join(f"{name}: {said}" for name, said in machine["mitigations"].items()) or "none needed") + ".",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in results["versions"].items() if version) + ".",
        f"The target alone on core {options['target_core']}, the client alone on core {options['client_core']}"
        + (", both before everything else (SCHED_FIFO)" if options["realtime"] else "")
        + f"; loopback; {options['unit_mib']} MiB a target, Stag's in memory (`mem:`), tgt's and istgt's a file on tmpfs;"
        f" {_rounds(results)} of {options['seconds']:g} s ({options['sweep_seconds']:g} s for the sweep), the targets in turn"
        " within each line. The client"
        + (" waits awake, so that no target is charged for waking it." if options["spin"] else " sleeps while it waits.")
        + " Figures are medians, with the least and the most in parentheses.",
        "“Raw TCP” is the floor: the same bytes (48 and the payload) over loopback with plain sockets and nothing of iSCSI, its"
        " payload anywhere in as much memory; its processor time is without the time it waits awake, Stag's with it. It copies payload"
        " into the socket, so that a target that need not can be below it.",
    ]


def blocks(results, charts):
    """The report as ("heading", level, text), ("text", text), ("table", head, rows) and ("plot", file, title)."""
    out = [("heading", 1, "Stag and its peers, side by side")]
    out += [("text", text) for text in _method(results)]
    found = views(results)
    notes = Notes()
    out += [("plot", name, Path(name).stem) for name in charts]
    out += [("heading", 2, "Marks"), ("table", *_marks_table(results))]
    for number, view in enumerate(found):
        if len(found) > 1:
            share = "share a cache" if view.is_near else "do not share a cache"
            out.append(("heading", 2, f"While the two cores {share}"))
        level = 3 if len(found) > 1 else 2
        out += [("heading", level, "I/Os a second"), ("table", *_speed_table(view, notes)),
                ("heading", level, "Target CPU, µs per I/O, and how busy its core is"), ("table", *_cpu_table(view, notes)),
                ("heading", level, "Latency, µs"), ("table", *_latency_table(view, notes))]
        if _lines(view, True):
            out += [("heading", level, "Block sizes: I/Os a second"), ("table", *_speed_table(view, notes, True)),
                    ("heading", level, "Block sizes: target CPU, µs per I/O"), ("table", *_cpu_table(view, notes, True))]
        if (disk := _disk_table(view, notes))[1]:
            system = results.get("disk", {}).get("file_system") or "a disk's file system"
            out += [("heading", level, f"A file past the page cache ({system}, O_DIRECT)"), ("table", *disk)]
        out += [("heading", level, "The client, against Stag"), ("table", *_client_table(view))]
    if results.get("idle"):
        out += [("heading", 2, "Idle"), ("table", *_idle_table(results, notes))]
    out += [("heading", 2, "Not measured"), ("text", LIO)]
    if notes.texts:
        out += [("heading", 2, "What a target could not do")]
        out += [("text", f"[{number}] {text}") for number, text in enumerate(notes.texts, 1)]
    return out


def to_markdown(parts):
    out = []
    for kind, *rest in parts:
        if kind == "heading":
            out.append("#" * rest[0] + " " + rest[1])
        elif kind == "text":
            out.append(rest[0])
        elif kind == "plot":
            out.append(f"![{rest[1]}]({rest[0]})")
        else:
            head, rows = rest
            table = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
            out.append("\n".join(table + ["| " + " | ".join(row) + " |" for row in rows]))
    return "\n\n".join(out) + "\n"


# What the lab is told of a run: our name of a figure -> its name, unit and direction there.
FIGURES = {"iops": ("iops", "IOPS", "higher"), "mb_s": ("mb_s", "MB/s", "higher"), "p50_us": ("p50_us", "µs", "lower"),
           "p99_us": ("p99_us", "µs", "lower"), "max_us": ("max_us", "µs", "lower"), "target_us": ("target_us", "µs", "lower"),
           "client_us": ("client_us", "µs", "lower"), "own_us": ("own_us", "µs", "lower"),
           "target_busy": ("target_percent", "%", "neither"), "client_busy": ("client_percent", "%", "neither")}


def recorded(results, sweep):
    """The runs of the workloads, or of the plots' sizes, as `stag lab record` takes them."""
    lines = {line.key: line for line in (matrix.sweep(False) if sweep else matrix.LINES)}
    runs = []
    for entry in results["runs"]:
        line = lines.get(entry["line"])
        if not line:
            continue
        place = {"pattern": "read" if line.pattern[1] == "r" else "write", "block": line.block} if sweep else {"line": line.key}
        place |= {"cores": "close" if near(entry.get("core_ns")) else "apart", "target": entry["target"]}
        figures = {name: {"value": entry["run"][key], "unit": unit, "better": better} for key, (name, unit, better) in FIGURES.items()
                   if entry.get("run", {}).get(key) is not None}
        runs.append({"coordinates": place, "round": entry["round"] + 1, "values": figures, "missing": entry.get("unable"),
                     "cache_line_ns": entry.get("core_ns")})
    options = results["options"]
    return {"quick": options["quick"], "pinning": {"target": [options["target_core"]], "client": [options["client_core"]]}, "runs": runs}


def _by_the_lab(results, out, stag):
    """Has `stag lab` keep the results, with commit and machine, and write its page and charts; the charts' files."""
    for name, sweep in (("peers", False), ("peers-sizes", True)):
        given = recorded(results, sweep)
        if given["runs"]:
            (out / f"{name}.runs").write_text(json.dumps(given))
            experiment = Path(__file__).parent.parent / f"{name}.toml"
            subprocess.run([stag, "lab", "record", experiment, out / f"{name}.runs", "--out", out], check=True)
            (out / f"{name}.runs").unlink()
    subprocess.run([stag, "lab", "report", out], check=True, stdout=sys.stderr)
    return sorted(str(chart.relative_to(out)) for chart in (out / "report/peers-sizes").glob("*.svg"))


def write(results, out, stag):
    """Everything, into the folder `out`."""
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    try:
        charts = _by_the_lab(results, out, stag)
    except (OSError, subprocess.CalledProcessError) as why:
        charts = []
        print(f"bench/peers: no page and no charts: {why}", file=sys.stderr)
    (out / "report.md").write_text(to_markdown(blocks(results, charts)))
