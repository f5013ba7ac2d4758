"""iscsi-test-cu, libiscsi's suite of SCSI and iSCSI tests, over units chosen so that nothing it can test is skipped.

A test skips itself when the unit lacks what it tests (its source says `[SKIPPED]`), so no single unit runs all:

| unit      | what it is                                      | which tests skip themselves without it                   |
|-----------|-------------------------------------------------|----------------------------------------------------------|
| thin      | thin, 512-byte blocks, 8 to a physical block    | UNMAP, GET LBA STATUS, WRITE SAME with UNMAP (LBPME, LBPU, LBPWS, LBPWS10); what needs several logical blocks per physical one: UnmapUnaligned, InvalidDataOutSize |
| 4k        | thin, 4096-byte blocks                          | none: the same tests with other arithmetic               |
| removable | removable medium, thin                          | NoMedia, PreventAllow, StartStopUnit                     |
| full      | fully provisioned, write-through                | none: what a unit that is not thin must refuse           |
| read-only | write-protected                                 | ReadOnly                                                 |
| slow      | sanitizes 10 MiB a second                       | Sanitize.Reset, which looks at a SANITIZE still running after resets, seconds later |

All are smaller than 2^21 blocks, as READ (6) reaches no further and its tests skip (silently) what lies beyond, and
larger than the MAXIMUM WRITE SAME LENGTH, as WriteSame's tests of that limit skip on smaller ones. Every unit is given
twice, as two paths, for MultipathIO and for the tests that need a second initiator. The option -V makes the program
tell every skip: most are told at that level only.

A test counts as skipped when it was skipped, even in part, on every unit, and as failed when it failed on any. The
exceptions, with the clause of the standard that each contradicts, are in cu-exceptions.toml.
"""

import concurrent.futures
import os
import re
import subprocess
import time
import tomllib

from lab import proc
from lab.report import expect
from lab.target import Unit

UNITS = {
    "thin": Unit(thin=True, physical_exponent=3, cache="writeback"),
    "4k": Unit(thin=True, block_bytes=4096, mib=256),
    "removable": Unit(thin=True, removable=True, memory=True),
    "full": Unit(cache="writethrough"),
    "read-only": Unit(read_only=True),
    "slow": Unit(sanitize_rate="10M"),
}

# Tests that only one unit can run.
ONLY_ON = {"Sanitize.Reset": "slow"}

# What a write-protected unit can be asked: the others' tests write first.
READ_ONLY_SUITES = ["Inquiry", "Mandatory", "ReadCapacity10", "ReadCapacity16", "ReadOnly", "ReportSupportedOpcodes",
                    "TestUnitReady"]

# Suites that are written for 512-byte blocks, whatever the unit has (`blocksize = 512` in their source).
FOR_512_BYTES = ["iSCSITMF"]

# Seconds that a whole suite may take. Most take one; those that wait for resets take many.
SUITE_SECONDS = 120
TEST_SECONDS = 40

# The end of a test. After a suite's last one, the log goes on in the same line.
VERDICT = re.compile(r"\s*(passed|FAILED)(    |$)")


def all_tests():
    """Suites, with the names of their tests."""
    suites = {}
    for line in proc.run("iscsi-test-cu", "--list").splitlines():
        parts = line.split(".")
        if parts[0] == "ALL" and len(parts) == 3:
            suites.setdefault(parts[1], []).append(parts[2])
    return suites


class Results:
    """What each test did on each unit."""

    def __init__(self):
        self.outcomes, self.why, self.seconds = {}, {}, {}

    def add(self, test, unit, outcome, why):
        self.outcomes.setdefault(test, {})[unit] = outcome
        self.why[test, unit] = why


def play(pattern, urls, limit, log):
    """Run the tests of one pattern. Yields (suite, test, outcome, why); a test during which the program hung or died has
    the outcome "failed"."""
    command = ["iscsi-test-cu", "-d", "-S", "-V", "-t", pattern, *urls]
    with open(log, "ab") as file:
        start = file.tell()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            code = None
    with open(log, errors="replace") as file:
        file.seek(start)
        text = file.read()
    suite = test = None
    said, results = [], []

    def finish(outcome):
        problems = [line.strip() for line in said if re.search(r"\[(FAILED|FAILURE)\]", line)]
        skips = [line.strip() for line in said if re.search(r"\[SKIPP(ED|ING)\]", line)]
        if outcome == "passed" and skips:
            outcome, problems = "skipped", skips
        results.append([suite, test, outcome, "\n".join(dict.fromkeys(problems[:6]))])

    for line in text.splitlines():
        if match := re.match(r"Suite: (\S+)", line):
            suite, test = match[1], None
        elif match := re.match(r"  Test: (\S+) \.\.\.(.*)", line):
            test, said = match[1], []
            if verdict := VERDICT.match(match[2]):
                finish(verdict[1].lower())
                test = None
        elif test and (verdict := VERDICT.match(line)):
            finish(verdict[1].lower())
            test = None
        elif test:
            said.append(line)
        elif results and results[-1][2] == "failed" and re.match(r"    [1-5]\. ", line):
            results[-1][3] += "\n" + line.split("    Send")[0].strip()
    if code is None or code < 0 or code > 1:
        how = f"not done after {limit} s" if code is None else f"iscsi-test-cu ended with {code}"
        last = "\n".join(line.strip() for line in (said if test else text.splitlines())[-4:])
        results.append([suite, test, "failed", f"{how}\n{last}"])
    return results


