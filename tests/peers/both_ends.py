"""Our own initiator against our own target (or another that recovers) over a way that loses, spoils and cuts: `stag bench
--verify` through lab/meddler.py. Every block that is read is checked, and the session must not be lost."""

import json
import re
import threading
import urllib.parse

from lab import proc
from lab.meddler import (COMMAND, DATA_IN, DATA_OUT, DOWN, R2T, RESPONSE, UP, Meddler, Rule)
from lab.report import Skip, as_needed, enough, expect
from lab.target import Stag, Unit

EVERYTHING = [(DOWN, DATA_IN, "spoil", 150), (DOWN, DATA_IN, "lose", 150), (DOWN, RESPONSE, "lose", 150), (DOWN, R2T, "lose", 60),
              (UP, COMMAND, "spoil", 150), (UP, COMMAND, "lose", 400), (UP, DATA_OUT, "spoil", 100), (UP, DATA_OUT, "lose", 200)]


def run(lab, level, connections, rules=(), digests=True, cut_every=None, seconds=3):
    """One run; its figures, and the proxy."""
    if lab.kind != "stag":
        raise Skip("the target does not recover")
    with lab.serve(Unit(mib=64), limits={"data-timeout": 2, "default-time2wait": 0}) as target:
        url = urllib.parse.urlparse(target.urls[0])
        proxy = Meddler(("127.0.0.1", 0), (url.hostname, url.port), (digests, digests), [Rule(*rule) for rule in rules])
        over = threading.Event()

        def cutter():
            while cut_every and not over.wait(cut_every):
                proxy.cut()

        thread = threading.Thread(target=cutter)
        thread.start()
        words = ["--header-digest", "require", "--data-digest", "require"] if digests else []
        try:
            printed = proc.run(
                Stag.binary, "bench", "--json", "--verify", "--destroy", "--fill", "--pattern", "randrw", "--bs", "64k", "--depth",
                "16", "--time", seconds, "--span", "16M", "--erl", level, "--connections", connections, *words,
                f"iscsi://127.0.0.1:{proxy.port}{url.path}", timeout=150, env={"STAG_LOG": "info"})
        finally:
            over.set()
            thread.join()
            proxy.close()
        target.check_alive()
        return judge(printed), proxy


def judge(printed):
    """What a run tells of its recovery. It must have had no error, and kept its session."""
    figures, = json.JSONDecoder().raw_decode(printed[printed.index("{\n"):])[0]["runs"]
    log = proc.tail("\n".join(line for line in printed.splitlines() if re.match(r"\S+Z +[A-Z]+ ", line)), 8)
    names = ("ios", "reconnects", "retries", "snacks", "reassigns", "replaced_connections")
    told = {name: figures[name] for name in names}
    expect(figures["errors"] == 0, f"{figures['errors']} errors, the first: {figures['first_error']}\n{log}")
    expect(figures["reconnects"] == 0, f"the session was lost: {told}\n{log}")
    return told


def within_a_connection(connections):
    @as_needed(3, 30)
    def case(lab, seconds):
        told, proxy = run(lab, 1, connections, EVERYTHING, seconds=seconds)
        enough(sum(rule.times for rule in proxy.rules) > 3, f"hardly anything was meddled with: {told}")
        enough(told["snacks"] + told["retries"] > 0, f"nothing was recovered: {told}")
    return case


def of_a_connection(connections, cut_every):
    @as_needed(3, 30)
    def case(lab, seconds):
        told, proxy = run(lab, 2, connections, digests=False, cut_every=cut_every, seconds=seconds)
        enough(proxy.cuts > 1 and told["replaced_connections"] > 1, f"no connection was cut: {told}")
        enough(told["reassigns"] > 0, f"no command was reassigned: {told}")
    return case


@as_needed(4, 30)
def everything_at_once(lab, seconds):
    told, proxy = run(lab, 2, 4, EVERYTHING, cut_every=0.7, seconds=seconds)
    # Of what is lost with its connection nothing has to be asked for.
    enough(proxy.cuts > 1 and told["snacks"] + told["retries"] + told["reassigns"] > 0, f"nothing was recovered: {told}")


def unasked_over_iser(lab):
    """Writes of several PDUs whose data goes with and behind their commands (RFC 7145 §7.3.4)."""
    if lab.kind != "stag":
        raise Skip("it speaks no iSER")
    with lab.serve(Unit(mib=64, memory=True), iser={"unsolicited-data": True, "markers": True}) as target:
        for size in ("12k", "64k", "128k"):
            printed = proc.run(
                Stag.binary, "bench", "--json", "--verify", "--destroy", "--fill", "--pattern", "randrw", "--bs", size, "--depth", "16",
                "--time", "0.5", "--span", "16M", "--iser-unsolicited", "128K", "--rdma-markers", "--rdma-crc", "require",
                target.urls[0].replace("iscsi://", "iser://"), timeout=90)
            figures, = json.loads(printed[printed.index("{"):])["runs"]
            expect(figures["errors"] == 0 and figures["ios"] > 0, f"{size}: {figures}")


CASES = [
    ("both ends: lost and spoilt PDUs are recovered at level 1", within_a_connection(1)),
    ("both ends: the same with four connections", within_a_connection(4)),
    ("both ends: of four connections some are cut again and again, and the others go on with their commands",
     of_a_connection(4, 0.3)),
    ("both ends: an only connection is cut again and again, and the next goes on with its commands", of_a_connection(1, 0.5)),
    ("both ends: all of it at once at level 2", everything_at_once),
    ("both ends: over iSER, with markers, writes of several PDUs go unasked", unasked_over_iser),
]
