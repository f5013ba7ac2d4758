"""Linux's own iSER initiator (ib_iser) over its software iWARP (siw), in the lab's guest, against the target."""

import json

from lab import proc, uml
from lab.report import expect
from lab.target import Chap, Unit

from kernel import linux

# What the initiator may reach at once: its own limits for one command lie at 512 KiB, so larger requests become several.
DISK = r"""
initiator_up || exit 1
case_ "discovery over iSER and login" login
d0=${disks[0]} d1=${disks[1]}
case_ "the session is iSER's" eval 'iscsiadm -m session -P 1 | grep -q "Iface Transport: iser"'
head -c 32M /dev/urandom >/tmp/m
there_and_back() {
  dd if=/tmp/m of=$d0 bs=$1 count=$2 oflag=direct status=none && fresh $d0 &&
    dd if=$d0 of=/tmp/n bs=$1 count=$2 iflag=direct status=none && cmp -n $(stat -c %s /tmp/n) /tmp/m /tmp/n
}
for size in 512:200 1k:100 4k:500 12k:100 64k:100 128k:100 256k:64 512k:32 1M:32 4M:8 16M:2; do
  case_ "requests of ${size%:*} come back as they went" there_and_back ${size%:*} ${size#*:}
done
for depth in 1 4 32 128; do case_ "fio verifies at depth $depth" verify_fio $d0 --iodepth=$depth --size=16m; done
case_ "fio verifies on 4096-byte blocks" verify_fio $d1 --size=16m
case_ "fio verifies large requests" verify_fio $d0 --bsrange=1m-4m --size=48m
case_ "fio verifies mixed reads and writes" verify_fio $d0 --rw=randrw --bsrange=4k-32k
case_ "fio verifies two jobs at once" verify_fio $d0 --numjobs=2 --size=12m --offset_increment=16m
case_ "ext4 on 512-byte blocks" same_file_system $d0
case_ "ext4 on 4096-byte blocks" same_file_system $d1
case_ "blkdiscard: the unit reads as zeros" eval 'blkdiscard $d0 && fresh $d0 && cmp -n 8388608 $d0 /dev/zero'
case_ "sg tools: INQUIRY, VPD, capacity, LUNs" eval 'sg_inq $d0 && sg_vpd -p 0x83 $d0 && sg_vpd -p 0xb0 $d0 && sg_readcap -l $d1 && sg_luns $d0'
case_ "sg tools: sense data comes" eval 'sg_raw $d0 ff 00 00 00 00 00 2>&1 | grep -i "illegal request"'
case_ "sg tools: COMPARE AND WRITE" eval 'head -c 512 /tmp/m >/tmp/c && dd if=/tmp/c of=$d0 bs=512 count=1 oflag=direct status=none && cat /tmp/c /tmp/c >/tmp/caw && sg_compare_and_write --lba=0 --num=1 --in=/tmp/caw --xferlen=1024 $d0'
case_ "sg tools: WRITE SAME, UNMAP" eval 'sg_write_same --16 -l 100 -n 64 -i /tmp/c -x 512 $d0 && sg_unmap --lba=8 --num=64 --force $d0'
case_ "sg tools: persistent reservations" eval 'sg_persist --out --register --param-sark=0xabc1 $d0 && sg_persist --in -k $d0 | grep 0xabc1 && sg_persist --out --clear --param-rk=0xabc1 $d0'
case_ "an idle session answers NOPs" answers_pings
case_ "data is the same after logout and login" eval 'cp /tmp/m $d0; sync; logout && login && cmp -n 33554432 ${disks[0]} /tmp/m'
again() {
  for _ in $(seq 10); do
    logout && timeout 90 iscsiadm -m node -T "$IQN" -p "$PORTAL" -I "$TRANSPORT" -l && wait_disks "$UNITS" || return
  done
}
case_ "logouts and logins, ten times" again
case_ "nothing was said of errors" eval '! dmesg | grep -iE "siw.*(error|terminate)|iser.*(error|fail|bogus)|i/o error|call trace"'
case_ "logout" logout
"""

CRC = r"""
initiator_up || exit 1
case_ "$HOW: login" login
case_ "$HOW: fio verifies" verify_fio ${disks[0]} --size=16m
[ "$HOW" != CRC ] || case_ "$HOW: ext4" same_file_system ${disks[0]}
case_ "$HOW: logout" logout
"""

