"""Linux's dm-multipath over two portals of one target in different target port groups: asymmetric access seen by sg3_utils and
scsi_dh_alua, and failover under I/O that is verified: by hand, and by multipathd. And over two machines that have given their disks
the same paths and names: Linux must not take these for one disk."""

import json
import os

from lab import proc, uml
from lab.report import expect, tell
from lab.target import IQN, Stag, Unit

SECOND = "10.99.0.3"

ALUA = """[target.alua]
explicit = true
transition = 300
transition-hint = 5
keep = "{folder}/alua"
[[target.alua.group]]
id = 11
portal-groups = [1]
preferred = true
[[target.alua.group]]
id = 12
portal-groups = [2]
state = "active/non-optimized" """

PATHS = r"""
both() { iscsiadm -m discovery -t sendtargets -p $PORTAL && timeout 90 iscsiadm -m node -T $IQN -l; wait_both; }
wait_both() { for _ in $(seq 400); do [ $(lsblk -dno NAME | grep -c ^sd) -ge 2 ] && break; sleep 0.1; done; paths; }
# $one and $two: the disk by each portal group.
paths() {
  one= two=
  for disk in $(ls /sys/block | grep ^sd); do
    case $(sg_vpd -p di_port /dev/$disk | grep -i "relative target port" ) in *0x1*) one=/dev/$disk ;; *0x2*) two=/dev/$disk ;; esac
  done
  echo "one: $one, two: $two"; [ -b "$one" ] && [ -b "$two" ]
}
slow() { verify_fio $m --rate=8m --size=${1:-48m} --randseed=$RANDOM >/tmp/slow 2>&1; }
verified() { wait $writer || { cat /tmp/slow; return 1; }; }
# Another path is taken when something is sent: by the writer, or if a change came only after its end, by this.
stir() { kill -0 $writer 2>/dev/null || dd if=$m of=/dev/null bs=4k count=1 iflag=direct status=none & }
"""

