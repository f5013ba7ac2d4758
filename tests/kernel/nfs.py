"""Linux's own NFS client, in the lab's guest, against Stag's exports of memory and of a directory; and Stag's client against Linux's
own server there."""

import os
import shutil
import time

from lab import nfs, proc, tools, uml
from lab.report import Failed, Skip, expect
from lab.share import folder, kept, loaded, round_trip, same, share, xfs
from lab.target import Stag
from peers import capture, nfs_capture

PORT = 2049

# What a mount must do, at /run/nfs. $WHAT names it in cases, $VERS is the version, and $PROTO the transport.
WORK = r"""
mkdir -p /run/nfs /run/nfs2 /run/tree
mount_() {
  local options=sec=sys
  [ "$VERS" = 3 ] && options="nolock,mountport=$MOUNTPORT,mountproto=tcp"
  mount -t nfs -o "vers=$VERS,$options,proto=$PROTO,port=$PORT${3:+,$3}" "$HOST:$1" "$2"
}
[ "$PROTO" != rdma ] || siw_up || exit 1
fresh_() { umount /run/nfs && mount_ "$EXPORT" /run/nfs; }
tree() {
  mkdir -p /run/tree/deep/er && cp -r /etc/iscsi /usr/share/zoneinfo/Europe /run/tree/deep 2>/dev/null
  for n in $(seq 30); do head -c $((n * 7919)) /dev/urandom >/run/tree/deep/er/file$n; done
  ln -s deep/er/file1 /run/tree/link; ln /run/tree/deep/er/file2 /run/tree/hard; mkfifo /run/tree/fifo
  chmod 640 /run/tree/hard; touch -d '2001-02-03 04:05:06.789' /run/tree/deep/er/file3
}
same() { (cd "$1" && find . -printf '%P %y %m %n %l %s %TY%Tm%Td%TH%TM%.9TS\n' | grep -v '^ d' | sed 's/ d \([0-7]*\) [0-9]* .*/ d \1/' | sort) ; }
compare() { cp -a /run/tree /run/nfs/tree && fresh_ && diff <(same /run/tree) <(same /run/nfs/tree) && diff -r --no-dereference -x fifo /run/tree /run/nfs/tree; }
names() (
  cd /run/nfs || return
  mkdir names && cd names || return
  for n in $(seq 3000); do : >"name with space $n"; done
  [ "$(ls | wc -l)" = 3000 ] || return
  printf 'name with space %s\n' $(seq 1 2 3000) | xargs -d '\n' rm || return
  [ "$(ls | wc -l)" = 1500 ] && rm -r ../names && [ ! -e /run/nfs/names ]
)
rules() (
  cd /run/nfs && mkdir rules && cd rules || return
  : >a && ! mkdir a && ! rmdir a && ! ln a a && mkdir d && : >d/x && ! rmdir d && ! mv -T d a && ! mv -T a d || return
  ln a b && [ "$(stat -c %h a)" = 2 ] && rm a && [ "$(stat -c %h b)" = 1 ] && mv b c && [ -e c ] && : >e && mv e c && [ ! -e e ] || return
  ! mv d d/inside && ! cat missing && ln -s nowhere s && [ "$(readlink s)" = nowhere ] && ! cat s || return
  (set -o noclobber; : >new && ! : >new) || return
  echo data >open; exec 7<open; rm open; [ "$(cat <&7)" = data ] || return; exec 7<&-
  truncate -s 1M hole && [ "$(stat -c %s hole)" = 1048576 ] && cmp -n 1048576 hole /dev/zero || return
  head -c 10000 /dev/urandom >w && cp w /tmp/w && truncate -s 5000 w && truncate -s 10000 w && cmp -n 5000 w /tmp/w && tail -c 5000 w | cmp -n 5000 - /dev/zero
  rm -rf /run/nfs/rules
)
# What one client has written, another sees after close (close-to-open). To the server it is another one: its version is.
coherent() {
  VERS=$OTHER mount_ "$EXPORT" /run/nfs2 || return
  for n in 1 2 3 4 5; do echo "round $n" >/run/nfs/shared && [ "$(cat /run/nfs2/shared)" = "round $n" ] || return; done
  rm /run/nfs/shared && ! cat /run/nfs2/shared; umount /run/nfs2
}
fio_() { (cd /tmp && timeout 300 fio --name=verify --directory=/run/nfs --filename=verified --size=24m --bsrange=4k-256k --rw=randwrite --verify=crc32c --verify_fatal=1 --verify_state_save=0 --output-format=terse --minimal "$@"); }
fsx_() { # what only some versions do, as weights
  printf '[weights]\nclose_open = 1\ninvalidate = 1\n%b' "$1" >/tmp/fsx.toml
  timeout 300 "$FSX" -q -N 1500 -S 7 -f /tmp/fsx.toml -P /tmp /run/nfs/fsx && rm /run/nfs/fsx
}
users() (
  mkdir /run/nfs/users && chmod 1777 /run/nfs/users && cd /run/nfs/users || return
  as() { setpriv --reuid="$1" --regid="$1" --groups="$2" bash -c "$3"; }
  as 2000 2001 'echo mine >mine; chmod 600 mine; echo ours >ours; chgrp 2001 ours; chmod 640 ours' || return
  ! as 2002 2002 'cat mine' && ! as 2002 2002 'cat ours' && as 2002 2001 'cat ours' && ! as 2002 2002 'rm mine' && ! as 2002 2001 'echo x >>ours' || return
  as 2000 2000 'rm mine ours' && rmdir /run/nfs/users
)
"""

