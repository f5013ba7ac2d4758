#!/usr/bin/env python3
"""Guided fuzzing: builds the targets of fuzz/ for libFuzzer with the stable toolchain, and runs them from their seeds and from
what earlier campaigns have found.

    tests/run fuzz                      every target, FUZZ_SECONDS (10) each
    FUZZ_SECONDS=600 tests/run fuzz:sense fuzz:disk_unit
    FUZZ_CPU=600 tests/run fuzz         a campaign, idle cycles only: each target until fuzz/campaign.json has so many CPU seconds of it
    tests/lab/fuzz.py unpack sense DIR  writes what campaigns have found to a directory
    tests/lab/fuzz.py table             writes the table of fuzz/README.md from fuzz/campaign.json

A campaign may be interrupted and goes on where it was. It runs the targets of UNSAFE with AddressSanitizer, merges what it finds
into fuzz/merged, and keeps fuzz/campaign.json and the table. What fails is left in fuzz/artifacts/TARGET. cargo-fuzz does the same by hand (fuzz/README.md) and is not needed here.
"""

import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FUZZ = os.path.join(ROOT, "fuzz")
RECORD, README = os.path.join(FUZZ, "campaign.json"), os.path.join(FUZZ, "README.md")
TARGET = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), "fuzz")
# Targets that run code of the crates that have `unsafe`, `runtime` and `verbs`.
UNSAFE = {"disk_unit", "osd_unit", "object_store", "rdma_stream", "takeover"}
# Memory that a target may take, MiB; seconds for one input; the same where others go first.
MEMORY, LONGEST, LONGEST_IDLE = 2048, 25, 200
# Seconds after which a campaign keeps what a target has found.
ROUND = 100
# Bytes that are kept of one target's findings: together less than 20 MB.
KEPT = 450_000
# What libFuzzer exits with when it is interrupted.
INTERRUPTED = 72
# What rustc has to add for libFuzzer to see which code runs. Assertions and checks of arithmetic are on.
FLAGS = ("-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 "
         "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table "
         "-Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks --cfg fuzzing")

# The programs that run now.
running = set()
# No more are to be started.
ending = threading.Event()
# Who writes RECORD and README.
recording = threading.Lock()


def machine():
    """The triple of this machine: named, so that build scripts are compiled without the flags."""
    said = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    return re.search(r"host: (\S+)", said)[1]


def target_dir(address):
    return TARGET + ("-address" if address else "")


def build_command(names=(), address=False):
    """How the targets are built (all, or those that are named; with AddressSanitizer?), and with what environment. The lock file
    has to be right."""
    command = ["cargo", "build", "--release", "--locked", "--features", "config",
               "--manifest-path", os.path.join(FUZZ, "Cargo.toml"), "--target", machine(), "--target-dir", target_dir(address)]
    for name in names:
        command += ["--bin", name]
    # Half the time to compile, for a fifth of the executions.
    env = {"RUSTFLAGS": FLAGS, "CARGO_PROFILE_RELEASE_OPT_LEVEL": "1",
           "CARGO_PROFILE_RELEASE_DEBUG": "line-tables-only" if address else "none"}
    return command, with_address_sanitizer(env) if address else env


def with_address_sanitizer(env):
    """Compiles with AddressSanitizer. A stable toolchain has it, and only has to be told that unstable options may be used."""
    return {**env, "RUSTC_BOOTSTRAP": "1", "RUSTFLAGS": env.get("RUSTFLAGS", "") + " -Zsanitizer=address"}


def address_tests():
    """How the tests of the crates that have `unsafe` are run with AddressSanitizer, and with what environment. Memory that is
    leaked counts."""
    command = ["cargo", "test", "--locked", "--lib", "--tests", "--features", "runtime/sim,runtime/testing",
               "--target", machine(), "--target-dir", os.path.join(os.path.dirname(TARGET), "address")]
    for name in ("runtime", "verbs"):
        command += ["--package", name]
    # A test of bus errors is told what Stag's own handler does, not AddressSanitizer's.
    meant = os.path.join(ROOT, "tests/lab/leaks-meant")
    return command, with_address_sanitizer({"ASAN_OPTIONS": "handle_sigbus=0", "LSAN_OPTIONS": f"suppressions={meant}:print_suppressions=0"})


