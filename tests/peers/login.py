"""Logins: CHAP as libiscsi speaks it, ACLs, and negotiation by hand."""

import contextlib
import os
import re
import struct

from lab import proc, wire
from lab.report import Failed, Skip, expect
from lab.target import IQN, Chap, Unit


def reaches(url, initiator=None):
    name = ["-i", initiator] if initiator else []
    return "DIRECT_ACCESS" in proc.run("iscsi-inq", *name, url, ok=None)


def chap(lab):
    proc.need("iscsi-inq")
    right = Chap("alice", "alice-secret-12")
    with lab.serve(Unit(), chap=right) as target:
        expect(reaches(target.url()), "refused with the right secret")
        expect(not reaches(target.url(chap=Chap("alice", "wrong-secret-12"))), "served with a wrong secret")
        expect(not reaches(target.url(chap=Chap("bob", "alice-secret-12"))), "served under a wrong name")
        expect(not reaches(target.urls[0]), "served without CHAP")
        expect(reaches(target.url(header_digest="crc32c")), "refused with CHAP and header digests")


def mutual_chap(lab):
    proc.need("iscsi-inq")
    right = Chap("alice", "alice-secret-12", "target", "target-secret-1")
    with lab.serve(Unit(), chap=right) as target:
        expect(reaches(target.url()), "refused with the right secrets")
        expect(reaches(target.url(chap=Chap("alice", "alice-secret-12"))), "an initiator that asks for no proof is refused")
        expect(not reaches(target.url(chap=Chap("alice", "alice-secret-12", "target", "wrong-target-1"))),
               "libiscsi accepts a target with a wrong secret: the target did not prove itself")


def hashes(lab):
    """Each hash by itself, as libiscsi knows them (MD5, SHA-1, SHA-256, SHA3-256 by number, RFC 7143 §12.1.3)."""
    if lab.kind != "stag":
        return
    served = []
    for name in ("md5", "sha1", "sha256", "sha3-256"):
        with lab.serve(Unit(memory=True), chap=Chap("alice", "alice-secret-12", hashes=[name])) as target:
            if reaches(target.url()):
                served.append(name)
    expect("md5" in served, f"libiscsi logs in with: {served}")


def acls(lab):
    if lab.kind != "stag":
        return
    one, two = "iqn.2026-01.example.lab:one", "iqn.2026-01.example.lab:two"
    with lab.serve(Unit(), Unit(mib=128), acls={one: None, two: [1]}) as target:
        def luns(name):
            return re.findall(r"Lun:(\d+)\s+Type:DIRECT_ACCESS", proc.run("iscsi-ls", "-s", "-i", name,
                                                                          f"iscsi://{target.portal}", ok=None))
        expect(luns(one) == ["0", "1"], f"the initiator of all units sees {luns(one)}")
        expect(luns(two) == ["1"], f"the initiator of unit 1 sees {luns(two)}")
        expect(not reaches(target.urls[0], two), "a masked unit answers INQUIRY as a disk")
        expect(not reaches(target.urls[0], "iqn.2026-01.example.lab:three"), "an initiator that no ACL names is served")