ALL = WORK + r"""
case_ "$WHAT: mounts" mount_ "$EXPORT" /run/nfs
case_ "$WHAT: the export's size is known" eval '[ "$(stat -f -c %b /run/nfs)" -gt 0 ]'
tree
case_ "$WHAT: a tree is copied, and the same after a new mount" compare
case_ "$WHAT: 3,000 names are made, listed and removed" names
case_ "$WHAT: names, links, renames, holes and truncation keep POSIX's rules" rules
case_ "$WHAT: another client sees what was closed" coherent
case_ "$WHAT: users have their own rights" users
case_ "$WHAT: fio verifies through the page cache" fio_
case_ "$WHAT: fio verifies past the page cache" fio_ --direct=1 --ioengine=libaio --iodepth=16
case_ "$WHAT: fsx finds what it has written" fsx_
case_ "$WHAT: unmounts" umount /run/nfs
case_ "$WHAT: mounts with four connections" mount_ "$EXPORT" /run/nfs nconnect=4
case_ "$WHAT: fio verifies over four connections" fio_ --direct=1 --ioengine=libaio --iodepth=32 --randseed=5
network 3ms 1%
case_ "$WHAT: a tree is copied over a network that loses packets" eval 'rm -rf /run/nfs/tree && compare'
network fine
case_ "$WHAT: everything is removed" eval 'rm -rf /run/nfs/* && [ -z "$(ls -A /run/nfs)" ]'
umount /run/nfs
"""

# What only version 4 does.
FOUR = WORK + r"""
# Locks of the one mount keep the other out: they have owners of their own, and share nothing in the client.
locks() (
  cd /run/nfs && head -c 100 /dev/zero >locked || return
  ask() { python3 -c '
import fcntl, sys
begin, length, file = int(sys.argv[2]), int(sys.argv[3]), open(sys.argv[1], "r+b")
try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, length, begin)
except BlockingIOError: sys.exit(9)
' "$@"; }
  python3 -c '
import fcntl, sys
file = open("/run/nfs/locked", "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 10, 20)
print(flush=True); sys.stdin.readline()
fcntl.lockf(file, fcntl.LOCK_UN, 10, 20)
print(flush=True); sys.stdin.readline()
' <>/run/hold >/run/held & holder=$!
  exec 5<>/run/held 6<>/run/hold
  read -r _ <&5
  ask /run/nfs2/locked 0 20 && ask /run/nfs2/locked 30 0; apart=$?
  ask /run/nfs2/locked 25 1; within=$?
  echo >&6; read -r _ <&5
  ask /run/nfs2/locked 0 0; after=$?
  echo >&6; wait $holder
  echo "apart $apart, within $within, after $after"
  [ "$apart $within $after" = "0 9 0" ]
)
above() (
  mkdir -p /run/root && mount_ / /run/root || return
  [ "$(ls -A /run/root)" = "$(echo "${EXPORT#/}" | cut -d/ -f1)" ] || return
  ! touch /run/root/x && : >"/run/root$EXPORT/found" && [ -e /run/nfs/found ] && rm /run/nfs/found && umount -l /run/root
)
holes() (
  cd /run/nfs && fallocate -l 1M holes && [ "$(stat -c %s holes)" = 1048576 ] && head -c 1M /dev/urandom >holes && cp holes /tmp/holes || return
  fallocate -p -o 64K -l 128K holes && fallocate -p -o 64K -l 128K /tmp/holes && cmp holes /tmp/holes && rm holes
)
copies() (
  cd /run/nfs && head -c 5M /dev/urandom >from && python3 -c '
import os
a, b = os.open("from", os.O_RDONLY), os.open("into", os.O_RDWR | os.O_CREAT)
left = 5 << 20
while left: left -= os.copy_file_range(a, b, left)
os.close(b)
' && cmp from into && rm from into
)
# Another client has a file to itself until this one changes it: then it is called, and gives it back.
returned() { awk '/ mounted on /{on = / mounted on \/run\/nfs /} on && $1 == "DELEGRETURN:" {print $2}' /proc/self/mountstats; }
recalled() (
  mkdir -p /run/other && VERS=$OTHER mount_ "$EXPORT" /run/other && cd /run/nfs && echo one >seen && [ "$(cat seen)" = one ] || return
  before=$(returned); exec 7<seen
  echo two >/run/other/seen && [ "$(cat seen)" = two ] && after=$(returned) || return
  echo "delegations returned: $before before, $after after"
  [ "$after" -gt "$before" ] && rm seen && umount /run/other
)
# A network namespace is another host to the server, and a client of its own to Linux, by the same name: it has the hostname.
claimed() (
  mkdir -p /run/claimed && exec 7<>/run/nfs/mine && python3 -c 'import fcntl; fcntl.lockf(7, fcntl.LOCK_EX)' || return
  unshare -n sleep 300 & other=$!
  until [ "$(readlink /proc/$other/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.05; done
  ip link set vec0 netns $other
  within() { nsenter -t $other -n "$@"; }
  within ip address add "${GUEST%.*}.3/24" dev vec0; within ip link set lo up; within ip link set vec0 up
  export -f mount_; export VERS PROTO PORT HOST
  said=$(within bash -c "mount_ $EXPORT /run/claimed" 2>&1); refused=$?
  within ip link set vec0 netns 1; kill $other
  ip address add "$GUEST/24" dev vec0; ip link set vec0 up
  echo "mount ends with $refused: $said"
  [ "$refused" != 0 ] && [[ $said == *"Operation not permitted"* ]] && echo mine >&7 && sync /run/nfs/mine && [ "$(cat /run/nfs2/mine)" = mine ] && rm /run/nfs/mine
)
mkfifo /run/hold /run/held
case_ "$WHAT: mounts" mount_ "$EXPORT" /run/nfs
case_ "$WHAT: the mount is of that version" grep -q "vers=$VERS" /proc/mounts
case_ "$WHAT: mounts again" mount_ "$EXPORT" /run/nfs2 nosharecache
case_ "$WHAT: locks of ranges exclude each other" locks
case_ "$WHAT: the names of exports are directories" above
case_ "$WHAT: a delegation is given, and recalled for another client" recalled
# It takes the network card away, which siw would not survive.
[ "$PROTO" = rdma ] || case_ "$WHAT: another host of the same name is refused, and nothing is lost" claimed
"""

