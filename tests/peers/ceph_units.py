"""What cases of the suite `ceph` share: images as units, their senses, and writers that know what they have written."""

import json
import os
import struct
import threading

from lab import proc, wire
from lab.report import expect
from lab.target import Stag, Unit

MIB = 1 << 20
NOT_READY_HERE = (2, 0x04, 0x0C)  # NOT READY, TARGET PORT IN UNAVAILABLE STATE
CAPACITY_CHANGED = (6, 0x2A, 0x09)  # UNIT ATTENTION, CAPACITY DATA HAS CHANGED


def unit(cluster, image, op_timeout=None, **more):
    """An image as a unit, with the rights of client.gateway."""
    options = f"ceph-user=gateway,ceph-conf={cluster.user('gateway')}"
    return Unit(path=f"rbd:{image}", options=options + (f",op-timeout={op_timeout}" if op_timeout else ""), **more)


def exported(cluster, lab, image):
    path = os.path.join(lab.new_folder("export"), "image")
    cluster.rbd("export", image, path)
    return path


def compare(url, file):
    same = proc.run("qemu-img", "compare", "-f", "raw", "-F", "raw", file, url)
    expect("identical" in same, same)


def sense(answer):
    """Key, code and qualifier of a command's sense data in fixed or descriptor format."""
    _, data, _ = answer
    data = data[2:] if data and data[0] == 0 else data
    return (data[1] & 15, data[2], data[3]) if data[0] & 0x7F >= 0x72 else (data[2] & 15, data[12], data[13])


WRITE = struct.pack(">BBIBHB", 0x2A, 0, 0, 0, 8, 0)
READ = struct.pack(">BBIBHB", 0x28, 0, 0, 0, 8, 0)


def check(target):
    """The health of the daemon's units: an exit code, and what is wrong."""
    return proc.run(target.binary, "status", "--control", target.control, "--check", ok=None)


def serves_again(session):
    proc.wait_until(lambda: session.run(WRITE, out=b"\4" * 4096)[0] == 0, 90, "a new instance serves")


def owner(cluster, image):
    """The address of the client that has the image's lock."""
    lock, = json.loads(cluster.rbd("lock", "ls", image, "--format", "json"))
    return lock["address"]


def shut_out(cluster, image):
    """Puts that client on the blocklist."""
    cluster.command("osd", "blocklist", "add", owner(cluster, image), 60)


class Writer(threading.Thread):
    """Writes numbers to blocks of its own, whatever the answers, until it is stopped."""

    BLOCKS = 8

    def __init__(self, target, place):
        super().__init__(daemon=True)
        self.session = wire.session(target, isid=struct.pack(">BBHH", 0x40, 0, 9, place), timeout=60)
        self.first, self.stopped = place * self.BLOCKS, False
        self.acknowledged = self.unknown = 0
        self.possible = [{0} for _ in range(self.BLOCKS)]  # What each block may have.
        self.wrong = None
        self.start()

    def run(self):
        try:
            while not self.stopped:
                number = self.acknowledged + self.unknown + 1
                block = number % self.BLOCKS
                answer = self.session.run(struct.pack(">BBIBHB", 0x2A, 0, (self.first + block) * 8, 0, 8, 0),
                                          out=struct.pack(">Q", number) * 512)
                if answer[0] == 0:
                    self.acknowledged += 1
                    self.possible[block] = {number}
                elif sense(answer) != CAPACITY_CHANGED:
                    expect(sense(answer) == NOT_READY_HERE, f"write {number}: {answer}")
                    self.unknown += 1
                    self.possible[block].add(number)
        except Exception as error:
            self.wrong = error

    def end(self):
        self.stopped = True
        self.join(60)
        expect(self.wrong is None, f"a writer: {self.wrong}")

    def verify(self, file):
        for block, possible in enumerate(self.possible):
            file.seek((self.first + block) * 4096)
            found = set(struct.unpack(">512Q", file.read(4096)))
            expect(len(found) == 1 and found <= possible, f"block {self.first + block} has {found}, not of {possible}")
