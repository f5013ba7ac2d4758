"""Linux's own initiator (iscsi_tcp, open-iscsi), sd, sg and ext4, in the lab's guest, against the target."""

import contextlib
import os
import signal
import time

from lab import ceph, proc, uml
from lab.target import IQN, Chap, Unit


def serve(lab, *units, **options):
    """A target at the guest's side of the network."""
    uml.network_up()
    return lab.serve(*units, host=uml.HOST, port=3260, **options)


def boot(lab, target, script, timeout=400, requests=None, prefix="linux", **values):
    """Run a script in the guest and count each of its cases."""
    uml.run_cases(lab, prefix, script, timeout, requests, PORTAL=target.portal, IQN=IQN, UNITS=len(target.units), **values)


# Every tool of sg3-utils that fits a disk, by what it must print or do. $d0: thin, 512-byte blocks, 8 to a physical
# block; $d1: 4096-byte blocks; $d2: read-only; $d3: removable.
SG = r"""
initiator_up || exit 1
case_ "login to five units" login
d0=${disks[0]} d1=${disks[1]} d2=${disks[2]} d3=${disks[3]} d4=${disks[4]}
prints() { local want=$1; shift; "$@" 2>&1 | tee /tmp/said; grep -qE "$want" /tmp/said; }
refused() { ! "$@"; }
# Blocks of $d0 to /tmp/n, past the page cache; what must be there.
rd() { rm -f /tmp/n; sg_dd if=$d0 of=/tmp/n bs=512 skip=$1 count=$2 blk_sgio=1; }
holds() { rd $1 $2 && cmp /tmp/n $3; }
sg_of() { echo /dev/$(ls /sys/block/${1#/dev/}/device/scsi_generic); }

case_ "sg_turs: ready" sg_turs $d0
case_ "sg_inq: a disk" prints "PDT=0|Peripheral device type: disk" sg_inq $d0
for page in 0x00 0x80 0x83 0xb0 0xb1; do case_ "sg_vpd: page $page" sg_vpd -p $page $d0; done
case_ "sg_vpd: page 0x86, extended inquiry" sg_vpd -p 0x86 $d0
case_ "sg_vpd: page 0xb2 says thin" prints "LBPME|UNMAP command supported|Provisioning type: 2|\(LBPU\): 1" sg_vpd -p 0xb2 $d0
case_ "the names of units differ" eval '[ "$(sg_vpd -i $d0)" != "$(sg_vpd -i $d1)" ]'
case_ "sg_readcap: 512-byte blocks, 8 to a physical one" prints "Logical block length=512" sg_readcap -l $d0
case_ "sg_readcap: logical blocks per physical block exponent" prints "exponent.*=3" sg_readcap -l $d0
case_ "sg_readcap: 4096-byte blocks" prints "Logical block length=4096" sg_readcap -l $d1
case_ "the kernel sees the block sizes" eval '[ "$(blockdev --getss --getpbsz $d0 | xargs)" = "512 4096" ] && [ "$(blockdev --getss $d1)" = 4096 ]'
case_ "the kernel sees a unit it may not write" eval '[ "$(blockdev --getro $d2)" = 1 ]'
case_ "the kernel sees a removable unit" eval '[ "$(cat /sys/block/${d3#/dev/}/removable)" = 1 ]'
case_ "the kernel may discard" eval '[ "$(cat /sys/block/${d0#/dev/}/queue/discard_max_bytes)" -gt 0 ]'
case_ "sg_luns: five units" prints "Lun list length = 40" sg_luns $d0
case_ "sg_opcodes: all" prints "Persistent reserve in" sg_opcodes $d0
case_ "sg_opcodes: one command's usage" prints "(supported|SUPPORT)" sg_opcodes -o 0x28 $d0
case_ "sg_opcodes: task management" prints "[Aa]bort task" sg_opcodes -t $d0
case_ "sg_modes: all pages" prints "Caching" sg_modes -a $d0
case_ "sg_modes: read-only unit is write-protected" prints "WP=1" sg_modes -a $d2
case_ "the kernel knows the cache mode" eval 'cat /sys/class/scsi_disk/*/cache_type | grep -qE "write (back|through)"'
case_ "sg_requests: no sense" sg_requests $d0
case_ "sg_sync" sg_sync $d0
case_ "sg_start: stop and start" eval 'sg_start --stop $d0 && sg_start --start $d0 && sg_turs $d0'
case_ "sg_verify: a range" sg_verify --lba=0 --count=64 $d0
case_ "sg_verify: beyond the end is refused" refused sg_verify --lba=0xfffffff0 --count=8 $d0

head -c 4096 /dev/urandom >/tmp/a; head -c 512 /tmp/a >/tmp/a512; head -c 512 /dev/zero >/tmp/z512
case_ "sg_dd: writes and reads the same (READ/WRITE 16)" eval 'head -c 1M /dev/urandom >/tmp/m && sg_dd if=/tmp/m of=$d0 bs=512 cdbsz=16 blk_sgio=1 && sg_dd if=$d0 of=/tmp/n bs=512 count=2048 cdbsz=16 blk_sgio=1 && cmp /tmp/m /tmp/n'
for size in 6 10 12; do
  case_ "sg_dd: reads the same with $size-byte CDBs" eval 'rm -f /tmp/n; sg_dd if=$d0 of=/tmp/n bs=512 count=2048 bpt=32 cdbsz='$size' blk_sgio=1 && cmp /tmp/m /tmp/n'
done
case_ "sg_dd: 4096-byte blocks, FUA" eval 'sg_dd if=/tmp/m of=$d1 bs=4096 blk_sgio=1 oflag=fua && sg_dd if=$d1 of=/tmp/n bs=4096 count=256 blk_sgio=1 iflag=fua && cmp /tmp/m /tmp/n'
case_ "sg_write_same: 16, a pattern over 64 blocks" eval 'sg_write_same --16 -l 100 -n 64 -i /tmp/a512 -x 512 $d0 && holds 163 1 /tmp/a512'
case_ "sg_write_same: 10" eval 'sg_write_same --10 -l 200 -n 8 -i /tmp/a512 -x 512 $d0 && holds 207 1 /tmp/a512'
case_ "sg_write_same: 16 with UNMAP reads as zeros" eval 'sg_write_same --16 -U -l 104 -n 16 -i /tmp/z512 -x 512 $d0 && holds 104 1 /tmp/z512'
case_ "sg_write_same: NDOB writes zeros" eval 'sg_write_same --16 --ndob -l 208 -n 8 $d0 && holds 208 1 /tmp/z512'
case_ "sg_unmap: blocks read as zeros after" eval 'sg_dd if=/tmp/m of=$d0 bs=512 blk_sgio=1 && sg_unmap --lba=8 --num=64 --force $d0 && holds 8 1 /tmp/z512'
case_ "sg_get_lba_status: says deallocated" prints "deallocated" sg_get_lba_status --lba=8 $d0
case_ "sg_compare_and_write: equal is written" eval 'head -c 512 /tmp/m >/tmp/c && cat /tmp/c /tmp/a512 >/tmp/caw && sg_dd if=/tmp/m of=$d0 bs=512 count=1 blk_sgio=1 && sg_compare_and_write --lba=0 --num=1 --in=/tmp/caw --xferlen=1024 $d0 && holds 0 1 /tmp/a512'
case_ "sg_compare_and_write: unequal is a miscompare" eval 'sg_compare_and_write --lba=0 --num=1 --in=/tmp/caw --xferlen=1024 $d0; [ $? = 14 ]'
case_ "sg_write_verify" eval 'sg_write_verify --16 --lba=32 --num=1 --in=/tmp/a512 $d0 && holds 32 1 /tmp/a512'
case_ "sg_write_x: WRITE ATOMIC (16)" eval 'sg_write_x --atomic=0 --16 --lba=40 --num=8 --in=/tmp/a $d0 && holds 40 8 /tmp/a'
case_ "sg_seek: PRE-FETCH (16)" sg_seek --pre-fetch --lba=0 --num-blocks=64 $d0
case_ "sg_xcopy: EXTENDED COPY within a unit" eval 'sg_dd if=/tmp/m of=$d0 bs=512 blk_sgio=1 && sg_xcopy if=$(sg_of $d0) of=$(sg_of $d0) bs=512 skip=0 seek=8192 count=2048 && holds 8192 2048 /tmp/m'
case_ "sg_copy_results: operating parameters" sg_copy_results --params $d0

# Copies by token. ddpt 0.97 puts range descriptors one byte too early, so that what it calls 8 blocks are 2048: tokens are made
# by sg_raw, and ddptctl counts in 256 blocks.
populate() { printf '\0\x1e\0\0\0\0\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\0\0\x08\0\0\0\0\0' >/tmp/pt; sg_raw -s 32 -i /tmp/pt $(sg_of $d0) 83 10 00 00 00 00 00 00 01 01 00 00 00 20 00 00; }
token() { rm -f /tmp/rod; populate && ddptctl --receive --rtf=/tmp/rod $(sg_of $d0) && [ "$(stat -c %s /tmp/rod)" = 512 ]; }
use() { ddptctl "$@" --rtf=/tmp/rod $(sg_of $d3) 2>&1; }
tpc() { sg_vpd -p tpc $d0 | tee /tmp/said; for want in "Populate token" "Write using token" "Maximum Range Descriptors: 64" "change vulnerable" "block device zero" "Maximum Token Lifetime: 3600"; do grep -qi "$want" /tmp/said || return; done; }
case_ "sg_vpd: third-party copy, tokens and their types" tpc
case_ "POPULATE TOKEN, RECEIVE ROD TOKEN INFORMATION" eval 'sg_dd if=/tmp/m of=$d0 bs=512 blk_sgio=1 && token'
case_ "ddptctl: reads the token" eval 'ddptctl --info --rtf=/tmp/rod | tee /tmp/said; grep -q "change vulnerable" /tmp/said && grep -q "Number of bytes represented: 1048576" /tmp/said'
case_ "WRITE USING TOKEN: to another unit" eval 'use --wut=16,8 && sg_dd if=$d3 of=/tmp/n bs=512 skip=4096 count=2048 blk_sgio=1 && cmp /tmp/m /tmp/n'
case_ "WRITE USING TOKEN: IMMED, and polled" eval 'use --wut=32,8 --immed --list_id=0x66 && ddptctl --poll --list_id=0x66 $(sg_of $d3) && sg_dd if=$d3 of=/tmp/n bs=512 skip=8192 count=2048 blk_sgio=1 && cmp /tmp/m /tmp/n'
case_ "RECEIVE COPY STATUS (LID4)" prints "without errors" ddptctl --receive --prefer-rcs --list_id=0x66 $(sg_of $d3)
case_ "COPY OPERATION ABORT: nothing to abort" refused ddptctl --abort --list_id=0x77 $(sg_of $d3)
case_ "a write revokes the token" eval 'sg_dd if=/tmp/a512 of=$d0 bs=512 seek=9 count=1 blk_sgio=1 && ! use --wut=16,8 -v >/tmp/said; cat /tmp/said; grep -qi "token revoked" /tmp/said'
case_ "a token with one bit changed is no token" eval 'token && printf "\x01" | dd of=/tmp/rod bs=1 seek=500 conv=notrunc && ! use --wut=16,8 -v >/tmp/said; cat /tmp/said; grep -qi "token corrupt" /tmp/said'

case_ "sg_vpd: threshold exponent of a thin unit" prints "[Tt]hreshold exponent: 11" sg_vpd -p 0xb2 $d4
case_ "sg_logs: what is available and what is used" prints "[Aa]vailable LBA mapping.*: 8" sg_logs -p 0xc $d4
case_ "sg_modes: thresholds" prints "1c,02|Logical block provisioning" sg_modes --page=0x1c,2 $d4
warned() { dd if=$d4 of=/dev/null bs=4k count=1 iflag=direct; dmesg | grep -i "thin provisioning soft threshold"; }
case_ "no warning while there is enough" eval 'dmesg -c >/dev/null; sg_dd if=/dev/zero of=$d4 bs=512 count=6144 blk_sgio=1 && sleep 2.2 && ! warned'
gets_warned() { for _ in $(seq 30); do sleep 1; warned && return; done; return 1; }
case_ "the kernel is warned when a threshold is reached" eval 'sg_dd if=/dev/zero of=$d4 bs=512 count=9216 blk_sgio=1 && gets_warned'
case_ "sg_logs: it is used" prints "[Uu]sed LBA mapping.*: 5" sg_logs -p 0xc $d4
fill() { for n in 0 1 2 3; do for m in 0 4 8 c; do sg_raw -s 524288 -i /dev/zero $(sg_of $d4) 2a 00 00 01 $n$m 00 00 04 00 00; done; done; }
case_ "beyond the quota: space allocation failed" prints "[Ss]pace allocation failed" fill
case_ "sg_unmap: gives the space back" eval 'sg_unmap --lba=0 --num=131072 --force $d4 && prints "[Uu]sed LBA mapping.*: [01]$" sg_logs -p 0xc $d4'

case_ "sg_raw: a reserved opcode is ILLEGAL REQUEST" prints "Illegal [Rr]equest" sg_raw $d0 ff 00 00 00 00 00
case_ "writing to the read-only unit is DATA PROTECT" prints "Data [Pp]rotect|[Ww]rite protect" sg_raw -s 512 -i /tmp/a512 $(sg_of $d2) 2a 00 00 00 00 00 00 00 01 00

pr() { sg_persist "$@" $d0; }
case_ "sg_persist: report capabilities" pr --in -c
case_ "sg_persist: register" pr --out --register --param-sark=0xabc1
case_ "sg_persist: the key is there" prints 0xabc1 sg_persist --in -k $d0
case_ "sg_persist: reserve, write exclusive" pr --out --reserve --param-rk=0xabc1 --prout-type=1
case_ "sg_persist: the reservation is there" prints "Write Exclusive" sg_persist --in -r $d0
case_ "sg_persist: full status" prints "abc1" sg_persist --in -s $d0
case_ "sg_persist: a holder may write" sg_dd if=/tmp/m of=$d0 bs=512 blk_sgio=1
case_ "sg_persist: release" pr --out --release --param-rk=0xabc1 --prout-type=1
case_ "sg_persist: clear" eval 'pr --out --clear --param-rk=0xabc1 && ! sg_persist --in -k $d0 | grep abc1'
case_ "sg_start: eject and load the removable unit" eval 'sg_start --eject $d3; ! sg_turs $d3 && sg_start --load $d3; sg_turs $d3; sg_turs $d3'
case_ "sg_prevent: prevents the eject" eval 'sg_prevent --prevent=1 $d3 && ! sg_start --eject $d3; sg_prevent --allow $d3'
case_ "sg_reset: logical unit" eval 'sg_reset -d $d0; for _ in $(seq 20); do sg_turs $d0 && break; sleep 0.5; done; sg_turs $d0'
gets_ready() { for _ in $(seq 240); do sg_turs $1 && return; sleep 0.5; done; return 1; }
case_ "sg_reset: target" eval 'sg_reset -t $d0; sleep 1; gets_ready $d0'
case_ "sg_sanitize: crypto erase" eval 'sg_sanitize --crypto --quick --wait $d0 && { sg_turs $d0 || sg_turs $d0; }'
case_ "logout" logout
"""

