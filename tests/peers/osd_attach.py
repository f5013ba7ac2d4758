"""How open-osd, the initiator that Linux had until 5.0, attaches an OSD and uses it: its commands byte for byte, quirks included.

No living Linux has it: what it sends is written down here from what is known of its wire format.
"""

import struct

from lab import osd, wire
from lab.osd import R, UNUSED
from lab.osd_session import GOOD, Device, Request
from lab.report import expect
from peers.osd_data import Bench, number

# The root information that it asks for, in this order; it reads the answers by their place.
ROOT_ATTRIBUTES = [4, 5, 6, 7, 8, 9, 0x80, 0x81, 0xC0, 0x100, 3]
LENGTHS = {4: 8, 5: 16, 6: 32, 7: 4, 0x80: 8, 0x81: 8, 0xC0: 8, 0x100: 6, 3: 20}


def capability(version, permissions, type_):
    """As it makes one under NOSEC: the format of OSD-1 whatever the CDB's, all permissions, and the object's id left zero."""
    size = 80 if version == 200 else 104
    out = bytearray(size)
    out[0], out[48], out[55] = 1, type_, 1 << 4
    out[49:51] = permissions.to_bytes(2, "big")
    return bytes(out)


def command(version, service_action, partition=0, object_=0, tail=bytes(20), format_=3, attributes=None, option=0, low=0, type_=osd.ROOT):
    """The bytes of one of its CDBs. Its 200-byte ones tell an additional length of 228 too."""
    out = bytearray(version)
    struct.pack_into(">BB5xBHBBB", out, 0, 0x7F, 0, 216 if version == 224 else 228, service_action, option, format_ << 4 | low, 0)
    struct.pack_into(">QQ", out, 16, partition, object_)
    out[32:52] = tail
    struct.pack_into(">IIIIIII", out, 52, *(attributes or (0, UNUSED, 0, UNUSED, 0, UNUSED, 0)))
    cap = capability(version, 0xFFFF, type_)
    out[80:80 + len(cap)] = cap
    struct.pack_into(">II", out, version - 8, UNUSED, UNUSED)
    return bytes(out)


def unit(version, offset):
    """An offset field as it encodes it: units of 256 bytes, or of 8."""
    return offset // 256 if version == 200 else 0xB << 28 | offset // 8


def get_root(device, version):
    """The GET ATTRIBUTES with which it attaches; (answer, list type, entries)."""
    generation = osd.VERSIONS[version].generation
    wanted = osd.get_list([(R + 1, at) for at in ROOT_ATTRIBUTES], generation)
    allocation = 2048
    attributes = (len(wanted), unit(version, 0), allocation, unit(version, 0), 0, UNUSED, 0)
    cdb = command(version, 0x880E if version == 200 else 0x888E, format_=3, attributes=attributes)
    # Only what the buffers are made from; the bytes are those above.
    request = Request("GET ATTRIBUTES", version, partition=0, object=0, get=[(R + 1, at) for at in ROOT_ATTRIBUTES], room=allocation)
    expect(request.out == wanted and request.in_length == allocation, "the buffers are not laid out as meant")
    answer = device.send(request, cdb=cdb)
    expect(answer.status == GOOD, f"GET ATTRIBUTES as open-osd sends it in {version} bytes: {answer}")
    return answer, *answer.attribute_list


def attach(lab):
    """TEST UNIT READY, then eleven root attributes by a bidirectional command, answered all and in order; the same as OSD-1."""
    with Bench(lab) as device:
        session = device.session
        status, _, data = session.run(bytes([0x12, 0, 0, 0, 36, 0]), 36)
        expect(status == 0 and data[0] == 0x11, f"INQUIRY of 36 bytes: {data.hex()}")
        status, _, _ = session.run(bytes(6))
        expect(status == 0, f"TEST UNIT READY: {status}")
        for version in (236, 224, 200):
            answer, kind, found = get_root(device, version)
            expect(kind == 9, f"a list of type {kind}")
            expect([entry[:2] for entry in found] == [(R + 1, at) for at in ROOT_ATTRIBUTES],
                   f"answered in another order: {[hex(entry[1]) for entry in found]}")
            for _, at, value in found:
                if at in LENGTHS:
                    expect(value is not None and len(value) == LENGTHS[at], f"attribute {at:#x}: {value}")
            by_number = {at: value for _, at, value in found}
            expect(by_number[8], "no serial number: its list of drives needs one")
            expect(number(by_number[0x80]) > 0, "no capacity")
            # Its list's own length is that of its entries, and the rest of the buffer is residual.
            length = 8 + number(answer.everything[4:8]) if version != 200 else 4 + number(answer.everything[2:4])
            expect(length == len(answer.everything) or not any(answer.everything[length:]), f"{len(answer.everything)} bytes for a list of {length}")


