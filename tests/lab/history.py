#!/usr/bin/env python3
"""Initiators that read and write shared blocks through several gateways and keep a history, for tests/history to judge:

    history.py CLIENT SEED LUN BLOCKS OPERATIONS FILE PORTAL...       until SIGTERM

Each is one client, with one operation at a time, over `wire`. Each write has a number of its own, in all of its block; a block that is
read with several of them is noted as torn. A client takes another portal from time to time, when a connection is closed, and when a gateway
has said nothing for GIVE_UP seconds. The silent connection stays open: nothing takes back what was sent over it. Exit code 1, and a
reason: an answer that no gateway may give.
"""

import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
import types

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from lab import proc, tools, wire  # noqa: E402
from lab.report import Failed  # noqa: E402
from lab.target import IQN  # noqa: E402

# Seconds of silence after which an initiator may give a path up. What a closed connection has
# carried must have ended within this time, too.
GIVE_UP = 6
# Seconds after which a client takes another portal without a reason, and between its operations.
STAY, THINK = 10, 0.004
BLOCK = 512
GOOD, CHECK, BUSY, FULL = 0, 2, 8, 0x28
NOT_READY, ILLEGAL_REQUEST, UNIT_ATTENTION, ABORTED, MISCOMPARE = 2, 5, 6, 0xB, 0xE


class Initiator:
    def __init__(self, client, seed, lun, blocks, operations, path, portals):
        self.client, self.lun, self.blocks, self.operations, self.portals = client, lun, blocks, operations, portals
        self.random, self.numbers = random.Random(f"{seed}.{client}"), 0
        self.seen = [0] * blocks
        self.file = open(path, "w", buffering=1)
        self.at, self.connection, self.since = client % len(portals), None, 0
        self.ending, self.given_up = False, []

    def end(self, *_):
        """After the operation that is under way, which may have taken effect."""
        self.ending = True

    def new_number(self):
        self.numbers += 1
        return self.client + 1 << 40 | self.numbers

    def connected(self):
        """A session through some gateway."""
        if self.connection and time.monotonic() > self.since + STAY:
            self.leave()
        while not self.connection and not self.ending:
            host, port = self.portals[self.at].rsplit(":", 1)
            target = types.SimpleNamespace(host=host, port=int(port), urls=[f"iscsi://{host}/{IQN}/{self.lun}"])
            connection = None
            try:
                connection = wire.Connection(target, timeout=1)
                self.exactly(connection)
                name, connection.lun = wire.unit_of(target)
                connection.login(name, f"iqn.2026-01.example.lab:history{self.client}", ImmediateData="Yes", InitialR2T="Yes",
                                 HeaderDigest="None", DataDigest="None")
                self.connection, self.since = connection, time.monotonic()
            except (OSError, Failed, wire.Closed):
                if connection:
                    connection.close()
                self.at = (self.at + 1) % len(self.portals)
                time.sleep(0.1)
        return self.connection

    def exactly(self, connection):
        """The time limit for silence is not extended."""
        connection.limit = None
        connection.socket.settimeout(GIVE_UP)

    def leave(self, silent=False):
        if silent:
            self.given_up.append(self.connection)
        else:
            self.connection.reset()
        self.connection, self.at = None, self.random.randrange(len(self.portals))

    def note(self, call, ret, op, block, **what):
        self.file.write(json.dumps({"client": self.client, "block": block, "op": op, **what, "call": call, "ret": ret}) + "\n")

    def step(self):
        """One operation, to its end or until nobody knows of it."""
        connection = self.connected()
        if self.ending:
            return
        block, op = self.random.randrange(self.blocks), self.random.choice(self.operations)
        what, data, length = {}, b"", 0
        if op == "read":
            cdb, length = struct.pack(">BBIBHB", 0x28, 0, block, 0, 1, 0), BLOCK
        elif op == "write":
            what = {"a": self.new_number()}
            cdb, data = struct.pack(">BBIBHB", 0x2A, 0, block, 0, 1, 0), filled(what["a"])
        else:
            what = {"a": self.seen[block], "b": self.new_number()}
            cdb, data = struct.pack(">BBQ3xBBB", 0x89, 0, block, 1, 0, 0), filled(what["a"]) + filled(what["b"])
        call = time.monotonic_ns()
        try:
            tag = connection.tag()
            connection.send(*connection.command_pdu(cdb, len(data) or length, bool(data), tag, data=data))
            status, sense, answer = connection.answer(tag)
        except (wire.Closed, OSError):
            self.unknown(call, GIVE_UP, op, block, what)
            return self.leave()
        except Failed as reason:
            if "neither answers" not in str(reason):
                raise
            self.unknown(call, 0, op, block, what)
            return self.leave(silent=True)
        now, key = time.monotonic_ns(), sense_key(sense) if status == CHECK else None
        if status == GOOD:
            if op == "read":
                what = {"a": struct.unpack_from(">Q", answer)[0]}
            self.seen[block] = what["b"] if op == "cas" else what["a"]
            torn = op == "read" and answer != filled(what["a"])
            self.note(call, now, op, block, **what, **({"ok": True} if op == "cas" else {}), **({"torn": True} if torn else {}))
        elif key == MISCOMPARE and op == "cas":
            self.note(call, now, op, block, **what, ok=False)
        elif key in (ABORTED, NOT_READY):
            self.unknown(call, 0, op, block, what)
            time.sleep(0.05)
        elif status in (BUSY, FULL) or key == UNIT_ATTENTION:
            # It has not begun.
            time.sleep(0.02 if key is None else 0)
        else:
            raise Failed(f"{op} of block {block}: status {status:#x}, {sense.hex()}")

    def unknown(self, call, later, op, block, what):
        """Nobody knows whether it has taken effect; in `later` seconds it has, or never does."""
        if op != "read":
            self.note(call, time.monotonic_ns() + later * 10**9, op, block, **what, maybe=True)


