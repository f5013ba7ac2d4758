"""tests/run itself: what it has found counts, whatever ends it."""

import contextlib
import os
import signal
import subprocess
import sys

from lab.report import Report, expect

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Stands for tests/lab/main.py: a suite of its own in the place of those that there are.
SUITE = """\
import os, signal, sys, time, types
sys.dont_write_bytecode = True
sys.path.insert(0, {tests!r})
from lab import main
from lab.report import expect

def second(lab):
    expect(False, "a reason")

def third(lab):
    print("under way", flush=True)
    {then}

suite = types.ModuleType("peers.made_up")
suite.CASES = [("first", lambda lab: None), ("second", second), ("third", third), ("fourth", lambda lab: None)]
sys.modules[suite.__name__] = suite
main.SUITES = [suite.__name__]
sys.argv += ["--target", "tgt"]
main.main()
"""

# In the background of a shell Ctrl-C is ignored.
RUN = """\
import signal, sys
sys.dont_write_bytecode = True
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {tests!r})
from lab import command
command.ROOT = {folder!r}
command.told(lambda: command.suites(["made_up"]))
"""


def of_a_made_up_suite(lab, then, sent=None):
    """(exit code, what was printed) of a run whose third case does `then`, and to which `sent` is sent meanwhile."""
    folder = lab.new_folder("itself")
    os.makedirs(os.path.join(folder, "tests/lab"))
    with open(os.path.join(folder, "tests/lab/main.py"), "w") as file:
        file.write(SUITE.format(tests=TESTS, then=then))
    process = subprocess.Popen([sys.executable, "-c", RUN.format(tests=TESTS, folder=folder)], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    try:
        printed = ""
        while sent and "under way" not in printed:
            line = process.stdout.readline()
            expect(line, f"it ended before: {printed}")
            printed += line
        if sent:
            process.send_signal(sent)
        rest, _ = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return process.returncode, printed + rest


def counts_what_it_had(lab):
    """Ctrl-C, SIGTERM and a crash: what has passed and failed until then is in the count, and so is that it was not all."""
    for sent in (signal.SIGINT, signal.SIGTERM):
        code, printed = of_a_made_up_suite(lab, "time.sleep(600)", sent)
        expect(code == 130, f"exit code {code}: {printed}")
        expect(printed.splitlines()[-1] == "1 passed, 2 failed", printed)
        expect("failed: second\n    a reason" in printed and "the tests were interrupted before they were done" in printed, printed)
    code, printed = of_a_made_up_suite(lab, "os.kill(os.getpid(), signal.SIGKILL)")
    expect(code == 1 and printed.splitlines()[-1] == "1 passed, 2 failed", f"exit code {code}: {printed}")
    expect("the tests ended with exit code -9 before they were done" in printed, printed)


def tells_no_more_of_a_whole_run(lab):
    code, printed = of_a_made_up_suite(lab, "pass")
    expect(code == 1 and printed.splitlines()[-1] == "3 passed, 1 failed", f"exit code {code}: {printed}")


def outcomes_are_kept_as_they_come(lab):
    path = os.path.join(lab.new_folder("itself"), "results.json")
    report = Report(path)
    with contextlib.redirect_stdout(None):
        report.add("passed", "one")
        report.add("failed", "two", "a reason")
    again = Report()
    expect(not again.load(path), "it is told to be whole")
    expect(again.passed == [("one", "")] and again.failed == [("two", "a reason")], f"{again.passed} {again.failed}")
    report.save(whole=True)
    expect(Report().load(path), "it is not told to be whole")


# Stands for tests/lab/main.py. The suite "always" passes, "later" passes from its second run on,
# and every other one fails. Another case of "later" passes in its second run only if it is steady.
TWICE = """\
import os, sys
sys.dont_write_bytecode = True
sys.path.insert(0, {tests!r})
from lab.report import Report
name, report = sys.argv[-1], Report(sys.argv[sys.argv.index("--results") + 1])
mark = os.path.join({folder!r}, name)
runs = os.path.getsize(mark) if os.path.exists(mark) else 0
open(mark, "a").write("x")
well = name == "always" or name == "later" and runs > 0
report.add("passed" if well else "failed", name + "s case", "a reason")
if name == "later":
    report.add("passed" if runs == 0 or {steady} else "failed", "another case", "another reason")
report.save(whole=True)
"""

AGAIN = """\
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, {tests!r})
from lab import command
command.ROOT = {folder!r}
command.told(lambda: command.suites_again(command.all_suites({asked!r}, None)))
"""

# Stands for cargo: "one" passes, "two" fails, and no other test is there.
CARGO = ["sh", "-c", 'shift 2; for name; do case $name in one) echo "test one ... ok";; two) echo "test two ... FAILED";; esac; done', "cargo"]

TESTS_AGAIN = """\
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, {tests!r})
from lab import command
command.report.failed += [("cargo test: " + name, "") for name in {failed!r}]
command.told(lambda: command.tests_again("cargo test", {cargo!r}))
"""


def what_failed_beside_others_runs_again_alone(lab):
    """What passes then counts, and is told; what fails again counts as failed; and where too many failed, none is taken again."""
    def of(asked, steady=True):
        folder = lab.new_folder("itself")
        os.makedirs(os.path.join(folder, "tests/lab"))
        with open(os.path.join(folder, "tests/lab/main.py"), "w") as file:
            file.write(TWICE.format(tests=TESTS, folder=folder, steady=steady))
        run = subprocess.run([sys.executable, "-c", AGAIN.format(tests=TESTS, folder=folder, asked=[[name] for name in asked])],
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        runs = {name: os.path.getsize(os.path.join(folder, name)) for name in asked}
        return run.returncode, run.stdout, runs

    code, printed, runs = of(["always", "later"])
    expect(code == 0 and printed.splitlines()[-1] == "3 passed, 0 failed, 1 of what passed only alone", printed)
    expect("failed beside others, passed alone: laters case\n    a reason" in printed and runs == {"always": 1, "later": 2}, f"{runs}: {printed}")
    code, printed, runs = of(["always", "later", "never"])
    expect(code == 1 and printed.splitlines()[-1] == "3 passed, 1 failed, 1 of what passed only alone", printed)
    expect("failed: nevers case\n    a reason" in printed and runs["never"] == 2, f"{runs}: {printed}")
    code, printed, runs = of(["later", "n1", "n2", "n3"])
    expect(code == 1 and printed.splitlines()[-1] == "1 passed, 4 failed" and set(runs.values()) == {1}, f"{runs}: {printed}")
    code, printed, _ = of(["always", "later"], steady=False)
    expect(code == 1 and "failed: another case\n    another reason" in printed, f"a failure of the second run alone is lost: {printed}")


def failed_tests_of_rust_run_again_alone(lab):
    """A test that is not there any more, as one of a crate that does not compile, has not passed."""
    for failed, code, last in [
        (["one", "two"], 1, "1 passed, 1 failed, 1 of what passed only alone"),
        (["one"], 0, "1 passed, 0 failed, 1 of what passed only alone"),
        (["gone"], 1, "0 passed, 1 failed"),
        (["one"] * 4, 1, "0 passed, 4 failed"),
    ]:
        run = subprocess.run([sys.executable, "-c", TESTS_AGAIN.format(tests=TESTS, failed=failed, cargo=CARGO)],
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        expect(run.returncode == code and run.stdout.splitlines()[-1] == last, f"{failed}: {run.returncode}: {run.stdout}")


CASES = [
    ("failed tests of Rust's run again alone", failed_tests_of_rust_run_again_alone),
    ("what failed beside others runs again alone", what_failed_beside_others_runs_again_alone),
    ("outcomes are kept as they come", outcomes_are_kept_as_they_come),
    ("a run that is interrupted counts what it had", counts_what_it_had),
    ("a run that comes to its end counts all", tells_no_more_of_a_whole_run),
]
