"""Outcomes: what passed, failed and was skipped, printed as they come and counted at the end.

A case is a function; it passes when it returns, fails when it raises, and is skipped when it raises Skip. A suite may
also add outcomes itself (`Report.add`), as for a peer that runs hundreds of tests of its own.
"""

import functools
import json
import os
import time
import traceback


class Failed(Exception):
    """A peer did not get what it should: the message is for the reader of the report."""


class Skip(Exception):
    """A case cannot run here: the message says what is missing."""


def shortened(text, most):
    """At most that many characters of `text`: its beginning, which has the reason, and its end, which has the newest lines."""
    text = text.strip()
    if len(text) <= most:
        return text
    half = max(most // 2, 1)
    return f"{text[:half].rstrip()} [...] {text[-half:].lstrip()}"


class Report:
    # Some CI systems keep the last 2 KiB of an output: all failures and their reasons fit in there.
    RETOLD = 1400

    def __init__(self, path=None):
        """`path`: where all outcomes until now are kept after each, for whoever started this and may see it ended."""
        self.passed, self.failed, self.skipped = [], [], []
        # Cases that failed beside others and passed alone, with the reason of the failure.
        self.unsteady = []
        self.path = path

    def add(self, outcome, name, why="", seconds=None, quiet=False):
        """Count one outcome ("passed", "failed", "skipped"). `quiet` prints nothing for what passed."""
        getattr(self, outcome).append((name, why))
        if self.path:
            self.save()
        if quiet and outcome == "passed":
            return
        mark = {"passed": "  ok  ", "failed": " FAIL ", "skipped": " skip "}[outcome]
        took = f" ({seconds:.1f} s)" if seconds is not None else ""
        indented = "".join(f"\n        {line}" for line in why.strip().splitlines()) if why else ""
        print(f"{mark} {name}{took}{indented}", flush=True)

    def case(self, name, function, *arguments, more=lambda: []):
        """Run one case and count it. Returns whether it passed. `more`: what else to print if it failed."""
        start = time.monotonic()
        try:
            function(*arguments)
        except Skip as reason:
            # Where everything is installed first, a missing peer is a failure, not a reason to look away.
            outcome = "failed" if os.environ.get("CI") == "true" else "skipped"
            self.add(outcome, name, f"cannot run here: {reason}", time.monotonic() - start)
            return False
        except Failed as reason:
            self.add("failed", name, "\n".join([str(reason), *told(reason), *more()]), time.monotonic() - start)
            return False
        except Exception as reason:  # A fault of the harness is a failure too, with its place.
            self.add("failed", name, "\n".join([traceback.format_exc(limit=-6), *told(reason), *more()]), time.monotonic() - start)
            return False
        self.add("passed", name, seconds=time.monotonic() - start)
        return True

    def save(self, whole=False):
        """Keep what there is in the file; `whole`: there is no more to come."""
        part = f"{self.path}.part"
        with open(part, "w") as file:
            json.dump({"passed": self.passed, "failed": self.failed, "skipped": self.skipped, "whole": whole}, file)
        os.replace(part, self.path)

    def load(self, path):
        """Add what is kept in a file. Returns whether that is all of it."""
        with open(path) as file:
            saved = json.load(file)
        for outcome in ("passed", "failed", "skipped"):
            getattr(self, outcome).extend(tuple(entry) for entry in saved[outcome])
        return saved["whole"]

    def extend(self, other):
        """Add all outcomes of another report."""
        for mine, others in [(self.passed, other.passed), (self.failed, other.failed), (self.skipped, other.skipped)]:
            mine.extend(others)

    def settle(self, failed, now):
        """Count as passed those of these failures that passed in `now`, the report of a second run. What only fails there counts as failed, too."""
        passed, again = ({name for name, _ in outcomes} for outcomes in (now.passed, now.failed))
        for entry in failed:
            if entry[0] in passed - again:
                self.failed.remove(entry)
                self.passed.append((entry[0], ""))
                self.unsteady.append(entry)
        known = {name for name, _ in failed}
        self.failed.extend(entry for entry in now.failed if entry[0] not in known)

    def retell(self, out=print):
        """All failures once more with their reasons, in few enough words that the end of the output has all of them."""
        told = [("failed", *entry) for entry in self.failed] + [("failed beside others, passed alone", *entry) for entry in self.unsteady]
        each = self.RETOLD // max(len(told), 1)
        for what, name, why in told:
            short = shortened(why, max(each - len(name), 0))
            out(f"{what}: {name}" + "".join(f"\n    {line}" for line in short.splitlines()), flush=True)

    def summary(self):
        """The last line of every run."""
        line = f"{len(self.passed)} passed, {len(self.failed)} failed"
        line += f", {len(self.skipped)} skipped" if self.skipped else ""
        return line + (f", {len(self.unsteady)} of what passed only alone" if self.unsteady else "")


def told(reason):
    """What was added to an exception on its way up: the last lines of the log of a target, for one."""
    return getattr(reason, "told", [])


def tell(reason, text):
    """Add to an exception on its way up what helps to find its cause."""
    reason.told = [*told(reason), text]


class TooLittle(Failed):
    """What was to be looked at did not come about in the time that there was: nothing is proved, and nothing is wrong."""


def enough(condition, why):
    if not condition:
        raise TooLittle(why)


def as_needed(*values):
    """Gives a case the first of these values, a time for one, with which on this machine there is `enough` to look at. What is found wrong
    with any of them is wrong. The last is for a machine that is busy, and costs nothing on others."""
    def decorate(case):
        @functools.wraps(case)
        def tries(*arguments):
            for value in values[:-1]:
                try:
                    return case(*arguments, value)
                except TooLittle as reason:
                    print(f"       with {value}: {str(reason).strip().splitlines()[0]}", flush=True)
            return case(*arguments, values[-1])
        return tries
    return decorate


def expect(condition, why):
    if not condition:
        raise Failed(why)