DISK = r"""
initiator_up || exit 1
case_ "login" login
d0=${disks[0]} d1=${disks[1]}
case_ "ext4 on 512-byte blocks" same_file_system $d0
case_ "ext4 on 4096-byte blocks" same_file_system $d1
discard() { mount $d0 /run/disk && head -c 20M /dev/urandom >/run/disk/big && rm /run/disk/big && sync && fstrim -v /run/disk && umount /run/disk && e2fsck -fn $d0; }
case_ "fstrim under ext4" discard
case_ "blkdiscard: the unit reads as zeros" eval 'blkdiscard $d0 && fresh $d0 && cmp -n 8388608 $d0 /dev/zero'
case_ "blkdiscard --zeroout" eval 'head -c 4M /dev/urandom >$d0 && sync && blkdiscard -z -l 4194304 $d0 && fresh $d0 && cmp -n 4194304 $d0 /dev/zero'
case_ "fio verifies on 512-byte blocks" verify_fio $d0
case_ "fio verifies on 4096-byte blocks" verify_fio $d1
case_ "fio verifies large requests" verify_fio $d0 --bsrange=1m-2m --size=48m
case_ "fio verifies mixed reads and writes" verify_fio $d0 --rw=randrw --bsrange=4k-32k
case_ "a unit that was removed is found again by a rescan" eval 'echo 1 >/sys/block/${d1#/dev/}/device/delete; for _ in $(seq 400); do [ "$(disks | wc -l)" = 1 ] && break; sleep 0.1; done; [ "$(disks | wc -l)" = 1 ] && iscsiadm -m session --rescan && wait_disks 2'
case_ "an idle session answers NOPs" answers_pings
case_ "data is the same after logout and login" eval 'head -c 8M /dev/urandom >/tmp/m; cp /tmp/m $d0; sync; logout && login && cmp -n 8388608 ${disks[0]} /tmp/m'
case_ "logout" logout
"""