SCRIPT = PATHS + r"""
initiator_up node.session.timeo.replacement_timeout=3 || exit 1
prints() { local want=$1; shift; "$@" 2>&1 | tee /tmp/said; grep -qE "$want" /tmp/said; }
state_of() { sg_rtpg -d $1 | grep -A1 "target port group id : $2" | tail -1; }
in_state() { state_of $1 $2 | tee /tmp/said; grep -q "$3" /tmp/said; }
# For changes that somebody else asks for: one may still be under way.
gets_in_state() { for _ in $(seq 200); do in_state "$@" && return; sleep 0.1; done; return 1; }

network_is() { for d in $one $two; do cat /sys/block/${d#/dev/}/device/dh_state /sys/block/${d#/dev/}/device/access_state 2>/dev/null; done; }

case_ "login by two portals" both
case_ "sg_inq: implicit and explicit asymmetric access" prints "TPGS=3" sg_inq $one
case_ "sg_vpd: each path names its own port and group" eval 'sg_vpd -p di $one | grep -qi "group: 0xb" && sg_vpd -p di $two | grep -qi "group: 0xc"'
case_ "sg_vpd: both paths name one unit" eval '[ "$(sg_vpd -p di_lu $one)" = "$(sg_vpd -p di_lu $two)" ]'
case_ "sg_rtpg: two groups, one optimized and preferred" eval 'sg_rtpg -d $two | tee /tmp/said; grep -q "0xb , Pref=1" /tmp/said && in_state $two "0xb " "active/optimized" && in_state $two "0xc " "active/non optimized"'
case_ "sg_rtpg: the extended header has the transition time" prints "[Ii]mplicit transition time: 5" sg_rtpg -ed $one
case_ "sg_stpg: refuses a group that is not there" prints "Illegal request" sg_stpg --tp=99 --optimized $one
case_ "sg_stpg: a state is set explicitly" eval 'sg_stpg --tp=12 --standby $one && in_state $one 0xc standby'
case_ "sg_rtpg: the status says who changed it" prints "SET TARGET PORT GROUPS" sg_rtpg -d $one
# The kernel takes the unit attention, and asks for the groups anew.
learns() { sg_turs $two; for _ in $(seq 200); do [ "$(cat /sys/block/${two#/dev/}/device/access_state)" = "$1" ] && return; sleep 0.1; done; network_is; return 1; }
case_ "the kernel learns of it by the other path's unit attention" learns standby
case_ "standby: not ready" prints "standby state|Device not ready|not ready" sg_turs -v $two
case_ "standby: INQUIRY, REPORT TARGET PORT GROUPS, PERSISTENT RESERVE IN run" eval 'sg_inq $two && sg_rtpg $two && sg_persist --in -k $two'
case_ "sg_stpg: by the path that stands by" eval 'sg_stpg --tp=12 --active $two && sg_turs $two'
sg_turs $one >/dev/null

case_ "scsi_dh_alua is attached to both paths" eval 'network_is; [ "$(network_is | grep -c alua)" = 2 ]'

# multipathd's work is done by hand: the table has a priority group for each target port group, the handler sets states.
size=$(blockdev --getsz $one)
export DM_DISABLE_UDEV=1
table() { echo "0 $size multipath 1 queue_if_no_path 1 alua 2 1 round-robin 0 1 1 $one 16 round-robin 0 1 1 $two 16"; }
group() { dmsetup message mp 0 "switch_group $1"; }
status() { dmsetup status mp; }
active() { status | grep -oE '[AED] 0 1 [0-9] ' | grep -n A | cut -d: -f1; }
case_ "a multipath device of both paths" eval 'dmsetup create mp --table "$(table)" && status'
m=/dev/mapper/mp
case_ "dm-multipath writes and reads" eval 'verify_fio $m --size=16m && [ "$(active)" = 1 ]'
wait_active() { for _ in $(seq 600); do [ "$(active)" = $1 ] && return; stir; sleep 0.1; done; status; return 1; }
# As multipathd does when a better group has a path again: a switch takes effect with the next I/O, and not while its path is failed.
back() { for _ in $(seq 300); do group 1; stir; sleep 0.3; [ "$(active)" = 1 ] && return; done; status; sg_turs -v $one; sg_rtpg -d $two; return 1; }
# multipathd reinstates a path when it is ready again.
checker() { while sleep 0.5; do for d in $one $two; do
  n=$(cat /sys/block/${d#/dev/}/dev); status | grep -q "$n F" && sg_turs $d >/dev/null 2>&1 && dmsetup message mp 0 "reinstate_path $n"; done; done; }
checker >/dev/null 2>&1 & checking=$!

slow & writer=$!
sleep 1.5; ask_and_wait standby_1
case_ "the daemon puts the optimized group in standby: I/O goes by the other" wait_active 2
ask_and_wait optimized_1
case_ "and back" back
case_ "what was written meanwhile is all verified" verified

slow & writer=$!
sleep 1.5; ask_and_wait unavailable_1; wait_active 2
case_ "an unavailable group: I/O goes by the other" eval '[ "$(active)" = 2 ]'
case_ "what was written meanwhile is all verified (unavailable)" verified
sg_stpg --tp=11 --active $two
slow 24m & writer=$!
case_ "the handler sets the state when the priority group is switched" eval 'back && gets_in_state $one 0xb "active/optimized" && verified'
ask_and_wait optimized_1

slow & writer=$!
sleep 1.5; ask_and_wait block_1
case_ "a portal that does not answer any more: I/O goes by the other" wait_active 2
sleep 1; ask_and_wait unblock_1
case_ "what was written meanwhile is all verified (a portal lost)" verified
for _ in $(seq 600); do sg_turs $one >/dev/null 2>&1 && break; sleep 0.1; done
case_ "the path comes back with its portal" sg_turs $one

sg_stpg --tp=12 --unavailable $one; slow 24m & writer=$!
sleep 1; ask_and_wait restart
case_ "what was written while the target restarted is all verified" verified
for _ in $(seq 400); do sg_rtpg $one >/dev/null 2>&1 && break; sleep 0.1; done
case_ "an explicit state outlives the target" gets_in_state $one 0xc unavailable
kill $checking
case_ "the multipath device is sound after all" eval 'same_file_system $m; code=$?; dmsetup remove mp; [ $code = 0 ]'
"""

