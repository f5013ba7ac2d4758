#!/usr/bin/env python3
"""Golden vectors of OSD commands and parameter data, by lab/osd.py: what crate `osd` must read to the same fields and write to
the same bytes (objects/osd/tests/golden.rs), and the other way round.

    tests/lab/osd_vectors.py           is the file of vectors what is made here now, and do we read the crate's as it does?
    tests/lab/osd_vectors.py --write   writes our file

Every vector is a dict: `kind`, `hex`, and `view`, which is what is in it. Nothing in it is left to chance.
"""

import json
import os
import random
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from lab import osd  # noqa: E402

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../objects/osd/tests/vectors")
OURS, THEIRS, LINUX = (os.path.join(FOLDER, name) for name in ("python.json", "rust.json", "libosd.json"))
# How many bytes a field has in every form of a CDB, so that a chosen value fits.
LIMITS = {"count": 0xFFFF, "list_id": 0xFFFFFFFF, "continuation": 4096, "map_type": 0x8000, "duplication": 0xFF, "key_version": 15,
          "dh_group": 7, "parameters": 4096, "dh_allocation": 4096, "tmf_allocation": 64, "function": 0xFF}


def fields_of(action, version, chance):
    """Values for every field of a command, such that each byte of it is told apart from its neighbours."""
    view = {}
    for name in osd.ACTIONS[action][2]:
        if name in osd.BITS:
            mask = osd.BITS[name][2]
            if not (version == 200 and name == "list_attr"):
                # Values that have a meaning: a sort order is 0, a scope or a removal's is 0 to 2, keys to set are 1 to 3.
                view[name] = {"sort": 0, "remove_scope": chance.randrange(2), "scope": chance.randrange(3),
                              "key_to_set": chance.randrange(1, 4), "dh_step": chance.randrange(2)}.get(name, chance.randrange(mask + 1))
        elif osd.FIELDS[name][osd.VERSIONS[version].generation - 1] is None:
            continue
        elif name in osd.RAW:
            view[name] = chance.randbytes(osd.FIELDS[name][0][1]).hex()
        elif name == "continuation":
            view[name] = 8 * chance.randrange(6, 40) if chance.random() < 0.5 else 0
        elif name == "map_type":
            view[name] = chance.choice([0, 1, 2, 3, 0x8000])
        elif name == "function":
            view[name] = chance.choice([1, 2, 4, 8, 0x40])
        else:
            view[name] = chance.randrange(1, LIMITS.get(name, (1 << 63) - 1) + 1)
    return view


def offset(version, chance):
    unit = 256 if version == 200 else 8
    return unit * chance.randrange(1, 1 << 20) if chance.random() < 0.8 else None


def region(version, chance, length, at):
    """The fields of a part of a buffer: both, or a length of 0 and an unused offset."""
    where = offset(version, chance)
    return {length: 0 if where is None else chance.randrange(1, 1 << 16), at: where}


def attributes_of(kind, version, chance):
    some = lambda top=1 << 16: chance.randrange(1, top)  # noqa: E731
    if kind == 1:
        return {"format": 1, "page": some(0xEFFFFFFF), "number": some(), "value": chance.randbytes(chance.randrange(19)).hex()}
    if kind == 2:
        return {"format": 2, "get_page": some(0xEFFFFFFF), **region(version, chance, "get_length", "retrieved_offset"),
                "set_page": some(0xEFFFFFFF), "set_number": some(), **region(version, chance, "set_length", "set_offset")}
    return {"format": 3, **region(version, chance, "get_list_length", "get_list_offset"),
            **region(version, chance, "get_length", "retrieved_offset"), **region(version, chance, "set_list_length", "set_list_offset")}


def capability_of(version, chance):
    """Every field of a capability filled, with types and methods that exist."""
    generation = osd.VERSIONS[version].generation
    found = {"format": generation, "key_version": chance.randrange(16), "algorithm": 1, "method": chance.randrange(4),
             "expiration": chance.randrange(1 << 48), "audit": chance.randbytes(20).hex(), "discriminator": chance.randbytes(12).hex(),
             "created": chance.randrange(1 << 48), "object_type": chance.choice([1, 2, 0x40, 0x80]),
             "permissions": chance.randrange(1 << 16) & (0xFFE0 if generation == 1 else 0xFFFC),
             "descriptor": chance.randrange(1, 3 if generation == 1 else 4), "policy_tag": chance.randrange(1 << 32),
             "partition": chance.randrange(0x10000, 1 << 63), "object": chance.randrange(0x10000, 1 << 63)}
    if generation == 2:
        found |= {"attributes_access": chance.randrange(1 << 32), "boot_epoch": chance.randrange(1 << 16)}
        # An object's descriptor has a range too.
        found |= {"range_length": chance.randrange(1 << 63), "range_start": chance.randrange(1 << 63)}
    return found


