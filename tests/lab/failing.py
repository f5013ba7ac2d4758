"""A file that fails on demand: a FUSE file system of one file, spoken to /dev/fuse directly. Needs root.

What an operation fails with is set while it is served: `file.fail["fsync"] = errno.EIO`. `file.room` is what statfs tells.
"""

import ctypes
import errno
import os
import stat
import struct
import tempfile
import threading

from . import proc
from .report import Skip

GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, FLUSH, INIT = 3, 4, 14, 15, 16, 17, 18, 20, 25, 26
FORGET, INTERRUPT, DESTROY, BATCH_FORGET, FALLOCATE = 2, 36, 38, 42, 43
NAMES = {READ: "read", WRITE: "write", FSYNC: "fsync"}
MAX_WRITE = 128 << 10


class FailingFile:
    """Serves a file of `size` bytes at `path`, which is made where it is missing, until `close`."""

    def __init__(self, path, size):
        self.path, self.size = path, size
        self.fail = {}  # "read", "write" or "fsync": errno.
        self.room = (1 << 20, 1 << 19)  # Blocks of 4 KiB of its file system: all of them, and the free ones.
        self.content = tempfile.TemporaryFile(dir=os.path.dirname(path))
        self.content.truncate(size)
        if not os.path.exists(path):
            open(path, "wb").close()
        try:
            self.fuse = os.open("/dev/fuse", os.O_RDWR)
        except OSError as error:
            raise Skip(f"no FUSE: {error}") from None
        options = f"fd={self.fuse},rootmode={stat.S_IFREG:o},user_id=0,group_id=0,allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"failing", os.fsencode(path), b"fuse", 0, options.encode()) != 0:
            os.close(self.fuse)
            raise Skip(f"FUSE cannot be mounted: {os.strerror(ctypes.get_errno())}")
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        proc.run("umount", "-l", self.path, ok=None)
        self.thread.join(20)
        os.close(self.fuse)

    def serve(self):
        while True:
            try:
                request = os.read(self.fuse, MAX_WRITE + 4096)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    continue
                return  # Unmounted.
            _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
            if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
                continue
            failure = self.fail.get(NAMES.get(opcode))
            try:
                answer, code = (b"", failure) if failure else (self.answer(opcode, request[40:]), 0)
            except OSError as error:
                answer, code = b"", error.errno
            try:
                os.write(self.fuse, struct.pack("<IiQ", 16 + len(answer), -code, unique) + answer)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
            if opcode == DESTROY:
                return

    def answer(self, opcode, body):
        if opcode == INIT:
            readahead, = struct.unpack_from("<I", body, 8)
            return struct.pack("<IIIIHHIIHHI7I", 7, 31, readahead, 0, 16, 12, MAX_WRITE, 1, 32, 0, *[0] * 8)
        if opcode == GETATTR:
            return self.attributes()
        if opcode == SETATTR:
            valid, = struct.unpack_from("<I", body)
            if valid & 8:
                self.size, = struct.unpack_from("<Q", body, 16)
                self.content.truncate(self.size)
            return self.attributes()
        if opcode == OPEN:
            return struct.pack("<QII", 1, 0, 0)
        if opcode == READ:
            _, offset, length = struct.unpack_from("<QQI", body)
            return os.pread(self.content.fileno(), length, offset)
        if opcode == WRITE:
            _, offset, length = struct.unpack_from("<QQI", body)
            os.pwrite(self.content.fileno(), body[40:40 + length], offset)
            self.size = max(self.size, offset + length)
            return struct.pack("<II", length, 0)
        if opcode == STATFS:
            blocks, free = self.room
            return struct.pack("<QQQQQIIII6I", blocks, free, free, 0, 0, 4096, 255, 4096, 0, *[0] * 6)
        if opcode in (RELEASE, FSYNC, FLUSH, DESTROY):
            return b""
        raise OSError(errno.ENOSYS, "no such operation")

    def attributes(self):
        blocks = os.fstat(self.content.fileno()).st_blocks
        return struct.pack("<QII", 0, 0, 0) + struct.pack(
            "<QQQQQQIIIIIIIIII", 1, self.size, blocks, 0, 0, 0, 0, 0, 0, stat.S_IFREG | 0o600, 1, 0, 0, 0, 4096, 0)
