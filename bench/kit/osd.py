"""The object store: what is measured of it, the paper's figures beside, the marks, and what becomes of it.

The paper is Dalessandro, Devulapalli and Wyckoff, "iSER Storage Target for Object-based Storage Devices": 2.4 GHz Opterons of 2007,
Gigabit Ethernet and 4X SDR InfiniBand between them, attributes in SQLite without syncs, data in ext3. Its table 1 has numbers; of its
figures 3 to 6 the text says what is told here, and no numbers.
"""

import csv
import dataclasses
import json
import statistics

from . import matrix, plot, report
from .measure import near

KIB = 1 << 10
WAYS = {"tcp": ("iSCSI over TCP", "iscsi"), "iser": ("iSER, software iWARP", "iser")}
NAMES = {"tcp": "TCP", "iser": "iSER"}
COMMANDS = ["ping", "create", "remove", "getattr", "setattr"]
# Table 1, µs: mean and standard deviation over TCP on Gigabit Ethernet, IP over InfiniBand, iSER on InfiniBand.
PAPER = {"ping": ("86.94 ± 3.87", "36.42 ± 3.63", "33.27 ± 3.53"), "create": ("265.26 ± 9.81", "220.11 ± 3.59", "206.76 ± 3.05"),
         "remove": ("257.36 ± 17.61", "215.36 ± 11.02", "201.05 ± 14.74"), "getattr": ("143.89 ± 2.74", "85.51 ± 1.58", "65.41 ± 0.63"),
         "setattr": ("238.54 ± 53.55", "201.27 ± 3.18", "175.14 ± 2.65")}
SAID = {"read": "The paper's figure 3: over InfiniBand throughput rises up to about 200 KB and then slowly drops up to 512 KB; over"
                " Gigabit Ethernet the network is the limit.",
        "write": "The paper's figure 4: as reads, and less over IP on InfiniBand, since data is asked for first.",
        "read-clients": "The paper's figure 5: two clients come close to the wire speed of InfiniBand, and more do not lower it.",
        "write-clients": "The paper's figure 6: eleven clients bring writes to their most, which stays so."}


@dataclasses.dataclass(frozen=True)
class Line:
    """One run. `what` is a word of `stag osd bench`; `unit` is "osd" or "disk"; `many`: the partition has so many objects."""

    what: str
    clients: int = 1
    size: int = 0
    durable: bool = False
    many: int = 0
    unit: str = "osd"
    quick: bool = True
    ways: tuple = ("tcp", "iser")

    @property
    def key(self):
        return "-".join(filter(None, (self.what, str(self.size or ""), f"c{self.clients}" if self.clients > 1 else "", "durable" if self.durable else "",
                                      f"of{self.many}" if self.many else "")))

    @property
    def words(self):
        return " ".join(filter(None, (self.what, matrix.size(self.size) if self.size else "", f"{self.clients} clients" if self.clients > 1 else "",
                                      "durable" if self.durable else "", f"of {self.many:,} objects" if self.many else "")))


SIZES = [4 * KIB << n for n in range(9)]  # 4 KiB to 1 MiB.
PAPERS_SIZE = 200 * KIB
CLIENTS = [1, 2, 4, 6, 8, 11, 16]
SCALES = [10**3, 10**4, 10**5, 10**6]


def lines(quick):
    """All lines, in the order in which they are measured; those of many objects last, smaller ones first."""
    found = [Line("ping"), Line("getattr")]
    for durable in (False, True):
        found += [Line("create", durable=durable), Line("setattr", durable=durable)]
    found += [Line("create", clients=16, ways=("tcp",)), Line("create", clients=16, durable=True, ways=("tcp",))]
    for what in ("read", "write"):
        for size in sorted([*SIZES, PAPERS_SIZE]):
            few = size in (4 * KIB, 64 * KIB, PAPERS_SIZE, 1024 * KIB)
            found.append(Line(what, size=size, quick=few))
            if size >= 64 * KIB and what == "read":
                found.append(Line(f"disk-{what}", size=size, unit="disk", quick=few))
        found += [Line(what, clients=clients, size=PAPERS_SIZE, quick=clients in (2, 16)) for clients in CLIENTS if clients > 1]
    for many in SCALES:
        few = many <= 10**4
        found += [Line(what, many=many, quick=few, ways=("tcp",)) for what in ("create", "lookup", "list")]
    return [line for line in found if line.quick or not quick]