def cdbs(chance):
    for action in osd.ACTIONS:
        for version in osd.VERSIONS:
            if version == 200 and not osd.ACTIONS[action][0]:
                continue
            for round_ in range(2 if version == 236 else 1):
                kind = chance.choice([2, 3] if version == 200 else [1, 2, 3]) if not round_ else 3
                known = osd.VERSIONS[version]
                view = {"version": version, "action": action, "control": 0, "dpo": chance.randrange(2), "fua": chance.randrange(2),
                        "timestamps": chance.choice([0, 0x7F]), **fields_of(action, version, chance)}
                if action not in osd.FLUSHES:
                    view["isolation"] = chance.choice([0, 1, 2, 4, 5]) if known.generation == 2 else 0
                view["attributes"] = attributes_of(kind, version, chance)
                view["capability"] = capability_of(version, chance)
                view["security"] = {"icv": chance.randbytes(known.icv).hex(), "nonce": chance.randbytes(12).hex(),
                                    "data_in_offset": offset(version, chance), "data_out_offset": offset(version, chance)}
                cdb = osd.encode(view)
                assert osd.decode(cdb) == osd.decode(osd.encode(osd.decode(cdb))), action
                yield {"kind": "cdb", "hex": cdb.hex(), "view": osd.decode(cdb)}


def listed(kind, found):
    """An attribute list's contents as JSON; an attribute that is not there has an empty value."""
    if kind == 1:
        return [list(pair) for pair in found]
    plain = lambda entries: [[page, number, (value or b"").hex()] for page, number, value in entries]  # noqa: E731
    if kind == 9:
        return plain(found)
    if kind == 14:
        return [[object_, type_, plain(entries)] for object_, type_, entries in found]
    return [[object_, plain(entries)] for object_, entries in found]


def values(chance, generation):
    for length in (0, 1, 7, 8, 9, 18, 40, 255):
        if length or generation == 1:
            yield chance.randrange(0xF0000000), chance.randrange(1, 0xFFFFFFFF), chance.randbytes(length)
    yield chance.randrange(0xF0000000), chance.randrange(1, 0xFFFFFFFF), None if generation == 1 else b""


def lists(chance):
    for generation in (1, 2):
        wanted = [(chance.randrange(1 << 32), chance.randrange(1 << 32)) for _ in range(5)]
        several = list(values(chance, generation))
        parts = [osd.get_list(wanted, generation, 40), osd.get_list([], generation, 0), osd.set_list([], generation, 0),
                 osd.set_list(several, generation, len(osd.entries(several, generation)))]
        if generation == 2:
            body = b""
            for object_, type_ in ((0x10000, 0x80), (0x1234567890, 0x40)):
                entries = osd.entries(several[:3])
                body += struct.pack(">QB5xH", object_, type_, len(entries)) + entries
            parts.append(struct.pack(">BxxxI", 14, len(body)) + body)
        else:
            body = b"".join(struct.pack(">Q", 0x10000 + at) + osd.entries([entry], 1) for at, entry in enumerate(several[:4]))
            parts.append(struct.pack(">BxH", 15, len(body)) + body)
        for part in parts:
            kind, found, _ = osd.decode_list(part, generation)
            yield {"kind": "attribute list", "generation": generation, "hex": part.hex(),
                   "view": {"type": kind, "entries": listed(kind, found)}}


def continuations(chance):
    for action, parts in (
        ("WRITE", [osd.scatter_gather([(0, 512), (1 << 40, 1), (4096, 8192)])]),
        ("READ", [osd.scatter_gather([(7, 9)])]),
        ("QUERY", [osd.query_list([(0, 9, b"a", b"zz"), (0x10000, 5, b"", chance.randbytes(8)), (1, 0x82, bytes(8), b"")])]),
        ("QUERY", [osd.query_list([(2, 3, b"x", b"x")], all_=False)]),
        ("SET MEMBER ATTRIBUTES", [osd.user_object(0x10001), osd.user_object(0xFFFFFFFF00000001)]),
        ("COPY USER OBJECTS", [osd.copy_source(0x10000, 0x10005)]),
        ("CREATE", [osd.descriptor(0xFFEE, chance.randbytes(208))]),
    ):
        data = osd.continuation(action, parts, chance.randbytes(32))
        service_action, icv, found = osd.decode_continuation(data)
        yield {"kind": "continuation", "hex": data.hex(), "view": {
            "service_action": service_action, "icv": icv.hex(), "descriptors": [[type_, body.hex()] for type_, body in found]}}


