"""A small NFS client in Python, version 3 and 4.1/4.2 over TCP: a second reading of RFC 1813, 5531, 7862 and 8881, and nothing of Stag's.

It says each call by itself, so that a test sees each status; it keeps no cache, retries nothing, and renews no lease. A call-back of the
server is answered while a reply is awaited, and kept in `Session.recalled` and `Session.notified`.
"""

import os
import socket
import struct

from .report import Failed, expect

NFS, MOUNT = 100003, 100005
V3 = {name: number for number, name in enumerate(
    "null getattr setattr lookup access readlink read write create mkdir symlink mknod remove rmdir rename link readdir readdirplus "
    "fsstat fsinfo pathconf commit".split())}
UNSTABLE, DATA_SYNC, FILE_SYNC = range(3)
OK, PERM, NOENT, IO, ACCESS, EXIST, ROFS, NOSPC, DQUOT, STALE, BADHANDLE = 0, 1, 2, 5, 13, 17, 30, 28, 69, 70, 10001
DELAY, DENIED, EXPIRED, WRONGSEC, GRACE, BAD_STATEID, BADSESSION = 10008, 10010, 10011, 10016, 10013, 10025, 10052
READ_LOCK, WRITE_LOCK = 1, 2
TO_THE_END = (1 << 64) - 1
# Attributes of version 4 by their numbers (RFC 8881 §5): those that `attributes` asks for.
CHANGE, SIZE, FILEID, MODE, OWNER = 3, 4, 20, 33, 36
ANONYMOUS = bytes(16)


def u32(*values):
    return struct.pack(f">{len(values)}I", *values)


def u64(*values):
    return struct.pack(f">{len(values)}Q", *values)


def opaque(data):
    data = os.fsencode(data)
    return u32(len(data)) + data + bytes(-len(data) % 4)


