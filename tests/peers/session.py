"""Sessions by hand: several connections of one (MC/S), resets, unit attentions between sessions, the target's pings."""

import struct
import time

from lab import wire
from lab.report import Failed, expect
from lab.target import Unit

READ_8 = struct.pack(">BBIBHB", 0x28, 0, 0, 0, 8, 0)
CHECK_CONDITION = 2


def sense_of(response):
    """(sense key, ASC, ASCQ) of a response's data: a length, then fixed or descriptor sense."""
    sense = response[2:]
    if not sense:
        return None
    if sense[0] & 0x7F in (0x72, 0x73):
        return sense[1] & 15, sense[2], sense[3]
    return sense[2] & 15, sense[12], sense[13]


def further(target, first, cid, **keys):
    """A further connection of `first`'s session. Its commands are numbered by the caller."""
    connection = wire.Connection(target)
    name, connection.lun = wire.unit_of(target)
    connection.command_number = first.command_number
    connection.login(name, tsih=first.tsih, cid=cid, **keys)
    return connection


def two_connections(lab):
    """Commands over two connections run in the order of their numbers, and each is answered where it was sent."""
    if lab.kind != "stag":
        return
    with lab.serve(Unit(memory=True)) as target, wire.session(target, MaxConnections="4") as first:
        expect(int(first.keys["MaxConnections"]) >= 2, f"MaxConnections: {first.keys['MaxConnections']}")
        second = further(target, first, 2)
        number = first.command_number
        write = struct.pack(">BBIBHB", 0x2A, 0, 0, 0, 8, 0)
        for round_ in range(200):
            # The read's number is after the write's, and it is sent before it, on the other connection.
            data = bytes([round_]) * 4096
            read_tag, write_tag = 1000 + round_, 2000 + round_
            second.send(*second.command_pdu(READ_8, 4096, tag=read_tag, command_number=number + 1))
            first.out = data
            first.send(*first.command_pdu(write, 4096, True, tag=write_tag, command_number=number))
            expect(first.answer(write_tag)[0] == 0, "a write on the first connection fails")
            status, _, got = second.answer(read_tag)
            expect(status == 0 and len(got) == 4096, f"a read on the second connection: status {status}")
            number += 2
        first.command_number = number
        # Either connection may go, and the session stays.
        expect(second.logout(reason=1, connection=2) == 0, "logout of one connection is refused")
        second.close()
        expect(first.read(0, 1)[:1] == bytes([199]), "the session is gone with one of its connections")


def connection_lost(lab):
    """With ErrorRecoveryLevel 0, a connection that breaks ends its session (session recovery, RFC 7143 §7.6): all of its
    connections, and another session takes over."""
    if lab.kind != "stag":
        return
    with lab.serve(Unit(memory=True)) as target, wire.session(target, MaxConnections="4") as first:
        second = further(target, first, 7)
        second.send(*second.command_pdu(bytes(6), command_number=first.command_number))
        second.receive()
        second.reset()
        expect(first.wait_closed(5), "the session's other connection stays open")
        with wire.session(target) as after:
            after.read(0, 8)


def too_many_connections(lab):
    """More connections than MaxConnections: refused with the status of the RFC."""
    if lab.kind != "stag":
        return
    with lab.serve(Unit(memory=True)) as target, wire.session(target, MaxConnections="1") as first:
        try:
            further(target, first, 2)
        except (Failed, wire.Closed) as refusal:
            expect(isinstance(refusal, wire.Closed) or "0206" in str(refusal), f"refused with another status: {refusal}")
        else:
            raise Failed("a second connection joined a session with MaxConnections=1")
        first.test_unit_ready()


def unit_reset(lab):
    """LOGICAL UNIT RESET ends other sessions' tasks and tells them by a unit attention."""
    with lab.serve(Unit(memory=True)) as target, wire.session(target) as one, \
            wire.session(target, "iqn.2026-01.example.lab:other") as other:
        tag = other.tag()
        other.send(*other.command_pdu(struct.pack(">BBIBHB", 0x2A, 0, 0, 0, 8, 0), 4096, True, tag=tag))
        expect(other.receive().opcode == wire.R2T, "no R2T")
        expect(one.task_management(5) == 0, "LOGICAL UNIT RESET fails")
        status, response, _ = other.run(bytes(6))
        expect(status == CHECK_CONDITION, f"no unit attention after a reset by another: status {status}")
        expect(sense_of(response)[:2] == (6, 0x29), f"sense {sense_of(response)}, not UNIT ATTENTION, 29h")
        status, _, _ = other.run(bytes(6))
        expect(status == 0, "the unit attention is told twice")
        data = other.read(0, 8)
        expect(len(data) == 4096, "no read after the reset")


