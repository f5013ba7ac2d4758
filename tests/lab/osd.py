"""T10 OSD on the wire (INCITS 400-2004 "OSD-1", INCITS 458-2011 "OSD-2"): what a command and its parameter data look like.

Nothing of Stag's is used here: this is a second reading of the protocol, to hold the crate's against. It encodes what is right
and, where a test asks for it, what is wrong; it decodes whatever comes, and says Malformed of what cannot be. It sends
nothing: lab/osd_session.py does. `encode` and `decode` speak of a command as a dict, which is JSON as it stands.
"""

import hashlib
import hmac
import struct

ROOT, PARTITION, COLLECTION, USER = 0x01, 0x02, 0x40, 0x80
FIRST_ID = 0x10000
UNUSED = 0xFFFFFFFF
READ, WRITE, GET_ATTR, SET_ATTR, CREATE, REMOVE, OBJ_MGMT, APPEND = (0x8000 >> bit for bit in range(8))
DEV_MGMT, GLOBAL, POL_SEC, M_OBJECT, QUERY, GBL_REM = (0x80 >> bit for bit in range(6))
EVERYTHING = 0xFFFC

U, P, C, R = 0x0, 0x30000000, 0x60000000, 0x90000000  # Where the attribute pages of each type of object begin.
CURRENT_COMMAND, ALL = 0xFFFFFFFE, 0xFFFFFFFF

# name: (service action of OSD-1 or None, of OSD-2, its fields beside the common ones)
ACTIONS = {
    "OBJECT STRUCTURE CHECK": (None, 0x8880, ("partition", "continuation")),
    "FORMAT OSD": (0x8801, 0x8881, ("capacity", "continuation")),
    "CREATE": (0x8802, 0x8882, ("partition", "object", "count", "continuation")),
    "LIST": (0x8803, 0x8883, ("partition", "allocation", "initial", "list_id", "list_attr", "sort")),
    "PUNCH": (None, 0x8884, ("partition", "object", "length", "start", "continuation")),
    "READ": (0x8805, 0x8885, ("partition", "object", "length", "start", "continuation")),
    "WRITE": (0x8806, 0x8886, ("partition", "object", "length", "start", "continuation")),
    "APPEND": (0x8807, 0x8887, ("partition", "object", "length", "continuation")),
    "FLUSH": (0x8808, 0x8888, ("partition", "object", "length", "start", "scope", "continuation")),
    "CLEAR": (None, 0x8889, ("partition", "object", "length", "start", "continuation")),
    "REMOVE": (0x880A, 0x888A, ("partition", "object", "continuation")),
    "CREATE PARTITION": (0x880B, 0x888B, ("partition", "continuation")),
    "REMOVE PARTITION": (0x880C, 0x888C, ("partition", "remove_scope", "continuation")),
    "GET ATTRIBUTES": (0x880E, 0x888E, ("partition", "object", "continuation")),
    "SET ATTRIBUTES": (0x880F, 0x888F, ("partition", "object", "continuation")),
    "CREATE AND WRITE": (0x8812, 0x8892, ("partition", "object", "length", "start", "continuation")),
    "COPY USER OBJECTS": (None, 0x8893, ("partition", "object", "duplication", "continuation")),
    "CREATE USER TRACKING COLLECTION": (None, 0x8894, ("partition", "object", "source", "continuation")),
    "CREATE COLLECTION": (0x8815, 0x8895, ("partition", "object", "continuation")),
    "REMOVE COLLECTION": (0x8816, 0x8896, ("partition", "object", "force", "continuation")),
    "LIST COLLECTION": (0x8817, 0x8897, ("partition", "object", "allocation", "initial", "list_id", "list_attr")),
    "SET KEY": (0x8818, 0x8898, ("partition", "key_to_set", "key_version", "key_id", "seed")),
    "SET MASTER KEY": (0x8819, 0x8899, ("dh_step", "dh_group", "key_id", "parameters", "dh_allocation", "continuation")),
    "FLUSH COLLECTION": (0x881A, 0x889A, ("partition", "object", "scope", "continuation")),
    "FLUSH PARTITION": (0x881B, 0x889B, ("partition", "scope", "continuation")),
    "FLUSH OSD": (0x881C, 0x889C, ("scope", "continuation")),
    "QUERY": (None, 0x88A0, ("partition", "object", "allocation", "matches", "immediate_tracking", "continuation")),
    "REMOVE MEMBER OBJECTS": (None, 0x88A1, ("partition", "object", "continuation")),
    "GET MEMBER ATTRIBUTES": (None, 0x88A2, ("partition", "object", "continuation")),
    "SET MEMBER ATTRIBUTES": (None, 0x88A3, ("partition", "object", "continuation")),
    # Where these have their second partition no open source shows: docs/src/objects/unit.md says so too.
    "CREATE CLONE": (None, 0x88A8, ("partition", "source", "duplication", "continuation")),
    "CREATE SNAPSHOT": (None, 0x88A9, ("partition", "source", "duplication", "continuation")),
    "DETACH CLONE": (None, 0x88AA, ("partition", "continuation")),
    "REFRESH SNAPSHOT OR CLONE": (None, 0x88AB, ("partition", "continuation")),
    "RESTORE PARTITION FROM SNAPSHOT": (None, 0x88AC, ("partition", "source", "continuation")),
    "READ MAP": (None, 0x88B1, ("partition", "object", "allocation", "start", "map_type")),
    "READ MAPS AND COMPARE": (None, 0x88B2, ("partition", "object", "allocation", "source", "map_type")),
    "PERFORM SCSI COMMAND": (0x8F7E, 0x8F7C, ("scsi_cdb", "continuation")),
    "PERFORM TASK MANAGEMENT FUNCTION": (0x8F7F, 0x8F7D, ("tmf_allocation", "function", "tag", "continuation")),
}
BY_ACTION = {number: (name, generation) for name, (first, second, _) in ACTIONS.items()
             for generation, number in ((1, first), (2, second)) if number}
