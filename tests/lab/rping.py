"""rping by hand: both of its roles over lab/iwarp.py, so that a kernel's RDMA stack has a peer that we wrote ourselves.

The client advertises a source; the server reads it by RDMA Read and says go; the client advertises a sink; the server
writes the same bytes there by RDMA Write and says go again. An advertisement is a Send of address, key and size.
"""

import struct

from .iwarp import Closed
from .report import expect

ADVERTISEMENT = ">QII"
GO = bytes(16)


def pattern(size, round_):
    """Text that moves by one letter a round, as rping's own. It ends with a zero: rping's server writes back a C string."""
    return bytes(65 + (at + round_) % 58 for at in range(size - 1)) + b"\0"


def advertised(message):
    expect(len(message) == 16, f"an advertisement of {len(message)} bytes")
    return struct.unpack(ADVERTISEMENT, message)


def serve(stream, rounds=None):
    """rping's server until the client closes, or for so many rounds; the number of whole rounds."""
    done = 0
    try:
        while rounds is None or done < rounds:
            _, message = stream.receive()
            address, key, size = advertised(message)
            data = stream.read(size, key, address)
            stream.send(GO)
            _, message = stream.receive()
            address, key, sink_size = advertised(message)
            expect(sink_size == size, f"a sink of {sink_size} bytes for {size}")
            stream.write(key, address, data)
            stream.send(GO)
            done += 1
    except Closed:
        pass
    return done


def ping(stream, rounds, size):
    """rping's client: every round's bytes must come back as they went."""
    for round_ in range(rounds):
        data = pattern(size, round_)
        source = stream.expose(bytearray(data), "r", base=0x10000)
        stream.send(struct.pack(ADVERTISEMENT, 0x10000, source, size))
        stream.receive()
        expect(stream.buffers[source].lent == size, f"the server read {stream.buffers[source].lent} of {size} bytes")
        sink = stream.expose(bytearray(size), "w", base=0x20000)
        stream.send(struct.pack(ADVERTISEMENT, 0x20000, sink, size))
        stream.receive()
        expect(bytes(stream.buffers[sink].data) == data, f"round {round_}: other bytes came back")
        del stream.buffers[source], stream.buffers[sink]