# The same with nobody's hand: multipathd looks at paths and their priorities, groups them, fails over and back. With explicit access
# Linux would take a group out of standby as soon as multipathd prefers it; so here the daemon alone sets states.
IMPLICIT = ALUA.replace("explicit = true", "explicit = false")

MULTIPATHD = r"""
# What it reads lies in /etc, which is the host's.
cp -a /etc /run/etc && mount --bind /run/etc /etc && mount -t tmpfs tmpfs /etc/iscsi || exit 1
rm -rf /etc/multipath && mkdir -p /etc/multipath/conf.d
cat >/etc/multipath.conf <<END
defaults {
  user_friendly_names yes
  find_multipaths no
  polling_interval 1
  max_polling_interval 1
  path_checker tur
  detect_prio no
  prio alua
  path_grouping_policy group_by_prio
  path_selector "round-robin 0"
  failback immediate
  no_path_retry queue
  skip_kpartx yes
}
END
/lib/systemd/systemd-udevd --daemon && udevadm trigger && udevadm settle -t 30
multipathd_up() { udevadm settle -t 30; multipathd -d -v2 >/tmp/multipathd 2>&1 & daemon=$!; }
"""

DAEMON = PATHS + MULTIPATHD + r"""
initiator_up node.session.timeo.replacement_timeout=3 || exit 1
case_ "multipathd: login by two portals" both
multipathd_up

m=/dev/mapper/mpatha
told() { timeout 10 multipathd show paths format "%d %t %T %p"; dmsetup status mpatha; tail -5 /tmp/multipathd; }
# The path by which I/O goes now: that of the active group.
goes_by() { [ "$(dmsetup status mpatha | grep -oE 'A 0 1 [0-9] [0-9]+:[0-9]+ A' | cut -d' ' -f5)" = "$(cat /sys/block/${1#/dev/}/dev)" ]; }
wait_for() { for _ in $(seq 900); do "$@" && return; [ -z "$writer" ] || stir; sleep 0.1; done; told; return 1; }
priority() { timeout 10 multipathd show paths format "%d %p" | grep -qE "^${1#/dev/} +$2 *\$"; }

case_ "multipathd makes a device of both paths" wait_for test -b $m
case_ "multipathd knows the priorities of both groups" eval 'wait_for priority $one 50 && wait_for priority $two 10'
case_ "multipathd has I/O go by the optimized group" wait_for goes_by $one

slow & writer=$!
sleep 1; ask_and_wait standby_1
case_ "multipathd: the optimized group in standby, I/O goes by the other" wait_for goes_by $two
ask_and_wait optimized_1
case_ "multipathd fails back by itself" wait_for goes_by $one
case_ "multipathd: what was written meanwhile is all verified" verified

slow & writer=$!
sleep 1; ask_and_wait block_1
case_ "multipathd: a portal that does not answer any more, I/O goes by the other" wait_for goes_by $two
ask_and_wait unblock_1
case_ "multipathd: what was written meanwhile is all verified (a portal lost)" verified
case_ "multipathd finds the path again, and fails back by itself" wait_for goes_by $one
case_ "multipathd: the device is sound after all" same_file_system $m
told
kill $daemon
"""