def keys(lab):
    """What the target answers to the keys of RFC 7143 §13, offered by hand."""
    offers = {"HeaderDigest": "CRC32C,None", "DataDigest": "CRC32C", "MaxConnections": "8", "InitialR2T": "No",
              "ImmediateData": "Yes", "MaxRecvDataSegmentLength": "8192", "MaxBurstLength": "16384",
              "FirstBurstLength": "4096", "DefaultTime2Wait": "3", "DefaultTime2Retain": "9", "MaxOutstandingR2T": "4",
              "DataPDUInOrder": "Yes", "DataSequenceInOrder": "Yes", "ErrorRecoveryLevel": "2",
              "X-com.example.unknown": "1"}
    with lab.serve(Unit()) as target, wire.session(target, **offers) as session:
        said = session.keys
        expect(said.get("HeaderDigest") == "CRC32C", f"HeaderDigest: {said.get('HeaderDigest')}")
        expect(said.get("DataDigest") == "CRC32C", f"DataDigest: {said.get('DataDigest')}")
        expect(said.get("MaxBurstLength") == "16384", f"MaxBurstLength: {said.get('MaxBurstLength')}")
        expect(said.get("FirstBurstLength") == "4096", f"FirstBurstLength: {said.get('FirstBurstLength')}")
        expect(said.get("DefaultTime2Wait") == "3", f"DefaultTime2Wait, the larger: {said.get('DefaultTime2Wait')}")
        expect(said.get("X-com.example.unknown") == "NotUnderstood",
               f"an unknown key: {said.get('X-com.example.unknown')}")
        if lab.kind == "stag":
            expect(said.get("ErrorRecoveryLevel") == "2", f"ErrorRecoveryLevel: {said.get('ErrorRecoveryLevel')}")
            expect(said.get("MaxConnections") == "8", f"MaxConnections: {said.get('MaxConnections')}")
            expect(said.get("TargetPortalGroupTag") is not None, "TargetPortalGroupTag is missing in the first response")
        data = bytes(range(256)) * 64
        session.write(8, data)
        expect(session.read(8, 32) == data, "what was written with both digests reads otherwise")


def reinstated(lab):
    """A login with the same initiator, ISID and target takes the place of the session before it (RFC 7143 §6.3.5)."""
    with lab.serve(Unit()) as target:
        first = wire.session(target)
        with wire.session(target) as second:
            expect(first.wait_closed(5), "the old session's connection stays open")
            second.write(0, bytes(4096))


def side_by_side(lab):
    """Other ISIDs are other sessions."""
    with lab.serve(Unit()) as target:
        sessions = [wire.session(target, isid=bytes([0x40, 0, 0, 1, 0, number])) for number in range(16)]
        for number, session in enumerate(sessions):
            session.write(number, bytes([number]) * 512)
        for number, session in enumerate(sessions):
            expect(session.read(15 - number, 1) == bytes([15 - number]) * 512, "another session's write is not seen")
            expect(session.logout() == 0, "logout is refused")
            session.close()


def refused_logins(lab):
    """Each refusal has its status (RFC 7143 §11.13.5), or the connection ends."""
    with lab.serve(Unit()) as target:
        def status(offer, **fields):
            with wire.Connection(target) as connection:
                try:
                    connection.send(*connection.login_pdu(offer, **fields))
                    answer = connection.receive()
                except wire.Closed:
                    return "closed"
                if answer.opcode != wire.LOGIN_RESPONSE:
                    return f"opcode {answer.opcode:#x}"
                return answer.bhs[36] << 8 | answer.bhs[37]

        name = ("InitiatorName", "iqn.2026-01.example.lab:wire")
        normal = [name, ("SessionType", "Normal"), ("TargetName", IQN)]
        for what, offer, fields, wanted in (
                ("a target that is not there", [name, ("SessionType", "Normal"), ("TargetName", "iqn.2026-01.x:none")],
                 {}, (0x0203,)),
                ("no initiator name", [("SessionType", "Normal"), ("TargetName", IQN)], {}, (0x0207,)),
                ("no target name", [name, ("SessionType", "Normal")], {}, (0x0207,)),
                ("a session type that is none", [name, ("SessionType", "Odd"), ("TargetName", IQN)], {},
                 (0x0209, 0x0200, 0x0207)),
                ("a version that is none", normal, {"version": 7}, (0x0205,)),
                ("a session that is not there", normal, {"tsih": 0x7777}, (0x020A,)),
                ("the reserved stage", normal, {"flags": 0x8B}, (0x0200, 0x020B)),
                ("a transit backwards", normal, {"flags": 0x84}, (0x0200, 0x020B)),
                ("text without an equals sign", b"InitiatorName\0", {}, (0x0200, 0x0207, 0x020B)),
                ("text that does not end", b"InitiatorName=iqn.2026-01.example.lab:wire", {}, (0x0200, 0x0207, 0x020B)),
        ):
            got = status(offer, **fields)
            if lab.kind == "stag":
                expect(got == "closed" or got in wanted,
                       f"{what}: {got if isinstance(got, str) else hex(got)}, not {[hex(one) for one in wanted]}")
            expect(got != 0, f"{what}: logged in")
        wire.session(target).close()


