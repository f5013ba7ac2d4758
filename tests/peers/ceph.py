"""Ceph: images of a real cluster, small and on this machine."""

import os

from lab import ceph, proc
from lab.report import expect

MIB = 1 << 20


def exported(cluster, lab, image):
    path = os.path.join(lab.new_folder("export"), "image")
    cluster.rbd("export", image, path)
    return path


def of_its_own(lab):
    """What the other cases rest on: images are written, read and compared by Ceph's own tools, and an OSD may die."""
    cluster = ceph.cluster(lab)
    written = os.path.join(lab.new_folder("files"), "written")
    with open(written, "wb") as file:
        file.write(os.urandom(8 * MIB))
    image = f"{ceph.POOL}/first"
    cluster.rbd("import", written, image)
    cluster.kill("osd.1")
    proc.run("cmp", written, exported(cluster, lab, image))
    cluster.revive("osd.1")
    expect(cluster.watchers(image) == [], "nobody has the image open")
    cluster.rbd("rm", image)


CASES = [
    ("the cluster serves images, and survives the death of an OSD", of_its_own),
]
