"""What tests/run does, step by step: prints each step with its time, and the count of everything at the end."""

import concurrent.futures
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from lab import fuzz, tools  # noqa: E402
from lab.main import selected  # noqa: E402
from lab.report import Report, Skip  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CLIPPY = ["cargo", "clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]
CARGO_DENY = "0.20.2"
FSX = "0.3.2"
CI = os.environ.get("CI") == "true"
if CI:
    os.environ["STAG_LAB_MUST"] = "1"  # the tests of the lab's links, too, fail where there can be none
    os.environ["CARGO_INCREMENTAL"] = "0"  # nothing is compiled twice, so what a second time would need is not kept
    os.environ["CARGO_PROFILE_DEV_DEBUG"] = "0"  # a panic tells its line without it

# Time for the suites to end what they have started, seconds.
LAST_STEPS = 20

report = Report()
started = time.monotonic()
# The programs that run now, each in a session of its own.
running = set()
# No more are to be started.
ending = threading.Event()


def say(text):
    seconds = int(time.monotonic() - started)
    # Suites that run out of room fail in ways that do not tell.
    room = min(shutil.disk_usage(place).free for place in (ROOT, tempfile.gettempdir())) / 2**30
    print(f"\n[{seconds // 60}:{seconds % 60:02}] {text} ({room:.0f} GiB free)", flush=True)


def stream(command, timeout, each_line=None, env=None, out=print):
    """Run a program, print what it prints, and return its exit code; None: it took too long and was ended. `out` takes its
    lines, as print does."""
    if ending.is_set():
        return None
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
                               env={**os.environ, **(env or {})})
    running.add(process)
    late = threading.Event()

    def end():
        late.set()
        os.killpg(process.pid, signal.SIGKILL)

    timer = threading.Timer(timeout, end)
    timer.start()
    try:
        for line in process.stdout:
            if each_line is None or each_line(line.rstrip("\n")) is not False:
                out(line, end="", flush=True)
        code = process.wait()
    except BaseException:
        interrupt([process])
        raise
    finally:
        timer.cancel()
        running.discard(process)
    if late.is_set():
        out(f"ended after {timeout} s", flush=True)
        return None
    return code


def interrupt(processes):
    """Has programs in sessions of their own end; they have time to end what they have started."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
    limit = time.monotonic() + LAST_STEPS
    for process in processes:
        try:
            process.wait(max(0, limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def step(name, command, timeout, **options):
    """One command that is one test."""
    say(name)
    start = time.monotonic()
    code = stream(command, timeout, **options)
    report.add("passed" if code == 0 else "failed", name, "" if code == 0 else f"exit code {code}",
               time.monotonic() - start)
    return code == 0


def quiet_cargo(line):
    """Of cargo's lines, not those of each crate."""
    return not re.match(r"\s+(Compiling|Checking|Downloading|Downloaded|Adding|Locking|Updating|Installing|Replacing) ", line)


def tool(name, version):
    """A program of a crate, built once if it is not there. None: it cannot be built."""
    if program := tools.find(name):
        return program
    # Unoptimized: it runs for seconds, and compiles in a third of the time.
    say(f"building {name} {version} (once, in {tools.FOLDER})")
    with tempfile.TemporaryDirectory() as target:
        code = stream(["cargo", "install", "--locked", "--debug", "--version", version, name, "--root", tools.FOLDER,
                       "--target-dir", target], 900, quiet_cargo)
    if code != 0:
        report.add("failed" if CI else "skipped", name, f"{name} cannot be built here: exit code {code}")
    return tools.find(name)


def python_packages():
    """What tests/requirements.txt names, axe, and the crates of all systems, which the lists of parts are made from: no suite has a network."""
    say("Python's packages of the tests")
    if tools.install_python(lambda command: stream(command, 600)) != 0:
        report.add("failed" if CI else "skipped", "tests/requirements.txt", "the packages cannot be installed here")
    if tools.install_axe(lambda command: stream(command, 600)) != 0:
        report.add("failed" if CI else "skipped", "axe-core", "it cannot be installed here")
    stream(["cargo", "fetch", "--locked", "--quiet"], 600)