FLUSHES = ("FLUSH", "FLUSH COLLECTION", "FLUSH PARTITION", "FLUSH OSD")

# A field: (its first byte, how many bytes), of OSD-1 and of OSD-2. Bits of bytes 10 and 11 are below.
FIELDS = {
    "partition": ((16, 8), (16, 8)), "object": ((24, 8), (24, 8)),
    "length": ((36, 8), (32, 8)), "start": ((44, 8), (40, 8)),
    "allocation": ((36, 8), (32, 8)), "initial": ((44, 8), (40, 8)), "list_id": ((32, 4), (48, 4)),
    "count": ((36, 2), (32, 2)), "capacity": ((36, 8), (32, 8)), "continuation": (None, (48, 4)),
    "matches": (None, (40, 8)), "source": (None, (40, 8)), "map_type": (None, (48, 2)), "duplication": (None, (14, 1)),
    "key_version": ((24, 1), (24, 1)), "key_id": ((25, 7), (25, 7)), "seed": ((32, 20), (32, 20)),
    "dh_group": ((24, 1), (24, 1)), "parameters": ((32, 4), (32, 4)), "dh_allocation": ((36, 4), (36, 4)),
    "scsi_cdb": ((32, 16), (32, 16)), "tmf_allocation": ((32, 2), (32, 2)), "function": ((39, 1), (39, 1)), "tag": ((40, 8), (40, 8)),
}
RAW = ("key_id", "seed", "scsi_cdb")  # Shown as hexadecimal.
BITS = {  # (byte, shift, mask)
    "list_attr": (11, 6, 1), "sort": (11, 0, 15), "remove_scope": (11, 0, 7), "force": (11, 0, 1), "immediate_tracking": (11, 7, 1),
    "key_to_set": (11, 0, 3), "dh_step": (11, 0, 3), "scope": (10, 0, 3),
}


class Malformed(Exception):
    """These bytes are not what they ought to be."""