def filled(number):
    return struct.pack(">Q", number) * (BLOCK // 8)


def sense_key(sense):
    """Of sense data behind its length; fixed or descriptor format (SPC-6 §4.4)."""
    return sense[3 if sense[2] & 0x7F >= 0x72 else 4] & 15


class Clients:
    """Some initiators, each a process, and their history."""

    def __init__(self, folder, count, seed, lun, blocks, portals, operations=("read", "write", "cas")):
        self.paths = [os.path.join(folder, f"history.{client}") for client in range(count)]
        self.processes = []
        for client, path in enumerate(self.paths):
            with open(f"{path}.log", "w") as log:
                words = [sys.executable, os.path.abspath(__file__), client, seed, lun, blocks, ",".join(operations), path, *portals]
                self.processes.append(subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *map(str, words)],
                                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log))

    def check(self):
        """Fails if one has ended."""
        for path, process in zip(self.paths, self.processes):
            if process.poll() is not None:
                with open(f"{path}.log") as log:
                    raise Failed(f"an initiator ended with {process.returncode}:\n{proc.tail(log.read())}")

    def end(self):
        """Ends them; all operations, in the order of their calls."""
        self.check()
        for process in self.processes:
            proc.end(process)
        operations = []
        for path in self.paths:
            with open(path) as file:
                operations += [json.loads(line) for line in file if line.endswith("}\n")]
        return sorted(operations, key=lambda one: one["call"])

    def judged(self, path):
        """Ends them, and has their history judged, which is written to `path`. Its operations, whether it is linearizable, and what porcupine said."""
        operations = self.end()
        with open(path, "w") as file:
            file.writelines(json.dumps(one) + "\n" for one in operations)
        said = proc.run(tools.history(), path, timeout=1800, ok=(0, 1))
        return operations, said.code == 0, said.strip()

    def size(self):
        """How much each has written down: it grows as they get answers."""
        return [os.path.getsize(path) for path in self.paths]


def main():
    client, seed, lun, blocks, operations, path, *portals = sys.argv[1:]
    one = Initiator(int(client), seed, int(lun), int(blocks), operations.split(","), path, portals)
    signal.signal(signal.SIGTERM, one.end)
    while not one.ending:
        one.step()
        time.sleep(THINK)


if __name__ == "__main__":
    main()