def offsets():
    for generation in (1, 2):
        words = [0, 1, 0x0FFFFFFF, 0x1FFFFFFF, 0x7000ABCD, osd.UNUSED] + ([0xB0000001, 0xBFFFFFFF, 0xF0000003, 0x80000001, 0xA0000001]
                                                                          if generation == 2 else [0xF0000001, 0x80000001])
        for word in words:
            try:
                view = osd.decode_offset(word, generation)
            except osd.Malformed:
                view = "malformed"
            yield {"kind": "offset", "generation": generation, "hex": f"{word:08x}", "view": view}


def securities(chance):
    """HMACs, and an ICV in a CDB, with keys that are written here."""
    for version in osd.VERSIONS:
        secret, system_id = chance.randbytes(osd.VERSIONS[version].icv), chance.randbytes(20)
        capability = osd.encode_capability(osd.VERSIONS[version].generation, **capability_of(version, chance))
        cdb = osd.encode({"version": version, "action": "READ", "partition": 0x10000, "object": 0x10001, "length": 4096,
                          "security": {"nonce": chance.randbytes(12).hex()}})
        key = osd.capability_key(secret, capability, system_id, version)
        yield {"kind": "security", "hex": osd.with_icv(cdb, key).hex(), "view": {
            "version": version, "secret": secret.hex(), "capability": capability.hex(), "system_id": system_id.hex(),
            "capability_key": key.hex(), "cdb": cdb.hex()}}


def vectors():
    chance = random.Random(458)
    return [*cdbs(chance), *lists(chance), *continuations(chance), *offsets(), *securities(chance)]


def text(found):
    """One vector a line: a change is a line in a diff."""
    return "[\n" + ",\n".join(json.dumps(vector) for vector in found) + "\n]\n"


def read_theirs():
    """What is wrong with our reading of the crate's vectors: a list of sentences."""
    wrong = []
    with open(THEIRS) as file:
        found = json.load(file)
    for number, vector in enumerate(found):
        data = bytes.fromhex(vector["hex"])
        try:
            if vector["kind"] == "cdb":
                view, again = osd.decode(data), osd.encode(osd.decode(data))
            elif vector["kind"] == "attribute list":
                kind, entries, _ = osd.decode_list(data, vector["generation"])
                view, again = {"type": kind, "entries": listed(kind, entries)}, data
            elif vector["kind"] == "continuation":
                service_action, icv, parts = osd.decode_continuation(data)
                view = {"service_action": service_action, "icv": icv.hex(), "descriptors": [[kind, body.hex()] for kind, body in parts]}
                again = data
            else:
                wrong.append(f"vector {number}: what is a {vector['kind']}?")
                continue
        except osd.Malformed as why:
            wrong.append(f"vector {number} ({vector['kind']}): {why}")
            continue
        if view != vector["view"]:
            wrong.append(f"vector {number}: we read {view}, the crate {vector['view']}")
        if again != data:
            wrong.append(f"vector {number}: we write {again.hex()} for {data.hex()}")
    return wrong, len(found)


def without_unused(view):
    """The fields of a CDB; libosd writes 0 as the offset of a list that has no bytes, where others write what means none."""
    attributes = view["attributes"]
    for name in ("get", "retrieved", "set"):
        if attributes.get(f"{name}_length") == 0 and f"{name}_offset" in attributes:
            attributes[f"{name}_offset"] = None
    return view


def read_linux():
    """What is wrong with our reading of CDBs that libosd of Linux 4.14 sent: a list of sentences."""
    with open(LINUX) as file:
        found = json.load(file)
    wrong = []
    for vector in found:
        view = without_unused(osd.decode(bytes.fromhex(vector["hex"])))
        if view != vector["view"]:
            wrong.append(f"we read {view}, and once read {vector['view']}")
    return wrong, len(found)


def main():
    if "--write" in sys.argv:
        os.makedirs(FOLDER, exist_ok=True)
        with open(OURS, "w") as file:
            file.write(text(vectors()))
        return
    with open(OURS) as file:
        if file.read() != text(vectors()):
            sys.exit(f"{OURS} is not what lab/osd.py makes: tests/lab/osd_vectors.py --write")
    wrong, count = read_theirs()
    print("\n".join(wrong) or f"{count} vectors of the crate read and written as it does")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