class Version:
    """One of the three forms of a CDB, by its length in bytes."""

    def __init__(self, cdb, generation, capability, icv, digest):
        self.cdb, self.generation, self.capability, self.icv, self.digest = cdb, generation, capability, icv, digest
        self.icv_at = 80 + capability
        self.nonce_at = self.icv_at + icv
        self.in_at, self.out_at = self.nonce_at + 12, self.nonce_at + 16
        assert self.out_at + 4 == cdb
        self.smallest = 8 if generation == 2 else 256  # An offset's unit at best, bytes.


VERSIONS = {200: Version(200, 1, 80, 20, hashlib.sha1), 224: Version(224, 2, 104, 20, hashlib.sha1),
            236: Version(236, 2, 104, 32, hashlib.sha256)}


def encode_offset(offset, generation=2):
    """An offset field for the byte offset; None: unused. The smallest exponent with which it is exact."""
    if offset is None:
        return UNUSED
    for exponent in range(-5, 8) if generation == 2 else range(16):
        unit = 1 << exponent + 8
        if offset // unit < 1 << 28:
            if offset % unit:
                break
            return (exponent & 15) << 28 | offset // unit
    raise ValueError(f"no offset field says {offset}")


def decode_offset(field, generation=2):
    if field == UNUSED:
        return None
    exponent, mantissa = field >> 28, field & (1 << 28) - 1
    if generation == 2 and exponent >= 8:
        exponent -= 16
    if exponent < -5:
        raise Malformed(f"an offset with exponent {exponent}")
    return mantissa << exponent + 8


CAPABILITY = {  # The common part: (first byte, bytes)
    "expiration": (4, 6), "audit": (10, 20), "discriminator": (30, 12), "created": (42, 6), "object_type": (48, 1), "permissions": (49, 2),
}
CAPABILITY_1 = {"policy_tag": (56, 4), "partition": (60, 8), "object": (68, 8)}
CAPABILITY_2 = {"attributes_access": (56, 4), "policy_tag": (60, 4), "boot_epoch": (64, 2), "partition": (72, 8), "object": (80, 8),
                "range_length": (88, 8), "range_start": (96, 8)}
RAW_CAPABILITY = ("audit", "discriminator")
NIBBLES = {"format": (0, 0), "key_version": (1, 4), "algorithm": (1, 0), "method": (2, 0), "descriptor": (55, 4)}


def encode_capability(generation=2, **fields):
    """80 bytes of OSD-1 or 104 of OSD-2; what is not given is 0."""
    out = bytearray(80 if generation == 1 else 104)
    table = CAPABILITY | (CAPABILITY_1 if generation == 1 else CAPABILITY_2)
    for name, value in fields.items():
        if name in NIBBLES:
            at, shift = NIBBLES[name]
            out[at] |= (value & 15) << shift
        else:
            at, size = table[name]
            out[at:at + size] = bytes.fromhex(value).ljust(size, b"\0") if name in RAW_CAPABILITY else value.to_bytes(size, "big")
    return bytes(out)


def decode_capability(data):
    table = CAPABILITY | (CAPABILITY_1 if len(data) == 80 else CAPABILITY_2)
    found = {name: data[at] >> shift & 15 for name, (at, shift) in NIBBLES.items()}
    for name, (at, size) in table.items():
        found[name] = data[at:at + size].hex() if name in RAW_CAPABILITY else int.from_bytes(data[at:at + size], "big")
    return found


def capability_for(partition=0, object_=0, generation=2, type_=None, permissions=EVERYTHING, **more):
    """One that allows everything on an object: what NOSEC asks for."""
    if type_ is None:
        type_ = USER if object_ else PARTITION if partition else ROOT
    descriptor = 2 if type_ in (ROOT, PARTITION) else 3 if type_ == COLLECTION and generation == 2 else 1
    if generation == 1:
        permissions &= 0xFFE0
    return encode_capability(generation, **{"format": generation, "object_type": type_, "permissions": permissions, "descriptor": descriptor,
                                            "partition": partition, "object": object_, **more})