# One boot runs all of these: what the initiator asks for, and what must have been agreed.
PARAMETERS = r"""
initiator_up || exit 1
case_ "discovery" eval 'iscsiadm -m discovery -t sendtargets -p $PORTAL | grep -q "$IQN"'
set_() { iscsiadm -m node -T $IQN -p $PORTAL -o update -n "$1" -v "$2"; }
agreed() { timeout 90 iscsiadm -m node -T $IQN -p $PORTAL -l && wait_disks 1 && iscsiadm -m session -P 3 >/tmp/session && for line in "$@"; do grep -q "$line" /tmp/session || { echo "not agreed: $line"; grep -E "Digest|Burst|R2T|Immediate|Segment" /tmp/session; return 1; }; done; }
round() { local name=$1; shift; case_ "$name: agreed" agreed "$@"; case_ "$name: fio verifies" verify_fio ${disks[0]} --size=16m; case_ "$name: logout" logout; }

set_ node.conn[0].iscsi.HeaderDigest CRC32C; set_ node.conn[0].iscsi.DataDigest CRC32C
round "both digests" "HeaderDigest: CRC32C" "DataDigest: CRC32C"
set_ node.conn[0].iscsi.HeaderDigest None
round "data digest alone" "HeaderDigest: None" "DataDigest: CRC32C"
set_ node.conn[0].iscsi.DataDigest None
set_ node.session.iscsi.ImmediateData No; set_ node.session.iscsi.InitialR2T Yes
round "no immediate data, every write by R2T" "ImmediateData: No" "InitialR2T: Yes"
set_ node.session.iscsi.InitialR2T No
round "unsolicited data, no immediate" "ImmediateData: No" "InitialR2T: No"
set_ node.session.iscsi.ImmediateData Yes; set_ node.session.iscsi.FirstBurstLength 4096; set_ node.session.iscsi.MaxBurstLength 8192; set_ node.conn[0].iscsi.MaxRecvDataSegmentLength 4096; set_ node.conn[0].iscsi.MaxXmitDataSegmentLength 2048; set_ node.session.iscsi.MaxOutstandingR2T 4
round "small bursts and segments, several R2Ts" "FirstBurstLength: 4096" "MaxBurstLength: 8192" "MaxRecvDataSegmentLength: 4096"
"""