# A tree in memory goes to the next daemon while files in it are written and verified.
TAKEN = r"""
taken() { fio_ --direct=1 --ioengine=libaio --iodepth=8 --rate=8m --randseed=9 & local fio=$!; sleep 1; ask_and_wait takeover; wait $fio && [ "$(cat /run/nfs/before)" = before ]; }
mount_ "$EXPORT" /run/nfs; echo before >/run/nfs/before
case_ "$WHAT: fio verifies over a takeover" taken
umount /run/nfs
"""

# Mounts of two addresses are one client with two connections, once it has found out that both are one server (RFC 8881 §2.10.5).
TRUNKED = r"""
connections() { awk '/ mounted on /{on = / mounted on \/run\/nfs /} on && $1 == "xprt:"' /proc/self/mountstats; }
trunked() {
  mount_ "$EXPORT" /run/nfs max_connect=4 && HOST=$OTHER_HOST mount_ "$EXPORT" /run/nfs2 max_connect=4 && connections && [ "$(connections | wc -l)" = 2 ] || return
  fio_ --direct=1 --ioengine=libaio --iodepth=16 --size=8m --randseed=3 && connections && [ "$(connections | awk '$8 > 20' | wc -l)" = 2 ]
}
case_ "$WHAT: two addresses are one server, and both carry its calls" trunked
umount /run/nfs2; umount /run/nfs
"""

RANGES = r"""
case_ "$WHAT: holes are made and filled" holes
case_ "$WHAT: files are copied by the server" copies
case_ "$WHAT: fsx finds what it has written, with holes and copies" fsx_ 'punch_hole = 5\ncopy_file_range = 5\nposix_fallocate = 5\n'
"""