# Two machines: one target name, and behind each portal a file of the same path and a memory unit of the same LUN.
MACHINES = MULTIPATHD + r"""
initiator_up node.session.timeo.replacement_timeout=60 || exit 1
# at ADDRESS LUN: the disk there.
at() {
  local disk where session
  for disk in /sys/block/sd*; do
    where=$(readlink -f $disk/device); session=${where#*/session}; session=${session%%/*}
    [ "$(cat /sys/class/iscsi_connection/connection$session:0/persistent_address)" = $1 ] && [ "${where##*:}" = $2 ] && echo /dev/${disk##*/} && return
  done
  return 1
}
wait_at() { for _ in $(seq 400); do [ -b "$(at $1 $2)" ] && return; sleep 0.1; done; lsblk; return 1; }
name() { /lib/udev/scsi_id --whitelisted --replace-whitespace --device=$(at $1 $2); }
names() { for host in $HOST $SECOND; do for lun in 0 1; do name $host $lun || return; done; done; }
# The target is served anew, and the session is there again.
again() { for _ in $(seq 600); do sg_turs $(at $1 0) >/dev/null 2>&1 && return; sleep 0.1; done; return 1; }
login_both() {
  for host in $HOST $SECOND; do timeout 90 iscsiadm -m discovery -t sendtargets -p $host:3260 || return; done
  timeout 90 iscsiadm -m node -T $IQN -l || return
  for host in $HOST $SECOND; do for lun in 0 1; do wait_at $host $lun || return; done; done
}
# How many paths the devices have: "1 1 1 1" for four disks of one path each.
grouped() { timeout 10 multipathd show paths raw format "%w" | sort | uniq -c | awk '{print $1}' | xargs; }
tables() { dmsetup ls --target multipath | grep -c mpath; }
wait_grouped() { for _ in $(seq 600); do [ "$(grouped)" = "$1" ] && [ "$(tables)" = $2 ] && return; sleep 0.1; done; grouped; dmsetup ls; tail -5 /tmp/multipathd; return 1; }
map_of() { ls /sys/block/$(basename $(at $1 $2))/holders | head -1; }

case_ "two machines: login to both" login_both
case_ "scsi_id: disks of the same path and of the same LUN on two machines are four disks" eval 'names | tee /tmp/names && [ $(sort -u /tmp/names | wc -l) = 4 ]'
case_ "scsi_id: all names are NAA 6 and random" eval '[ $(grep -c "^36025354" /tmp/names) = 4 ]'
multipathd_up
case_ "multipathd makes four devices of one path each" wait_grouped "1 1 1 1" 4
write_read() {
  head -c 1M /dev/urandom >/tmp/data
  dd if=/tmp/data of=/dev/$(map_of $HOST 0) bs=1M oflag=direct conv=fsync status=none || return
  cmp /tmp/data <(dd if=/dev/$(map_of $HOST 0) bs=1M count=1 iflag=direct status=none) || return
  cmp /dev/zero -n 1M <(dd if=/dev/$(map_of $SECOND 0) bs=1M count=1 iflag=direct status=none)
}
case_ "what is written to one machine's disk is not on the other's" write_read

first=$(name $HOST 0)
ask_and_wait move
case_ "a file that was moved is the same disk" eval 'again $HOST && [ "$(name $HOST 0)" = "$first" ]'
case_ "and so is memory after a restart" eval 'names >/tmp/now && cmp /tmp/now /tmp/names'
ask_and_wait refuse_copy
ask_and_wait serve_copy
scan_copy() { again $HOST; timeout 60 iscsiadm -m session --rescan; wait_at $HOST 2 || return; name $HOST 2 >>/tmp/now; [ $(sort -u /tmp/now | wc -l) = 5 ]; }
case_ "a copy that got a name of its own is a fifth disk" scan_copy
case_ "multipathd makes a device of it" wait_grouped "1 1 1 1 1" 5

# The other choice, by which this would find what it looks for.
timeout 90 iscsiadm -m node -T $IQN -u; multipath -F
ask_and_wait derive
case_ "names that are derived on purpose: scsi_id sees two disks" eval 'login_both && names | tee /tmp/names && [ $(sort -u /tmp/names | wc -l) = 2 ]'
case_ "and multipathd two devices of two paths" wait_grouped "2 2" 2
kill $daemon
"""


def multipath(lab):
    portals(lab, ALUA, SCRIPT, ("sg_rtpg", "sg_stpg", "dmsetup"))


def multipathd(lab):
    portals(lab, IMPLICIT, DAEMON, ("sg_vpd", "dmsetup", "multipathd"))