CHAP = r"""
initiator_up node.session.auth.authmethod=CHAP node.session.auth.username=$NAME node.session.auth.password=$SECRET \
  ${TARGET_NAME:+node.session.auth.username_in=$TARGET_NAME node.session.auth.password_in=$TARGET_SECRET} \
  discovery.sendtargets.auth.authmethod=${DISCOVERY_AUTH:-None} discovery.sendtargets.auth.username=$NAME discovery.sendtargets.auth.password=$SECRET || exit 1
iscsiadm -m node -T $IQN -p $PORTAL -I $TRANSPORT -o new
in_() { timeout 90 iscsiadm -m node -T $IQN -p $PORTAL -I $TRANSPORT -l && wait_disks 1; }
case_ "$WHAT: login" in_
case_ "$WHAT: a block can be read" dd if=/dev/sda of=/dev/null bs=4k count=1
case_ "$WHAT: logout" logout
iscsiadm -m node -T $IQN -p $PORTAL -o update -n node.session.auth.password -v wrong-secret-here
case_ "$WHAT: a wrong secret is refused" eval '! in_; [ "$(iscsiadm -m session 2>/dev/null | wc -l)" = 0 ]'
if [ -n "$TARGET_NAME" ]; then
  iscsiadm -m node -T $IQN -p $PORTAL -o update -n node.session.auth.password -v $SECRET
  iscsiadm -m node -T $IQN -p $PORTAL -o update -n node.session.auth.password_in -v wrong-target-secret
  case_ "$WHAT: a target with a wrong secret is refused" eval '! in_'
fi
"""