# Extended attributes, holes and clones need 4.2 and, at the server, a file system that has them
# (XFS).
EXTRAS = WORK + r"""
# How often an operation was sent over the mount.
sent() { awk -v name="$1:" '/ mounted on /{on = / mounted on \/run\/nfs /} on && $1 == name {print $2}' /proc/self/mountstats; }
was_sent() { local each; for each; do echo "$each: $(sent "$each")"; [ "$(sent "$each")" -gt 0 ] || return; done; }
xattrs() {
  cat >/tmp/xattrs.py <<'PYTHON'
import ctypes, errno, os, sys
top, again, libc = "/run/nfs/attributes", sys.argv[1] == "again", ctypes.CDLL(None, use_errno=True)
# With room for every value. Python begins with 128 bytes, and over RDMA Linux answers a longer value with EIO.
def value_of(path, name):
    room = ctypes.create_string_buffer(65536)
    length = libc.getxattr(path.encode(), name.encode(), room, len(room))
    assert length >= 0, (name, os.strerror(ctypes.get_errno()))
    return room.raw[:length]
values = {"user.one": b"value", "user.empty": b"", "user.bytes": bytes(range(256)), "user.long": b"x" * 60000, "user." + "n" * 200: b"name"}
def fails(wanted, function, *arguments):
    try: function(*arguments)
    except OSError as error: assert error.errno == wanted, error
    else: raise AssertionError((wanted, function, arguments))
if not again:
    os.mkdir(top); open(top + "/file", "w").close()
for path in (top, top + "/file"):
    if not again:
        for name, value in values.items(): os.setxattr(path, name, value)
        fails(errno.EEXIST, os.setxattr, path, "user.one", b"", os.XATTR_CREATE)
        fails(errno.ENODATA, os.setxattr, path, "user.two", b"", os.XATTR_REPLACE)
        fails(errno.ENODATA, os.getxattr, path, "user.two")
        fails(errno.EOPNOTSUPP, os.setxattr, path, "trusted.one", b"")
        os.setxattr(path, "user.one", b"other", os.XATTR_REPLACE)
        os.setxattr(path, "user.gone", b""); os.removexattr(path, "user.gone")
        fails(errno.ENODATA, os.removexattr, path, "user.gone")
    assert sorted(os.listxattr(path)) == sorted(values), os.listxattr(path)
    for name, value in {**values, "user.one": b"other"}.items():
        assert value_of(path, name) == value, name
PYTHON
  python3 /tmp/xattrs.py first && was_sent SETXATTR REMOVEXATTR && fresh_ && python3 /tmp/xattrs.py again && was_sent GETXATTR LISTXATTRS && ask_and_wait attributes
}
holes_found() (
  cd /run/nfs && python3 -c '
import errno, os
file = os.open("holes", os.O_RDWR | os.O_CREAT)
os.pwrite(file, b"x" * 65536, 1 << 20); os.pwrite(file, b"y" * 4096, 2 << 20); os.truncate(file, 3 << 20)
found = [os.lseek(file, at, how) for at, how in ((0, os.SEEK_HOLE), (0, os.SEEK_DATA), (1 << 20, os.SEEK_HOLE), ((1 << 20) + 65536, os.SEEK_DATA),
                                                 (2 << 20, os.SEEK_HOLE), (3 << 20, os.SEEK_END))]
assert found == [0, 1 << 20, (1 << 20) + 65536, 2 << 20, (2 << 20) + 4096, 6 << 20], found
for at in ((2 << 20) + 4096, 4 << 20):
    try: os.lseek(file, at, os.SEEK_DATA)
    except OSError as error: assert error.errno == errno.ENXIO, error
    else: raise AssertionError(at)
' && was_sent SEEK && cd / && fresh_ && cd /run/nfs || return
  cp --sparse=auto holes sparse && cp --sparse=auto holes /tmp/sparse && cmp holes sparse && cmp holes /tmp/sparse || return
  stat -c '%n: %b blocks' holes sparse /tmp/sparse
  [ "$(stat -c %b sparse)" -lt 1000 ] && [ "$(stat -c %b /tmp/sparse)" -lt 1000 ] && rm holes sparse
)
clones() (
  cd /run/nfs && head -c 3M /dev/urandom >from && cp --reflink=always from into && cmp from into && was_sent CLONE || return
  cp from /tmp/from && echo changed | dd of=into conv=notrunc status=none && cmp from /tmp/from && ! cmp -s from into || return
  python3 -c '
import errno, fcntl, os, struct
one, other = os.open("from", os.O_RDONLY), os.open("range", os.O_RDWR | os.O_CREAT)
clone = lambda *range: fcntl.ioctl(other, 0x4020940D, struct.pack("=qQQQ", one, *range))
clone(1 << 20, 65536, 131072)
assert os.fstat(other).st_size == 131072 + 65536
assert os.pread(other, 65536, 131072) == os.pread(one, 65536, 1 << 20) and not any(os.pread(other, 131072, 0))
try: clone(100, 65536, 0)
except OSError as error: assert error.errno == errno.EINVAL, error
else: raise AssertionError("a range that is not aligned")
' && ask_and_wait shared && rm from into range
)
case_ "$WHAT: mounts" mount_ "$EXPORT" /run/nfs
case_ "$WHAT: extended attributes are set, listed, read and removed" xattrs
case_ "$WHAT: holes are found, and stay holes in a copy" holes_found
case_ "$WHAT: files are cloned whole and in ranges" clones
case_ "$WHAT: unmounts" umount /run/nfs
"""

# A little of everything, for a capture.
SPOKEN = WORK + r"""
speak() (
  cd /run/nfs && mkdir d && head -c 200000 /dev/urandom >d/file && mv d/file d/other && ln d/other d/link && ln -s other d/symlink && ls -l d || return
  truncate -s 1000 d/link && chmod 600 d/link && cp d/other d/copy && cat d/copy d/symlink >/dev/null && ! cat missing || return
  cd / && fresh_ && cat /run/nfs/d/* >/dev/null && df /run/nfs && [ "$(ls /run/nfs/d | wc -l)" = 4 ] && cmp /run/nfs/d/other /run/nfs/d/copy
)
speak_four() {
  VERS=$OTHER mount_ "$EXPORT" /run/nfs2 && exec 7</run/nfs/d/copy && echo more >>/run/nfs2/d/copy && umount /run/nfs2 || return
  exec 7<&-
  python3 -c '
import fcntl, os
file = os.open("/run/nfs/d/file", os.O_RDWR | os.O_CREAT)
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 10); fcntl.lockf(file, fcntl.LOCK_UN, 10, 10)
os.write(file, bytes(100000)); os.posix_fallocate(file, 0, 200000); os.lseek(file, 0, os.SEEK_HOLE)
into = os.open("/run/nfs/d/into", os.O_RDWR | os.O_CREAT)
os.copy_file_range(file, into, 100000)
os.setxattr(file, "user.name", b"value")
' && fresh_ && python3 -c '
import os
os.listxattr("/run/nfs/d/file"); os.getxattr("/run/nfs/d/file", "user.name"); os.removexattr("/run/nfs/d/file", "user.name")
'
}
case_ "$WHAT: mounts" mount_ "$EXPORT" /run/nfs
case_ "$WHAT: names, data and attributes" speak
[ "$VERS" != 4.2 ] || case_ "$WHAT: locks, delegations, holes, copies and extended attributes" speak_four
case_ "$WHAT: everything is removed" rm -r /run/nfs/d
case_ "$WHAT: unmounts" umount /run/nfs
"""

