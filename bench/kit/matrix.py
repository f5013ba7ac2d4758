"""What is measured, and the marks that the project sets itself."""

import dataclasses

KIB = 1 << 10


@dataclasses.dataclass(frozen=True)
class Line:
    """One workload. `pattern`: rr, rw, sr, sw as `stag-load` names them."""

    key: str
    words: str
    pattern: str
    block: int
    depth: int
    connections: int = 1
    unit: str = "memory"  # or "file": a file on tmpfs, where the target keeps memory otherwise; "disk": a file past the page cache
    bench: bool = False  # by `stag bench`, whatever else loads: it is what is measured
    half: bool = False  # at half of the rate that `r4k32` reached
    quick: bool = False  # part of --quick
    sweep: bool = False  # a point of the plots

    @property
    def floor(self):
        """Whether raw TCP has something to say about it."""
        return self.takes("floor")

    def takes(self, target):
        """Whether it is measured with this target."""
        if self.bench:
            return target == "stag"
        if self.unit == "disk":
            return target in ("stag", "fio")
        if target == "floor":
            return (self.connections == 1 or self.pattern.endswith("r")) and self.unit == "memory" and not self.half
        return target != "fio"


def size(block):
    return f"{block} B" if block < KIB else f"{block >> 10} KiB" if block < 1 << 20 else f"{block >> 20} MiB"


def _line(key, pattern, block, depth, connections=1, **more):
    way = {"r": "random", "s": "sequential"}[pattern[0]] + {"r": " read", "w": " write"}[pattern[1]]
    words = f"{size(block)} {way}, depth {depth}"
    if connections > 1:
        words += f", {connections} connections"
    if more.get("unit") == "file":
        words += ", file on tmpfs"
    if more.get("unit") == "disk":
        words += ", file on a disk, direct"
    if more.get("bench"):
        words += ", by stag bench"
    if more.get("half"):
        words += ", at half of its peak rate"
    return Line(key, words, pattern, block, depth, connections, **more)


LINES = [
    _line("r4k1", "rr", 4 * KIB, 1, quick=True),
    _line("w4k1", "rw", 4 * KIB, 1),
    _line("r4k8", "rr", 4 * KIB, 8, quick=True),
    _line("r4k32", "rr", 4 * KIB, 32, quick=True),
    _line("w4k32", "rw", 4 * KIB, 32, quick=True),
    _line("r512", "sr", 512, 32, quick=True),
    _line("r16k", "sr", 16 * KIB, 32, quick=True),
    _line("r64k", "sr", 64 * KIB, 32, quick=True),
    _line("r256k", "sr", 256 * KIB, 16, quick=True),
    _line("w256k", "sw", 256 * KIB, 16, quick=True),
    _line("r1m", "sr", KIB * KIB, 16),
    _line("w1m", "sw", KIB * KIB, 16),
    _line("c4", "rr", 4 * KIB, 32, 4, quick=True),
    _line("c32", "rr", 4 * KIB, 8, 32),
    _line("c256", "rr", 4 * KIB, 4, 256),
    _line("f4k32", "rr", 4 * KIB, 32, unit="file", quick=True),
    _line("half", "rr", 4 * KIB, 32, half=True, quick=True),
    _line("d4k32", "rr", 4 * KIB, 32, unit="disk", quick=True),
    _line("dw4k32", "rw", 4 * KIB, 32, unit="disk", quick=True),
    _line("d64k", "sr", 64 * KIB, 32, unit="disk", quick=True),
    _line("b4k32", "rr", 4 * KIB, 32, bench=True, quick=True),
]


def sweep(quick):
    """The points of the plots: sequential reads and writes from 512 bytes to 1 MiB."""
    blocks = [512 << n for n in range(12)]
    if quick:
        blocks = [512, 2 * KIB, 8 * KIB, 32 * KIB, 128 * KIB, KIB * KIB]
    return [_line(f"s{pattern[1]}{block}", pattern, block, 32 if block < 256 * KIB else 16, sweep=True)
            for pattern in ("sr", "sw") for block in blocks]


@dataclasses.dataclass(frozen=True)
class Mark:
    """One aim: `value(view)` is what was reached (None: not measured), `best` how it is compared with `aim`."""

    words: str
    aim: float
    unit: str
    most: bool  # the aim is the most that is allowed, not the least that is wanted
    value: object
    floor: object = None  # the floor's own figure for the same, in words

    def met(self, value):
        return value <= self.aim if self.most else value >= self.aim


def _iops(key):
    return lambda view: view.get(key, "stag", "iops")


def _over(key, other, what="iops"):
    def value(view):
        ours, theirs = view.get(key, "stag", what), view.get(key, other, what)
        return ours / theirs if ours and theirs else None
    return value