@dataclasses.dataclass(frozen=True)
class Mark:
    """`what` of one line and way over that of another: at most, or at least, `aim`."""

    words: str
    what: str
    over: tuple  # (line's key, way)
    under: tuple
    aim: float
    most: bool = True

    def ratio(self, view):
        ours, theirs = view.get(*self.over, self.what), view.get(*self.under, self.what)
        return ours / theirs if ours and theirs else None

    def met(self, ratio):
        return ratio <= self.aim if self.most else ratio >= self.aim


def marks():
    found = []
    for way in WAYS:
        for what, aim in (("getattr", 2), ("setattr", 2), ("create", 4), ("remove", 4)):
            found.append(Mark(f"{what}, relaxed, {NAMES[way]}: times a ping", "p50_us", (what, way), ("ping", way), aim))
    for what in ("create", "remove", "setattr"):
        found.append(Mark(f"{what}, durable: times one 4 KiB overwrite and fdatasync", "p50_us", (f"{what}-durable", "tcp"), ("floor", "-"), 1.5))
    found.append(Mark("durable creates a second, 16 clients: times those of one", "ops_s", ("create-c16-durable", "tcp"), ("create-durable", "tcp"), 5, False))
    for way in WAYS:
        for size in [size for size in sorted([*SIZES, PAPERS_SIZE]) if size >= 64 * KIB]:
            found.append(Mark(f"READ of {matrix.size(size)}, {NAMES[way]}: throughput, times a disk unit's", "mb_s", (f"read-{size}", way),
                              (f"disk-read-{size}", way), 0.9, False))
    return found


def views(results):
    """The modes of the machine that there are runs of, that with more of them first."""
    found = [report.View(results, is_near) for is_near in (True, False)]
    return sorted((view for view in found if view.cells), key=lambda view: -sum(map(len, view.cells.values())))


def judged(results):
    """Each mark, by the mode of the machine that has most runs of it."""
    found = []
    for mark in marks():
        entry = {"words": mark.words, "aim": mark.aim, "most": mark.most, "reached": None, "met": None}
        for view in views(results):
            ratio = mark.ratio(view)
            if ratio is not None:
                entry |= {"reached": ratio, "met": mark.met(ratio), "near": view.is_near}
                break
        if entry["reached"] is not None:
            found.append(entry)
    return found


def _cell(view, key, way, what, show):
    values = view.values(key, way, what)
    if not values:
        return "–"
    text = show(statistics.median(values))
    return f"{text} ({show(min(values))}–{show(max(values))})" if len(values) > 1 else text


def _mean(view, key, way):
    """Mean and standard deviation, as the paper gives them."""
    means, deviations = view.values(key, way, "mean_us"), view.values(key, way, "stdev_us")
    return f"{statistics.median(means):.2f} ± {statistics.median(deviations):.2f}" if means else "–"


def _latency(view):
    head = ["µs", "TCP relaxed, median", "mean ± σ", "iSER relaxed, median", "mean ± σ", "TCP durable, median", "iSER durable, median",
            "paper: TCP", "paper: IPoIB", "paper: iSER on IB"]
    rows = []
    for what in COMMANDS:
        durable = [_cell(view, f"{what}-durable", way, "p50_us", report.micros) for way in WAYS] if what not in ("ping", "getattr") else ["", ""]
        rows.append([what, _cell(view, what, "tcp", "p50_us", report.micros), _mean(view, what, "tcp"),
                     _cell(view, what, "iser", "p50_us", report.micros), _mean(view, what, "iser"), *durable, *PAPER[what]])
    rows.append(["4 KiB overwrite + fdatasync", "", "", "", "", _cell(view, "floor", "-", "p50_us", report.micros), "", "", "", ""])
    return head, rows


