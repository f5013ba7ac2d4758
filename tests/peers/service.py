"""dist/stag.service under a real systemd, booted from this machine's /usr: the sandbox, reload, upgrade, watchdog, restarts, and
what the journal has of it."""

import json
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
    "audits": "journalctl -p: a login is information, a refused one a warning",
    "managed": "status and apply reach it",
    "reloads": "a reload puts a changed configuration in force, in the same process",
    "foreign-reload": "a reload while QEMU writes and reads back",
    "upgrade-outside": "stag upgrade from outside of the service is refused",
    "foreign-upgrade": "an upgrade while QEMU writes and reads back",
    "upgrades": "a reload after the program was replaced upgrades it under verified load",
    "lives-on": "the watchdog follows the new process",
    "survives-kill": "kill -9 has it restarted",
    "restarts-what-hangs": "a process that hangs is restarted by the watchdog",
    "credential": "a CHAP secret from LoadCredential= lets its user in, after a reload too",
    "credential-upgrade": "an upgrade keeps the secret from LoadCredential=, and so does another one",
    "stops": "it stops in order",
    "refuses": "what keeps it from starting is an error in the journal",
}

PROBE = """[Unit]
Description=Tries stag.service
[Service]
Type=oneshot
TimeoutStartSec=340
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
        "systemd.unit=probe.service", "systemd.log_level=warning", "systemd.mask=systemd-networkd-wait-online.service", ok=None, timeout=400)


def under_systemd(lab):
    """All steps in one boot; each counts as a case."""
    folder = os.path.join(lab.folder, "service")
    os.makedirs(folder)
    results = {}

    def run():
        if lab.kind != "stag":
            raise Skip("stag's own unit")
        proc.need("systemd-nspawn", "objcopy", "iscsi-inq", "qemu-io")
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


    lab.case("journalctl -o json: each line has its priority and its text", journal, os.path.join(folder, "journal"))


under_systemd.adds_its_own = True


def journal(path):
    """What the journal has of the service, as journalctl exports it."""
    with open(path, encoding="utf-8") as file:
        entries = [json.loads(line) for line in file]
    # systemd's own lines about the unit are not ours.
    ours = [entry for entry in entries if entry.get("_COMM") == "stag" and entry.get("_TRANSPORT") == "stdout"]
    for entry in ours:
        expect(entry["PRIORITY"] in ("3", "4", "6", "7") and not entry["MESSAGE"].startswith("<"), f"no priority of ours: {entry}")
        expect(entry["_SYSTEMD_UNIT"] == "stag.service", f"another unit's: {entry}")

    def one(priority, what, **fields):
        wanted = [f'what="{what}"', *(f'{key}="{value}"' for key, value in fields.items())]
        found = [entry for entry in ours if entry["MESSAGE"].startswith("stag::audit: ") and all(word in entry["MESSAGE"] for word in wanted)]
        expect(found, f"no audit line with {wanted}:\n" + "\n".join(entry["MESSAGE"] for entry in ours if "audit" in entry["MESSAGE"]))
        expect(all(entry["PRIORITY"] == priority for entry in found), f"not of priority {priority}: {found}")
        return found[0]["MESSAGE"]

    target = "iqn.2026-01.org.example:locked"
    for priority, what, initiator in (("6", "login", "alice"), ("4", "refused", "mallory")):
        said = one(priority, what, initiator=f"iqn.2026-01.org.example:{initiator}", target=target, user="alice")
        expect(re.search(r" address=127\.0\.0\.1:\d+ ", said), f"no address: {said}")
    one("6", "end", initiator="iqn.2026-01.org.example:alice")
    one("6", "apply")
    one("6", "takeover")
    expect("verb=" in one("6", "control"), "no verb")
    expect(any(entry["PRIORITY"] == "3" and "missing.img" in entry["MESSAGE"] for entry in ours), "no error of the start that failed")
    expect(not any("secret-1" in entry["MESSAGE"] for entry in entries), "a secret in the journal")

CASES = [
    ("systemd-analyze security: 2.0 or less", exposure),
    ("under a booted systemd", under_systemd),
]