def _floor(key):
    def words(view):
        iops, cpu, p50 = (view.get(key, "floor", what) for what in ("iops", "target_us", "p50_us"))
        return f"{iops / 1e3:,.1f}K IOPS, {cpu:.2f} µs, p50 {p50:.1f} µs" if iops else ""
    return words


def _best_single(view):
    return view.get("r4k32", "stag", "iops")


def _connections(key):
    def value(view):
        ours, single = view.get(key, "stag", "iops"), _best_single(view)
        return ours / single if ours and single else None
    return value


def _tail(view):
    p99, p50 = view.get("half", "stag", "p99_us"), view.get("half", "stag", "p50_us")
    return p99 / p50 if p99 and p50 else None


MARKS = [
    Mark("4 KiB random read, depth 32: IOPS", 800e3, "IOPS", False, _iops("r4k32"), _floor("r4k32")),
    Mark("4 KiB random read, depth 32: target CPU an I/O", 1.25, "µs", True,
         lambda view: view.get("r4k32", "stag", "target_us"), _floor("r4k32")),
    Mark("4 KiB random read, depth 32: times tgt", 15, "×", False, _over("r4k32", "tgt")),
    Mark("4 KiB random read, depth 32: CPU, times the floor's", 1.3, "×", True, _over("r4k32", "floor", "target_us"),
         _floor("r4k32")),
    Mark("4 KiB random write, depth 32: IOPS", 800e3, "IOPS", False, _iops("w4k32"), _floor("w4k32")),
    Mark("4 KiB random write, depth 32: target CPU an I/O", 1.25, "µs", True,
         lambda view: view.get("w4k32", "stag", "target_us"), _floor("w4k32")),
    Mark("512 B sequential read, depth 32: IOPS", 1600e3, "IOPS", False, _iops("r512"), _floor("r512")),
    Mark("4 KiB random read, depth 8: IOPS", 500e3, "IOPS", False, _iops("r4k8"), _floor("r4k8")),
    Mark("4 KiB random read, depth 1: p50, times the floor's", 1.2, "×", True, _over("r4k1", "floor", "p50_us"), _floor("r4k1")),
    Mark("4 KiB random read, depth 1: times tgt", 2.5, "×", False, _over("r4k1", "tgt")),
    Mark("16 KiB sequential read, depth 32: IOPS", 270e3, "IOPS", False, _iops("r16k"), _floor("r16k")),
    Mark("64 KiB sequential read, depth 32: IOPS", 95e3, "IOPS", False, _iops("r64k"), _floor("r64k")),
    Mark("256 KiB sequential read, depth 16: IOPS", 23e3, "IOPS", False, _iops("r256k"), _floor("r256k")),
    Mark("256 KiB sequential write, depth 16: IOPS", 15e3, "IOPS", False, _iops("w256k"), _floor("w256k")),
    Mark("256 KiB sequential write, depth 16: times tgt", 5, "×", False, _over("w256k", "tgt")),
    Mark("4 KiB random read, 4 connections: times one connection", 1, "×", False, _connections("c4"), _floor("c4")),
    Mark("4 KiB random read, 32 connections: times one connection", 1, "×", False, _connections("c32"), _floor("c32")),
    Mark("4 KiB random read, 256 connections: times one connection", 1, "×", False, _connections("c256"), _floor("c256")),
    Mark("4 KiB random read with idle sessions beside it: times without", 0.95, "×", False,
         lambda view: view.sessions("stag", "slowdown")),
    Mark("4 KiB random read of a file on tmpfs, depth 32: IOPS", 500e3, "IOPS", False, _iops("f4k32")),
    Mark("4 KiB random read at half of the peak rate: p99, times p50", 2, "×", True, _tail),
    Mark("4 KiB random read of a file on a disk, direct, depth 32: times fio on the file itself", 0.9, "×", False, _over("d4k32", "fio")),
    Mark("4 KiB random write of a file on a disk, direct, depth 32: times fio on the file itself", 0.9, "×", False, _over("dw4k32", "fio")),
    Mark("64 KiB sequential read of a file on a disk, direct, depth 32: times fio on the file itself", 0.9, "×", False,
         _over("d64k", "fio")),
    Mark("stag bench, 4 KiB random read, depth 32: CPU an I/O outside of the kernel", 1, "µs", True,
         lambda view: view.get("b4k32", "stag", "own_us")),
    Mark("Idle sessions, their pings included: percent of a core", 1, "%", True, lambda view: view.sessions("stag", "idle_percent")),
    Mark("Idle: percent of a core", 0.05, "%", True, lambda view: view.idle("stag")),
]
