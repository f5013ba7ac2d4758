"""Linux's own NFS client over RDMA (xprtrdma over siw), in the lab's guest, against Stag's exports of memory and of a directory."""

from kernel.nfs import FOUR, RANGES, UNMOUNT, WORK, away, boot, serve
from lab import proc
from lab.share import folder

RDMA_PORT = 20049

# Data by RDMA Write and RDMA Read, in chunks of all sizes; long replies and long calls.
RDMA = WORK + r"""
large() {
  head -c 64M /dev/urandom >/tmp/large && cp /tmp/large /run/nfs/large && fresh_ && cmp /tmp/large /run/nfs/large || return
  for size in 1 3 1000 4095 4096 65537 1048575 1048577; do
    head -c $size /tmp/large >/run/nfs/part && fresh_ && [ "$(stat -c %s /run/nfs/part)" = $size ] && cmp -n $size /tmp/large /run/nfs/part || return
  done
  rm /run/nfs/large /run/nfs/part
}
# A path too long to be sent with its call, and for the reply that reads it.
links() (
  cd /run/nfs && for length in 1 100 900 1023; do
    path=$(printf "%${length}s" | tr ' ' x) && ln -s "$path" link$length && [ "$(readlink link$length)" = "$path" ] || return
  done
  cd / && fresh_ && cd /run/nfs && for length in 1 100 900 1023; do
    [ "$(readlink link$length)" = "$(printf "%${length}s" | tr ' ' x)" ] && rm link$length || return
  done
)
no_complaints() { ! dmesg | grep -iE 'siw.*(error|terminate)|rpcrdma.*(error|fail|bad|invalid)|bad (chunk|header|seqid)|i/o error|call trace'; }
case_ "$WHAT: mounts" mount_ "$EXPORT" /run/nfs
case_ "$WHAT: the mount is over RDMA" grep -q "proto=rdma" /proc/mounts
case_ "$WHAT: 64 MiB and odd lengths come back as they went" large
case_ "$WHAT: links with long paths" links
tree
case_ "$WHAT: a tree is copied, and the same after a new mount" compare
case_ "$WHAT: 3,000 names are made, listed and removed" names
case_ "$WHAT: names, links, renames, holes and truncation keep POSIX's rules" rules
case_ "$WHAT: another mount sees what was closed" coherent
case_ "$WHAT: fio verifies through the page cache" fio_
case_ "$WHAT: fio verifies past the page cache" fio_ --direct=1 --ioengine=libaio --iodepth=32
case_ "$WHAT: fsx finds what it has written" fsx_
umount /run/nfs
case_ "$WHAT: mounts with four connections" mount_ "$EXPORT" /run/nfs nconnect=4
case_ "$WHAT: fio verifies over four connections" fio_ --direct=1 --ioengine=libaio --iodepth=32 --randseed=5
network 3ms 1%
case_ "$WHAT: a tree is copied over a network that loses packets" eval 'rm -rf /run/nfs/tree && compare'
network fine
case_ "$WHAT: Linux complains of nothing" no_complaints
case_ "$WHAT: everything is removed" eval 'rm -rf /run/nfs/* && [ -z "$(ls -A /run/nfs)" ]'
case_ "$WHAT: unmounts" umount /run/nfs
"""


def rdma(lab):
    """Over siw, at the port of TCP, which takes both, and at that of RDMA."""
    proc.need("rdma", "fio")
    with serve(lab, {"/memory": "mem:256M", "/srv/tree": folder(lab)}, RDMA_PORT) as server:
        boot(lab, RDMA, server, "/srv/tree", "RDMA, v3, a directory", proto="rdma")
        boot(lab, RDMA, server, "/memory", "RDMA, 4.1, memory", version="4.1", proto="rdma", port=RDMA_PORT)
        boot(lab, RDMA, server, "/srv/tree", "RDMA, 4.2, a directory", version="4.2", proto="rdma", port=RDMA_PORT)


def rdma_state(lab):
    with serve(lab, {"/srv/tree": folder(lab)}) as server:
        for version, ranges in (("4.1", ""), ("4.2", RANGES)):
            boot(lab, FOUR + ranges + UNMOUNT, server, "/srv/tree", f"RDMA, {version}, state", version=version, proto="rdma")


def rdma_away(lab):
    for version in ("3", "4.1", "4.2"):
        away(lab, version, f"RDMA, {version}, a server that goes away", "rdma")


CASES = [
    ("nfs: RDMA's scripts ran to their end", rdma),
    ("nfs: RDMA's scripts of version 4's state ran to their end", rdma_state),
    ("nfs: RDMA's scripts of a server that goes away ran to their end", rdma_away),
]