def full_feature_text(lab):
    """A text request in full-feature phase: SendTargets, also in a normal session."""
    with lab.serve(Unit()) as target, wire.session(target) as session:
        tag = session.tag()
        import struct
        text = b"SendTargets=\0"
        specific = struct.pack(">III", wire.NO_TAG, session.command_number, session.status_number)
        session.send(wire.bhs(wire.TEXT | wire.IMMEDIATE, wire.FINAL, len(text), 0, tag, specific), text)
        answer = session.receive()
        expect(answer.opcode == wire.TEXT_RESPONSE, f"answered by {answer}")
        expect(IQN.encode() in answer.data, f"SendTargets= in a normal session names {answer.data!r}")


ALICE, BOB = Chap("alice", "alice-secret-12"), Chap("bob", "bobs-secret-123")
USERS = ["[target.auth]", "users = [" + ", ".join(f'{{ name = "{one.name}", secret = "{one.secret}" }}' for one in (ALICE, BOB)) + "]"]
VICTIM, OTHER = "iqn.2026-01.example.lab:victim", "iqn.2026-01.example.lab:other"
RESERVATION_CONFLICT = 0x18


def reserve(session):
    """Register, and reserve the unit for this initiator port alone (exclusive access)."""
    for action, kind, key, new in ((0, 0, 0, 7), (1, 3, 7, 0)):
        status, sense, _ = session.run(struct.pack(">BBBxxxxHx", 0x5F, action, kind, 24), out=struct.pack(">QQ8x", key, new))
        expect(status == 0, f"PERSISTENT RESERVE OUT {action}: status {status}, {sense.hex()}")


def naa_of(session):
    """The unit's NAA designator in the device identification page."""
    status, _, page = session.run(bytes([0x12, 1, 0x83, 0, 255, 0]), 255)
    expect(status == 0, f"INQUIRY of page 83h: status {status}")
    at = 4
    while at < len(page):
        if page[at + 1] & 0x3F == 3:
            return page[at + 4:at + 4 + page[at + 3]]
        at += 4 + page[at + 3]
    raise Failed(f"no NAA designator: {page.hex()}")


def extended_copy(session, source, destination):
    """(status, ASC and ASCQ) of an EXTENDED COPY (LID1) of block 0 to block 0."""
    cscds = b"".join((struct.pack(">B3xBBxB", 0xE4, 1, 3, len(naa)) + naa).ljust(32, b"\0") for naa in (source, destination))
    segment = struct.pack(">BxHHHxxHQQ", 2, 24, 0, 1, 1, 0, 0)
    parameters = struct.pack(">BBH4xI4x", 1, 0x10, len(cscds), len(segment)) + cscds + segment
    status, response, _ = session.run(struct.pack(">B9xIxx", 0x83, len(parameters)), out=parameters)
    return status, tuple(response[2:][12:14])


def claimed_name(lab):
    """An initiator without a credential claims a victim's name at an open target, and has units of another target copied."""
    if lab.kind != "stag":
        return
    name = "iqn.2026-01.example.lab:open"
    more = ["[[target]]", f'iqn = "{name}"', "[[target.unit]]", "lun = 0", 'path = "mem:64M"']
    with lab.serve(Unit(memory=True), chap=ALICE, more=more) as target:
        with wire.session(target, VICTIM, chap=ALICE) as victim, wire.session(target, VICTIM, name=name) as attacker:
            victim.write(0, b"top secret of alice".ljust(512, b"."))
            reserve(victim)
            secret, own = naa_of(victim), naa_of(attacker)
            for what, source, destination in (("read", secret, own), ("written", own, secret)):
                status, additional = extended_copy(attacker, source, destination)
                expect((status, additional) == (2, (0x0D, 0x02)), f"the victim's unit is {what}: {status}, {additional}")
            expect(attacker.read(0, 1) == bytes(512), "the attacker has the victim's data")
            expect(victim.read(0, 1).startswith(b"top secret"), "the attacker has written")
            expect(extended_copy(attacker, own, own)[0] == 0, "a copy within a unit fails")