def history_judge():
    """What says whether a history is linearizable; its module has to be fetched."""
    try:
        tools.history()
    except Skip as why:
        report.add("failed" if CI else "skipped", "tests/history", str(why))


def cargo_deny():
    program = tool("cargo-deny", CARGO_DENY)
    if not program:
        return
    # Not the advisories: their database is fetched from one place that is not reachable from everywhere.
    step("cargo deny: licenses, bans, sources", [program, "check", "bans", "licenses", "sources"], 120)


CARGO_TEST = ["cargo", "test", "--workspace", "--no-fail-fast"]


def cargo_test(then):
    """`then` is called once all is compiled: the tests themselves mostly wait."""
    run_tests("cargo test", CARGO_TEST, 2400, then=then)


def address_tests():
    command, env = fuzz.address_tests()
    run_tests("cargo test with AddressSanitizer", [*command, "--no-fail-fast"], 1200, env)


def run_tests(name, command, timeout, env=None, then=None):
    """Rust's tests, each of which counts. `then` is called when all is compiled, before the first of them runs."""
    say(name)
    start = time.monotonic()
    counted = {"passed": 0, "failed": 0, "skipped": 0}
    failed = []

    def read(line):
        nonlocal then
        if then and re.match(r"\s+Running ", line):
            then()
            then = None
        if match := re.match(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", line):
            for outcome, number in zip(counted, match.groups()):
                counted[outcome] += int(number)
            return match[2] != "0"
        if match := re.match(r"test (.+?)(?: - should panic)? \.\.\. (\S+)", line):
            if match[2] == "FAILED":
                failed.append(match[1])
            return match[2] == "FAILED"
        return not re.match(r"\s+(Running|Doc-tests) |running \d+ tests?$|$", line) and quiet_cargo(line)

    code = stream(command, timeout, read, env)
    report.passed += [(name, "")] * counted["passed"]
    report.failed += [(f"{name}: {test}", "") for test in failed]
    report.failed += [(name, "")] * max(0, counted["failed"] - len(failed))
    report.skipped += [(name, "ignored")] * counted["skipped"]
    if code != 0 and not counted["failed"]:
        report.add("failed", name, f"exit code {code}")
    print(f"{name}: {counted['passed']} passed, {counted['failed']} failed, {counted['skipped']} ignored "
          f"({time.monotonic() - start:.0f} s)", flush=True)


def suites(names, out=print, into=report):
    """The suites of main.py, in namespaces of their own, where those are allowed: of the network; and of mounts, since a mount of one suite would
    else live on, when it is unmounted, in what another has started in a copy of all mounts. `into`: the report to which their outcomes go."""
    with tempfile.TemporaryDirectory() as folder:
        results = os.path.join(folder, "results.json")
        command = [sys.executable, os.path.join(ROOT, "tests/lab/main.py"), "--results", results, *names]
        alone = ["unshare", "--net", "--mount"]
        if shutil.which("unshare") and subprocess.run([*alone, "true"], stderr=subprocess.DEVNULL).returncode == 0:
            command = alone + command
        else:
            out("no namespaces here: the tests run on this machine's own loopback and mounts", flush=True)
        ended = "were interrupted"
        try:
            code = stream(command, 2700, out=out)
            ended = "took too long" if code is None else f"ended with exit code {code}"
        finally:
            # What they had found until then counts.
            if not os.path.exists(results):
                into.add("failed", " ".join(names), f"the tests {ended}, without results")
            elif not into.load(results):
                into.add("failed", " ".join(names), f"the tests {ended} before they were done")


# Suites beside each other: each mostly waits, in a network of its own.
AT_ONCE = 5

# The longest, so that none of them is left for the end.
LONGEST = ["kernel.nfs", "kernel.nfs_rdma", "kernel.verbs", "kernel.iser", "peers.ceph", "peers.group", "kernel.storm", "peers.nfs", "kernel.multipath",
           "peers.dashboard", "peers.containers", "kernel.linux", "peers.lab", "peers.package", "peers.cu", "peers.api"]


def jobs(words):
    """The suites that the words name, each with those of its cases that are named, in the order in which they begin."""
    found = {}
    for word in words:
        for suite in selected([word]):
            whole = suite == word or word in ("all", *suite.split("."))
            found.setdefault(suite, []).append(suite if whole else f"{suite}:{word.split(':', 1)[1]}")
    rank = {suite: number for number, suite in enumerate(LONGEST)}
    # A whole suite has all of its cases.
    return [[suite] if suite in found[suite] else found[suite] for suite in sorted(found, key=lambda suite: rank.get(suite, len(rank)))]


def of_the_kernel(name):
    """Whether a suite is the lab's kernel's own."""
    return name.startswith("kernel.")


def boots_the_kernel(name):
    """Whether a suite boots the lab's kernel, too: a newcomer's client is one, a target of the kernel's another."""
    return of_the_kernel(name) or name.split(":")[0] in ("peers.package", "peers.whole")


def job(names, build, out, into):
    """Runs one suite; one that boots the lab's kernel once `build` has made it."""
    if build and boots_the_kernel(names[0]) and build.wait(1500) != 0:
        out("the lab's kernel could not be built", flush=True)
    suites(names, out, into)


def all_suites(asked, build):
    """Runs suites beside each other, and prints what each printed when it ends; of a single one at once. Returns those beside others in which
    something has failed, each with its report."""
    if len(asked) == 1:
        job(asked[0], build, print, report)
        return []
    printing, failed = threading.Lock(), []

    def one(names):
        kept, found = [], Report()
        say(" ".join(names))
        try:
            job(names, build, lambda text, end="\n", flush=True: kept.append(text + end), found)
        finally:
            with printing:
                print("".join(kept), end="", flush=True)
                report.extend(found)
                if found.failed:
                    failed.append((names, found))
    # Whoever waits for the kernel must not keep others waiting.
    waits = [names for names in asked if build and build.poll() is None and boots_the_kernel(names[0])]
    pool = concurrent.futures.ThreadPoolExecutor(AT_ONCE)
    try:
        for done in [pool.submit(one, names) for names in [*(names for names in asked if names not in waits), *waits]]:
            done.result()
    except BaseException:
        ending.set()
        pool.shutdown(wait=False, cancel_futures=True)
        interrupt(list(running))
        raise
    finally:
        pool.shutdown()
    return failed


# If more suites, or more of Rust's tests, have failed, a busy machine is not the reason.
MOST_AGAIN = 3


def suites_again(failed):
    """Runs the failed suites of `all_suites` once more, each with the machine to itself: the load of the others may have been the reason.
    The summary names the cases that pass only then."""
    if len(failed) > MOST_AGAIN:
        return
    for names, before in failed:
        say(f"{' '.join(names)} again, alone")
        now = Report()
        suites(names, into=now)
        report.settle(before.failed, now)


def tests_again(name, command):
    """The same for failed tests of Rust's. `command` runs all of them."""
    failed = [entry for entry in report.failed if entry[0].startswith(f"{name}: ")]
    if not 0 < len(failed) <= MOST_AGAIN:
        return
    say(f"{len(failed)} of {name} again, alone")
    now = Report()

    def read(line):
        if match := re.match(r"test (.+?)(?: - should panic)? \.\.\. (\S+)", line):
            (now.passed if match[2] == "ok" else now.failed).append((f"{name}: {match[1]}", ""))
            return True
        return not re.match(r"\s+(Running|Doc-tests) |running \d+ tests?$|test result: |$", line) and quiet_cargo(line)

    stream([*command, "--", "--exact", *(entry[0].removeprefix(f"{name}: ") for entry in failed)], 1200, read)
    report.settle(failed, now)


def behind(group, how, command):
    """A command behind others that want the processors, as `nice` or `chrt --idle 0` has it. Each session is a group of the scheduler,
    outside of which that means nothing: the group has a value of its own, 0 to 19."""
    return ["sh", "-c", f'echo {group} 2>/dev/null >/proc/self/autogroup; exec {how} "$@"', "behind", *command]


def beside(script):
    """Starts a script of the checkout that fills the gaps which compiling Rust leaves."""
    process = subprocess.Popen(behind(10, "nice", [os.path.join(ROOT, script)]), start_new_session=True)
    running.add(process)
    return process


def compile_beside(commands):
    """Compiles in the cycles that tests and suites leave idle what steps after them need. Those steps tell what is wrong. Nothing
    beside it runs a cargo that compiles, which would wait for this one."""
    for command, env in commands:
        stream(behind(19, "chrt --idle 0", command), 2400, lambda _: False, env)


def guided_fuzzing(words):
    """Builds the fuzz targets and runs those that are named, `fuzz:TARGET`, or all of them."""
    names = fuzz.chosen(report, [word.split(":", 1)[1] for word in words if ":" in word])
    if goal := int(os.environ.get("FUZZ_CPU", "0")):
        for address in (False, True):
            if group := [name for name in names if (name in fuzz.UNSAFE) == address]:
                command, env = fuzz.build_command(group, address)
                if step("build of fuzz targets" + " with AddressSanitizer" * address, command, 7200, each_line=quiet_cargo, env=env):
                    say(f"{len(group)} fuzz targets, each until it has had {goal} CPU seconds")
                    fuzz.campaign(report, group, goal, address)
        return
    command, env = fuzz.build_command()
    if step("build of the fuzz targets", command, 1200, each_line=quiet_cargo, env=env):
        say("fuzz targets, guided by coverage")
        fuzz.run_all(report, names)


def main():
    words = sys.argv[1:] or ["unit", "peers", "kernel", "fuzz"]
    fuzzed = [word for word in words if word.split(":")[0] == "fuzz"]
    names = [word for word in words if word not in ("unit", "asan") and word not in fuzzed]
    asked = jobs(names) if names else []
    every = [name for names in asked for name in names]
    kernel = any(map(boots_the_kernel, every))

    build = debian = None
    if kernel:
        build = beside("tests/kernel/build")
    if any(name.split(":")[0] in ("peers.package", "peers.rpm") for name in every):
        debian = beside("tests/service/debian")
    unit = "unit" in words
    command, env = fuzz.address_tests()
    compiled = [([*command, "--no-run"], env), (CLIPPY, None)] * unit + [fuzz.build_command()] * bool(fuzzed)
    compiling = threading.Thread(target=compile_beside, args=(compiled,))
    if unit:
        step("cargo fmt", ["cargo", "fmt", "--all", "--check"], 120)
        cargo_deny()
        cargo_test(compiling.start)
    if unit or "asan" in words:
        address_tests()
    if names:
        if any(map(of_the_kernel, every)):
            tool("fsx", FSX)
            history_judge()
        if not all(map(of_the_kernel, every)):
            python_packages()
        if not os.environ.get("STAG_BIN"):
            # With --workspace what `cargo test` has built can be used again: features are the same.
            step("build of the programs", ["cargo", "build", "--workspace", "--bins", "--examples"], 900, each_line=quiet_cargo)
        if debian:
            debian.wait(1500)
        if compiling.ident is None:
            compiling.start()
        say(f"{len(asked)} suites")
        failed = all_suites(asked, build)
    if compiling.is_alive():
        compiling.join()
    if names:
        suites_again(failed)
    if unit:
        tests_again("cargo test", CARGO_TEST)
        step("clippy, warnings denied", CLIPPY, 1200, each_line=quiet_cargo)
    if fuzzed:
        guided_fuzzing(fuzzed)


def finish(code):
    """Say what came of it all, and end."""
    say("done" if code == 0 else "interrupted")
    for name, why in report.skipped:
        if why != "ignored":
            print(f"skipped: {name}")
    report.retell()
    print(report.summary(), flush=True)
    sys.exit(code or (1 if report.failed else 0))


def told(work):
    """Do the work, and say what came of it, whatever ends it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        work()
    except KeyboardInterrupt:
        ending.set()
        interrupt(list(running))
        finish(130)
    finish(0)


if __name__ == "__main__":
    told(main)