def encode_attributes(view, generation=2):
    """(GET/SET CDBFMT, bytes 52 to 79) of a view of the attribute parameters."""
    offset = lambda name: encode_offset(view.get(name), generation)  # noqa: E731
    kind = view.get("format", 3)  # Format 0 is reserved: without attributes a list of nothing.
    if kind == 1:
        value = bytes.fromhex(view["value"])
        return 1, struct.pack(">IIH18s", view["page"], view["number"], len(value), value)
    if kind == 2:
        return 2, struct.pack(">IIIIIII", view.get("get_page", 0), view.get("get_length", 0), offset("retrieved_offset"),
                              view.get("set_page", 0), view.get("set_number", 0), view.get("set_length", 0), offset("set_offset"))
    if kind == 3:
        return 3, struct.pack(">IIIIIII", view.get("get_list_length", 0), offset("get_list_offset"), view.get("get_length", 0),
                              offset("retrieved_offset"), view.get("set_list_length", 0), offset("set_list_offset"), 0)
    return 0, bytes(28)


def decode_attributes(kind, data, generation=2):
    words = struct.unpack(">IIIIIII", data)
    offset = lambda word: decode_offset(word, generation)  # noqa: E731
    if kind == 1:
        length = words[2] >> 16
        if length > 18 or generation == 1:
            raise Malformed(f"an attribute of {length} bytes in the CDB")
        return {"format": 1, "page": words[0], "number": words[1], "value": data[10:10 + length].hex()}
    if kind == 2:
        return {"format": 2, "get_page": words[0], "get_length": words[1], "retrieved_offset": offset(words[2]),
                "set_page": words[3], "set_number": words[4], "set_length": words[5], "set_offset": offset(words[6])}
    if kind == 3:
        return {"format": 3, "get_list_length": words[0], "get_list_offset": offset(words[1]), "get_length": words[2],
                "retrieved_offset": offset(words[3]), "set_list_length": words[4], "set_list_offset": offset(words[5])}
    return {"format": 0}


def encode(view):
    """The CDB that a view describes; fields that it leaves out are 0, offsets unused."""
    version = VERSIONS[view["version"]]
    first, second, fields = ACTIONS[view["action"]]
    service_action = first if version.generation == 1 else second
    if not service_action:
        raise ValueError(f"OSD-1 has no {view['action']}")
    out = bytearray(version.cdb)
    out[0], out[1], out[7] = 0x7F, view.get("control", 0), version.cdb - 8
    out[8:10] = service_action.to_bytes(2, "big")
    out[10] = (view.get("dpo", 0) << 4) | (view.get("fua", 0) << 3) | (0 if view["action"] in FLUSHES else view.get("isolation", 0))
    out[12] = view.get("timestamps", 0)
    for name in fields:
        value = view.get(name)
        if value is None:
            continue
        if name in BITS:
            at, shift, mask = BITS[name]
            out[at] |= (value & mask) << shift
            continue
        place = FIELDS[name][version.generation - 1]
        if place:
            at, size = place
            out[at:at + size] = bytes.fromhex(value).ljust(size, b"\0") if name in RAW else value.to_bytes(size, "big")
        elif value:
            raise ValueError(f"OSD-1's {view['action']} has no {name}")
    kind, parameters = encode_attributes(view.get("attributes", {}), version.generation)
    out[11] |= kind << 4
    out[52:80] = parameters
    capability = view.get("capability", {})
    out[80:80 + version.capability] = encode_capability(version.generation, **capability)
    security = view.get("security", {})
    icv, nonce = bytes.fromhex(security.get("icv", "")), bytes.fromhex(security.get("nonce", ""))
    out[version.icv_at:version.icv_at + len(icv)] = icv
    out[version.nonce_at:version.nonce_at + len(nonce)] = nonce
    struct.pack_into(">II", out, version.in_at, encode_offset(security.get("data_in_offset"), version.generation),
                     encode_offset(security.get("data_out_offset"), version.generation))
    return bytes(out)