def cold_reset(lab):
    """TARGET COLD RESET ends every session (RFC 7143 §11.5.1), and the target serves again at once."""
    if lab.kind != "stag":
        return
    with lab.serve(Unit(memory=True)) as target:
        one, other = wire.session(target), wire.session(target, "iqn.2026-01.example.lab:other")
        try:
            code = one.task_management(7)
            expect(code == 0, f"TARGET COLD RESET: response {code}")
        except wire.Closed:
            pass
        expect(one.wait_closed(10), "the session that asked stays open")
        expect(other.wait_closed(10), "another session stays open")
        with wire.session(target) as after:
            after.write(0, bytes(4096))


def warm_reset(lab):
    """TARGET WARM RESET leaves sessions, and tells them by a unit attention."""
    if lab.kind != "stag":
        return
    with lab.serve(Unit(memory=True), Unit(memory=True)) as target, wire.session(target) as one, \
            wire.session(target, "iqn.2026-01.example.lab:other") as other:
        other.test_unit_ready(lun=1)
        expect(one.task_management(6) == 0, "TARGET WARM RESET fails")
        for lun in (0, 1):
            status, response, _ = other.run(bytes(6), lun=lun)
            expect(status == CHECK_CONDITION and sense_of(response)[:2] == (6, 0x29),
                   f"unit {lun}: status {status}, sense {sense_of(response)}")
            other.test_unit_ready(lun=lun)


def pings(lab):
    """The target pings a silent initiator, keeps it when it answers, and ends its session when it does not."""
    if lab.kind != "stag":
        return
    with lab.serve(Unit(memory=True), limits={"nop-interval": 1, "nop-timeout": 4}) as target:
        with wire.session(target) as good:
            for _ in range(2):
                ping = good.receive()
                expect(ping.opcode == wire.NOP_IN and ping.target_tag != wire.NO_TAG, f"not a ping: {ping}")
                good.send(wire.bhs(wire.NOP_OUT | wire.IMMEDIATE, wire.FINAL, 0, 0, wire.NO_TAG, struct.pack(
                    ">III", ping.target_tag, good.command_number, good.status_number)))
            good.read(0, 8)
        silent = wire.session(target)
        start = time.monotonic()
        expect(silent.wait_closed(45), "a session that answers no ping stays open")
        expect(time.monotonic() - start < 60, f"it took {time.monotonic() - start:.0f} s")


def mode_change_is_told(lab):
    """What one session changes in mode pages, the others learn by a unit attention."""
    with lab.serve(Unit()) as target, wire.session(target) as one, \
            wire.session(target, "iqn.2026-01.example.lab:other") as other:
        status, _, page = one.run(bytes([0x1A, 0x08, 0x08, 0, 255, 0]), 255)
        expect(status == 0 and page[4] & 0x3F == 8, f"MODE SENSE: no caching page: {page.hex()}")
        parameters = bytearray(page)
        parameters[0] = parameters[2] = 0
        parameters[4] &= 0x3F
        parameters[6] ^= 4  # WCE
        status, response, _ = one.run(bytes([0x15, 0x10, 0, 0, len(parameters), 0]), out=bytes(parameters))
        expect(status == 0, f"MODE SELECT of WCE: status {status}, sense {sense_of(response)}")
        status, response, _ = other.run(bytes(6))
        expect(status == CHECK_CONDITION and sense_of(response) == (6, 0x2A, 1),
               f"other session: status {status}, sense {sense_of(response)}")
        _, _, page = other.run(bytes([0x1A, 0x08, 0x08, 0, 255, 0]), 255)
        expect(page[6] & 4 == parameters[6] & 4, "the other session sees another WCE")


CASES = [
    ("MC/S: commands over two connections run in the order of CmdSN", two_connections),
    ("MC/S: a lost connection ends its session, at ErrorRecoveryLevel 0", connection_lost),
    ("MC/S: no more than MaxConnections", too_many_connections),
    ("LOGICAL UNIT RESET is told to other sessions", unit_reset),
    ("TARGET COLD RESET ends the sessions", cold_reset),
    ("TARGET WARM RESET leaves the sessions", warm_reset),
    ("the target pings, and ends what is dead", pings),
    ("MODE SELECT is told to other sessions", mode_change_is_told),
]
