"""Podman with a storage of its own, without systemd, and on machines where limits cannot be raised.

As an OCI runtime it gets this file, which drops the limits that Podman asks for and starts runc.
"""

import json
import os
import sys

if __name__ == "__main__":
    words, path = sys.argv, None
    if "create" in words:
        path = os.path.join(words[words.index("--bundle") + 1], "config.json")
    elif "--process" in words:  # of `exec`
        path = words[words.index("--process") + 1]
    if path:
        with open(path) as file:
            config = json.load(file)
        config.get("process", config).pop("rlimits", None)
        with open(path, "w") as file:
            json.dump(config, file)
    os.execvp("runc", ["runc", *sys.argv[1:]])

from . import proc

SETTINGS = """[engine]
runtime = "lab"
cgroup_manager = "cgroupfs"
events_logger = "file"
[engine.runtimes]
lab = ["{runtime}"]
[containers]
netns = "host"
log_driver = "k8s-file"
"""


class Podman:
    """Its images and containers, which are removed at the end."""

    def __init__(self, folder):
        proc.need("podman", "runc", "catatonit", "conmon")
        self.folder = folder
        settings, runtime = os.path.join(folder, "containers.conf"), os.path.join(folder, "runtime")
        with open(runtime, "w", opener=lambda path, flags: os.open(path, flags, 0o755)) as file:
            file.write(f'#!/bin/sh\nexec {sys.executable} {os.path.abspath(__file__)} "$@"\n')
        with open(settings, "w") as file:
            file.write(SETTINGS.format(runtime=runtime))
        # A check of health every so often is a timer of systemd's; here the tests ask for it.
        self.env = {"CONTAINERS_CONF": settings, "DISABLE_HC_SYSTEMD": "true"}
        self.before = ["podman", "--root", os.path.join(folder, "root"), "--runroot", os.path.join(folder, "run"), "--storage-driver", "overlay"]

    def run(self, *words, **options):
        return proc.run(*self.before, *words, env=self.env, **options)

    def end(self):
        self.run("pod", "rm", "--all", "--force", ok=None)
        self.run("rm", "--all", "--force", "--time", "5", ok=None)
        self.run("volume", "rm", "--all", "--force", ok=None)
        self.run("rmi", "--all", "--force", ok=None)