# The initiator holds I/O back while the target is away, and repeats it when it is there again.
RESTART = r"""
initiator_up || exit 1
case_ "login" login
d0=${disks[0]}
slow() { verify_fio $d0 --rate=6m --size=48m "$@" >/tmp/slow 2>&1; }
verified() { wait $writer || { cat /tmp/slow; return 1; }; }
slow & writer=$!
sleep 2; ask_and_wait restart; sleep 2; ask_and_wait kill
case_ "writes that the target's restart and death interrupt are all verified" verified
slow --randseed=77 & writer=$!
sleep 2; ask_and_wait freeze
case_ "writes during a target's frozen seconds are all verified" verified
slow --size=30m --randseed=91 & writer=$!
sleep 1; ask_and_wait takeover; sleep 1; ask_and_wait takeover
case_ "writes under which a new daemon takes over twice are all verified" verified
case_ "there is one session, with its disk" eval '[ "$(iscsiadm -m session | wc -l)" = 1 ] && dd if=$d0 of=/dev/null bs=4k count=1 iflag=direct'
case_ "ext4 is sound after that" same_file_system $d0
network 3ms 1%
case_ "fio verifies over a network that loses packets" verify_fio $d0 --size=8m
"""


# An image of Ceph: $d0 has blocks of 512 bytes, $d1 of 4096.
CEPH = r"""
initiator_up || exit 1
case_ "an image: login" login
d0=${disks[0]} d1=${disks[1]}
case_ "an image: ext4 on 512-byte blocks" same_file_system $d0
case_ "an image: ext4 on 4096-byte blocks" same_file_system $d1
discard() { mount $d0 /run/disk && head -c 20M /dev/urandom >/run/disk/big && rm /run/disk/big && sync && fstrim -v /run/disk && umount /run/disk && e2fsck -fn $d0; }
case_ "an image: fstrim under ext4" discard
case_ "an image: blkdiscard reads as zeros" eval 'blkdiscard $d0 && fresh $d0 && cmp -n 8388608 $d0 /dev/zero'
case_ "an image: fio verifies" verify_fio $d0
case_ "an image: fio verifies on 4096-byte blocks" verify_fio $d1 --size=16m

# All OSDs are silent for longer than op-timeout: the status fails the path, not the I/O, which waits for the path to come back.
export DM_DISABLE_UDEV=1
dmsetup create mp --table "0 $(blockdev --getsz $d0) multipath 1 queue_if_no_path 0 1 1 round-robin 0 1 1 $d0 16" || exit 1
m=/dev/mapper/mp
failed() { dmsetup status mp | grep -q " F "; }
checker() { while sleep 0.5; do failed && sg_turs $d0 >/dev/null 2>&1 && dmsetup message mp 0 "reinstate_path $(cat /sys/block/${d0#/dev/}/dev)"; done; }
verify_fio $m --rate=6m --size=36m >/tmp/slow 2>&1 & writer=$!
sleep 1; ask_and_wait silence
case_ "an image: a command that the cluster does not answer fails its path" eval 'for _ in $(seq 200); do failed && break; sleep 0.1; done; failed'
checker >/dev/null 2>&1 & checking=$!
ask_and_wait speak
case_ "an image: what was written meanwhile is all verified" eval 'wait $writer || { cat /tmp/slow; false; }'
kill $checking
case_ "an image: ext4 is sound after that" eval 'same_file_system $m; code=$?; dmsetup remove mp; [ $code = 0 ]'
case_ "an image: logout" logout
"""


