"""dist/stag.service under a real systemd, booted from this machine's /usr: the sandbox, reload, upgrade, watchdog, restarts."""

import os
import re
import shutil
import subprocess

from lab import proc
from lab.report import Failed, Skip, expect
from lab.target import Stag

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SERVICE = os.path.join(ROOT, "dist/stag.service")

# The steps of service/probe.sh, and what each shows.
STEPS = {
    "installed": "the unit and its user are installed",
    "starts": "it starts as its own user and serves",
    "confined": "no capability; seccomp and Landlock in force",
    "managed": "status and apply reach it",
    "reloads": "a reload puts a changed configuration in force, in the same process",
    "upgrades": "a reload after the program was replaced upgrades it under verified load",
    "lives-on": "the watchdog follows the new process",
    "survives-kill": "kill -9 has it restarted",
    "restarts-what-hangs": "a process that hangs is restarted by the watchdog",
    "stops": "it stops in order",
}

PROBE = """[Unit]
Description=Tries stag.service
[Service]
Type=oneshot
TimeoutStartSec=240
ExecStart=/bin/sh /probe/probe.sh
ExecStopPost=/bin/systemctl poweroff --force
"""


def exposure(_lab):
    """systemd-analyze judges the sandbox without running it."""
    proc.need("systemd-analyze")
    said = proc.run("systemd-analyze", "security", "--offline=true", "--no-pager", SERVICE, ok=None)
    level = re.search(r"exposure level for \S+: ([0-9.]+)", said)
    expect(level and float(level[1]) <= 2.0, f"systemd-analyze says:\n{proc.tail(said, 3)}")


def boot(folder):
    """Boots a systemd that runs the probe and ends; what it printed."""
    for name in ("stag.service", "stag.sysusers"):
        shutil.copy(os.path.join(ROOT, "dist", name), folder)
    shutil.copy(os.path.join(ROOT, "tests/service/probe.sh"), folder)
    # Without symbols, a tenth of the size: it is copied to memory, twice.
    subprocess.run(["objcopy", "--strip-debug", Stag.binary, os.path.join(folder, "stag")], check=True)
    unit = os.path.join(folder, "probe.service")
    with open(unit, "w", encoding="utf-8") as file:
        file.write(PROBE)
    return proc.run(
        "systemd-nspawn", "--quiet", "--directory=/", "--volatile=yes", "--private-network", "--register=no", "--keep-unit",
        # The container's own filter knows no Landlock.
        "--system-call-filter=landlock_create_ruleset landlock_add_rule landlock_restrict_self",
        "--boot", "--console=pipe", f"--bind={folder}:/probe", f"--bind-ro={unit}:/etc/systemd/system/probe.service",
        f"--bind-ro={folder}/stag.sysusers:/etc/sysusers.d/stag.conf",
        "systemd.unit=probe.service", "systemd.log_level=warning", "systemd.mask=systemd-networkd-wait-online.service", ok=None, timeout=300)


def under_systemd(lab):
    """All steps in one boot; each counts as a case."""
    folder = os.path.join(lab.folder, "service")
    os.makedirs(folder)
    results = {}

    def run():
        if lab.kind != "stag":
            raise Skip("stag's own unit")
        proc.need("systemd-nspawn", "objcopy", "iscsi-inq")
        said = boot(folder)
        path = os.path.join(folder, "results")
        lines = open(path, encoding="utf-8", errors="replace").read().splitlines() if os.path.exists(path) else []
        for line in lines:
            outcome, _, rest = line.partition(" ")
            name, _, why = rest.partition(": ")
            results[name] = (outcome, why.replace("|", "\n"))
        expect(lines and lines[-1] == "done", f"the probe did not end:\n{lines}\n{proc.tail(said)}")

    lab.case("systemd boots, and the probe runs to its end", run)
    for name, what in STEPS.items():
        def step(name=name):
            outcome, why = results.get(name, ("failed", "the probe did not get there"))
            if outcome != "ok":
                raise Failed(why)
        lab.case(what, step)


under_systemd.adds_its_own = True

CASES = [
    ("systemd-analyze security: 2.0 or less", exposure),
    ("under a booted systemd", under_systemd),
]
