"""The verbs provider, wholly inside the lab's guest: rdma-core above the kernel's RoCE (rxe) and iWARP (siw).

The bare queue pairs against rdmacm-utils' rping; `stag serve --verbs` against Linux's own iSER initiator and our own; our own
against Linux's own target; and `stag serve --nfs-verbs` against Linux's own NFS client.
"""

import os

from lab import proc, uml
from lab.report import Skip, expect
from lab.target import IQN, Stag

DEVICES = ("rxe", "siw")


def programs():
    """Where the program under test lies."""
    if not Stag.binary:
        raise Skip("no stag binary: set STAG_BIN")
    return os.path.dirname(os.path.abspath(Stag.binary))


def example(name):
    """A program of the verbs crate's, beside the program under test, as the guest finds it."""
    path = os.path.join(programs(), "examples", name)
    if not os.path.exists(path):
        raise Skip(f"{path} is missing: cargo build -p verbs --examples")
    return f"{uml.PROGRAMS}/examples/{name}"


def guest(lab, device, script, timeout=400, **values):
    proc.need("rping", "rdma", "ip")
    uml.network_up()
    uml.run_cases(lab, f"verbs, {device}", f"{device}_up || exit 1\n{SERVING}{script}", timeout, memory_mib=512,
                  programs=programs(), STAG=f"{uml.PROGRAMS}/{os.path.basename(Stag.binary)}", IQN=IQN,
                  PORTAL=f"{uml.GUEST}:3260", UNITS=1, DEVICE=device, **values)


# serve PATH...: our target, through the guest's device; ended by unserve. both SERVER... -- CLIENT...: a server, and once it listens
# its client: both must end
# well.
SERVING = r"""
URL=iser://$PORTAL/$IQN/0
serve() {
  $STAG serve --iqn $IQN --verbs $PORTAL "$@" >/tmp/serve 2>&1 & server=$!
  for _ in $(seq 400); do grep -q iser:// /tmp/serve && return 0; sleep 0.1; done
  cat /tmp/serve; return 1
}
unserve() { kill $server; wait $server; }
port=7174
both() {
  local serving=() pid code
  port=$((port + 1))
  while [ "$1" != -- ]; do serving+=("$1"); shift; done; shift
  timeout 120 "${serving[@]}" -p $port & pid=$!
  listening $port; timeout 120 "$@" -p $port; code=$?
  [ $code = 0 ] || kill $pid
  wait $pid && [ $code = 0 ]
}
listening() { for _ in $(seq 400); do rdma resource show cm_id | grep -q "state LISTEN.*:$1 " && return 0; sleep 0.1; done; rdma resource show cm_id; }
"""

RPING = r"""
for size in 1 64 4099 65536; do
  case_ "our client and our server: $size" both $RPING -s -a $GUEST -- $RPING -c -a $GUEST -C 50 -S $size -V
done
case_ "our client and our server: more than a buffer" both $RPING -s -a $GUEST -- $RPING -c -a $GUEST -C 4 -S 3000001 -V
case_ "rping's client and our server" both $RPING -s -a $GUEST -- rping -c -a $GUEST -C 30 -S 60000 -V
# rping's server now and then misses the first Send of a client that is quick: three tries.
thrice() { "$@" || "$@" || "$@"; }
case_ "our client and rping's server" thrice both rping -s -a $GUEST -C 30 -S 60000 -- $RPING -c -a $GUEST -C 30 -S 60000 -V
[ $DEVICE != rxe ] ||
  for how in "" -i; do
    case_ "memory windows${how:+, invalidated by the peer}" both $RPING -s -w $how -a $GUEST -- $RPING -c -w $how -a $GUEST -C 300 -S 4000 -V
  done
case_ "a peer that reaches for more than it was given gets none of it" timeout 120 $ATTACK $GUEST
refused() { timeout 90 $RPING -c -a $GUEST -p 99 >/tmp/said 2>&1; [ $? = 1 ] && grep -qiE "reject|refused" /tmp/said; }
case_ "nobody listens: that is said" refused
killed() {
  local pid client
  timeout 120 $RPING -s -a $GUEST & pid=$!
  listening 7174; $RPING -c -a $GUEST -C 1000000 -S 4000 >/tmp/client & client=$!
  for _ in $(seq 200); do grep -q connected /tmp/client && break; sleep 0.1; done
  sleep 0.3; kill -9 $client; timeout 90 tail --pid=$pid -f /dev/null && grep -q connected /tmp/client
}
case_ "a client that is killed ends its server" killed
"""


def rping(lab, device):
    guest(lab, device, RPING, RPING=example("verbs-rping"), ATTACK=example("verbs-attack"))