def sg_tools(lab):
    units = [Unit(thin=True, physical_exponent=3), Unit(block_bytes=4096, memory=True), Unit(read_only=True),
             Unit(removable=True), Unit(memory=True, thin=True, options="quota=8M,warn-available=4M")]
    with serve(lab, *units) as target:
        boot(lab, target, SG, timeout=600)


def disk(lab):
    with serve(lab, Unit(mib=256, thin=True), Unit(mib=256, block_bytes=4096)) as target:
        boot(lab, target, DISK, timeout=600)


def parameters(lab):
    with serve(lab, Unit()) as target:
        boot(lab, target, PARAMETERS, timeout=600)


def chap(lab):
    for what, credentials in (("CHAP", Chap("alice", "alice-secret-12")),
                              ("mutual CHAP", Chap("alice", "alice-secret-12", "target", "target-secret-1"))):
        with serve(lab, Unit(), chap=credentials) as target:
            boot(lab, target, CHAP, WHAT=what, NAME=credentials.name, SECRET=credentials.secret,
                 TARGET_NAME=credentials.target_name, TARGET_SECRET=credentials.target_secret)


def interruptions(target):
    """What the guest may ask to be done to the target under its I/O."""
    def stop_and_start():
        target.stop()
        time.sleep(1)
        target.restart()

    def kill_and_start():
        target.kill()
        time.sleep(1)
        target.restart()

    def freeze():
        os.kill(target.pid, signal.SIGSTOP)
        time.sleep(9)
        os.kill(target.pid, signal.SIGCONT)

    return {"restart": stop_and_start, "kill": kill_and_start, "freeze": freeze, "takeover": target.take_over}


