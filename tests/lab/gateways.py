"""Three daemons that act as one, over a real Ceph cluster."""

import contextlib
import json
import os
import signal

from . import ceph, proc
from .net import CLUSTER
from .target import IQN, Stag, Unit

NUMBERS = (1, 2, 3)
HOST = "127.0.0.1"


class Group:
    """Three daemons, and the images that they serve."""

    made = 0

    def __init__(self, lab, *mib, net=None, chap=None, http=False, **unit):
        """`net`: each gateway has a network of its own (lab/net.py). `chap`: what the target demands. `http`: each has an API and a dashboard."""
        Group.made += 1
        self.lab, self.net, self.chap, self.name = lab, net, chap, f"served{Group.made}"
        self.cluster = ceph.cluster(lab, CLUSTER) if net else ceph.cluster(lab)
        self.conf = self.cluster.user("gateway")
        self.images = [self.cluster.image(f"{self.name}.{number}", size) for number, size in enumerate(mib or (64,))]
        self.links = {number: f"{net.link(number) if net else HOST}:{proc.free_port()}" for number in NUMBERS}
        self.ports = {number: proc.free_port() for number in NUMBERS}
        self.hosts = {number: net.portal(number) if net else HOST for number in NUMBERS}
        self.http = {number: proc.free_port() for number in NUMBERS if http}
        self.unit, self.daemons, self.stack = unit, {}, contextlib.ExitStack()
        self.folder = lab.new_folder("group")
        self.secret = os.path.join(self.folder, "secret")
        with open(self.secret, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(proc.run(Stag.binary, "gateways", "secret"))

    def settings(self, number):
        lines = ["[gateways]", f"number = {number}", f'pool = "{ceph.POOL}"', f'object = "{self.name}"', 'ceph-user = "gateway"',
                 f'ceph-conf = "{self.conf}"', f'secret-file = "{self.secret}"', "op-timeout = 20"]
        for member in NUMBERS:
            lines += ["[[gateways.member]]", f"number = {member}", f'link = "{self.links[member]}"',
                      f'portals = ["{self.portal(member)}"]']
        if self.http:
            lines += ["[http]", f'listen = "{HOST}:{self.http[number]}"', "api = true", "dashboard = true"]
        return lines

    def portal(self, number):
        return f"{self.hosts[number]}:{self.ports[number]}"

    def __enter__(self):
        for number in NUMBERS:
            units = [Unit(path=f"rbd:{image}", **self.unit) for image in self.images]
            # What a machine keeps is its own.
            inside = [*(self.net.inside(number) if self.net else []), "env", f"STATE_DIRECTORY={self.folder}/{number}"]
            self.daemons[number] = self.stack.enter_context(self.lab.serve(
                *units, host=self.hosts[number], port=self.ports[number], chap=self.chap, inside=inside, more=self.settings(number),
                top={"managed": True} if self.http else {}))
        self.settled()
        return self

    def __exit__(self, *what):
        for daemon in self.daemons.values():
            if daemon.alive():
                daemon.process.send_signal(signal.SIGCONT)
        return self.stack.__exit__(*what)

    def view(self, number):
        daemon = self.daemons[number]
        return json.loads(proc.run(daemon.binary, "gateways", "--json", "--control", daemon.control))

    def token(self, number, role):
        daemon = self.daemons[number]
        return proc.run(daemon.binary, "token", "--control", daemon.control, "add", role, "--role", role).strip()

    def alive(self):
        return [number for number, daemon in self.daemons.items() if daemon.alive()]

    def owners(self, number):
        """Unit's image: the gateway that owns it, as gateway `number` says; None while it is nobody's."""
        return {unit["image"]: unit.get("owner") for unit in self.view(number)["units"]}

    def settled(self, members=None, timeout=60):
        """Until these are all members, and agree on the owner of each unit, who has it. Returns the owners, by image."""
        def agreed():
            told, here = [], {}
            for number in self.alive():
                view = self.view(number)
                told.append((sorted(row["number"] for row in view["members"]),
                             {unit["image"]: unit.get("owner") for unit in view["units"]}))
                here.update({unit["image"]: number for unit in view["units"] if unit["here"]})
            wanted = sorted(members or self.alive())
            same = all(one == (wanted, told[0][1]) for one in told)
            return told[0][1] if same and set(here) == set(self.images) and here == told[0][1] else None
        return proc.wait_until(agreed, timeout, f"gateways {members or self.alive()} agree", 0.1)

    def move(self, image, to, through=None):
        daemon = self.daemons[through or to]
        return proc.run(daemon.binary, "move", "--control", daemon.control, image, to)

    def other(self, *numbers):
        """A gateway that is none of these."""
        return next(number for number in self.alive() if number not in numbers)