ISER = r"""
serve mem:96M || exit 1
TRANSPORT=tcp initiator_up || exit 1
case_ "Linux's initiator logs in" iser_login
d0=${disks[0]}
head -c 16M /dev/urandom >/tmp/m
there_and_back() {
  dd if=/tmp/m of=$d0 bs=$1 count=$2 oflag=direct status=none && fresh $d0 &&
    dd if=$d0 of=/tmp/n bs=$1 count=$2 iflag=direct status=none && cmp -n $(stat -c %s /tmp/n) /tmp/m /tmp/n
}
for size in 512:100 4k:200 12k:100 64k:50 256k:32 512k:16 1M:16 4M:4; do
  case_ "requests of ${size%:*} come back as they went" there_and_back ${size%:*} ${size#*:}
done
for depth in 1 32; do case_ "fio verifies at depth $depth" verify_fio $d0 --iodepth=$depth --size=8m; done
case_ "fio verifies mixed reads and writes" verify_fio $d0 --rw=randrw --bsrange=4k-32k --size=8m
case_ "ext4" same_file_system $d0
case_ "the unit answers sg tools" eval 'sg_inq $d0 && sg_vpd -p 0x83 $d0 && sg_raw $d0 ff 00 00 00 00 00 2>&1 | grep -i "illegal request"'
restarted() {
  verify_fio $d0 --size=24m --rate=8m >/tmp/load 2>&1 & local writer=$!
  sleep 0.7; kill -9 $server; wait $server; sleep 0.5
  serve /root/disk,size=96M && wait $writer || { cat /tmp/load; dmesg | tail; return 1; }
}
logout; unserve; serve /root/disk,size=96M || exit 1
case_ "Linux's initiator logs in again" iser_login
d0=${disks[0]}
case_ "a target that is killed and started again is found again" restarted
case_ "logout" logout
case_ "the target ends when it is told to" eval 'unserve; [ $? = 0 ]'
"""


def linux(lab, device):
    guest(lab, device, ISER, timeout=400)


OURS = r"""
serve mem:64M || exit 1
head -c 20000k /dev/urandom >/tmp/m
there_and_back() {
  timeout 90 $STAG write -q --rdma verbs "$@" -i /tmp/m $URL && rm -f /tmp/n &&
    timeout 90 $STAG read -q --rdma verbs "$@" --length 20000K -o /tmp/n $URL && cmp /tmp/m /tmp/n
}
case_ "our initiator: discovery" eval 'timeout 90 $STAG ls --rdma verbs iser://$PORTAL | grep -q $IQN'
case_ "our initiator: the unit" eval 'timeout 90 $STAG info --rdma verbs $URL | grep -q 512'
case_ "our initiator: data comes back as it went" there_and_back
case_ "our initiator: one request at a time" there_and_back --depth 1
case_ "our initiator: small requests, many at once" there_and_back --depth 32 --block 16K
case_ "our initiator: verified blocks at several depths" timeout 120 $STAG bench --rdma verbs --verify --destroy --bs 4K,64K --depth 1,16 --pattern randwrite --time 1 $URL
unserve
"""


def ours(lab, device):
    guest(lab, device, OURS)


LIO = r"""
lio_up 64 || exit 1
IQN=$LIO; URL=iser://$PORTAL/$IQN/0
head -c 20000k /dev/urandom >/tmp/m
there_and_back() {
  timeout 90 $STAG write -q --rdma verbs "$@" -i /tmp/m $URL && rm -f /tmp/n &&
    timeout 90 $STAG read -q --rdma verbs "$@" --length 20000K -o /tmp/n $URL && cmp /tmp/m /tmp/n
}
case_ "Linux's target: the unit" eval 'timeout 90 $STAG info --rdma verbs $URL | grep -q 512'
case_ "Linux's target: data comes back as it went" there_and_back
case_ "Linux's target: one request at a time" there_and_back --depth 1
case_ "Linux's target: verified blocks" timeout 120 $STAG bench --rdma verbs --verify --destroy --bs 4K,64K --depth 1,16 --pattern randwrite --time 1 $URL
"""


def lio(lab, device):
    guest(lab, device, LIO)


