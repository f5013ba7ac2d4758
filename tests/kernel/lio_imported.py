"""Linux's own target with a configuration that rtslib (targetcli's library) has made and saved: `stag import` makes it Stag's, and
initiators see the same disks as before."""

import os

from lab import proc, uml
from lab.report import Skip, expect
from lab.target import Chap, Stag
from peers.imported import HOST, ONE, TWO, same_after_import, seen

# Debian's own interpreter: rtslib is a package of Debian's.
PYTHON = "/usr/bin/python3"
ALICE = Chap("alice", "s" * 14)
DISKS = [(ONE, 0, ALICE), (ONE, 5, ALICE), (TWO, 0, None)]

# Two targets: files with and without a cache, blocks of 4096 bytes, a LUN that an ACL makes
# read-only, a secret of an ACL.
MAKE = f"""
import sys
from rtslib_fb import FabricModule, FileIOStorageObject, LUN, MappedLUN, NetworkPortal, NodeACL, RTSRoot, Target, TPG
folder, portal = sys.argv[1:]
# Linux keeps its persistent reservations there. With drivers that are built in it cannot be changed.
RTSRoot._preferred_dbroot = "/tmp"
def disk(name, **attributes):
    made = FileIOStorageObject(name, folder + "/" + name + ".img", size=8 << 20, write_back=name == "cached")
    for key, value in attributes.items():
        made.set_attribute(key, value)
    return made
def target(name, authentication):
    group = TPG(Target(FabricModule("iscsi"), name), 1)
    NetworkPortal(group, portal, 3260)
    group.set_attribute("authentication", authentication)
    return group
group = target("{ONE}", 1)
acl = NodeACL(group, "{HOST}")
acl.chap_userid, acl.chap_password = "{ALICE.name}", "{ALICE.secret}"
MappedLUN(acl, 0, LUN(group, 0, disk("cached", emulate_tpu=1)), write_protect=False)
MappedLUN(acl, 5, LUN(group, 1, disk("sectors", block_size=4096)), write_protect=True)
group.enable = True
group = target("{TWO}", 0)
for key, value in (("generate_node_acls", 1), ("demo_mode_write_protect", 0)):
    group.set_attribute(key, value)
LUN(group, 0, disk("open"))
group.enable = True
RTSRoot().save_to_file(folder + "/saveconfig.json")
"""

# The folder has the path that it has on this side. The lab's kernel has built in the modules that
# rtslib would load.
SCRIPT = r"""
mkdir -p "$FOLDER" && mount --bind "$PROGRAMS" "$FOLDER" && mkdir -p /tmp/bin && ln -s /bin/true /tmp/bin/modprobe && export PATH=/tmp/bin:$PATH
[ -d /sys/kernel/config/target ] || mount -t configfs configfs /sys/kernel/config
mkdir -p /sys/kernel/config/target
case_ "rtslib makes two targets of Linux's own, and saves its configuration" "$PYTHON" "$FOLDER/make.py" "$FOLDER" "$GUEST"
ask_and_wait seen
"""


def lio(lab):
    if not Stag.binary:
        raise Skip("no stag binary: set STAG_BIN")
    if proc.run(PYTHON, "-c", "import rtslib_fb", ok=None).code != 0:
        raise Skip("no rtslib: apt-get install python3-rtslib-fb")
    uml.network_up()
    folder, before = lab.new_folder("rtslib"), []
    with open(os.path.join(folder, "make.py"), "w") as file:
        file.write(MAKE)

    def look():
        before.extend(seen(f"{uml.GUEST}:3260", *disk) for disk in DISKS)

    uml.run_cases(lab, "lio_imported", SCRIPT, 200, {"seen": look}, programs=folder, FOLDER=folder, PROGRAMS=uml.PROGRAMS, PYTHON=PYTHON)
    expect(len(before) == len(DISKS), f"not all were seen: {before}")
    same_after_import(folder, os.path.join(folder, "saveconfig.json"), DISKS, before)


CASES = [("lio_imported: initiators see the same disks", lio)]