def decode(cdb):
    """The view of a CDB, every field of its command in it. Malformed if it is none."""
    if len(cdb) not in VERSIONS:
        raise Malformed(f"a CDB of {len(cdb)} bytes")
    version = VERSIONS[len(cdb)]
    if cdb[0] != 0x7F or cdb[7] not in (len(cdb) - 8, 228):  # 228 even in shorter ones: a known initiator's quirk.
        raise Malformed(f"operation code {cdb[0]:02x}, additional length {cdb[7]}")
    name, generation = BY_ACTION.get(int.from_bytes(cdb[8:10], "big"), ("", 0))
    if generation != version.generation:
        raise Malformed(f"service action {cdb[8:10].hex()} in {len(cdb)} bytes")
    view = {"version": len(cdb), "action": name, "control": cdb[1], "dpo": cdb[10] >> 4 & 1, "fua": cdb[10] >> 3 & 1,
            "timestamps": cdb[12]}
    if name not in FLUSHES:
        view["isolation"] = cdb[10] & 7
    for field in ACTIONS[name][2]:
        if field in BITS:
            at, shift, mask = BITS[field]
            if not (generation == 1 and field == "list_attr"):
                view[field] = cdb[at] >> shift & mask
            continue
        place = FIELDS[field][generation - 1]
        if place:
            raw = cdb[place[0]:place[0] + place[1]]
            view[field] = raw.hex() if field in RAW else int.from_bytes(raw, "big") & (15 if field == "key_version" else -1)
    view["attributes"] = decode_attributes(cdb[11] >> 4 & 3, cdb[52:80], generation)
    view["capability"] = decode_capability(cdb[80:80 + version.capability])
    view["security"] = {"icv": cdb[version.icv_at:version.icv_at + version.icv].hex(),
                        "nonce": cdb[version.nonce_at:version.nonce_at + 12].hex(),
                        "data_in_offset": decode_offset(int.from_bytes(cdb[version.in_at:version.in_at + 4], "big"), generation),
                        "data_out_offset": decode_offset(int.from_bytes(cdb[version.out_at:version.out_at + 4], "big"), generation)}
    return view


# Attribute lists

def get_list(attributes, generation=2, length=0):
    """A list of (page, number) to be got. An initiator leaves the list's own length 0: the CDB has it."""
    body = b"".join(struct.pack(">II", page, number) for page, number in attributes)
    return (struct.pack(">BxH", 1, length) if generation == 1 else struct.pack(">BxxxI", 1, length)) + body


def entries(attributes, generation=2):
    """(page, number, value) each; the value None is an attribute that is not there."""
    out = b""
    for page, number, value in attributes:
        if generation == 1:
            out += struct.pack(">IIH", page, number, 0xFFFF if value is None else len(value)) + (value or b"")
        else:
            value = value or b""
            out += struct.pack(">II6xH", page, number, len(value)) + value + bytes(-len(value) % 8)
    return out


def set_list(attributes, generation=2, length=0):
    return (struct.pack(">BxH", 9, length) if generation == 1 else struct.pack(">BxxxI", 9, length)) + entries(attributes, generation)


def _cut(data, at, size, what):
    if at + size > len(data):
        raise Malformed(f"{what}: {size} bytes at {at} of {len(data)}")
    return data[at:at + size]


def decode_entries(data, generation=2, cut=False):
    """[(page, number, value)]; `cut`: the last may be cut off by an allocation length, and is left out then."""
    found, at = [], 0
    head = 10 if generation == 1 else 16
    while at < len(data):
        if cut and at + head > len(data):
            break
        page, number = struct.unpack_from(">II", _cut(data, at, head, "an attribute's entry"))
        length = int.from_bytes(data[at + head - 2:at + head], "big")
        at += head
        if generation == 1 and length == 0xFFFF:
            found.append((page, number, None))
            continue
        if cut and at + length > len(data):
            break
        value = _cut(data, at, length, "an attribute's value")
        found.append((page, number, value))
        at += length
        if generation == 2:
            # An entry is padded with zeros, and the last one too.
            padding = _cut(data, at, -length % 8, "an attribute's padding")
            if any(padding):
                raise Malformed(f"padding {padding.hex()}")
            at += len(padding)
    return found


