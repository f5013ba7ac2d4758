"""An object store that is managed while it is used: stag apply, limits of service, and a new daemon that takes the old one's place."""

import contextlib
import os
import subprocess
import time

from lab import osd, proc, wire
from lab.osd import R
from lab.osd_session import Device, read_attribute
from lab.report import Failed, as_needed, enough, expect
from lab.target import Stag, Unit
from peers.manage import apply, pending, served
from peers.osd_data import ids, new_object, new_partition, read, write

OURS = 0x10000
MIB = 1 << 20
NAME = (R + 1, 9)
FIRST, SECOND = "iqn.2026-01.example.lab:first", "iqn.2026-01.example.lab:second"


@contextlib.contextmanager
def at(session, lun):
    """The session with its commands for another unit."""
    before, session.lun = session.lun, lun
    yield Device(session)
    session.lun = before


def applied(lab):
    """A store is renamed, limited, joined by another and left by it again; a session that uses it goes on."""
    with served(lab, Unit(objects=True, options="name=attic")) as target, wire.session(target) as session:
        pending(session)
        device = Device(session)
        partition = new_partition(device)
        object_ = new_object(device, partition)
        write(device, partition, object_, b"before", set_=[(OURS, 1, b"kept")])
        expect(read_attribute(device, 0, 0, *NAME) == b"attic", "the name of the configuration")
        target.units.append(Unit(objects=True, path=os.path.join(target.folder, "more.osd")))
        outcome = apply(target)
        expect(outcome["applied"], f"a store is added: {outcome}")
        expect((0x3F, 0x0E) in pending(session), "REPORTED LUNS DATA HAS CHANGED")
        with at(session, 1) as other:
            pending(session, 1)
            there = new_partition(other)
            write(other, there, new_object(other, there), b"in the second")
        expect(ids(device, 0) == [partition], "partitions of one store are none of the other's")
        target.units[0].options = "name=cellar,iops=10000"
        outcome = apply(target)
        expect(outcome["applied"], f"a store is changed: {outcome}")
        expect(read_attribute(device, 0, 0, *NAME) == b"cellar", "the new name")
        expect(read(device, partition, object_, 6) == b"before", "what was written before")
        more = target.units.pop()
        apply(target)
        pending(session)
        expect((0x25, 0) in pending(session, 1), "LOGICAL UNIT NOT SUPPORTED of a unit that was taken out")
        expect(read(device, partition, object_, 6, get=[(OURS, 1)]) == b"before", "what is in the one that stays")
        # Its directory is free, and can come back.
        checked = proc.run(Stag.binary, "osd", "check", more.path)
        expect("in order" in checked, f"the store that was taken out: {checked}")
        target.units.append(more)
        apply(target)
        pending(session)
        with at(session, 1) as other:
            pending(session, 1)
            expect(ids(other, 0) == [there], "the second store has what it had")
            expect(read(other, there, ids(other, there)[0], 13) == b"in the second", "and its bytes")


@as_needed("20M", "4M")
def taken_over(lab, rate):
    """New daemons take the place of old ones: everything is there after, and clients at work make new sessions and go on."""
    with served(lab, Unit(objects=True, options=f"bandwidth={rate},burst=0")) as target:
        url = target.urls[0]
        body = os.urandom(40 * MIB)
        source, back = os.path.join(target.folder, "source"), os.path.join(target.folder, "back")
        with open(source, "wb") as file:
            file.write(body)
        place = f"{url}/{proc.run(Stag.binary, 'osd', 'mkpart', url).split()[-1]}"
        wanted = {}
        with wire.session(target) as session:
            device = Device(session)
            partition = new_partition(device)
            for number in range(50):
                object_ = new_object(device, partition, set_=[(OURS, 1, bytes([number]))])
                # Some of it is durable, some is not even written to a medium.
                write(device, partition, object_, bytes([number]) * 5000, fua=number % 2)
                wanted[object_] = number
        putting = subprocess.Popen([Stag.binary, "osd", "put", "-q", source, f"{place}/large"], stderr=subprocess.PIPE, text=True)
        for round_ in range(2):
            time.sleep(0.7)
            if putting.poll() not in (None, 0):
                raise Failed(f"stag osd put: {putting.stderr.read()}")
            enough(putting.poll() is None, f"it put 40 MiB at {rate} a second before two daemons had come")
            target.take_over()
            with wire.session(target) as session:
                pending(session)
                device = Device(session)
                expect(ids(device, partition) == sorted(wanted), "the objects after a new daemon took over")
                for object_, number in list(wanted.items())[round_::7]:
                    answer = device.good("READ", partition=partition, object=object_, length=5000, data_in=5000, get=[(OURS, 1)])
                    expect(answer.data == bytes([number]) * 5000 and answer.attributes[OURS, 1] == bytes([number]), f"object {object_:#x}")
                added = new_object(device, partition, set_=[(OURS, 1, b"\xFF")])
                write(device, partition, added, b"\xFF" * 5000)
                wanted[added] = 255
        target.units[0].options = ""
        apply(target)
        _, said = putting.communicate(timeout=120)
        expect(putting.returncode == 0, f"stag osd put: {said}")
        proc.run(Stag.binary, "osd", "get", "-q", f"{place}/large", back, timeout=60)
        with open(back, "rb") as file:
            expect(file.read() == body, "40 MiB that were put while daemons came and went")
        checked = proc.run(Stag.binary, "osd", "check", url)
        expect("in order" in checked or not checked.strip(), f"the store after: {checked}")