class Reader:
    """Takes XDR apart."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def fixed(self, length):
        expect(self.at + length <= len(self.data), f"XDR ends {self.at + length - len(self.data)} bytes early")
        self.at += length + -length % 4
        return self.data[self.at - length - -length % 4:][:length]

    def u32(self):
        return int.from_bytes(self.fixed(4))

    def u64(self):
        return int.from_bytes(self.fixed(8))

    def opaque(self):
        return self.fixed(self.u32())

    def bitmap(self):
        return [self.u32() for _ in range(self.u32())]


class Status(Failed):
    """A server has answered with this status; the operation of a COMPOUND by its number. `held`: the lock that is in the way, as
    (offset, length, kind)."""

    def __init__(self, status, operation=None, held=None):
        super().__init__(f"status {status}" + (f" of operation {operation}" if operation is not None else ""))
        self.status, self.operation, self.held = status, operation, held


def status_of(function, *arguments, **named):
    """The status that a call ends with."""
    try:
        function(*arguments, **named)
    except Status as wrong:
        return wrong.status
    return OK


class Rpc:
    """A connection; AUTH_SYS of this user. `answer`: called with the call-backs of the server, and answers them."""

    def __init__(self, host, port, uid=0, gid=0, timeout=60):
        self.at, self.stream = (host, port), socket.create_connection((host, port), timeout)
        self.xid, self.answer = int.from_bytes(os.urandom(4)) & 0x7FFFFFFF, None
        self.credential = u32(1) + opaque(u32(0) + opaque("python") + u32(uid, gid, 0))

    def close(self):
        self.stream.close()

    def reconnect(self):
        """Over another connection, as the same client."""
        self.close()
        self.stream = socket.create_connection(self.at, 60)

    def exactly(self, length):
        data = b""
        while len(data) < length:
            part = self.stream.recv(length - len(data))
            if not part:
                raise ConnectionError("the server closed the connection")
            data += part
        return data

    def record(self):
        data, last = b"", False
        while not last:
            head = int.from_bytes(self.exactly(4))
            last, data = bool(head >> 31), data + self.exactly(head & 0x7FFFFFFF)
        return data

    def send(self, message):
        self.stream.sendall(u32(len(message) | 1 << 31) + message)

    def called(self, record):
        """Answers a call-back: NULL, or what `answer` says."""
        reader = Reader(record)
        xid, _, _, _, _, procedure = [reader.u32() for _ in range(6)]
        for _ in range(2):
            reader.u32()
            reader.opaque()
        self.send(u32(xid, 1, 0, 0, 0, 0) + (self.answer(reader) if procedure and self.answer else b""))

    def listen(self, seconds):
        """Answers call-backs for so long, or until one came."""
        self.stream.settimeout(seconds)
        try:
            self.called(self.record())
        except TimeoutError:
            pass
        finally:
            self.stream.settimeout(60)

    def call(self, program, version, procedure, arguments=b""):
        self.xid += 1
        self.send(u32(self.xid, 0, 2, program, version, procedure) + self.credential + u32(0, 0) + arguments)
        while True:
            record = self.record()
            if record[4:8] == u32(0):
                self.called(record)
                continue
            reader = Reader(record)
            expect(reader.u32() == self.xid and reader.u32() == 1, "the reply is of another call")
            expect(reader.u32() == 0, f"the server denies the call: {record[12:].hex()}")
            reader.u32()
            reader.opaque()
            accepted = reader.u32()
            expect(accepted == 0, f"the call is accepted with {accepted}")
            return reader


class Three(Rpc):
    """Version 3. File handles are bytes."""

    def ask(self, procedure, arguments):
        reader = self.call(NFS, 3, V3[procedure], arguments)
        status = reader.u32()
        if status:
            raise Status(status)
        return reader

    @staticmethod
    def attributes(reader):
        """post_op_attr: None, or (type, mode, uid, gid, size, fileid)."""
        if not reader.u32():
            return None
        kind, mode, _, uid, gid = [reader.u32() for _ in range(5)]
        size, _, _, _, fileid = reader.u64(), reader.u64(), reader.u64(), reader.u64(), reader.u64()
        reader.fixed(24)
        return kind, mode, uid, gid, size, fileid

    @classmethod
    def changed(cls, reader):
        """wcc_data: whether there were attributes of before, and those of now."""
        before = reader.u32()
        if before:
            reader.fixed(24)
        return bool(before), cls.attributes(reader)

    def mount(self, name):
        """The handle, and the flavors that are taken."""
        reader = self.call(MOUNT, 3, 1, opaque(name))
        status = reader.u32()
        if status:
            raise Status(status)
        return reader.opaque(), reader.bitmap()

    def getattr(self, handle):
        reader = self.ask("getattr", opaque(handle))
        return self.attributes(Reader(u32(1) + reader.data[reader.at:]))

    def lookup(self, directory, name):
        return self.ask("lookup", opaque(directory) + opaque(name)).opaque()

    def make(self, directory, name, mode=0o644):
        """CREATE, UNCHECKED."""
        reader = self.ask("create", opaque(directory) + opaque(name) + u32(0, 1, mode, 0, 0, 0, 0, 0))
        expect(reader.u32() == 1, "CREATE gives no handle")
        return reader.opaque()

    def make_directory(self, directory, name):
        reader = self.ask("mkdir", opaque(directory) + opaque(name) + u32(1, 0o755, 0, 0, 0, 0, 0))
        expect(reader.u32() == 1, "MKDIR gives no handle")
        return reader.opaque()

    def link(self, file, directory, name):
        self.ask("link", opaque(file) + opaque(directory) + opaque(name))

    def symlink(self, directory, name, path):
        self.ask("symlink", opaque(directory) + opaque(name) + u32(0, 0, 0, 0, 0, 0) + opaque(path))

    def setattr(self, handle, mode, size):
        self.ask("setattr", opaque(handle) + u32(1, mode, 0, 0, 1) + u64(size) + u32(0, 0, 0))

    def remove(self, directory, name):
        self.ask("remove", opaque(directory) + opaque(name))

    def remove_directory(self, directory, name):
        self.ask("rmdir", opaque(directory) + opaque(name))

    def rename(self, one, name, other, new):
        self.ask("rename", opaque(one) + opaque(name) + opaque(other) + opaque(new))

    def write(self, handle, offset, data, stable=FILE_SYNC):
        """(bytes, committed, verifier)"""
        reader = self.ask("write", opaque(handle) + u64(offset) + u32(len(data), stable) + opaque(data))
        self.changed(reader)
        return reader.u32(), reader.u32(), reader.fixed(8)

    def read(self, handle, offset, length):
        reader = self.ask("read", opaque(handle) + u64(offset) + u32(length))
        self.attributes(reader)
        reader.fixed(8)
        return reader.opaque()

    def commit(self, handle):
        """The verifier."""
        reader = self.ask("commit", opaque(handle) + u64(0) + u32(0))
        self.changed(reader)
        return reader.fixed(8)


# Operations of version 4 by their names: number, and what takes the result apart.
def nothing(_):
    return None


def change_info(reader):
    return reader.u32(), reader.u64(), reader.u64()


def stateid(reader):
    return reader.fixed(16)


def taken_attributes(reader):
    bits, values = reader.bitmap(), Reader(reader.opaque())
    numbers = [word * 32 + bit for word, mask in enumerate(bits) for bit in range(32) if mask >> bit & 1]
    kinds = {CHANGE: Reader.u64, SIZE: Reader.u64, FILEID: Reader.u64, MODE: Reader.u32, OWNER: Reader.opaque}
    return {number: kinds[number](values) for number in numbers}


def opened(reader):
    """(stateid, delegation's stateid or None)"""
    state = stateid(reader)
    change_info(reader)
    reader.u32()
    reader.bitmap()
    kind, given = reader.u32(), None
    if kind in (1, 2):
        given = stateid(reader)
        reader.u32()
        if kind == 2:
            reader.fixed(12 if reader.u32() == 1 else 8)
        reader.fixed(12)
        reader.opaque()
    elif kind == 3 and reader.u32() in (1, 2):  # CONTENTION, RESOURCE
        reader.u32()
    return state, given


def written(reader):
    return reader.u32(), reader.u32(), reader.fixed(8)


def read(reader):
    reader.u32()
    return reader.opaque()


def copied(reader):
    expect(reader.u32() == 0, "COPY goes on later")
    return reader.u64(), reader.u32(), reader.fixed(8), reader.u32(), reader.u32()


def flavors(reader):
    found = [reader.u32() for _ in range(reader.u32())]
    expect(6 not in found, "RPCSEC_GSS is not expected")
    return found


def exchanged(reader):
    client, sequence, _, how = reader.u64(), reader.u32(), reader.u32(), reader.u32()
    expect(how == 0, "state protection that was not asked for")
    minor = reader.u64()
    return client, sequence, (minor, reader.opaque(), reader.opaque())


def listed(reader):
    reader.u64()
    names = [reader.opaque() for _ in range(reader.u32())]
    reader.u32()
    return names


OPERATIONS = {
    "close": (4, stateid), "commit": (5, lambda reader: reader.fixed(8)), "create": (6, lambda reader: (change_info(reader), reader.bitmap())),
    "delegreturn": (8, nothing), "getattr": (9, taken_attributes), "getfh": (10, Reader.opaque), "link": (11, change_info), "lock": (12, stateid), "lockt": (13, nothing),
    "locku": (14, stateid), "lookup": (15, nothing), "open": (18, opened), "putfh": (22, nothing), "putrootfh": (24, nothing), "read": (25, read),
    "remove": (28, change_info), "rename": (29, lambda reader: (change_info(reader), change_info(reader))), "savefh": (32, nothing),
    "secinfo": (33, flavors), "setattr": (34, Reader.bitmap), "write": (38, written), "bind_conn_to_session": (41, lambda r: r.fixed(24)),
    "exchange_id": (42, exchanged), "create_session": (43, lambda reader: (reader.fixed(16), reader.u32(), reader.u32())),
    "destroy_session": (44, nothing), "secinfo_no_name": (52, flavors), "sequence": (53, lambda reader: reader.fixed(36)),
    "destroy_clientid": (57, nothing), "reclaim_complete": (58, nothing), "allocate": (59, nothing), "copy": (60, copied),
    "deallocate": (62, nothing), "clone": (71, nothing),
    "seek": (69, lambda reader: (reader.u32(), reader.u64())), "getxattr": (72, Reader.opaque), "setxattr": (73, change_info),
    "listxattrs": (74, listed), "removexattr": (75, change_info),
}
NUMBERS = {number: (name, take) for name, (number, take) in OPERATIONS.items()}


def op(name, arguments=b""):
    return u32(OPERATIONS[name][0]) + arguments


def bits(*numbers):
    words = [0] * (max(numbers) // 32 + 1)
    for number in numbers:
        words[number // 32] |= 1 << number % 32
    return u32(len(words), *words)


class Four(Rpc):
    """Version 4.1 or 4.2 without a session."""

    def __init__(self, host, port, minor=1, **options):
        super().__init__(host, port, **options)
        self.minor = minor

    def compound(self, *operations):
        """What each operation gives; raises Status for the first that fails."""
        reader = self.call(NFS, 4, 1, opaque("") + u32(self.minor, len(operations)) + b"".join(operations))
        status = reader.u32()
        reader.opaque()
        results, count = [], reader.u32()
        for _ in range(count):
            number, each = reader.u32(), reader.u32()
            if each:
                expect(each == status, f"status {each} within a COMPOUND of {status}")
                raise Status(each, number, (reader.u64(), reader.u64(), reader.u32()) if each == DENIED else None)
            results.append(NUMBERS[number][1](reader))
        if status:
            raise Status(status)
        return results

    def exchange_id(self, owner, verifier):
        """(client ID, sequence, server_owner and server_scope)"""
        return self.compound(op("exchange_id", verifier + opaque(owner) + u32(0x1, 0, 0)))[0]


class Session(Four):
    """A client with a session of one slot. A path begins at the root above all exports. `of`: the session that the client had before the
    server was away; by `reclaimed` it says when it has claimed what it had."""

    def __init__(self, host, port, minor=1, of=None, backchannel=True, **options):
        super().__init__(host, port, minor, **options)
        self.owner, self.verifier = (of.owner, of.verifier) if of else (f"python {os.urandom(8).hex()}", os.urandom(8))
        self.recalled, self.notified, self.answer = [], [], self.call_back
        self.client, sequence, self.server = self.exchange_id(self.owner, self.verifier)
        channel = u32(0, 1 << 20, 1 << 20, 4096, 16, 1, 0)
        flags = 2 if backchannel else 0
        self.id, _, self.flags = self.compound(
            op("create_session", u64(self.client) + u32(sequence, flags) + channel + channel + u32(0x40000000, 1, 0)))[0]
        self.number, self.opens = 0, 0
        if not of:
            self.reclaimed()

    def reclaimed(self):
        self.ask(op("reclaim_complete", u32(0)))

    def ask(self, *operations):
        self.number += 1
        return self.compound(op("sequence", self.id + u32(self.number, 0, 0, 0)), *operations)[1:]

    def call_back(self, reader):
        """CB_COMPOUND: CB_SEQUENCE, and CB_RECALL or CB_NOTIFY_LOCK perhaps."""
        reader.opaque()
        reader.u32(), reader.u32()
        results = b""
        count = reader.u32()
        for _ in range(count):
            number = reader.u32()
            if number == 11:
                session, sequence, slot, highest, _ = reader.fixed(16), reader.u32(), reader.u32(), reader.u32(), reader.u32()
                for _ in range(reader.u32()):
                    raise Failed("a call-back refers to other calls")
                results += u32(11, 0) + session + u32(sequence, slot, highest, highest)
            elif number == 4:
                self.recalled.append((reader.fixed(16), reader.u32(), reader.opaque())[::2])
                results += u32(4, 0)
            elif number == 13:
                self.notified.append((reader.opaque(), reader.u64(), reader.opaque()))
                results += u32(13, 0)
            else:
                raise Failed(f"call-back operation {number}")
        return u32(0) + opaque("") + u32(count) + results

    def end(self):
        """As a client that unmounts."""
        self.compound(op("destroy_session", self.id))
        self.compound(op("destroy_clientid", u64(self.client)))
        self.close()

    @staticmethod
    def to(where):
        """Operations that make `where` the current file: a handle, or a path of an export."""
        if isinstance(where, bytes):
            return [op("putfh", opaque(where))]
        return [op("putrootfh"), *(op("lookup", opaque(name)) for name in where.strip("/").split("/") if name)]

    def find(self, where, *names):
        return self.ask(*self.to(where), *(op("lookup", opaque(name)) for name in names), op("getfh"))[-1]

    def attributes(self, where, *numbers):
        return self.ask(*self.to(where), op("getattr", bits(*(numbers or (CHANGE, SIZE, FILEID, MODE, OWNER)))))[-1]

    def open(self, directory, name, write=True, create=True, want=0):
        """(handle, stateid, delegation or None). An open-owner of its own each time."""
        self.opens += 1
        how = u32(1, 0) + bits(MODE) + opaque(u32(0o644)) if create else u32(0)
        owner = u64(self.client) + opaque(f"open {self.opens}")
        arguments = u32(0, (3 if write else 1) | want, 0) + owner + how + u32(0) + opaque(name)
        found = self.ask(*self.to(directory), op("open", arguments), op("getfh"))
        return found[-1], *found[-2]

    def reclaim(self, handle):
        """Opens again what it had open for reading and writing. The stateid."""
        self.opens += 1
        arguments = u32(0, 3, 0) + u64(self.client) + opaque(f"open {self.opens}") + u32(0) + u32(1, 0)
        return self.ask(*self.to(handle), op("open", arguments))[-1][0]

    def close_file(self, handle, state):
        self.ask(*self.to(handle), op("close", u32(0) + state))

    def write(self, handle, state, offset, data, stable=FILE_SYNC):
        """(bytes, committed, verifier)"""
        return self.ask(*self.to(handle), op("write", state + u64(offset) + u32(stable) + opaque(data)))[-1]

    def read(self, handle, state, offset, length):
        return self.ask(*self.to(handle), op("read", state + u64(offset) + u32(length)))[-1]

    def commit(self, handle):
        return self.ask(*self.to(handle), op("commit", u64(0) + u32(0)))[-1]

    def make_directory(self, directory, name):
        return self.ask(*self.to(directory), op("create", u32(2) + opaque(name) + bits(MODE) + opaque(u32(0o755))), op("getfh"))[-1]

    def link(self, file, directory, name):
        self.ask(*self.to(file), op("savefh"), *self.to(directory), op("link", opaque(name)))

    def symlink(self, directory, name, path):
        self.ask(*self.to(directory), op("create", u32(5) + opaque(path) + opaque(name) + bits(MODE) + opaque(u32(0o777))))

    def setattr(self, handle, state, mode, size):
        self.ask(*self.to(handle), op("setattr", state + bits(SIZE, MODE) + opaque(u64(size) + u32(mode))))

    def remove(self, directory, name):
        self.ask(*self.to(directory), op("remove", opaque(name)))

    def rename(self, one, name, other, new):
        self.ask(*self.to(one), op("savefh"), *self.to(other), op("rename", opaque(name) + opaque(new)))

    def lock(self, handle, open_state, offset, length, kind=WRITE_LOCK, owner="locker"):
        """By a lock-owner that has no lock of the file yet. The stateid of its locks."""
        new = u32(1, 0) + open_state + u32(0) + u64(self.client) + opaque(owner)
        return self.ask(*self.to(handle), op("lock", u32(kind, 0) + u64(offset, length) + new))[-1]

    def lock_more(self, handle, locks, offset, length, kind=WRITE_LOCK):
        return self.ask(*self.to(handle), op("lock", u32(kind, 0) + u64(offset, length) + u32(0) + locks + u32(0)))[-1]

    def unlock(self, handle, locks, offset, length):
        return self.ask(*self.to(handle), op("locku", u32(WRITE_LOCK, 0) + locks + u64(offset, length)))[-1]

    def test_lock(self, handle, offset, length, kind=WRITE_LOCK, owner="locker"):
        self.ask(*self.to(handle), op("lockt", u32(kind) + u64(offset, length) + u64(self.client) + opaque(owner)))