def restart(lab):
    with serve(lab, Unit()) as target:
        boot(lab, target, RESTART, timeout=600, requests=interruptions(target))


def image(lab):
    cluster = ceph.cluster(lab)
    options = f"ceph-user=gateway,ceph-conf={cluster.user('gateway')},op-timeout=3"
    units = [Unit(path=f"rbd:{cluster.image(name, 256)}", options=options, thin=True, block_bytes=block)
             for name, block in (("guest", 512), ("guest4k", 4096))]
    with contextlib.ExitStack() as silent, serve(lab, *units) as target:
        boot(lab, target, CEPH, timeout=600, requests={
            "silence": lambda: silent.enter_context(ceph.silent(cluster, *(f"osd.{number}" for number in range(cluster.osds)))),
            "speak": silent.close})
    path = os.path.join(lab.new_folder("export"), "image")
    cluster.rbd("export", f"{ceph.POOL}/guest", path)
    proc.run("e2fsck", "-fn", path)


CASES = [
    ("linux: sg tools' script ran to its end", sg_tools),
    ("linux: disks' script ran to its end", disk),
    ("linux: session parameters' script ran to its end", parameters),
    ("linux: CHAP's scripts ran to their end", chap),
    ("linux: restarts' script ran to its end", restart),
    ("linux: the script of Ceph's images ran to its end", image),
]
