"""Runs of the clients, and what there is to know about the machine."""

import contextlib
import json
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import time
from pathlib import Path

from .targets import Nothing, Running, Unable, need, pinned, read_line

SPELLED = {"rr": "randread", "rw": "randwrite", "sr": "read", "sw": "write"}
# Above this many nanoseconds for a cache line, two cores do not share a cache.
NEAR_NS = 100
# Runs beside idle sessions, and seconds for which these are watched alone.
BESIDE = 3
IDLE_S = 3
# Processor time that can be divided into a program's own and the kernel's, seconds.
LEAST_CPU_S = 0.2


def core_ns(options):
    """Nanoseconds that a cache line takes from the target's core to the client's; None: they are one, or too busy."""
    if options.target_core == options.client_core:
        return None
    command = [options.load, "--between", options.target_core, options.client_core]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)
    return int(done.stdout) if done.returncode == 0 else None


def near(nanoseconds):
    return nanoseconds is None or nanoseconds < NEAR_NS


def _client(options, command, seconds, core=None):
    limit, core = seconds + 8, options.client_core if core is None else core
    try:
        done = subprocess.run(pinned(options, core, *command), capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        raise Unable(f"no end within {limit:.0f} s") from None
    if done.returncode != 0:
        raise Unable((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[0])
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        raise Unable(f"the client printed {done.stdout[:200]!r}") from None


def _check(found):
    if found["errors"]:
        raise Unable(f"{found['errors']} I/Os failed: {found.get('first_error')}")
    if not found["ios"]:
        raise Nothing(f"no I/O ended within {found['seconds']:.1f} s")


def by_load(options, running, line, seconds):
    """One run of stag-load."""
    url = running.urls[line.unit]
    command = [options.load, "--target-pid", running.pid, "--warmup", options.warmup, url, line.pattern, line.block, line.depth,
               seconds, line.connections]
    command += ["--spin"] if options.spin else []
    found = _client(options, command, seconds + options.warmup)
    _check(found)
    run = {key: found[key] for key in ("ios", "iops", "mb_s", "p50_us", "p99_us", "max_us", "client_us", "client_busy",
                                       "target_us", "target_busy")}
    if running.name == "floor":
        # It tells what it worked, without the time in which it waited awake.
        run["target_us"] = json.loads(read_line(running.process) or "{}").get("working_us", run["target_us"])
    return {"client": "stag-load", **run}


def by_bench(options, running, line, seconds, rate=None):
    """One run of `stag bench`."""
    url = running.urls[line.unit]
    command = [options.stag, "bench", url, "--pattern", SPELLED[line.pattern], "--bs", line.block, "--depth", line.depth,
               "--sessions", line.connections, "--time", seconds, "--warmup", options.warmup, "--target-pid", running.pid, "--json"]
    command += ["--destroy"] if line.pattern[1] == "w" else []
    # At a fixed rate latency is what counts: as stag-load does, it waits awake.
    command += ["--rate", int(rate), *(["--spin", 50] if options.spin else [])] if rate else []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = _client(options, command, seconds + options.warmup)["runs"][0]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    _check(found)
    run = {key: found[key] for key in ("ios", "iops", "mb_s", "client_us", "target_us")}
    # Of the processor time, what it spends in code of its own, and not in the kernel; I/Os of the warm-up have their part.
    run["own_us"] = own_us(after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime,
                           found["ios"] * (1 + options.warmup / seconds))
    latency = found["lat_us"]
    run |= {"p50_us": latency["p50"], "p99_us": latency["p99"], "max_us": latency["max"],
            "client_busy": found["client_cpu_percent"], "target_busy": found["target_cpu_percent"]}
    return {"client": "stag bench", **run}


def own_us(user_s, system_s, ios):
    """Microseconds an I/O outside of the kernel; none if it was too short: the system tells the two apart by ticks of up to 10 ms."""
    return 1e6 * user_s / ios if user_s + system_s >= LEAST_CPU_S else None


def by_fio(options, running, line, seconds):
    """One run of fio on the file itself, by io_uring, on the target's core: what there is to serve."""
    command = [need("fio", "fio"), "--name=local", f"--filename={running.urls[line.unit]}", "--ioengine=io_uring", "--direct=1",
               f"--rw={SPELLED[line.pattern]}", f"--bs={line.block}", f"--iodepth={line.depth}", f"--ramp_time={1000 * options.warmup:.0f}ms",
               f"--runtime={1000 * seconds:.0f}ms", "--time_based", "--norandommap", "--allow_file_create=0", "--invalidate=0", "--output-format=json"]
    limit = seconds + options.warmup + 20
    try:
        done = subprocess.run(pinned(options, options.target_core, *command), capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        raise Unable(f"no end within {limit:.0f} s") from None
    if done.returncode != 0 or "{" not in done.stdout:
        raise Unable((done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[0])
    return fio_run(json.loads(done.stdout[done.stdout.index("{"):]), line)


def fio_run(said, line):
    """What fio said as a run like any other."""
    job = said["jobs"][0]
    side = job["read" if line.pattern.endswith("r") else "write"]
    if job["error"]:
        raise Unable(f"fio's I/Os failed: error {job['error']}")
    if not side["total_ios"]:
        raise Nothing(f"no I/O ended within {side['runtime'] / 1000:.1f} s")
    busy, iops, spread = job["usr_cpu"] + job["sys_cpu"], side["iops"], side["clat_ns"]
    run = {"ios": side["total_ios"], "iops": iops, "mb_s": side["bw_bytes"] / 1e6, "target_us": busy * 1e4 / iops, "target_busy": busy}
    percentile = spread.get("percentile", {})
    run |= {"p50_us": percentile.get("50.000000", 0) / 1e3, "p99_us": percentile.get("99.000000", 0) / 1e3, "max_us": spread["max"] / 1e3}
    return {"client": "fio", **run}


def fill(options, running):
    """Every block of the unit in memory written once, and every block of the file read: nothing is touched for the first time later."""
    _client(options, [options.load, "--fill", running.urls["memory"], "sw", "1M", 8], 120)
    _client(options, [options.load, running.urls["file"], "sr", "1M", 16, max(0.2, 1.5 * options.unit_bytes / (1 << 30))], 30)


def idle(all_running, seconds):
    """Percent of a core that each target uses when nobody asks for anything, all at the same time."""
    time.sleep(0.5)
    all_running = [running for running in all_running if running.process]
    before = {running.name: running.cpu_seconds() for running in all_running}
    start = time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - start
    used = {}
    for running in all_running:
        # A thread that ended meanwhile has taken its figure with it.
        threads = running.cpu_seconds().items()
        used[running.name] = 100 * sum(now - before[running.name].get(thread, 0) for thread, now in threads) / passed
    return used


class Held:
    """Idle sessions, and the program that keeps them."""

    def __init__(self, child, login_seconds):
        self.child, self.login_seconds = child, login_seconds

    def pings(self):
        """Pings of the target that were answered so far."""
        with contextlib.suppress(BrokenPipeError):
            self.child.stdin.write(b"?\n")
        line = read_line(self.child, 10)
        if not line:
            raise Unable("the program that holds the sessions ended")
        return json.loads(line)["pings"]

    def wait_for_pings(self, after_s):
        """Until the first pings have come; a target that is silent for longer than it should be is not waited for."""
        limit = time.monotonic() + after_s + 2
        while time.monotonic() < limit and not self.pings():
            time.sleep(0.2)


@contextlib.contextmanager
def held(options, running, count):
    """So many idle sessions."""
    command = [options.load, "--hold", count, running.urls["memory"]]
    child = subprocess.Popen(pinned(options, options.client_core, *command), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, bufsize=0)
    try:
        line = read_line(child, 5 + count / 500)
        if not line:
            child.kill()
            why = child.stderr.read().decode().strip()
            raise Unable(why or "the logins do not come to an end")
        yield Held(child, json.loads(line)["seconds"])
    finally:
        child.stdin.close()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def sessions(options, running: Running, line, seconds, count):
    """What so many idle sessions cost, and what they cost the session that works: while they are pinged, if the target pings.

    Memory is told of the first sessions only that a target has held since its start: what these took from the system, later ones find."""
    alone = by_load(options, running, line, seconds)["iops"]
    before = running.memory_bytes()
    is_first, running.has_held = not running.has_held, True
    with held(options, running, count) as idlers:
        memory = (running.memory_bytes() - before) / count if is_first else None
        if running.pings_after_s:
            idlers.wait_for_pings(running.pings_after_s)
        first, begun = idlers.pings(), time.monotonic()
        beside = statistics.median(by_load(options, running, line, seconds)["iops"] for _ in range(BESIDE))
        middle, between = idlers.pings(), time.monotonic()
        cpu = idle([running], max(IDLE_S, seconds))[running.name]
        last, ended = idlers.pings(), time.monotonic()
    again = by_load(options, running, line, seconds)["iops"]
    return {"count": count, "logins_per_second": count / idlers.login_seconds, "bytes_per_session": memory, "idle_percent": cpu,
            "pings_per_second": (last - middle) / (ended - between), "pings_per_second_beside": (middle - first) / (between - begun),
            "iops_alone": (alone + again) / 2, "iops_beside": beside, "slowdown": beside / ((alone + again) / 2)}


def _said(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        return (done.stdout + done.stderr).strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _package(name):
    return _said("dpkg-query", "-W", "-f", "${Version}", name) if shutil.which("dpkg-query") else ""


def machine():
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    mitigations = {}
    for path in sorted(Path("/sys/devices/system/cpu/vulnerabilities").glob("*")):
        with contextlib.suppress(OSError):
            said = path.read_text().strip()
            if said != "Not affected":
                mitigations[path.name] = said
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    with contextlib.suppress(OSError):
        huge = re.search(r"\[(\w+)\]", Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text())[1]
    return {
        "cpu": model.group(1) if model else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory[1]) / (1 << 20), 1) if memory else None,
        "virtual": "hypervisor" in Path("/proc/cpuinfo").read_text(),
        "kernel": platform.release(),
        "huge_pages": huge,
        "mitigations": mitigations,
        "load_average_before": os.getloadavg()[0],
        "date": time.strftime("%Y-%m-%d"),
    }


def versions(options, root):
    commit = _said("git", "-C", str(root), "describe", "--always", "--dirty")
    return {
        "stag": f"{_said(str(options.stag), '--version').removeprefix('stag ')} ({commit})" if commit else "",
        "tgt": _package("tgt") or _said("tgtd", "-V"),
        "istgt": _package("istgt"),
        "rustc": _said("rustc", "--version").removeprefix("rustc "),
        "python": platform.python_version(),
    }