# Task management while RDMA is under way: resets of the unit, the target and the host, and aborts after timeouts.
ABORT = r"""
initiator_up node.conn[0].timeo.noop_out_interval=0 node.conn[0].timeo.noop_out_timeout=0 || exit 1
case_ "login" login
d0=${disks[0]}
load() { verify_fio $d0 --rate=20m --size=60m --iodepth=32 "$@" >/tmp/load 2>&1; }
verified() { wait $writer || { cat /tmp/load; dmesg | tail -20; return 1; }; }
load & writer=$!
sleep 0.7; case_ "LOGICAL UNIT RESET under load" sg_reset -d $d0
sleep 0.7; case_ "TARGET RESET under load" sg_reset -t $d0
case_ "writes that resets interrupt are all verified" verified
echo 4 >/sys/block/${d0#/dev/}/device/timeout
load --bsrange=256k-512k --randseed=5 & writer=$!
sleep 1; ask_and_wait freeze
case_ "writes that time out and are aborted are all verified" verified
case_ "there were aborts" eval 'dmesg | grep -iE "abort|reset|timeout" || cat /sys/class/iscsi_session/*/state'
case_ "there is one session, with its disk" eval '[ "$(iscsiadm -m session | wc -l)" = 1 ] && dd if=$d0 of=/dev/null bs=4k count=1 iflag=direct'
case_ "ext4 is sound after that" same_file_system $d0
"""

NETWORK = r"""
initiator_up || exit 1
case_ "login" login
d0=${disks[0]}
for how in "5ms 0%" "1ms 1%" "3ms 3%" "20ms 0.5%"; do
  network $how
  case_ "delay and loss of $how: fio verifies" verify_fio $d0 --size=4m --bsrange=4k-256k --iodepth=32
done
network 2ms 1%
case_ "over a poor network: logout and login" eval 'logout && login'
case_ "over a poor network: ext4" same_file_system ${disks[0]}
"""


def boot(lab, target, script, **options):
    proc.need("rdma", "iscsid", "fio")
    linux.boot(lab, target, script, prefix="iser", TRANSPORT="iser", **options)


def disk(lab):
    with linux.serve(lab, Unit(mib=256, thin=True), Unit(mib=256, block_bytes=4096)) as target:
        boot(lab, target, DISK, timeout=600)


def chap(lab):
    for what, credentials in (("CHAP", Chap("alice", "alice-secret-12")),
                              ("mutual CHAP", Chap("alice", "alice-secret-12", "target", "target-secret-1"))):
        with linux.serve(lab, Unit(), chap=credentials) as target:
            boot(lab, target, linux.CHAP, WHAT=what, NAME=credentials.name, SECRET=credentials.secret,
                 TARGET_NAME=credentials.target_name, TARGET_SECRET=credentials.target_secret)


def placed(target):
    """Bytes of what RDMA Reads brought that went straight into units' memory, by the target's own account."""
    status = json.loads(proc.run(target.binary, "status", "--control", target.control, "--json"))
    return sum(core["rdma"]["placed"] for core in status["cores"])


def crc(lab):
    """siw never asks for a CRC; it uses one when the target requires it. Small FPDUs too, and data that comes unasked. The unit is in memory:
    where FPDUs are long what RDMA Reads bring is put straight there."""
    for how, settings in (("CRC", {"crc": "require"}), ("no CRC", {"crc": "never"}), ("CRC, small FPDUs", {"crc": "require", "fpdu": 1400}),
                          ("no CRC, small FPDUs, one read at a time", {"crc": "never", "fpdu": 512, "reads": 1}),
                          ("unsolicited data", {"unsolicited-data": True})):
        with linux.serve(lab, Unit(memory=True), iser=settings) as target:
            boot(lab, target, CRC, HOW=how)
            if how in ("CRC", "no CRC"):
                expect(placed(target) > 0, f"{how}: nothing that RDMA Reads brought was put straight into the unit")


def abort(lab):
    with linux.serve(lab, Unit()) as target:
        boot(lab, target, ABORT, timeout=600, requests=linux.interruptions(target))


def restart(lab):
    with linux.serve(lab, Unit()) as target:
        boot(lab, target, linux.RESTART, timeout=600, requests=linux.interruptions(target))


def network(lab):
    with linux.serve(lab, Unit(mib=256)) as target:
        boot(lab, target, NETWORK, timeout=600)


CASES = [
    ("iser: disks' script ran to its end", disk),
    ("iser: CHAP's scripts ran to their end", chap),
    ("iser: scripts with and without CRC ran to their end", crc),
    ("iser: aborts' script ran to its end", abort),
    ("iser: restarts' script ran to its end", restart),
    ("iser: poor networks' script ran to its end", network),
]
