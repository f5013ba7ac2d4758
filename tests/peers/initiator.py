"""Stag's own initiator, as people run it (`stag ls`, `info`, `read`, `write`, `cp`), against tgt and against Stag.

What it writes is read back by QEMU, and what QEMU wrote is read back by it.
"""

import json
import os
import subprocess
import time

from lab import proc
from lab.report import Failed, Skip, expect
from lab.target import IQN, Chap, Lab, Stag, Unit
from peers import qemu

MIB = 1 << 20
KINDS = ("tgt", "stag")


def stag(*words, **options):
    if not Stag.binary:
        raise Skip("no stag binary: set STAG_BIN")
    return proc.run(Stag.binary, *words, **options)


def against(case):
    """Runs a case against each kind of target."""
    def both(lab):
        for kind in KINDS:
            if kind == "tgt":
                proc.need("tgtd", "tgtadm")
            other = Lab(lab.report, lab.new_folder(kind), kind)
            try:
                case(other)
            except Failed as reason:
                raise Failed(f"against {kind}: {reason}") from None
    return both


def secret(target, name, text):
    path = os.path.join(target.folder, name)
    with open(path, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(text)
    return path


def image(target, name, mib):
    """Data, zeros and holes."""
    path = os.path.join(target.folder, name)
    with open(path, "wb") as file:
        file.truncate(mib * MIB)
        for at in range(0, mib, 3):
            file.seek(at * MIB)
            file.write(os.urandom(MIB))
    return path


@against
def ls(lab):
    with lab.serve(Unit(), Unit(mib=128, block_bytes=4096)) as target:
        printed = stag("ls", target.portal)
        expect(IQN in printed, f"stag ls: {printed}")
        printed = stag("ls", "--units", target.portal)
        for url in target.urls:
            expect(url in printed, f"stag ls --units does not list {url}:\n{printed}")
        json.loads(stag("ls", "--units", "--json", target.portal))


@against
def info(lab):
    with lab.serve(Unit(thin=True, serial="LAB42"), Unit(block_bytes=4096)) as target:
        for number, block in enumerate((512, 4096)):
            text = stag("info", target.urls[number])
            expect(str(block) in text, f"stag info: {text}")
            told = json.loads(stag("info", "--json", target.urls[number]))
            flat = json.dumps(told)
            expect(str(block) in flat and (number or "LAB42" in flat), f"stag info --json: {flat[:600]}")


@against
def write_and_read(lab):
    with lab.serve(Unit(), Unit(block_bytes=4096)) as target:
        data = image(target, "data", 7)
        back = os.path.join(target.folder, "back")
        for url in target.urls:
            for offset in (0, 12345, 5 * MIB + 512):
                stag("write", "-q", "-i", data, "--offset", offset, url)
                if os.path.exists(back):
                    os.remove(back)
                stag("read", "-q", "-o", back, "--offset", offset, "--length", 7 * MIB, url)
                proc.run("cmp", data, back)
            stag("write", "-q", "-i", data, "--depth", 1, "--block", 4096, "--offset", 0, url, timeout=120)
            if subprocess.run(["which", "qemu-img"], stdout=subprocess.DEVNULL).returncode == 0:
                proc.run("qemu-img", "dd", "-f", "raw", "-O", "raw", "bs=1M", "count=7", f"if={url}", f"of={back}")
                proc.run("cmp", data, back)


@against
def copy(lab):
    with lab.serve(Unit(thin=True), Unit(thin=True)) as target:
        data = image(target, "data", 64)
        back = os.path.join(target.folder, "back")
        stag("cp", "-q", "--verify", data, target.urls[0])
        stag("cp", "-q", target.urls[0], target.urls[1])
        stag("cp", "-q", target.urls[1], back)
        proc.run("cmp", data, back)
        expect(os.stat(back).st_blocks * 512 < 40 * MIB, "zeros did not become holes")


@against
def differing(lab):
    """What others have changed is found, and it alone is written again; at most so fast."""
    proc.need("qemu-io", "qemu-img")
    with lab.serve(Unit()) as target:
        data, url = image(target, "data", 64), target.urls[0]
        begun = time.monotonic()
        stag("cp", "-q", "--limit", "16M", "--no-sparse", data, url, timeout=120)
        expect(time.monotonic() - begun >= 3.5, "64 MiB at 16 MiB a second")
        stag("cp", "--check", data, url)
        qemu.io(url, "write -P 7 5M 4k", "write -P 9 30M 64k")
        for one, other in ((data, url), (url, data)):
            found = stag("cp", "--check", one, other, ok=None)
            expect(found.code == 1 and "the first at byte 5242880" in found, f"{one} beside {other}: {found}")
        stag("cp", "-q", "--differing", "--no-sparse", data, url)
        expect("identical" in proc.run("qemu-img", "compare", "-f", "raw", "-F", "raw", data, url), "what differed was written")
        back = os.path.join(target.folder, "back")
        with open(back, "wb") as file:
            file.write(os.urandom(65 * MIB))
        stag("cp", "-q", "--differing", url, back)
        proc.run("cmp", data, back)


@against
def chap(lab):
    right = Chap("alice", "alice-secret-12", "target", "target-secret-1")
    with lab.serve(Unit(), chap=right) as target:
        own, peer = secret(target, "own", right.secret), secret(target, "peer", right.target_secret)
        wrong = secret(target, "wrong", "wrong-secret-123")
        url = target.urls[0]
        one_way, mutual = ["--user", "alice", "--secret-file", own], ["--mutual-user", "target", "--mutual-secret-file", peer]
        stag("info", *one_way, url)
        stag("info", *one_way, *mutual, url)
        for words in (["--user", "alice", "--secret-file", wrong], [],
                      [*one_way, "--mutual-user", "target", "--mutual-secret-file", wrong]):
            printed = stag("info", *words, url, ok=None)
            expect(printed.code == 5, f"exit code {printed.code} with {words}, not 5:\n{printed}")


@against
def digests(lab):
    with lab.serve(Unit()) as target:
        data, back = image(target, "data", 8), os.path.join(target.folder, "back")
        require = ["--header-digest", "require", "--data-digest", "require"]
        stag("write", "-q", *require, "-i", data, target.urls[0])
        stag("read", "-q", *require, "-o", back, "--length", 8 * MIB, target.urls[0])
        proc.run("cmp", data, back)


def _deaths(target, data, pause):
    """Copies `data` while the target dies, three times at most, each after `pause` seconds. Says how often it did."""
    words = [Stag.binary, "cp", "-q", "--no-sparse", "--depth", "1", "--block", "4096", data, target.urls[0]]
    copying = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    deaths = 0
    while copying.poll() is None and deaths < 3:
        time.sleep(pause)
        if copying.poll() is None:
            target.kill()
            time.sleep(0.2)
            target.restart()
            deaths += 1
    try:
        printed, _ = copying.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        copying.kill()
        raise Failed("the copy hangs after the target's death") from None
    expect(copying.returncode == 0, f"exit code {copying.returncode}: {printed.decode(errors='replace')}")
    return deaths


@against
def reconnects(lab):
    """A copy goes on over the target's death: what was not acknowledged is sent again."""
    with lab.serve(Unit()) as target:
        data, back = image(target, "data", 64), os.path.join(target.folder, "back")
        # A fast machine is through before a late death comes.
        deaths = next(filter(None, (_deaths(target, data, pause) for pause in (0.4, 0.1, 0.03))), 0)
        expect(deaths > 0, "the copy was over before the target could die: the test tests nothing")
        stag("cp", "-q", target.urls[0], back)
        proc.run("cmp", data, back)


def several_connections(lab):
    with Lab(lab.report, lab.new_folder(), "stag").serve(Unit(), Unit(memory=True)) as target:
        data, back = image(target, "data", 64), os.path.join(target.folder, "back")
        for url in target.urls:
            if os.path.exists(back):
                os.remove(back)
            stag("cp", "-q", "--connections", 4, "--verify", data, url)
            stag("cp", "-q", "--connections", 4, "--depth", 32, url, back)
            proc.run("cmp", data, back)


def demo(lab):
    printed = stag("demo")
    expect("iscsi://" in printed, f"stag demo: {printed}")


CASES = [
    ("stag ls: targets and units, of tgt and Stag", ls),
    ("stag info: text and JSON, of tgt and Stag", info),
    ("stag write and read: aligned and not, checked by QEMU, on tgt and Stag", write_and_read),
    ("stag cp: to units, between them and back, sparse, on tgt and Stag", copy),
    ("stag info: CHAP one-way and mutual, with tgt and Stag", chap),
    ("stag write and read: both digests required, with tgt and Stag", digests),
    ("stag cp: compares, and writes what differs, at most so fast, on tgt and Stag", differing),
    ("stag cp: goes on when the target dies and comes again, with tgt and Stag", reconnects),
    ("stag cp: four connections", several_connections),
    ("stag demo", demo),
]
