"""`stag conform`: Stag passes it whole over TCP and over iSER, and of a target that breaks one rule just that rule's checks fail."""

import json
import os
import subprocess
import xml.etree.ElementTree as xml

from lab import liar, wire
from lab.report import Failed, Skip, as_needed, enough, expect
from lab.target import Chap, Stag, Unit

CHAP = Chap("conform-user", "a secret of CI1", "conform-target", "another one CI2")


def conform(url, *words, timeout=600):
    """(exit code, what it told) of `stag conform`."""
    if not Stag.binary:
        raise Skip("no stag binary: set STAG_BIN")
    done = subprocess.run([Stag.binary, "conform", "--json", *map(str, words), url], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=timeout)
    if not done.stdout:
        raise Failed(f"stag conform told nothing: exit code {done.returncode}, {done.stderr}")
    return done.returncode, json.loads(done.stdout)


def failed(told, outcomes=("fail", "warning")):
    return {f"{check['area']}/{check['name']}": check for check in told["checks"] if check["outcome"] in outcomes}


def whole(told, code, least):
    """Fails unless all checks passed, or did not apply for a reason that holds for Stag."""
    wrong = failed(told, ("fail",))
    expect(not wrong and code == 0, "; ".join(f"{name}: seen {check['seen']}, expected {check['expected']}"
                                              for name, check in wrong.items()) or f"exit code {code}")
    expect(told["summary"]["passed"] >= least, f"only {told['summary']['passed']} checks passed: {told['summary']}")
    untested = failed(told, ("untested",))
    expect(set(untested) <= {"nop/own-pings"}, f"not tested: {untested}")
    expect("left_behind" not in told, f"left behind: {told.get('left_behind')}")