def decode_list(data, generation=2):
    """(list type, what is in it, bytes that it has in all) of a list that was retrieved or is to be sent."""
    head = 4 if generation == 1 else 8
    _cut(data, 0, head, "a list's header")
    kind = data[0] & 15
    length = int.from_bytes(data[2:4] if generation == 1 else data[4:8], "big")
    body = data[head:head + length]
    cut = head + length > len(data)
    if kind == 1:
        if len(body) % 8:
            raise Malformed(f"a get list of {len(body)} bytes")
        found = list(struct.iter_unpack(">II", body))
    elif kind == 9:
        found = decode_entries(body, generation, cut)
    elif kind == 14 and generation == 2:
        found = decode_objects(body, cut)
    elif kind == 15 and generation == 1:
        found, at = [], 0
        while at + 18 <= len(body):
            size = int.from_bytes(body[at + 16:at + 18], "big")
            size = 0 if size == 0xFFFF else size
            found.append((int.from_bytes(body[at:at + 8], "big"), decode_entries(body[at + 8:at + 18 + size], 1, cut)))
            at += 18 + size
    else:
        raise Malformed(f"a list of type {kind:#x}")
    return kind, found, head + length


def decode_objects(body, cut=False):
    """[(object id, type, [(page, number, value)])]: descriptors with attributes (OSD-2)."""
    found, at = [], 0
    while at < len(body):
        if cut and at + 16 > len(body):
            break
        object_, type_, length = struct.unpack_from(">QB5xH", _cut(body, at, 16, "an object's descriptor"))
        if cut and at + 16 + length > len(body):
            break
        found.append((object_, type_, decode_entries(_cut(body, at + 16, length, "an object's attributes"))))
        at += 16 + length
    return found


# The continuation of a CDB, at the beginning of Data-Out

def descriptor(type_, body):
    return struct.pack(">HxBI", type_, -len(body) % 8, len(body)) + body + bytes(-len(body) % 8)


def scatter_gather(pieces):
    """Descriptor 0001h: (offset, length) of each piece of the object."""
    return descriptor(1, b"".join(struct.pack(">QQ", *piece) for piece in pieces))


def query_list(criteria, all_=True):
    """Descriptor 0002h: (page, number, least value, greatest value) each; an empty value is no limit."""
    body = struct.pack(">Bxxx", 1 if all_ else 0)
    for page, number, least, greatest in criteria:
        entry = struct.pack(">IIH", page, number, len(least)) + least + struct.pack(">H", len(greatest)) + greatest
        # The entry's length is that of what follows it.
        body += struct.pack(">xxH", len(entry)) + entry
    return descriptor(2, body)


def user_object(object_):
    return descriptor(0x0100, struct.pack(">Q", object_))


def copy_source(partition, object_, attributes=True):
    """Descriptor 0101h; `attributes`: they are copied too."""
    return descriptor(0x0101, struct.pack(">QQBxxx", partition, object_, attributes))


def continuation(action, descriptors, icv=bytes(32), end=True):
    """A continuation segment with these descriptors for the command of that name; `end`: with the descriptor that ends the list."""
    return struct.pack(">BxHxxxx", 1, ACTIONS[action][1]) + icv + b"".join(descriptors) + bytes(8 * end)


def decode_continuation(data):
    """(service action, ICV, [(type, body)])"""
    if len(data) < 48 or len(data) % 8 or data[0] != 1:
        raise Malformed(f"a continuation of {len(data)} bytes, format {data[:1].hex()}")
    found, at = [], 40
    while at < len(data):
        type_, padding, length = struct.unpack_from(">HxBI", _cut(data, at, 8, "a descriptor"))
        if (length + (padding & 7)) % 8:
            raise Malformed(f"a descriptor of {length} + {padding & 7} bytes")
        body = _cut(data, at + 8, length + (padding & 7), "a descriptor's body")
        at += 8 + len(body)
        if type_ == 0:
            break
        found.append((type_, body[:length]))
    return int.from_bytes(data[2:4], "big"), data[8:40], found


# What commands answer