def run_unit(name, target, suites, results):
    urls = [target.url(), target.url()]
    log = os.path.join(target.folder, "iscsi-test-cu.log")
    if name == "slow":
        for test in ONLY_ON:
            if test.split(".")[0] in suites:
                outcome, why = "failed", "did not run"
                for _, _, outcome, why in play(f"ALL.{test}", urls, SUITE_SECONDS, log):
                    pass
                results.add(test, name, outcome, why)
        return
    for suite, tests in suites.items():
        if name == "read-only" and suite not in READ_ONLY_SUITES or name == "4k" and suite in FOR_512_BYTES:
            continue
        start = time.monotonic()
        done = set()
        for _, test, outcome, why in play(f"ALL.{suite}", urls, SUITE_SECONDS, log):
            if test is not None:
                if f"{suite}.{test}" not in ONLY_ON:
                    results.add(f"{suite}.{test}", name, outcome, why)
                done.add(test)
        if suite == "iSCSITMF":
            # AbortTaskSimpleAsync ends its session, and the one after it then finds none and skips without a word.
            done.discard("LUNResetSimpleAsync")
        done |= {test for test in tests if f"{suite}.{test}" in ONLY_ON}
        # Those that a hang or a crash kept from running, each by itself.
        for test in tests:
            if test not in done:
                outcome, why = "failed", "did not run"
                for _, ran, outcome, why in play(f"ALL.{suite}.{test}", urls, TEST_SECONDS, log):
                    pass
                results.add(f"{suite}.{test}", name, outcome, why)
        results.seconds[suite, name] = time.monotonic() - start
        target.check_alive()


def exceptions():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cu-exceptions.toml")
    with open(path, "rb") as file:
        return {entry["test"]: entry for entry in tomllib.load(file).get("exception", [])}


def all_of_a_thin_unit(target):
    """All tests over another suite's thin unit of 512-byte blocks: none fails but those that are excepted for the unit thin."""
    all_of_units({"thin": target})


def all_of_units(targets):
    """All tests over targets of another suite, by the name of the unit here that each is like, at once: none fails but those that
    are excepted for that unit."""
    results, excused = Results(), exceptions()
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for job in [pool.submit(run_unit, name, target, all_tests(), results) for name, target in targets.items()]:
            job.result()
    for name in targets:
        outcomes = {test: by_unit[name] for test, by_unit in results.outcomes.items() if name in by_unit}
        failed = [f"{test}: {results.why[test, name]}" for test, outcome in outcomes.items()
                  if outcome == "failed" and name not in excused.get(test, {"units": []}).get("units", UNITS)]
        passed = sum(outcome == "passed" for outcome in outcomes.values())
        print(f"       {name}: {passed} of {len(outcomes)} tests passed, {len(failed)} failed")
        expect(not failed, "\n".join(failed))
        expect(passed > 200, f"only {passed} tests ran")


def iscsi_test_cu(lab):
    proc.need("iscsi-test-cu")
    only = os.environ.get("CU_UNITS", "").split() or list(UNITS)
    chosen = re.compile(os.environ.get("CU_SUITES", "."))
    suites = {suite: tests for suite, tests in all_tests().items() if chosen.search(suite)}
    results = Results()

    def run(name):
        # The program does not answer pings while it waits a minute for its SANITIZE, so none are sent.
        extra = {"limits": {"nop-interval": 0}} if name == "slow" else {}
        with lab.serve(UNITS[name], **extra) as target:
            run_unit(name, target, suites, results)

    # Two at once: they wait more than they work, for resets and timeouts.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        order = sorted(only, key=lambda name: name != "slow")
        for job in [pool.submit(lab.case, f"iscsi-test-cu ran on the unit {name}", run, name) for name in order]:
            job.result()

    excused = exceptions()
    for suite, tests in suites.items():
        for test in (f"{suite}.{test}" for test in tests):
            by_unit = results.outcomes.get(test, {})
            if not by_unit and only == ["read-only"]:
                continue
            label = f"cu {test}"
            failed = [unit for unit, outcome in by_unit.items() if outcome == "failed"]
            ran = [unit for unit, outcome in by_unit.items() if outcome == "passed"]
            if entry := excused.get(test):
                excepted = [unit for unit in failed if unit in entry.get("units", UNITS)]
                failed = [unit for unit in failed if unit not in excepted]
                if excepted:
                    print(f"  ---  {label} on {', '.join(excepted)}: excepted: {entry['clause']}: {entry['why']}")
                if excepted and not failed and not ran:
                    continue
            if failed:
                why = "\n".join(f"on {unit}: {results.why[test, unit]}" for unit in failed)
                lab.report.add("failed", label, why)
            elif ran:
                lab.report.add("passed", label, quiet=True)
            else:
                why = "\n".join(f"on {unit}: {results.why[test, unit]}" for unit in by_unit)
                lab.report.add("skipped", label, why)
    slow = sorted(results.seconds.items(), key=lambda entry: -entry[1])[:6]
    print("       slowest: " + ", ".join(f"{suite} on {unit} {seconds:.0f} s" for (suite, unit), seconds in slow))


iscsi_test_cu.adds_its_own = True
CASES = [("iscsi-test-cu", iscsi_test_cu)]