# The server's machine knows 20 groups of user 2000; AUTH_SYS carries 16 of those that the guest gives it, none of them.
GROUPS = WORK + r"""
groups() (
  cd /run/nfs || return
  for group in 7000 7019 7100; do echo text >of$group && chgrp $group of$group && chmod 640 of$group || return; done
  as() { setpriv --reuid=2000 --regid=2000 --groups="$1" cat "of$2"; }
  as 7100 7000 && as 7100 7019 && ! as 7100 7100 && rm -f of*
)
case_ "$WHAT: mounts" mount_ "$EXPORT" /run/nfs
case_ "$WHAT: a user has the 20 groups that the server's machine knows" groups
case_ "$WHAT: unmounts" umount /run/nfs
"""

# Two clients at once: this kernel, and one on the host that speaks NFS by itself. The host's part is in `Rival`.
RIVAL = WORK + r"""
# A process that takes a lock when it is told to, and gives it up when it is told to: `hold WAIT BEGIN LENGTH`, `let_go`.
hold() {
  python3 -c '
import fcntl, os, sys
wait, begin, length = sys.argv[1] == "wait", int(sys.argv[2]), int(sys.argv[3])
file = os.open("/run/nfs/ranges", os.O_RDWR)
print("asks", flush=True)
try: fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), length, begin)
except BlockingIOError: print("refused", flush=True); sys.exit(9)
print("holds", flush=True); word = input()
try: os.pwrite(file, b"guest", begin); os.fsync(file); print("wrote", flush=True)
except OSError as error: print("lost:", error.strerror, flush=True); sys.exit(5)
fcntl.lockf(file, fcntl.LOCK_UN, length, begin)
' "$@" <>/run/hold >/run/held & holder=$!
  exec 5<>/run/held 6<>/run/hold
  read -r said <&5 && [ "$said" = asks ]
}
says() { read -r -t "${2:-200}" said <&5; echo "it says: $said"; [[ $said == $1 ]]; }
let_go() { echo >&6; says "$1"; local code=$?; wait $holder; return $code; }
asks_host() { ask_and_wait "$1"; }
kept_out() { hold now 20 10 && says holds && ask_and_wait kept_out; }
given_back() { let_go wrote && ask_and_wait takes; }
refused() { hold now 0 0 && says refused; ! wait $holder; }
apart() { hold now 100 50 && says holds && let_go wrote; }
waits() { hold wait 25 1 && sleep 3 && ! read -r -t 1 said <&5 && ask_and_wait gives && says holds && let_go wrote; }
# The host's client has the lock, and goes away without a word: it is waited for until its lease is over.
inherits() { ask_and_wait takes && ask_and_wait goes && hold now 25 1 && says refused && hold wait 25 1 && says holds && let_go wrote; }
# This client has the lock, and is not heard of for longer than its lease.
disinherited() {
  hold now 20 10 && says holds || return
  network 1ms 100%; ask_and_wait outlives; network fine
  let_go 'lost:*' && [ "$(head -c 25 /run/nfs/ranges | tail -c 5)" = rival ]
}
mkfifo /run/hold /run/held
case_ "$WHAT: mounts" mount_ "$EXPORT" /run/nfs
head -c 200 /dev/zero >/run/nfs/ranges
case_ "$WHAT: another client is kept out of what Linux locks, and of no other byte" kept_out
case_ "$WHAT: Linux unlocks, and the other client locks" given_back
case_ "$WHAT: Linux is kept out" refused
case_ "$WHAT: Linux locks a range beside it" apart
case_ "$WHAT: Linux waits until the other client unlocks" waits
case_ "$WHAT: a client goes away, and Linux has its lock after its lease" inherits
case_ "$WHAT: Linux is cut off, loses its lock to the other client, and a write under it fails" disinherited
case_ "$WHAT: unmounts" umount /run/nfs
"""

UNMOUNT = """
umount /run/nfs2; umount /run/nfs
"""