def refused(status, log_in):
    try:
        log_in()
    except Failed as refusal:
        expect(f"{status:04x}" in str(refusal), f"refused, but not by {status:04x}: {refusal}")
    else:
        raise Failed("let in")


def another_user(lab):
    """Bob, a user of the same target, claims the name and ISID of alice's initiator."""
    if lab.kind != "stag":
        return
    with lab.serve(Unit(memory=True), target=USERS) as target:
        with wire.session(target, VICTIM, chap=ALICE, MaxConnections="4") as alice:
            alice.write(0, b"alice".ljust(512, b"."))
            reserve(alice)
            refused(0x0202, lambda: wire.session(target, VICTIM, chap=BOB))

            def join(chap, cid):
                connection = wire.Connection(target)
                connection.login(wire.unit_of(target)[0], VICTIM, tsih=alice.tsih, cid=cid, chap=chap)
                return connection

            refused(0x0202, lambda: join(BOB, 2))
            refused(0x0202, lambda: join(BOB, 1))
            join(ALICE, 2).close()
        # Whoever has not been there keeps what it has registered.
        with wire.session(target, VICTIM, chap=ALICE) as alice:
            expect(alice.read(0, 1).startswith(b"alice"), "alice's block is not hers")
            expect(alice.logout() == 0, "logout is refused")
        refused(0x0202, lambda: wire.session(target, VICTIM, chap=BOB))
        with wire.session(target, VICTIM, b"\x40\0\0\1\0\x09", chap=BOB) as bob:
            status, _, _ = bob.run(struct.pack(">BBIBHB", 0x2A, 0, 0, 0, 1, 0), out=bytes(512))
            expect(status == RESERVATION_CONFLICT, f"bob writes past alice's reservation: status {status}")


def kept_owner(lab):
    """Alice's registration and reservation stay hers over a restart, a takeover and kill -9, with APTPL; over a takeover without too."""
    if lab.kind != "stag":
        raise Skip("whom a registration belongs to is Stag's")

    def is_alices(target, when):
        try:
            refused(0x0202, lambda: wire.session(target, VICTIM, chap=BOB))
            with wire.session(target, VICTIM, b"\x40\0\0\1\0\x09", chap=BOB) as bob:
                status, _, _ = bob.run(struct.pack(">BBIBHB", 0x2A, 0, 0, 0, 1, 0), out=bytes(512))
                expect(status == RESERVATION_CONFLICT, f"bob writes past the reservation: status {status}")
            with wire.session(target, VICTIM, chap=ALICE) as alice:
                alice.write(0, bytes(512))
        except Failed as failed:
            raise Failed(f"{when}: {failed}") from None

    for aptpl in (1, 0):
        with lab.serve(Unit(), target=USERS) as target:
            with wire.session(target, VICTIM, chap=ALICE) as alice:
                for action, key, new_key in ((0, 0, 7), (1, 7, 0)):
                    parameters = struct.pack(">QQIBBH", key, new_key, 0, aptpl, 0, 0)
                    status, _, _ = alice.run(struct.pack(">BBBxxIB", 0x5F, action, 1, len(parameters), 0), out=parameters)
                    expect(status == 0, f"PERSISTENT RESERVE OUT {action}: status {status}")
            is_alices(target, "at first")
            target.take_over()
            is_alices(target, "after a takeover")
            if not aptpl:
                continue
            target.kill()
            target.restart()
            is_alices(target, "after kill -9")
            target.stop()
            target.restart()
            is_alices(target, "after a restart")
            with open(target.units[0].path + ".reservations", "rb") as file:
                kept = file.read()
            expect(b"alice" in kept and ALICE.secret.encode() not in kept, "the file of reservations names no user, or tells a secret")
            # Whoever is no user any more keeps nothing.
            target.stop()
            lines = [line.replace('name = "alice"', 'name = "eve"') for line in USERS]
            expect(lines != USERS, "no alice in the configuration")
            target.extra["target"] = lines
            target.restart()
            wire.session(target, VICTIM, chap=BOB).close()


