"""Golden vectors: what crate `osd` writes, lab/osd.py reads to the same fields and writes to the same bytes.

The other way round is `objects/osd/tests/golden`, among the Rust tests.
"""

import random

from lab import osd, osd_vectors
from lab.report import expect


def ours(lab):
    """The file that the crate's test reads is what lab/osd.py makes now."""
    with open(osd_vectors.OURS) as file:
        expect(file.read() == osd_vectors.text(osd_vectors.vectors()), "python.json is another: tests/lab/osd_vectors.py --write")


def theirs(lab):
    """All vectors of the crate are read and written alike."""
    wrong, count = osd_vectors.read_theirs()
    expect(not wrong, "\n".join(wrong[:5]))
    expect(count > 100, f"only {count} vectors")


def linux(lab):
    """CDBs that Linux's libosd sent, of both generations, have the fields that the crate reads too."""
    wrong, count = osd_vectors.read_linux()
    expect(not wrong, "\n".join(wrong[:5]))
    expect(count > 20, f"only {count} CDBs")


def anything(lab):
    """No bytes make the decoder fail in another way than by saying that they are malformed."""
    chance = random.Random(3)
    good = [bytes.fromhex(vector["hex"]) for vector in osd_vectors.vectors()]
    for _ in range(4000):
        data = bytearray(chance.choice(good))
        for _ in range(chance.randrange(1, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        data = bytes(data[:chance.randrange(len(data) + 1)] if chance.random() < 0.3 else data)
        for decode in (osd.decode, osd.decode_list, lambda part: osd.decode_list(part, 1), osd.decode_continuation, osd.decode_id_list,
                       osd.decode_map, osd.decode_query, osd.decode_sense):
            try:
                decode(data)
            except osd.Malformed:
                pass


CASES = [
    ("our vectors are those that the crate's tests read", ours),
    ("the crate's vectors", theirs),
    ("CDBs of Linux's libosd", linux),
    ("the decoder takes any bytes", anything),
]