def file_system(lab):
    """What its file system does with the device: a partition and objects of chosen ids, inodes as attributes, flushes, removal."""
    with Bench(lab) as device:
        for version, base in ((236, 0x8880), (200, 0x8800)):
            generation = osd.VERSIONS[version].generation
            partition, first = 0x10000 + version, 0x10000
            attribute_page = 0x10000  # An application's page with one attribute that holds an inode.

            def send(service_action, data=b"", data_in=0, attributes=None, set_=None, get=None, **what):
                action = osd.BY_ACTION[service_action][0]
                request = Request(action, version, data=data, data_in=data_in, set_=set_, get=get, room=1024,
                                  **{key: what[key] for key in ("partition", "object") if key in what})
                view = request.view["attributes"]
                offset = lambda name: osd.encode_offset(view.get(name), generation)  # noqa: E731
                fields = (view.get("get_list_length", 0), offset("get_list_offset"), view.get("get_length", 0), offset("retrieved_offset"),
                          view.get("set_list_length", 0), offset("set_list_offset"), 0)
                cdb = command(version, service_action, what.get("partition", 0), what.get("object", 0), what.get("tail", bytes(20)),
                              3, fields, what.get("option", 0), what.get("low", 0), what.get("type_", osd.USER))
                answer = device.send(request, cdb=cdb)
                expect(answer.status == GOOD, f"{action} as open-osd sends it in {version} bytes: {answer}")
                return answer

            def span(length, start):
                return struct.pack(">QQI", length, start, 0) if generation == 2 else struct.pack(">IQQ", 0, length, start)

            send(base + 0x0B, partition=partition, type_=osd.PARTITION)
            for object_ in (first, first + 1, first + 2):
                # A count of one is 0 or 1; it sends 1.
                tail = struct.pack(">H18x", 1) if generation == 2 else struct.pack(">4xH14x", 1)
                send(base + 0x02, partition=partition, object=object_, tail=tail)
            inode = bytes(range(96))
            send(base + 0x06, data=b"superblock" * 10, partition=partition, object=first, tail=span(100, 0))
            send(base + 0x0F, set_=[(attribute_page, 1, inode)], partition=partition, object=first + 1)
            send(base + 0x06, data=bytes(4096), partition=partition, object=first + 1, tail=span(4096, 8192), set_=[(attribute_page, 1, inode[::-1])])
            answer = send(base + 0x05, data_in=100, partition=partition, object=first, tail=span(100, 0))
            expect(answer.data == b"superblock" * 10, "READ of the superblock")
            answer = send(base + 0x0E, get=[(attribute_page, 1), (osd.U + 1, 0x82)], partition=partition, object=first + 1)
            expect(answer.attributes[attribute_page, 1] == inode[::-1] and number(answer.attributes[osd.U + 1, 0x82]) == 12288, "an inode")
            # It truncates by setting the logical length.
            send(base + 0x0F, set_=[(osd.U + 1, 0x82, struct.pack(">Q", 10))], partition=partition, object=first + 1)
            # Its scope of a flush is in byte 11, where the standard has none.
            send(base + 0x08, partition=partition, object=first, low=0)
            send(base + 0x1B, partition=partition, low=2, type_=osd.PARTITION)
            send(base + 0x1C, low=2, type_=osd.ROOT)
            for object_ in (first, first + 1, first + 2):
                send(base + 0x0A, partition=partition, object=object_)
            send(base + 0x0C, partition=partition, type_=osd.PARTITION)


def second_attempt(lab):
    """When the attaching command of OSD-2 is refused it tries that of OSD-1 on the same session: nothing is left in the way."""
    with Bench(lab) as device:
        request = Request("GET ATTRIBUTES", partition=0, object=0, get=[(R + 1, at) for at in ROOT_ATTRIBUTES])
        spoilt = command(236, 0x888E, format_=3, attributes=(96, unit(236, 1 << 16), 2048, unit(236, 0), 0, UNUSED, 0))
        answer = device.send(request, cdb=spoilt)
        expect(answer.status == 2, f"a list behind Data-Out is taken: {answer}")
        get_root(device, 200)
        with wire.session(device.target, "iqn.2026-01.example.lab:second", isid=b"\x40\0\0\x09\0\0") as other:
            get_root(Device(other), 236)


CASES = [
    ("open-osd attaches: eleven root attributes in order, as OSD-2 and OSD-1", attach),
    ("open-osd's file system: partition, inodes, truncation, flushes, removal", file_system),
    ("open-osd's second attempt, as OSD-1", second_attempt),
]