# A server that goes away and comes back: the client waits, and goes on with the handles that it has.
AWAY = WORK + r"""
case_ "$WHAT: mounts" mount_ "$EXPORT" /run/nfs hard
# Both work until the server has come back for the last time: so the script takes as long as the outages, however slow the machine.
busy() {
  local n=0
  until [ -e /tmp/enough ]; do
    n=$((n + 1)); head -c 20000 /dev/urandom >/tmp/part && cp /tmp/part /run/nfs/part$n && sync /run/nfs/part$n && sha256sum </tmp/part | sed "s/-/part$n/" >>/tmp/sums || return
    mv /run/nfs/part$n /run/nfs/p$n && mv /run/nfs/p$n /run/nfs/part$n || return
  done
}
tails() { local n=0; exec 8>>/run/nfs/held && until [ -e /tmp/enough ]; do n=$((n + 1)); echo "line $n" >&8 && sync /run/nfs/held || return; echo $n >/tmp/lines; sleep 0.1; done; }
kept() { sleep 2; : >/tmp/enough; wait $worker && wait $tailer && (cd /run/nfs && sha256sum --quiet -c /tmp/sums && [ -s /tmp/sums ] && [ "$(wc -l <held)" = "$(cat /tmp/lines)" ]); }
# A process that holds a lock of bytes 10 to 29 until it is told to give it up, and writes there before it does.
holder='
import fcntl, os
file = os.open("/run/nfs/locked", os.O_RDWR)
fcntl.lockf(file, fcntl.LOCK_EX, 20, 10)
print(flush=True); input()
os.pwrite(file, b"still mine", 10); os.fsync(file)
fcntl.lockf(file, fcntl.LOCK_UN, 20, 10)
print(flush=True); input()
'
ask_lock() { python3 -c '
import fcntl, sys
try: fcntl.lockf(open("/run/nfs2/locked", "r+b"), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 15)
except BlockingIOError: sys.exit(9)
'; }
locked_() {
  mkfifo /run/hold /run/held && mount_ "$EXPORT" /run/nfs2 nosharecache && head -c 100 /dev/zero >/run/nfs/locked && sync /run/nfs/locked || return
  python3 -c "$holder" <>/run/hold >/run/held & lock_holder=$!
  exec 5<>/run/held 6<>/run/hold
  read -r _ <&5; ask_lock; [ $? = 9 ]
}
relocked() {
  ask_lock; [ $? = 9 ] || return
  echo >&6; read -r _ <&5; ask_lock || return
  echo >&6; wait $lock_holder && [ "$(head -c 20 /run/nfs2/locked | tail -c 10)" = "still mine" ] && ! dmesg | grep -iE 'nfs.*(lost|reclaim failed)'
}
busy & worker=$!
tails & tailer=$!
# Version 4 reclaims its locks from each server that comes back.
[ "$VERS" = 3 ] || case_ "$WHAT: a range is locked, and another owner kept out" locked_
for what in restart kill takeover kill; do sleep 1; ask_and_wait $what; done
case_ "$WHAT: nothing synced is lost, and no call fails, over a restart, two deaths and a takeover" kept
[ "$VERS" = 3 ] || case_ "$WHAT: the lock was reclaimed each time, and is given up only by its owner" relocked
cd /; umount /run/nfs2 2>/dev/null; umount /run/nfs
"""


# An address of this side beside that of all other cases.
OTHER_HOST = "10.99.0.9"


def boot(lab, script, server, name, what, requests=None, version="3", proto="tcp", port=PORT):
    fsx = tools.find("fsx")
    if not fsx:
        raise Skip("no fsx: `cargo install fsx` makes it")
    uml.run_cases(lab, "nfs", script, timeout=900, requests=requests, EXPORT=name, WHAT=what, PORT=port, MOUNTPORT=PORT,
                  VERS=version, OTHER={"4.1": "4.2"}.get(version, "4.1"), PROTO=proto, OTHER_HOST=OTHER_HOST, programs=os.path.dirname(fsx),
                  FSX=f"{uml.PROGRAMS}/fsx")


def serve(lab, exports, *ports, config=""):
    uml.network_up()
    config += "".join(f"""[[export]]
name = "{name}"
path = "{path}"
exclusive = true
[[export.client]]
network = "*"
squash = "none"
""" for name, path in exports.items())
    return share(lab, {}, host=uml.HOST, port=PORT, ports=ports, config=config)


def memory(lab):
    with serve(lab, {"/memory": "mem:256M"}) as server:
        boot(lab, ALL + TAKEN, server, "/memory", "memory", {"takeover": server.take_over})


def directory(lab):
    with serve(lab, {"/srv/tree": folder(lab)}) as server:
        boot(lab, ALL, server, "/srv/tree", "a directory")


def four_one(lab):
    uml.network_up()
    proc.run("ip", "address", "replace", f"{OTHER_HOST}/24", "dev", "tap0")
    with serve(lab, {"/memory": "mem:256M"}, f"{OTHER_HOST}:{PORT}") as server:
        boot(lab, ALL, server, "/memory", "4.1, memory", version="4.1")
        boot(lab, FOUR + UNMOUNT + TRUNKED + TAKEN, server, "/memory", "4.1, state", {"takeover": server.take_over}, "4.1")