def targets():
    with open(os.path.join(FUZZ, "Cargo.toml"), "rb") as file:
        return [binary["name"] for binary in tomllib.load(file)["bin"]]


def chosen(report, names):
    """The targets that are named, in that order, or all."""
    known = targets()
    for name in names:
        if name not in known:
            report.add("failed", f"fuzz: {name}", "there is no such target")
    return [name for name in names if name in known] if names else known


def libfuzzer(arguments, limit):
    """Runs a target's program for `limit` seconds at most. Its exit code, what it said, and the CPU seconds that it used."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        running.add(process)
        timer = threading.Timer(limit, process.kill)
        timer.start()
        try:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            timer.cancel()
            running.discard(process)
        output.seek(0)
        return process.returncode, output.read().decode(errors="replace"), used.ru_utime + used.ru_stime


def read_merged(name):
    """What campaigns have found for a target: inputs, each as its length (four bytes) and itself."""
    path, inputs = os.path.join(FUZZ, "merged", name), []
    if os.path.exists(path):
        with open(path, "rb") as file:
            while head := file.read(4):
                inputs.append(file.read(*struct.unpack(">I", head)))
    return inputs


def unpack(name, directory):
    os.makedirs(directory, exist_ok=True)
    for number, data in enumerate(read_merged(name)):
        with open(os.path.join(directory, f"{number:05}"), "wb") as file:
            file.write(data)


def merge(name, program, directories):
    """Keeps of these directories the inputs that reach what seeds do not, the shortest first."""
    seeds = os.path.join(FUZZ, "corpus", name)
    with tempfile.TemporaryDirectory(prefix="stag-fuzz-") as work:
        merged = shutil.copytree(seeds, os.path.join(work, "merged"))
        code, said, _ = libfuzzer([program, "-merge=1", f"-timeout={LONGEST_IDLE}", f"-rss_limit_mb={MEMORY}", merged, *directories],
                                  3600)
        if code != 0:
            raise OSError("what was found cannot be merged: " + "\n".join(said.splitlines()[-5:]))
        inputs = []
        for entry in os.scandir(merged):
            if not os.path.exists(os.path.join(seeds, entry.name)):
                with open(entry.path, "rb") as file:
                    inputs.append(file.read())
    inputs.sort(key=lambda data: (len(data), data))
    os.makedirs(os.path.join(FUZZ, "merged"), exist_ok=True)
    part, room = os.path.join(FUZZ, "merged", f".{name}"), KEPT
    with open(part, "wb") as file:
        for data in inputs:
            if (room := room - 4 - len(data)) < 0:
                break
            file.write(struct.pack(">I", len(data)) + data)
    os.replace(part, os.path.join(FUZZ, "merged", name))


def explore(name, seconds, address=False, keep=False):
    """Runs one target, and merges what it finds (`keep`). What came of it: `failure` if something did."""
    program = os.path.join(target_dir(address), machine(), "release", name)
    artifacts, seeds = os.path.join(FUZZ, "artifacts", name), os.path.join(FUZZ, "corpus", name)
    os.makedirs(artifacts, exist_ok=True)
    longest = LONGEST_IDLE if keep else LONGEST
    with tempfile.TemporaryDirectory(prefix="stag-fuzz-") as work:
        found, known = os.path.join(work, "found"), os.path.join(work, "known")
        os.mkdir(found)
        unpack(name, known)
        code, said, cpu = libfuzzer(
            [program, found, known, seeds, f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY}", f"-timeout={longest}",
             "-print_final_stats=1", f"-artifact_prefix={artifacts}/"], seconds + 20 * longest)
        if keep and os.listdir(found) and not ending.is_set():
            merge(name, program, [known, found])
    reached = re.findall(r"cov: (\d+) ft: (\d+)", said) or [(0, 0)]
    result = {"cpu": cpu, "executions": figure("number_of_executed_units", said), "edges": int(reached[-1][0]),
              "features": int(reached[-1][1]), "memory": figure("peak_rss_mb", said), "failure": ""}
    if code not in (0, INTERRUPTED if ending.is_set() else 0):
        result["failure"] = f"{artifacts}\n" + "\n".join(said.strip().splitlines()[-60:])
    elif not result["executions"] and not ending.is_set():
        result["failure"] = "it was given no input"
    return result


def figure(name, said):
    found = re.search(rf"stat::{name}:\s+(\d+)", said)
    return int(found[1]) if found else 0


def each(names, work):
    """Does `work` for each of the targets, as many at once as there are cores. Yields each with what came of it."""
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        futures = {pool.submit(work, name): name for name in names}
        try:
            for done in concurrent.futures.as_completed(futures):
                try:
                    yield futures[done], done.result()
                except (subprocess.SubprocessError, OSError) as error:
                    yield futures[done], {"failure": str(error), "executions": 0}
        except BaseException:
            ending.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                process.terminate()
            raise


def run_all(report, names, out=print):
    """Runs targets for some seconds each. One outcome each."""
    seconds, total = int(os.environ.get("FUZZ_SECONDS", "10")), 0
    for name, result in each(names, lambda name: explore(name, seconds)):
        total += result["executions"]
        if result["failure"]:
            report.add("failed", f"fuzz: {name}", result["failure"])
        else:
            report.add("passed", f"fuzz: {name}: {result['executions']:,} executions, {result['edges']} edges, {result['memory']} MiB")
    out(f"fuzz: {len(names)} targets, {seconds} s each, {total:,} executions", flush=True)


def campaign(report, names, goal, address, out=print):
    """Runs targets, with AddressSanitizer or without, until each has had so many CPU seconds. One outcome each."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    sanitizer = "address" if address else "none"

    def work(name):
        result = {"failure": "", "executions": 0}
        while not ending.is_set() and not result["failure"] and recorded(name, sanitizer).get("cpu_seconds", 0) < goal:
            result = explore(name, ROUND, address, keep=True)
            add(name, sanitizer, result)
            out(f"fuzz: {name}: {recorded(name, sanitizer)}", flush=True)
        return result

    for name, result in each(names, work):
        report.add("failed" if result["failure"] else "passed", f"fuzz: {name}", result["failure"])


