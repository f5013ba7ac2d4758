"""rping by hand: both of its roles over lab/iwarp.py, so that a kernel's RDMA stack has a peer that we wrote ourselves.

The client advertises a source; the server reads it by RDMA Read and says go; the client advertises a sink; the server
writes the same bytes there by RDMA Write and says go again. An advertisement is a Send of address, key and size.
"""

import contextlib
import os
import struct
import subprocess
import threading

from . import iwarp, proc
from .iwarp import Closed
from .report import Failed, Skip, expect
from .target import Stag

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


class Server:
    """rping's server, of the lab, for as many connections as there are setups."""

    def __init__(self, host, port, *setups):
        self.setups, self.served, self.errors = setups, [], []
        self.listener = iwarp.listen(host, port)
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        try:
            for setup in self.setups:
                with iwarp.accept(self.listener, setup, 60) as stream:
                    self.served.append((stream.crc, serve(stream)))
        except Exception as error:  # Reported by the case that waits for it.
            self.errors.append(error)
        finally:
            self.listener.close()

    def finish(self):
        """(CRC, whole rounds) of each connection."""
        self.thread.join(30)
        if self.errors:
            raise self.errors[0]
        return self.served


def program():
    """Stag's own rping, beside the program under test."""
    path = os.path.join(os.path.dirname(Stag.binary), "examples", "rping")
    if not os.path.exists(path):
        raise Skip(f"{path} is missing: cargo build -p rdma --example rping")
    return path


@contextlib.contextmanager
def running(*command):
    """A server that listens when the block begins, and has not ended by itself when it ends."""
    command = [str(word) for word in command]
    address, port = command[command.index("-a") + 1], int(command[command.index("-p") + 1])
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def listens():
        if process.poll() is not None:
            raise Failed(f"{' '.join(command)} ended with exit code {process.returncode}")
        return proc.run("ss", "-Hltn", "src", f"{address}:{port}").strip()

    try:
        proc.wait_until(listens, 10, "rping listens")
        yield process
        expect(process.poll() is None, f"{' '.join(command)} ended by itself with exit code {process.returncode}")
    finally:
        proc.end(process)