def four_two(lab):
    with serve(lab, {"/srv/tree": folder(lab)}) as server:
        boot(lab, ALL, server, "/srv/tree", "4.2, a directory", version="4.2")
        boot(lab, FOUR + RANGES + UNMOUNT, server, "/srv/tree", "4.2, state", version="4.2")


def away(lab, version="3", what="a server that goes away", proto="tcp"):
    with serve(lab, {"/srv/tree": folder(lab)}) as server:
        def stop_and_start():
            server.stop()
            time.sleep(1)
            server.start()

        def kill_and_start():
            server.kill()
            time.sleep(1)
            server.start()

        requests = {"restart": stop_and_start, "kill": kill_and_start, "takeover": server.take_over}
        boot(lab, AWAY, server, "/srv/tree", what, requests, version, proto)


class Rival:
    """The other client of RIVAL: what the guest asks it to do."""

    def __init__(self, server, minor):
        self.server, self.minor, self.session = server, minor, None

    def open(self):
        if not self.session:
            self.session = nfs.Session(self.server.host, self.server.port, self.minor)
            self.file, self.state, _ = self.session.open("/srv/tree", "ranges", create=False)
        return self.session

    def kept_out(self):
        session = self.open()
        for begin, length in ((25, 1), (0, nfs.TO_THE_END), (29, 100), (11, 10)):
            try:
                session.lock(self.file, self.state, begin, length)
            except nfs.Status as wrong:
                expect((wrong.status, wrong.held) == (nfs.DENIED, (20, 10, nfs.WRITE_LOCK)), f"{begin}, {length}: {wrong}, {wrong.held}")
            else:
                raise Failed(f"bytes {begin}, {length} are locked by both")
        locks = session.lock(self.file, self.state, 0, 20)
        locks = session.lock_more(self.file, locks, 30, nfs.TO_THE_END)
        session.unlock(self.file, locks, 0, nfs.TO_THE_END)

    def takes(self):
        self.open()
        self.locks = self.session.lock(self.file, self.state, 20, 10, owner=os.urandom(8))

    def gives(self):
        self.session.unlock(self.file, self.locks, 20, 10)

    def goes(self):
        self.session.close()
        self.session = None

    def outlives(self):
        """Asks until it has the lock, which takes as long as the guest's lease."""
        session = self.open()

        def locked():
            status = nfs.status_of(session.lock, self.file, self.state, 20, 10, owner=os.urandom(8))
            expect(status in (nfs.OK, nfs.DENIED), f"LOCK is answered with {status}")
            return status == nfs.OK

        expect(not locked(), "the guest's lock is not there")
        proc.wait_until(locked, 300, "a silent client's lock is given to another", step=1)
        session.write(self.file, self.state, 20, b"rival")


def rivals(lab):
    """Byte-range locks of two clients that share nothing but the server. Two of the cases wait for a lease."""
    with serve(lab, {"/srv/tree": folder(lab)}, config="[nfs]\nlease = 15\n") as server:
        for version, minor in (("4.1", 1), ("4.2", 2)):
            rival = Rival(server, minor)
            requests = {name: getattr(rival, name) for name in ("kept_out", "takes", "gives", "goes", "outlives")}
            boot(lab, RIVAL, server, "/srv/tree", f"{version}, two clients", requests, version)
            rival.session.close_file(rival.file, rival.state)
            rival.session.end()


def extras(lab):
    proc.need("xfs_io")

    def attributes():
        for name in ("", "file"):
            value = os.getxattr(os.path.join(path, "attributes", name), "user.one")
            expect(value == b"other", f"the host sees {value}")

    def shared():
        proc.run("sync", "-f", path)
        printed = proc.run("xfs_io", "-r", "-c", "fiemap -v", os.path.join(path, "range"))
        flags = [int(line.split()[-1], 16) for line in printed.splitlines() if "hole" not in line and line.split()[-1].startswith("0x")]
        expect(flags and all(flag & 0x2000 for flag in flags), f"the host sees blocks that are not shared:\n{printed}")

    with xfs(lab) as path, serve(lab, {"/srv/tree": path}) as server:
        for proto, what in (("tcp", "4.2, extras"), ("rdma", "RDMA, 4.2, extras")):
            boot(lab, EXTRAS, server, "/srv/tree", what, {"attributes": attributes, "shared": shared}, "4.2", proto)
            shutil.rmtree(os.path.join(path, "attributes"))


@capture.whole
def decoded(lab):
    """What Linux says, as it comes out of the guest's network card."""
    proc.need("tshark")
    with serve(lab, {"/srv/tree": folder(lab)}) as server:
        server.interface = "tap0"

        def traffic():
            for version in ("3", "4.1", "4.2"):
                for proto, what in (("tcp", ""), ("rdma", "RDMA, ")):
                    boot(lab, SPOKEN, server, "/srv/tree", f"{what}{version}, captured", version=version, proto=proto)

        three, four, back = nfs_capture.spoken(capture.captured(server, traffic))
    nfs_capture.seen("version 3", three, *(nfs.V3[name] for name in "getattr setattr lookup access readlink read write create mkdir symlink remove "
                                           "rmdir rename link readdirplus fsstat fsinfo pathconf".split()))
    nfs_capture.seen("version 4", four, *(nfs_capture.FOUR[name] for name in
                                          "close create getattr link lock locku open read readdir remove rename setattr write exchange_id create_session "
                                          "sequence reclaim_complete delegreturn allocate copy seek getxattr setxattr listxattrs removexattr "
                                          "destroy_session destroy_clientid".split()))
    nfs_capture.seen("calls to the client", back, nfs_capture.CB_SEQUENCE, nfs_capture.CB_RECALL)