def records():
    with contextlib.suppress(FileNotFoundError), open(RECORD) as file:
        return json.load(file)
    return {}


def recorded(name, sanitizer):
    """What campaigns with this sanitizer have done for a target."""
    with recording:
        record = records().get(name, {})
    return record if record.get("sanitizer") == sanitizer else {}


def add(name, sanitizer, result):
    """Adds a run to RECORD, and keeps the table."""
    product = ["git", "log", "-1", "--format=%h", "--", "crates", "objects", "Cargo.lock"]
    commit = subprocess.run(product, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    earlier = recorded(name, sanitizer)
    with recording:
        known = records()
        known[name] = {
            "commit": commit,
            "sanitizer": sanitizer,
            "cpu_seconds": round(earlier.get("cpu_seconds", 0) + result["cpu"]),
            "executions": earlier.get("executions", 0) + result["executions"],
            "edges": max(earlier.get("edges", 0), result["edges"]),
            "features": max(earlier.get("features", 0), result["features"]),
            "inputs": len(read_merged(name)),
            "findings": known.get(name, {}).get("findings", []),
        }
        with open(RECORD + ".part", "w") as file:
            json.dump({name: known[name] for name in targets() if name in known}, file, indent=1, ensure_ascii=False)
            file.write("\n")
        os.replace(RECORD + ".part", RECORD)
        write_table(known)


def write_table(known):
    """Replaces the rows of the README's table."""
    rows = []
    for name in targets():
        it = known.get(name)
        if not it:
            rows.append(f"| `{name}` | | | | | | | |")
            continue
        rows.append(f"| `{name}` | {it['sanitizer']} | {it['cpu_seconds']:,} | {it['executions']:,} | {it['edges']:,} | {it['features']:,} "
                    f"| {it['inputs']:,} | {'; '.join(it['findings']) or '–'} |")
    with open(README) as file:
        before, head, after = re.split(r"(^\|-.*\n)", file.read(), maxsplit=1, flags=re.M)
    with open(README + ".part", "w") as file:
        file.write(before + head + "".join(row + "\n" for row in rows) + re.sub(r"\A(\|.*\n)*", "", after))
    os.replace(README + ".part", README)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["unpack", name, directory]:
            unpack(name, directory)
        case ["table"]:
            write_table(records())
        case _:
            sys.exit(__doc__)