def _target(view):
    head = ["processor time per command, µs", *[f"target, {NAMES[way]}" for way in WAYS], *[f"client, {NAMES[way]}" for way in WAYS]]
    keys = [key for what in COMMANDS for key in (what, f"{what}-durable") if any((key, way) in view.cells for way in WAYS)]
    return head, [[key.replace("-", ", "), *[_cell(view, key, way, f"{side}_us", report.micros) for side in ("target", "client") for way in WAYS]]
                  for key in keys]


def _rates(view):
    head = ["creates a second", "1 client", "16 clients", "times"]
    rows = []
    for name, end in (("relaxed", ""), ("durable", "-durable")):
        one, many = view.get(f"create{end}", "tcp", "ops_s"), view.get(f"create-c16{end}", "tcp", "ops_s")
        if one and many:
            rows.append([name, report.rate(one), report.rate(many), f"{many / one:.1f}"])
    return head, rows


def _throughput(view):
    head = ["MB/s, one client", *[f"{what} {NAMES[way]}" for what in ("READ", "WRITE") for way in WAYS], *[f"disk READ (16), {NAMES[way]}" for way in WAYS]]
    rows = []
    show = "{:,.0f}".format
    for size in sorted([*SIZES, PAPERS_SIZE]):
        row = [_cell(view, f"{what}-{size}", way, "mb_s", show) for what in ("read", "write", "disk-read") for way in WAYS]
        if any(cell != "–" for cell in row):
            rows.append([matrix.size(size), *row])
    return head, rows


def _clients(view):
    head = ["MB/s at 200 KiB", *[f"{what} {NAMES[way]}" for what in ("READ", "WRITE") for way in WAYS]]
    rows = []
    for clients in CLIENTS:
        end = f"-c{clients}" if clients > 1 else ""
        row = [_cell(view, f"{what}-{PAPERS_SIZE}{end}", way, "mb_s", "{:,.0f}".format) for what in ("read", "write") for way in WAYS]
        if any(cell != "–" for cell in row):
            rows.append([f"{clients} client{'s' if clients > 1 else ''}", *row])
    return head, rows


def _scale(view):
    head = ["median, µs", "create", "look-up (getattr at random)", "list, each of 1000 ids"]
    rows = []
    for many in SCALES:
        cells = [_cell(view, f"{what}-of{many}", "tcp", "p50_us", report.micros) for what in ("create", "lookup", "list")]
        if any(cell != "–" for cell in cells):
            rows.append([f"{many:,} objects", *cells])
    return head, rows


def _marks_table(results):
    rows = []
    for mark in results["marks"]:
        apart = "" if mark["near"] else " (cores apart)"
        rows.append([mark["words"], f"{'≤' if mark['most'] else '≥'} {mark['aim']:g}×", f"{mark['reached']:.2f}×{apart}",
                     "met" if mark["met"] else "**not met**"])
    return ["mark", "aim", "reached", ""], rows


def plots(view, results):
    """File name -> (title, SVG): the paper's figures 3 to 6."""
    machine, found = results["machine"], {}
    subtitle = f"loopback, one core each; {machine['cpu']}, Linux {machine['kernel'].split('-')[0]}"
    for number, what in ((3, "read"), (4, "write")):
        series = {}
        for way in WAYS:
            points = [(size, view.get(f"{what}-{size}", way, "mb_s"), view.values(f"{what}-{size}", way, "mb_s")) for size in SIZES]
            if points := [(size, middle, min(values), max(values)) for size, middle, values in points if middle]:
                series[way] = points
        title = f"As figure {number}: single-client {what} throughput"
        if svg := plot.lines(title, subtitle, "MB/s", series, NAMES, False, "bytes of one command"):
            found[f"{what}-size.svg"] = (title, svg)
    for number, what in ((5, "read"), (6, "write")):
        series = {}
        for way in WAYS:
            points = []
            for clients in (1, 2, 4, 8, 16):
                key = f"{what}-{PAPERS_SIZE}" + (f"-c{clients}" if clients > 1 else "")
                if values := view.values(key, way, "mb_s"):
                    points.append((clients, statistics.median(values), min(values), max(values)))
            if points:
                series[way] = points
        title = f"As figure {number}: multi-client {what} throughput, 200 KiB"
        if svg := plot.lines(title, subtitle, "MB/s", series, NAMES, False, "clients"):
            found[f"{what}-clients.svg"] = (title, svg)
    return found