def away_four(lab):
    for version in ("4.1", "4.2"):
        away(lab, version, f"{version}, a server that goes away")


# Linux's own server (knfsd) on memory: /run/export, which is the root of version 4.
KNFSD = r"""
size() { du -sm /run/export | cut -f1; }
# The server stops in the middle of a copy, and comes back without what it knew of its clients' sessions.
away_() {
  ask "$1"
  for _ in $(seq 600); do [ "$(size)" -gt 20 ] && break; sleep 0.05; done
  [ "$(size)" -lt 160 ] || return
  rpc.nfsd 0; sleep 2; rpc.nfsd --grace-time 10 --lease-time 10 4
  answered $asked
}
case_ "knfsd is up" knfsd_up
case_ "knfsd takes RDMA" eval "siw_up && echo 'rdma 20049' >/proc/fs/nfsd/portlist"
for version in 3 4.1 4.2; do ask_and_wait there$version; ask_and_wait rdma$version; done
for version in 3 4.2; do case_ "knfsd is restarted in the middle of a copy by $version" away_ away$version; rm -rf /run/export/*; done
case_ "the guest's kernel had no fault" eval '! dmesg | grep -iE "bug:|oops|call trace"'
"""


def knfsd(lab):
    proc.need("rdma", "rpc.nfsd", "rpc.mountd", "exportfs", "rpcbind")
    if not Stag.binary:
        raise Skip("no stag binary: set STAG_BIN")
    uml.network_up()
    source = lab.new_folder("source")
    for number in range(4):
        with open(os.path.join(source, f"file{number}"), "wb") as file:
            file.write(os.urandom(40 << 20))

    def base(version, scheme="nfs"):
        return f"{scheme}://{uml.GUEST}" + ("/run/export" if version == "3" else "")

    def there(version, scheme="nfs"):
        def trip():
            round_trip(lab, base(version, scheme), f"vers={version}")
            if scheme == "nfs":
                kept(lab, base(version), f"vers={version}")
            loaded(base(version, scheme), f"vers={version}")
        return lambda: lab.report.case(f"nfs: knfsd, {scheme}://, {version}: stag cp, ls, cat, rm and bench", trip)

    def away(version):
        def copy():
            url, back = f"{base(version)}/copy?vers={version}", os.path.join(lab.new_folder("back"), "copy")
            # Slow enough that the guest sees it in the middle.
            proc.run(Stag.binary, "cp", "-r", "--depth", "1", "--block", "8K", source, url, timeout=300)
            proc.run(Stag.binary, "cp", "-r", url, back, timeout=300)
            same(source, back)
            listed = proc.run(Stag.binary, "ls", url)
            expect(len(listed.splitlines()) == 4, f"stag ls lists:\n{listed}")
        return lambda: lab.report.case(f"nfs: knfsd, {version}: stag cp goes on after a restart", copy)

    requests = {f"there{version}": there(version) for version in ("3", "4.1", "4.2")}
    requests.update({f"rdma{version}": there(version, "nfs+rdma") for version in ("3", "4.1", "4.2")})
    requests.update({f"away{version}": away(version) for version in ("3", "4.2")})
    uml.run_cases(lab, "nfs", KNFSD, timeout=570, requests=requests, memory_mib=768)


def groups(lab):
    uml.network_up()
    config = f"""[nfs]
manage-gids = true
[[export]]
name = "/srv/tree"
path = "{folder(lab)}"
[[export.client]]
network = "*"
squash = "none"
"""
    with share(lab, {}, host=uml.HOST, port=PORT, config=config, groups=range(7000, 7020)) as server:
        for version in ("3", "4.2"):
            boot(lab, GROUPS, server, "/srv/tree", f"{version}, groups", version=version)


CASES = [
    ("nfs: memory's script ran to its end", memory),
    ("nfs: a directory's script ran to its end", directory),
    ("nfs: the script of a server that goes away ran to its end", away),
    ("nfs: 4.1's scripts ran to their end", four_one),
    ("nfs: 4.2's scripts ran to their end", four_two),
    ("nfs: the scripts of two clients that want the same locks ran to their end", rivals),
    ("nfs: the scripts of extended attributes, holes and clones ran to their end", extras),
    ("nfs: tshark decodes what Linux's client says, over TCP and RDMA", decoded),
    ("nfs: the scripts of groups ran to their end", groups),
    ("nfs: version 4's scripts of a server that goes away ran to their end", away_four),
    ("nfs: the script of Linux's own server ran to its end", knfsd),
]