NFS = r"""
mkdir -p /tmp/state; STATE_DIRECTORY=/tmp/state $STAG serve --nfs $GUEST --nfs-verbs $GUEST --export /d=mem:96M >/tmp/serve 2>&1 & server=$!
for _ in $(seq 400); do grep -q nfs:// /tmp/serve && break; sleep 0.1; done
grep nfs:// /tmp/serve || { cat /tmp/serve; exit 1; }
mkdir -p /mnt
head -c 20000k /dev/urandom >/tmp/m
mounted() { mount -t nfs -o "$1,proto=rdma,port=20049,nolock,soft,timeo=600" $GUEST:/d /mnt && grep -q proto=rdma /proc/mounts; }
there_and_back() { cp /tmp/m /mnt/$1 && umount /mnt && mounted "$2" && cmp /tmp/m /mnt/$1; }
tree() { mkdir /mnt/$1 && for n in $(seq 300); do echo $n >/mnt/$1/file-with-a-long-name-$n || return 1; done && [ "$(ls /mnt/$1 | wc -l)" = 300 ] && [ "$(cat /mnt/$1/* | wc -l)" = 300 ]; }
for version in 3 4.1 4.2; do
  how=vers=$version
  [ $version != 3 ] || how=$how,mountproto=tcp,mountport=2049
  case_ "NFS $version: Linux's client mounts" mounted $how
  case_ "NFS $version: a file comes back as it went" there_and_back file-$version $how
  case_ "NFS $version: many small files" tree dir-$version
  umount /mnt
done
ours() {
  local url="nfs+rdma://$GUEST/d/ours-$1?vers=$1&uid=0&gid=0"
  timeout 90 $STAG cp --rdma verbs /tmp/m "$url" && rm -f /tmp/n && timeout 90 $STAG cp --verify --rdma verbs "$url" /tmp/n && cmp /tmp/m /tmp/n &&
    timeout 90 $STAG ls --rdma verbs "nfs+rdma://$GUEST/d?vers=$1" | grep -q ours-$1 && timeout 90 $STAG rm --rdma verbs "$url"
}
for version in 3 4.2; do case_ "NFS $version: our client copies a file there and back" ours $version; done
case_ "the server ends when it is told to" eval 'kill $server; wait $server; [ $? = 0 ]'
"""


def nfs(lab, device):
    proc.need("mount.nfs")
    guest(lab, device, NFS)


# measured WINDOWS WORDS...: two processes read, write and send; passes if their memory had windows
# as WINDOWS says, true or false.
BENCH = r"""
$STAG rdma-bench --rdma verbs --listen $GUEST:18515 --any-windows >/tmp/listening & server=$!
for _ in $(seq 400); do grep -q : /tmp/listening && break; sleep 0.1; done
measured() {
  timeout 120 $STAG rdma-bench --rdma verbs $GUEST --json --operation read,write,send --time 0.2 --size 4k --depth 4 "${@:2}" >/tmp/run &&
    [ "$(grep -c '"ops": [1-9]' /tmp/run)" = 3 ] && [ "$(grep -c "\"windows\": $1," /tmp/run)" = 3 ] || { cat /tmp/run; return 1; }
}
case_ "nothing exposed" measured false
case_ "memory exposed for the run" measured false --register run
case_ "memory exposed for each message" measured false --register message
[ $DEVICE != rxe ] || case_ "a memory window for the run" measured true --register run --any-windows
[ $DEVICE != rxe ] || case_ "a memory window for each message" measured true --register message --any-windows
kill $server
"""


def measures(lab, device):
    guest(lab, device, BENCH)


def without_a_device(lab):
    """No device here: what is missing is said, and the daemon does not start."""
    del lab
    if not Stag.binary:
        raise Skip("no stag binary: set STAG_BIN")
    for words in (("serve", "--verbs", "127.0.0.1:3260", "mem:1M"), ("serve", "--nfs-verbs", "127.0.0.1", "--export", "/d=mem:1M"),
                  ("info", "--rdma", "verbs", "iser://127.0.0.1:3260/iqn.2026-01.example:none/0"),
                  ("info", "--rdma", "verbs", "--reconnect", "1", "nfs+rdma://127.0.0.1/none")):
        result = proc.run(Stag.binary, *words, ok=None, timeout=120)
        expect(result.code != 0, f"stag {' '.join(words)} ended well without a device")
        said = result.lower()
        expect("rdma" in said, f"stag {' '.join(words)} said: {result}")


CASES = [("verbs: without a device that is said", without_a_device)]
for _device in DEVICES:
    for _what, _case in (("bare queue pairs and rping", rping), ("Linux's initiator reaches Stag", linux),
                         ("our initiator reaches Stag", ours), ("our initiator reaches Linux's target", lio), ("stag rdma-bench", measures),
                         ("Linux's NFS client and ours reach Stag", nfs)):
        CASES.append((f"verbs: {_what} over {_device}", lambda lab, case=_case, device=_device: case(lab, device)))