def blocks(results, shown):
    machine, options = results["machine"], results["options"]
    between = sorted(entry["core_ns"] for entry in results["runs"] if entry.get("core_ns") is not None)
    where = f"a cache line goes from one core to the other in {between[0]}–{between[-1]} ns" if between else "one core for both"
    out = [
        ("heading", 1, "The object store"),
        ("text", f"{machine['cpu']}{' (virtual)' if machine['virtual'] else ''}, {machine['cores']} cores, {machine['memory_gib']} GiB, Linux {machine['kernel']},"
                 f" {machine['date']}; {where} (measured before and after each line). Store on {options['medium']}."),
        ("text", "Versions: " + ", ".join(f"{name} {version}" for name, version in results["versions"].items() if version) + "."),
        ("text", f"`stag serve osd:…` on core {options['target_core']}, `stag osd bench` on core {options['client_core']}"
                 + (", both before everything else (SCHED_FIFO)" if options["realtime"] else "")
                 + f"; loopback, no digests and no CRC; {options['rounds']} round{'s' if options['rounds'] > 1 else ''} of {options['seconds']:g} s, the ways in turn"
                 " within each line. Each client is a session with one command under way. Figures are medians over the rounds, least and most"
                 " in parentheses. **Relaxed**: the command does not ask for FUA, as the paper's database ran without syncs. **Durable**: with FUA,"
                 " what it changed is on stable storage when it ends. iSER runs over software iWARP, which is TCP again: there is no RDMA hardware here."
                 " The paper's figures are the paper's, on its machines and networks of 2007."),
        ("heading", 2, "Marks"), ("table", *_marks_table(results)),
    ]
    if options["quick"]:
        out.insert(1, ("text", "A quick run: fewer sizes, clients and objects, one short round."))
    for view in views(results):
        level = 2
        if len(views(results)) > 1:
            out.append(("heading", 2, f"While the two cores {'share a cache' if view.is_near else 'do not share a cache'}"))
            level = 3
        for title, table, said in (
            ("Latency, as the paper's table 1", _latency(view), ""), ("Processor time", _target(view), ""),
            ("Creates a second", _rates(view), ""), ("Throughput by size, as figures 3 and 4", _throughput(view), SAID["read"] + " " + SAID["write"]),
            ("Throughput by clients, as figures 5 and 6", _clients(view), SAID["read-clients"] + " " + SAID["write-clients"]),
            ("Many objects in a partition", _scale(view), ""),
        ):
            if table[1]:
                out += [("heading", level, title), ("table", *table)] + ([("text", said)] if said else [])
    out += [("plot", name, title) for name, (title, _) in shown.items()]
    unable = {(entry["line"], entry["target"], entry["unable"]) for entry in results["runs"] if "unable" in entry}
    if unable:
        out.append(("heading", 2, "Not measured"))
        out += [("text", f"{line}, {NAMES.get(way, way)}: {why}") for line, way, why in sorted(unable)]
    return out


FIELDS = ["ops", "ops_s", "mb_s", "p50_us", "mean_us", "stdev_us", "p99_us", "max_us", "target_us", "client_us"]


def write(results, out):
    """Everything, into the folder `out`."""
    (out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    with open(out / "results.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["line", "way", "round", "core_ns", *FIELDS, "unable"])
        for entry in results["runs"]:
            run = entry.get("run", {})
            writer.writerow([entry["line"], entry["target"], entry["round"], entry.get("core_ns"), *[run.get(field) for field in FIELDS],
                             entry.get("unable", "")])
    found = views(results)
    shown = plots(found[0], results) if found else {}
    for name, (_, svg) in shown.items():
        (out / name).write_text(svg)
    parts = blocks(results, shown)
    (out / "report.md").write_text(report.to_markdown(parts))
    (out / "report.html").write_text(report.to_html(parts, shown))


def is_stable(before, after):
    return near(before) == near(after)
