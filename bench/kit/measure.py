"""Runs of the clients, and what there is to know about the machine."""

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import time
from pathlib import Path

from .targets import Nothing, Running, Unable, pinned, read_line

SPELLED = {"rr": "randread", "rw": "randwrite", "sr": "read", "sw": "write"}
# Above this many nanoseconds for a cache line, two cores do not share a cache.
NEAR_NS = 60


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
    found = _client(options, command, seconds + options.warmup)["runs"][0]
    _check(found)
    run = {key: found[key] for key in ("ios", "iops", "mb_s", "client_us", "target_us")}
    latency = found["lat_us"]
    run |= {"p50_us": latency["p50"], "p99_us": latency["p99"], "max_us": latency["max"],
            "client_busy": found["client_cpu_percent"], "target_busy": found["target_cpu_percent"]}
    return {"client": "stag bench", **run}


def fill(options, running):
    """Every block of the unit in memory written once, and every block of the file read: nothing is touched for the first time later."""
    _client(options, [options.load, "--fill", running.urls["memory"], "sw", "1M", 8], 120)
    _client(options, [options.load, running.urls["file"], "sr", "1M", 16, max(0.2, 1.5 * options.unit_bytes / (1 << 30))], 30)


def idle(all_running, seconds):
    """Percent of a core that each target uses when nobody asks for anything, all at the same time."""
    time.sleep(0.5)
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


@contextlib.contextmanager
def held(options, running, count):
    """So many idle sessions; yields how long their logins took, in seconds."""
    command = [options.load, "--hold", count, running.urls["memory"]]
    child = subprocess.Popen(pinned(options, options.client_core, *command), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, bufsize=0)
    try:
        line = read_line(child, 5 + count / 500)
        if not line:
            child.kill()
            why = child.stderr.read().decode().strip()
            raise Unable(why or "the logins do not come to an end")
        yield json.loads(line)["seconds"]
    finally:
        child.stdin.close()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def sessions(options, running: Running, line, seconds, count):
    """What so many idle sessions cost, and what they cost the session that works."""
    alone = by_load(options, running, line, seconds)["iops"]
    before = running.memory_bytes()
    with held(options, running, count) as login_seconds:
        memory = (running.memory_bytes() - before) / count
        beside = by_load(options, running, line, seconds)["iops"]
        # The pings of idle sessions are part of what they cost.
        cpu = idle([running], max(2, seconds))[running.name]
    again = by_load(options, running, line, seconds)["iops"]
    return {"count": count, "logins_per_second": count / login_seconds, "bytes_per_session": memory, "idle_percent": cpu,
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
