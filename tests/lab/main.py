#!/usr/bin/env python3
"""Runs suites of tests against a target: main.py [--target stag|tgt] [--results FILE] [--keep] [SUITE[:CASE]...]

tests/run calls it inside a network namespace of its own; by hand: `unshare -n tests/lab/main.py --target tgt kernel`.
"""

import argparse
import concurrent.futures
import importlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, TESTS)

from lab.report import Report  # noqa: E402
from lab.target import Lab, Stag  # noqa: E402

# Suites in the order they run: the cheapest and most telling first.
SUITES = ["peers.itself", "peers.docs", "peers.libiscsi", "peers.nfs", "peers.nfs_wire", "peers.nfs_media", "peers.nfs_capture", "peers.qemu", "peers.containers", "peers.login", "peers.session", "peers.manage", "peers.imported", "peers.service", "peers.package", "peers.rpm", "peers.image", "peers.recovery", "peers.both_ends", "peers.ceph", "peers.gateways", "peers.group", "peers.nbd", "peers.bridge",
          "peers.sessions",
          "peers.isns", "peers.osd_vectors", "peers.osd", "peers.osd_capture", "peers.durable", "peers.health", "peers.metrics", "peers.api", "peers.dashboard", "peers.whole", "peers.hostile", "peers.conform", "peers.capture", "peers.rping", "peers.iwarp_hostile",
          "peers.iser_capture", "peers.initiator", "peers.bench", "peers.lab", "peers.side_by_side", "peers.cu", "kernel.iwarp",
          "kernel.iser", "kernel.lio", "kernel.lio_recovery", "kernel.lio_imported", "kernel.verbs",
          "kernel.multipath", "kernel.storm", "kernel.nfs", "kernel.nfs_rdma", "kernel.linux"]


def selected(words):
    """The suites that the words name: all, a group ("peers"), or one ("cu", "peers.cu")."""
    chosen = [suite for suite in SUITES for word in words or ["all"]
              if word == "all" or word.split(":")[0] in (suite, suite.split(".")[0], suite.split(".")[1])]
    unknown = [word for word in words
               if word != "all" and not any(word.split(":")[0] in (s, *s.split(".")) for s in SUITES)]
    if unknown:
        sys.exit(f"no suite {', '.join(unknown)}; there are: {', '.join(SUITES)}")
    return list(dict.fromkeys(chosen))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", nargs="*")
    parser.add_argument("--target", default="stag", choices=["stag", "tgt"])
    parser.add_argument("--results", help="save the outcomes here as JSON, after each of them")
    parser.add_argument("--keep", action="store_true", help="keep the folder with logs and images")
    options = parser.parse_args()

    # A network namespace begins with its loopback down. Outside of one this changes nothing.
    subprocess.run(["ip", "link", "set", "lo", "up"], check=False, stderr=subprocess.DEVNULL)
    if options.target == "stag" and not Stag.binary:
        root = os.path.dirname(TESTS)
        Stag.binary = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(root, "target")), "debug", "stag")
        if not os.path.exists(Stag.binary):
            sys.exit(f"{Stag.binary} is missing: cargo build -p stag, or set STAG_BIN")

    # Whatever ends it, what it has started is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    report, interrupted = Report(options.results), False
    try:
        with temporary(options.keep) as folder:
            # Daemons of the run know nothing of those of other runs, nor of the machine's own.
            os.environ["STATE_DIRECTORY"] = os.path.join(folder, "state")
            # Our clients' name, which is else that of the machine.
            os.environ["STAG_INITIATOR"] = "iqn.2026-01.example.lab:initiator"
            lab = Lab(report, folder, options.target)
            with lab.ends:
                run(lab, options)
    except KeyboardInterrupt:
        interrupted = True
        print("interrupted", flush=True)
    if not options.results:
        report.retell()  # Whoever asked for results tells of the failures.
    elif not interrupted:
        report.save(whole=True)
    print(report.summary())
    sys.exit(130 if interrupted else 1 if report.failed else 0)


def run(lab, options):
    """All suites that are asked for."""
    for suite in selected(options.suite):
        only = [word.split(":", 1)[1] for word in options.suite
                if ":" in word and word.split(":")[0] in (suite, *suite.split("."))]
        start, before = time.monotonic(), processors()
        print(f"== {suite} ({options.target})", flush=True)
        module = importlib.import_module(suite)
        chosen = [(name, function) for name, function in module.CASES if not only or any(word in name for word in only)]
        beside = [case for case in chosen if getattr(case[1], "disturbs_nobody", False)]
        for name, function in chosen:
            if (name, function) in beside:
                continue
            if getattr(function, "adds_its_own", False):
                function(lab)
            else:
                lab.case(name, function, lab)
        # Two at once: they wait more than they work.
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for job in [pool.submit(lab.case, name, function, lab) for name, function in beside]:
                job.result()
        print(f"== {suite}: {time.monotonic() - start:.0f} s, {processors() - before:.0f} s of processors", flush=True)


def processors():
    """Seconds of processors until now, of this process and of those that it has waited for."""
    return sum(sum(resource.getrusage(whose)[:2]) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


class temporary:
    """A folder for the run, deleted after it unless it is to be kept."""

    def __init__(self, keep):
        self.keep = keep

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="stag-lab-")
        return self.folder

    def __exit__(self, *_):
        if self.keep:
            print(f"kept: {self.folder}")
        else:
            subprocess.run(["rm", "-rf", self.folder], check=False)


if __name__ == "__main__":
    main()