def own_name(lab):
    """`stag` logs in under the initiator name of /etc/iscsi/initiatorname.iscsi, if it can be read and holds one."""
    if lab.kind != "stag":
        raise Skip("stag's own commands")
    if os.geteuid() != 0:
        raise Skip("another /etc needs root")
    # A copy of /etc, since this machine may have no such directory.
    etc = os.path.join(lab.new_folder("etc"), "etc")
    proc.run("cp", "-a", "/etc", etc)
    os.makedirs(os.path.join(etc, "iscsi"), exist_ok=True)
    file = os.path.join(etc, "iscsi/initiatorname.iscsi")
    with lab.serve(Unit(memory=True)) as target:
        def names(content, *words):
            """The initiator names of the sessions of `stag info`, as the target saw them."""
            with contextlib.suppress(FileNotFoundError):
                os.remove(file)
            if content is not None:
                with open(file, "w") as out:
                    out.write(content)
            before = os.path.getsize(target.log_path)
            script = 'unset STAG_INITIATOR && mount --bind "$1" /etc && shift && exec "$@"'
            proc.run("unshare", "--mount", "sh", "-c", script, "sh", etc, target.binary, "info", *words, target.urls[0])
            with open(target.log_path, "rb") as log:
                log.seek(before)
                return set(re.findall(r'what="login".* initiator="([^"]*)"', log.read().decode()))

        mine = "iqn.1993-08.org.debian:01:of-this-machine"
        expect(names(f"# a comment\nInitiatorName={mine}\n") == {mine}, "it is not the machine's initiator name")
        expect(names(f"InitiatorName={mine}\n", "--initiator", OTHER) == {OTHER}, "--initiator is not obeyed")
        for content in (None, "", "InitiatorName=no iSCSI name\n"):
            made = names(content)
            expect(len(made) == 1 and all(re.fullmatch(r"iqn\.2026-01\.org\.stag:.+:initiator", name) for name in made),
                   f"without a name in the file ({content!r}) it is {made}")


def bound_names(lab):
    """An ACL with a user: who is another user does not see what is behind the name."""
    if lab.kind != "stag":
        return
    acls = ["[[target.acl]]", f'initiator = "{VICTIM}"', 'user = "alice"', "luns = [0, 1]",
            "[[target.acl]]", f'initiator = "{OTHER}"', 'user = "bob"', "luns = [1]"]
    with lab.serve(Unit(memory=True), Unit(memory=True), target=USERS, more=acls) as target:
        refused(0x0201, lambda: wire.session(target, VICTIM, chap=BOB))
        refused(0x0201, lambda: wire.session(target, OTHER, chap=ALICE))
        wire.session(target, VICTIM, chap=ALICE).close()


CASES = [
    ("libiscsi: CHAP", chap),
    ("libiscsi: mutual CHAP", mutual_chap),
    ("libiscsi: CHAP with each hash", hashes),
    ("libiscsi: ACLs and LUN masking", acls),
    ("every key is answered, and both digests hold", keys),
    ("a session is reinstated", reinstated),
    ("sixteen sessions of one initiator", side_by_side),
    ("logins are refused with the status of the RFC", refused_logins),
    ("SendTargets in a normal session", full_feature_text),
    ("EXTENDED COPY by who only claims a victim's name", claimed_name),
    ("another user's reinstatement, MC/S join and reservation", another_user),
    ("an ACL with a user", bound_names),
    ("a registration stays its user's over takeover and restart", kept_owner),
    ("stag uses the initiator name of /etc/iscsi", own_name),
]