def decode_id_list(data, generation=2):
    """The reply of LIST and LIST COLLECTION: a dict; `entries` are ids, or (id, type, attributes) where they came with them."""
    length, more, list_id, flags = struct.unpack_from(">QQI3xB", _cut(data, 0, 24, "a list's header"))
    body = data[24:length + 8]
    cut = length + 8 > len(data)
    form = flags >> 2 if generation == 2 else 0x21
    if generation == 2 and form not in (0x01, 0x02, 0x11, 0x12, 0x21, 0x22):
        raise Malformed(f"descriptor format {form:#x}")
    if generation == 2 and form & 2:
        found = decode_objects(body, cut)
    else:
        if len(body) % 8 and not cut:
            raise Malformed(f"ids in {len(body)} bytes")
        found = [entry[0] for entry in struct.iter_unpack(">Q", body[:len(body) // 8 * 8])]
    return {"additional": length, "continuation": more, "list_id": list_id, "format": form, "changed": flags >> 1 & 1, "low": flags & 1,
            "entries": found}


def decode_query(data):
    """The reply of QUERY: a dict as that of a list. The format is in byte 11, the ids follow."""
    length = int.from_bytes(_cut(data, 0, 12, "a query's header")[:8], "big")
    body = data[12:length + 8]
    form = data[11] >> 2
    if form != 0x21 or (len(body) % 8 and length + 8 <= len(data)):
        raise Malformed(f"a query's reply of format {form:#x} with {len(body)} bytes of ids: {data[:16].hex()}")
    return {"additional": length, "format": form, "entries": [entry[0] for entry in struct.iter_unpack(">Q", body[:len(body) // 8 * 8])]}


def decode_map(data):
    """The reply of READ MAP: (additional length, [(type, length, offset)])"""
    length = int.from_bytes(_cut(data, 0, 8, "a map's header"), "big")
    body = data[8:8 + length]
    if len(body) % 16 and length + 8 <= len(data):
        raise Malformed(f"a map of {len(body)} bytes")
    return length, list(struct.iter_unpack(">xxHIQ", body[:len(body) // 16 * 16]))


def decode_sense(sense):
    """A dict of descriptor format sense; {} if there is none."""
    if not sense:
        return {}
    if sense[0] & 0x7F != 0x72:
        raise Malformed(f"sense data of format {sense[0]:02x}")
    if len(sense) != 8 + _cut(sense, 0, 8, "sense data")[7]:
        raise Malformed(f"sense data of {len(sense)} bytes that says it has {8 + sense[7]}")
    found = {"key": sense[1] & 15, "code": int.from_bytes(sense[2:4], "big"), "attributes": []}
    at = 8
    while at < len(sense):
        kind, length = _cut(sense, at, 2, "a sense descriptor")
        body = _cut(sense, at + 2, length, "a sense descriptor")
        if kind == 1 and length == 10:
            found["information"] = int.from_bytes(body[2:10], "big")
        elif kind == 2 and length == 6:
            found["field"] = int.from_bytes(body[3:5], "big")
            found["in_cdb"] = body[2] >> 6 & 1
            found["valid"] = body[2] >> 7
        elif kind == 6:
            if length != 0x1E:
                raise Malformed(f"an object identification descriptor of {length} bytes")
            found["not_initiated"], found["completed"], found["partition"], found["object"] = struct.unpack(">IIQQ", body[6:])
        elif kind == 7:
            found["icv"] = body
        elif kind == 8:
            if length < 6 or (length - 6) % 8:
                raise Malformed(f"an attribute identification descriptor of {length} bytes")
            found["attributes"] += list(struct.iter_unpack(">II", body[6:]))
        elif kind != 0:
            found.setdefault("others", []).append((kind, body.hex()))
        at += 2 + length
    return found


# Security

def mac(key, data, version=236):
    return hmac.new(key, data, VERSIONS[version].digest).digest()


def capability_key(secret, capability, system_id, version=236):
    return mac(secret, capability + system_id, version)


def with_icv(cdb, key, data=None):
    """The CDB with its request ICV: over the CDB itself with that field zero (CMDRSP, ALLDATA), or over `data` (CAPKEY)."""
    version = VERSIONS[len(cdb)]
    zeroed = cdb[:version.icv_at] + bytes(version.icv) + cdb[version.nonce_at:]
    value = mac(key, zeroed if data is None else data, len(cdb))
    return cdb[:version.icv_at] + value + cdb[version.nonce_at:]