def tcp(lab):
    """Everything, over TCP; the unit holds at the end what it held before."""
    if lab.kind != "stag":
        raise Skip("the figures are Stag's")
    folder = lab.new_folder("conform")
    with lab.serve(Unit()) as target:
        before = os.urandom(1 << 20)
        with wire.session(target) as session:
            for at in range(0, len(before), 65536):
                session.write(at // 512, before[at:at + 65536])
        junit = os.path.join(folder, "conform.xml")
        code, told = conform(target.urls[0], "--write", "--destructive", "--junit", junit)
        whole(told, code, 240)
        cases = xml.parse(junit).getroot().findall(".//testcase")
        expect(len(cases) == told["summary"]["checks"], f"{len(cases)} test cases in JUnit's XML")
        with wire.session(target) as session:
            after = b"".join(session.read(at // 512, 128) for at in range(0, len(before), 65536))
        expect(after == before, "the unit does not hold what it held before")


def reading(lab):
    """Without leave to write nothing is written, and data that goes out is tested all the same."""
    if lab.kind != "stag":
        raise Skip("the figures are Stag's")
    with lab.serve(Unit(mib=8)) as target:
        with open(target.units[0].path, "r+b") as file:
            file.write(os.urandom(4 << 20))
        before = open(target.units[0].path, "rb").read()
        code, told = conform(target.urls[0], "--only", "data-out", "--only", "data-in")
        expect(code == 0 and told["summary"]["passed"] >= 35, f"exit code {code}, {told['summary']}")
        expect(open(target.units[0].path, "rb").read() == before, "the unit was written to")


def chap(lab):
    """Authentication, where CHAP is required both ways."""
    if lab.kind != "stag":
        raise Skip("the figures are Stag's")
    folder = lab.new_folder("conform")
    secrets = []
    for name, secret in (("mine", CHAP.secret), ("theirs", CHAP.target_secret)):
        secrets.append(os.path.join(folder, name))
        with open(secrets[-1], "w") as file:
            file.write(secret + "\n")
    with lab.serve(Unit(memory=True), chap=CHAP) as target:
        code, told = conform(target.urls[0], "--only", "security", "--user", CHAP.name, "--secret-file", secrets[0],
                             "--mutual-user", CHAP.target_name, "--mutual-secret-file", secrets[1])
        whole(told, code, 18)


def iser(lab):
    """Everything that applies, over iSER."""
    if lab.kind != "stag":
        raise Skip("only Stag serves iSER")
    with lab.serve(Unit(memory=True)) as target:
        code, told = conform(target.urls[0].replace("iscsi://", "iser://"), "--write", "--destructive")
        whole(told, code, 180)


def status_number(pdu):
    if pdu.opcode == wire.RESPONSE and pdu.head[3] == 2:
        pdu.set_word(24, pdu.word(24) + 1)


def residual(pdu):
    if pdu.opcode in (wire.RESPONSE, wire.DATA_IN) and pdu.head[1] & 4:
        pdu.set_word(44, pdu.word(44) + 1)


def data_number(pdu):
    if pdu.opcode == wire.DATA_IN and pdu.word(36) == 2:
        pdu.set_word(36, 3)


def r2t_number(pdu):
    if pdu.opcode == wire.R2T:
        pdu.set_word(36, pdu.word(36) + 1)


def short_echo(pdu):
    if pdu.opcode == wire.NOP_IN and len(pdu.data) == 64:
        pdu.data = pdu.data[:63]


def no_echo(pdu):
    return not (pdu.opcode == wire.NOP_IN and len(pdu.data) == 33)


def digest(pdu):
    if pdu.opcode == wire.NOP_IN and len(pdu.data) == 3:
        pdu.spoil_data_digest = True


def group_tag(pdu):
    if pdu.opcode == wire.LOGIN_RESPONSE:
        pdu.data = pdu.data.replace(b"TargetPortalGroupTag=", b"X-PortalGroupTag=")


class LongBurst(liar.Lie):
    """The target believes that longer bursts were agreed on than the initiator does."""

    LONG, SHORT = b"MaxBurstLength=262144\0", (b"MaxBurstLength=4096\0", b"MaxBurstLength=16384\0")

    def to_target(self, pdu):
        if pdu.opcode == wire.LOGIN:
            for short in self.SHORT:
                if short in pdu.data:
                    self.agreed = short
                    pdu.data = pdu.data.replace(short, self.LONG)
        return True

    def to_initiator(self, pdu):
        if pdu.opcode == wire.LOGIN_RESPONSE and self.LONG in pdu.data and getattr(self, "agreed", None):
            pdu.data = pdu.data.replace(self.LONG, self.agreed)
            self.agreed = None
        return True


class Hasty(liar.Lie):
    """A task management function is answered though a command before it has not come: the target takes it for one that was sent before that."""

    requests = True

    def __init__(self, function):
        self.function = function

    def to_target(self, pdu):
        if pdu.opcode == wire.TASK_MANAGEMENT and pdu.head[1] & 0x7F == self.function:
            pdu.set_word(24, pdu.word(24) - 1)
        return True


class Acknowledging(liar.Lie):
    """The answers to the target's pings acknowledge the last status, though the initiator does not."""

    requests = True
    last = None

    def to_initiator(self, pdu):
        if pdu.opcode == wire.RESPONSE:
            self.last = pdu.word(24)
        return True

    def to_target(self, pdu):
        if pdu.opcode == wire.NOP_OUT and pdu.word(16) == 0xFFFFFFFF and pdu.word(28) == self.last:
            pdu.set_word(28, self.last + 1)
        return True


ABORT_TASK_SET, CLEAR_TASK_SET = 2, 4
LIES = [
    ("a StatSN that skips one", liar.answering(status_number), ["numbers", "nop"], {"numbers/statsn-by-one"}),
    ("a Residual Count that is one too many", liar.answering(residual), ["data-in", "nop"],
     {"data-in/overflow", "data-in/overflow-of-nothing-expected"}),
    ("a DataSN that skips one", liar.answering(data_number), ["data-in"], {"data-in/datasn-from-0-by-one"}),
    ("an R2TSN that begins with 1", liar.answering(r2t_number), ["data-out"], {"data-out/r2tsn-from-0-by-one"}),
    ("R2Ts and reads beyond MaxBurstLength", LongBurst(), ["data-in", "data-out"],
     {"data-out/r2ts-fit-a-burst", "data-in/sequences-fit-a-burst"}),
    ("an echo that is a byte short", liar.answering(short_echo), ["nop", "text"], {"nop/echo"}),
    ("a ping that is not answered", liar.answering(no_echo), ["nop"], {"nop/many-at-once"}),
    ("a data digest that is wrong", liar.answering(digest), ["digests", "nop"], {"digests/padding-is-covered"}),
    ("an abort that does not wait for commands on their way", Hasty(ABORT_TASK_SET), ["connections"],
     {"connections/abort-waits-for-commands-on-their-way"}),
    ("a clear that does not wait for commands on their way", Hasty(CLEAR_TASK_SET), ["connections"],
     {"connections/clear-waits-for-commands-on-their-way"}),
    ("an abort that does not wait for acknowledgements", Acknowledging(), ["connections"],
     {"connections/abort-waits-for-acknowledgements"}),
    ("a login without its portal group tag", liar.answering(group_tag), ["login"], {"login/portal-group-tag"}),
]


def lies(lab):
    """Each lie is found by the checks that are about it, and by no others."""
    if lab.kind != "stag":
        raise Skip("it lies before Stag")
    with lab.serve(Unit(memory=True)) as target:
        # What Stag itself does otherwise than it should is not the lie's.
        for name, lie, areas, wanted in LIES:
            @as_needed(1, 10)
            def one(timeout):
                with liar.lying(target, lie) as port:
                    url = target.urls[0].replace(str(target.port), str(port), 1)
                    words = [word for area in areas for word in ("--only", area)]
                    code, told = conform(url, "--write", "--destructive", "--timeout", timeout, *words)
                found = failed(told, ("fail",))
                enough(set(found) <= wanted, f"more than the lie takes {timeout} s: {sorted(set(found) - wanted)}")
                expect(set(found) == wanted, f"failed: {sorted(found)}; wanted: {sorted(wanted)}; "
                       + "; ".join(f"{name}: {check['seen']}" for name, check in found.items()))
                expect(code == 1, f"exit code {code}")
            lab.case(f"conform: finds {name}, and nothing else", one)


lies.adds_its_own = True


def unreachable(lab):
    """Nobody there: status 5, and a sentence."""
    if not Stag.binary:
        raise Skip("no stag binary: set STAG_BIN")
    done = subprocess.run([Stag.binary, "conform", "iscsi://127.0.0.1:1/iqn.2026-01.example.lab:disks/0"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120)
    expect(done.returncode == 5 and "cannot be reached" in done.stderr, f"exit code {done.returncode}: {done.stderr}")


CASES = [
    ("conform: Stag passes everything over TCP, and its unit is as before", tcp),
    ("conform: nothing is written without leave", reading),
    ("conform: Stag passes with CHAP both ways", chap),
    ("conform: Stag passes everything over iSER", iser),
    ("conform: lies", lies),
    ("conform: a target that is not there", unreachable),
]