def limited(lab):
    """Limits of a unit and of an initiator hold for commands that move an object's bytes, and for no others."""
    lines = ["[[target.acl]]", f'initiator = "{FIRST}"', "iops = 20", "burst = 0.1", "[[target.acl]]", f'initiator = "{SECOND}"']
    with served(lab, Unit(objects=True), target=lines) as target, \
            wire.session(target, FIRST) as one, wire.session(target, SECOND, isid=b"\x40\0\0\2\0\0") as two:
        pending(one), pending(two)
        first, second = Device(one), Device(two)
        partition = new_partition(first)
        object_ = new_object(first, partition)
        write(first, partition, object_, bytes(100_000))

        def seconds(count, run):
            begun = time.monotonic()
            for _ in range(count):
                run()
            return time.monotonic() - begun

        def reads(device):
            return lambda: read(device, partition, object_, 100)

        def soon(count, limit, run):
            """The least of some times, until one is below the limit: what holds a command back does it each time."""
            least = seconds(count, run)
            for _ in range(9):
                if least < limit:
                    break
                least = min(least, seconds(count, run))
            return least

        # 2 were saved up at most.
        took = seconds(14, reads(first))
        expect(0.55 <= took, f"14 READs took {took:.2f} s under a limit of 20 a second")
        took = soon(14, 0.55, lambda: device_attributes(first, partition, object_))
        expect(took < 0.55, f"14 GET ATTRIBUTES, which no limit is about, took {took:.2f} s")
        took = soon(14, 0.55, reads(second))
        expect(took < 0.55, f"14 READs of an initiator without a limit took {took:.2f} s")
        # Each kind of command that moves bytes counts.
        moving = [
            lambda: write(first, partition, object_, b"w"),
            lambda: first.good("APPEND", partition=partition, object=object_, data=b"a", length=1),
            lambda: first.good("CREATE AND WRITE", partition=partition, object=0, data=b"c", length=1),
            lambda: first.good("PUNCH", partition=partition, object=object_, start=0, length=1),
            lambda: first.good("CLEAR", partition=partition, object=object_, start=0, length=1),
            lambda: first.good("COPY USER OBJECTS", partition=partition, object=0, pieces=[osd.copy_source(partition, object_)]),
        ]
        for number, run in enumerate(moving):
            took = seconds(7, run)
            expect(0.2 <= took, f"7 commands of kind {number} took {took:.2f} s under a limit of 20 a second")
        target.units[0].options = "bandwidth=1M,burst=0"
        apply(target)
        took = seconds(6, lambda: read(second, partition, object_, 90_000))
        expect(0.3 <= took, f"6 READs of 90,000 bytes took {took:.2f} s under a limit of 1 MiB a second")
        target.units[0].options = ""
        apply(target)
        took = soon(6, 0.3, lambda: read(second, partition, object_, 90_000))
        expect(took < 0.3, f"6 READs of 90,000 bytes took {took:.2f} s after the limit was lifted")


def device_attributes(device, partition, object_):
    device.good("GET ATTRIBUTES", partition=partition, object=object_, get=[(OURS, 1)])


CASES = [
    ("stag apply adds, changes and removes object stores under a session", applied),
    ("new daemons take over an object store under a client at work", taken_over),
    ("limits of a unit and of an initiator hold for what moves an object's bytes", limited),
]
