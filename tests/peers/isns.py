"""iSNS (RFC 4171) with open-isns: what `stag serve` registers and deregisters, and `stag ls --isns`."""

import contextlib
import os
import re
import subprocess
import time

from lab import proc
from lab.report import expect
from lab.target import IQN, Stag, Unit

PORT = 33205
SERVER = f"127.0.0.1:{PORT}"


class Isnsd:
    """open-isns' server, without its authentication."""

    def __init__(self, lab, period="10m"):
        self.folder = lab.new_folder("isns")
        with open(f"{self.folder}/isnsd.conf", "w") as file:
            file.write(f"Database = {self.folder}/db\nBindAddress = {SERVER}\nControlSocket = {self.folder}/control\n"
                       f"PIDFile = {self.folder}/pid\nSecurity = 0\nSLPRegister = 0\nRegistrationPeriod = {period}\n"
                       "DefaultDiscoveryDomain = 1\nESIMinInterval = 1s\nESIMaxInterval = 2m\nESIRetries = 3\n")
        with open(f"{self.folder}/isnsadm.conf", "w") as file:
            file.write(f"ServerAddress = {SERVER}\nSecurity = 0\nSourceName = iqn.2026-01.example.lab:adm\n")
        self.process = None

    def start(self):
        log = open(f"{self.folder}/isnsd.log", "ab")
        self.process = subprocess.Popen(["isnsd", "-f", "-c", f"{self.folder}/isnsd.conf", "-d", "message,esi,scn"],
                                        stdout=log, stderr=log)
        proc.wait_until(lambda: self.admin("--list", "nodes").code == 0, 60, "isnsd answers")

    def stop(self):
        proc.end(self.process, 5)

    def admin(self, *words):
        return proc.run("isnsadm", "-c", f"{self.folder}/isnsadm.conf", *words, ok=None, timeout=60)

    def nodes(self):
        return set(re.findall(r"iqn\.[^\s\"]+", self.admin("--list", "nodes")))

    def log(self):
        with open(f"{self.folder}/isnsd.log", errors="replace") as file:
            return file.read()


@contextlib.contextmanager
def served(lab, **isns):
    """Two targets, two portals in two groups; the second target behind the second portal only."""
    folder = lab.new_folder("stag")
    ports = proc.free_port(), proc.free_port()
    options = "".join(f"{key} = {value!r}\n".replace("'", '"') for key, value in isns.items())
    with open(f"{folder}/stag.toml", "w") as file:
        file.write(f'[isns]\nserver = "{SERVER}"\nentity = "lab.example"\n{options}'
                   f'[[portal]]\nlisten = "127.0.0.1:{ports[0]}"\n[[portal]]\nlisten = "127.0.0.1:{ports[1]}"\ngroup = 2\n'
                   f'[[target]]\niqn = "{IQN}"\nalias = "disks of the lab"\n[[target.unit]]\nlun = 0\npath = "mem:8M"\n'
                   f'[[target]]\niqn = "{IQN}-b"\ngroups = [2]\n[[target.unit]]\nlun = 0\npath = "mem:8M"\n')
    log = open(f"{folder}/stag.log", "ab")
    process = subprocess.Popen([Stag.binary, "serve", "--config", f"{folder}/stag.toml", "--control", "none"],
                               stdout=subprocess.DEVNULL, stderr=log)
    try:
        yield ports, process, f"{folder}/stag.log"
    finally:
        proc.end(process)


def need(lab):
    proc.need("isnsd", "isnsadm")
    return lab.kind == "stag"


def registered(lab):
    """Targets, portals and portal groups are registered, found by `stag ls --isns`, and deregistered at the end."""
    if not need(lab):
        return
    server = Isnsd(lab)
    server.start()
    try:
        with served(lab) as (ports, process, _):
            both = {IQN, f"{IQN}-b"}
            proc.wait_until(lambda: server.nodes() >= both, 60, "both targets are registered")
            found = proc.run(Stag.binary, "ls", "--isns", SERVER)
            lines = sorted((line for line in found.splitlines() if "iqn." in line), key=lambda line: line.split("/")[3])
            expect(len(lines) == 2, f"stag ls --isns says\n{found}")
            expect(f"127.0.0.1:{ports[0]},1 " in lines[0] + " " and f"127.0.0.1:{ports[1]},2" in lines[0],
                   f"not behind both portals: {lines[0]}")
            expect(f"127.0.0.1:{ports[1]},2" in lines[1] and str(ports[0]) not in lines[1],
                   f"behind another portal than its own: {lines[1]}")
            units = proc.run(Stag.binary, "ls", "--isns", SERVER, "--units")
            expect(units.count("8M") == 2, f"their units:\n{units}")
            alias = server.admin("--query", f"iscsi-name={IQN}")
            expect("disks of the lab" in alias, f"the alias is not registered:\n{alias}")
            expect(proc.end(process) == 0, "stag serve did not end well")
        expect(not server.nodes() & both, f"still registered: {server.nodes()}")
    finally:
        server.stop()


def forgotten(lab):
    """A server that is down, or comes back without its memory, is registered with when it is there."""
    if not need(lab):
        return
    server = Isnsd(lab, "20s")
    with served(lab, period=20) as (ports, process, log):
        time.sleep(1)
        expect(process.poll() is None, "stag serve ended for want of an iSNS server")
        expect("INQUIRY" in proc.run("sh", "-c", f"{Stag.binary} info iscsi://127.0.0.1:{ports[0]}/{IQN}/0 && echo INQUIRY"),
               "not served while iSNS is down")
        server.start()
        try:
            proc.wait_until(lambda: IQN in server.nodes(), 60, "registered when the server is there")
        finally:
            server.stop()
        proc.run("rm", "-rf", f"{server.folder}/db")
        server.start()
        try:
            # Registrations are renewed at half of their period.
            proc.wait_until(lambda: IQN in server.nodes(), 90, "registered anew with a server that has forgotten")
        finally:
            server.stop()


def inquiries(lab):
    """Entity Status Inquiries are answered: the server goes on knowing us."""
    if not need(lab):
        return
    server = Isnsd(lab)
    server.start()
    try:
        with served(lab, esi=1):
            proc.wait_until(lambda: IQN in server.nodes(), 60, "registered")
            # Three inquiries without an answer would end the registration.
            time.sleep(6)
            expect(IQN in server.nodes(), f"the server gave us up:\n{proc.tail(server.log(), 30)}")
            expect(re.search(r"ESI", server.log()), "no inquiry was sent")
    finally:
        server.stop()


CASES = [
    ("iSNS: registered, found and deregistered", registered),
    ("iSNS: a server that is down or forgets", forgotten),
    ("iSNS: inquiries are answered", inquiries),
]