def portals(lab, alua, script, programs):
    """Runs a script beside a target with two portals, which it may ask to change."""
    if lab.kind != "stag":
        return
    for program in programs:
        proc.need(program)
    uml.network_up()
    proc.run("ip", "address", "add", f"{SECOND}/24", "dev", "tap0")
    folder = lab.new_folder("alua")
    with lab.serve(Unit(mib=128), host=SECOND, port=3260, portals=[f"{uml.HOST}:3260"],
                   target=alua.format(folder=folder).splitlines()) as target:

        def state(group, name):
            def change():
                proc.run(target.binary, "alua", "--control", target.control, IQN, str(group), name, timeout=120)
                told = json.loads(proc.run(target.binary, "alua", "--control", target.control, "--json", timeout=120))
                assert [g["state"] for g in told[0]["groups"] if g["id"] == group] == [name], told
            return change

        def restart():
            target.stop()
            target.restart()

        requests = {
            "standby_1": state(11, "standby"),
            "unavailable_1": state(11, "unavailable"),
            "optimized_1": state(11, "active/optimized"),
            "block_1": lambda: proc.run("ip", "address", "del", f"{SECOND}/24", "dev", "tap0"),
            "unblock_1": lambda: proc.run("ip", "address", "add", f"{SECOND}/24", "dev", "tap0"),
            "restart": restart,
        }
        try:
            uml.run_cases(lab, "multipath", script, 900, requests, PORTAL=f"{uml.HOST}:3260", IQN=IQN, UNITS=1)
        finally:
            proc.run("ip", "address", "del", f"{SECOND}/24", "dev", "tap0", ok=None)


class Machine(Stag):
    """A daemon with a state directory of its own, which sees its own folder where another machine's daemon sees another."""

    def __init__(self, lab, number, host, seen):
        folder = lab.new_folder(f"machine {number}")
        self.disks, self.seen = os.path.join(folder, "disks"), seen
        os.makedirs(self.disks)
        super().__init__(folder, [], host, 3260, None, {})

    def alone(self, *words):
        """A command as this machine runs it."""
        script = 'mount --bind "$1" "$2" && export STATE_DIRECTORY="$3" && shift 3 && exec "$@"'
        return ["unshare", "--mount", "sh", "-c", script, "sh", self.disks, self.seen, os.path.join(self.folder, "state"), *words]

    def command(self):
        return self.alone(*super().command())

    def serve(self, *files, memory=True, options=""):
        """Serves these files of its folder, and memory as LUN 1."""
        if self.process:
            self.stop()
        units = [Unit(path=os.path.join(self.seen, name), options=options) for name in files]
        units[1:1] = [Unit(memory=True, options=options)] if memory else []
        self.units = units
        self.start()


def machines(lab):
    if lab.kind != "stag":
        return
    for program in ("dmsetup", "multipathd", "sg_turs"):
        proc.need(program)
    uml.network_up()
    proc.run("ip", "address", "add", f"{SECOND}/24", "dev", "tap0")
    seen = lab.new_folder("disks")
    one, two = Machine(lab, 1, uml.HOST, seen), Machine(lab, 2, SECOND, seen)
    copy = os.path.join(seen, "copy.img")

    def moved():
        one.stop()
        one.process = None
        os.rename(os.path.join(one.disks, "disk.img"), os.path.join(one.disks, "moved.img"))
        one.serve("moved.img")

    def refuse_copy():
        proc.run("cp", "-a", *(os.path.join(one.disks, name) for name in ("moved.img", "copy.img")))
        said = proc.run(*one.alone(one.binary, "serve", "--listen", f"{uml.HOST}:3261", "--control", "none", copy), ok=(4,), timeout=60)
        expect("it is a copy of" in said and "stag identity --new" in said, said)

    def serve_copy():
        proc.run(*one.alone(one.binary, "identity", "--new", copy), timeout=60)
        one.serve("moved.img", "copy.img")

    def derive():
        for machine in (one, two):
            machine.serve("derived.img", options="identity=derived")

    requests = {"move": moved, "refuse_copy": refuse_copy, "serve_copy": serve_copy, "derive": derive}
    try:
        one.serve("disk.img")
        two.serve("disk.img")
        uml.run_cases(lab, "multipath", MACHINES, 900, requests, SECOND=SECOND, IQN=IQN)
        one.stop()
        two.stop()
    except BaseException as reason:
        tell(reason, f"{one.last_words()}\n{two.last_words()}")
        raise
    finally:
        for machine in (one, two):
            if machine.process and machine.alive():
                machine.kill()
        proc.run("ip", "address", "del", f"{SECOND}/24", "dev", "tap0", ok=None)


CASES = [
    ("multipath: the script ran to its end", multipath),
    ("multipath: multipathd's script ran to its end", multipathd),
    ("multipath: the script of two machines ran to its end", machines),
]
