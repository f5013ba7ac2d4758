# Functions for scripts that run in the guest. Each case of a script prints
# `CASE ok MILLISECONDS NAME`, or `CASE failed MILLISECONDS NAME` and why.

# case_ NAME COMMAND...: one case: passes when COMMAND (a program or function) returns 0.
case_() {
  local name=$1 began=${EPOCHREALTIME/./}; shift
  # Not in a subshell: a function may leave values behind.
  "$@" >/tmp/printed 2>&1
  local code=$?
  local took=$(( (${EPOCHREALTIME/./} - began) / 1000 ))
  if [ $code = 0 ]; then echo "CASE ok $took $name"; else
    echo "CASE failed $took $name"
    { echo "exit code $code: $*"; tail -12 /tmp/printed; } | sed 's/^/  | /'
  fi
}

# What the kernel said since the last look, of errors.
kernel_errors() { dmesg -c | grep -iE 'error|timed out|abort|reset|offline|corrupt|bug:|call trace' ; }

# What Linux's initiator speaks: default (iSCSI over TCP), or iser (over RDMA, here siw).
TRANSPORT=${TRANSPORT:-default}

# initiator_up [KEY=VALUE...]: Linux's initiator, by the name $INITIATOR, with these settings of
# iscsid.conf.
INITIATOR=${INITIATOR:-iqn.2026-01.example.lab:guest}
initiator_up() {
  [ "$TRANSPORT" != iser ] || siw_up || return
  echo "InitiatorName=$INITIATOR" >/etc/iscsi/initiatorname.iscsi
  {
    echo "iscsid.startup = $(command -v iscsid)"
    echo "node.session.timeo.replacement_timeout = 60"
    echo "node.conn[0].timeo.login_timeout = 8"
    echo "node.conn[0].timeo.noop_out_interval = 2"
    echo "node.conn[0].timeo.noop_out_timeout = 5"
    for setting in "$@"; do echo "${setting%%=*} = ${setting#*=}"; done
  } >/etc/iscsi/iscsid.conf
  iscsid
  for _ in $(seq 200); do iscsiadm -m session >/dev/null 2>&1; [ $? = 21 ] && return 0; sleep 0.1; done
  echo "iscsid does not answer"; return 1
}

# login: discover the target under test and log in to what it offers.
login() {
  timeout 90 iscsiadm -m discovery -t sendtargets -p "$PORTAL" -I "$TRANSPORT" || return
  timeout 90 iscsiadm -m node -T "$IQN" -p "$PORTAL" -I "$TRANSPORT" -l || return
  wait_disks "$UNITS"
}
logout() { timeout 90 iscsiadm -m node -T "$IQN" -p "$PORTAL" -u; }

# wait_disks COUNT: until the kernel has that many disks; their names, in the order of LUNs, go to $disks.
wait_disks() {
  for _ in $(seq 400); do
    mapfile -t disks < <(disks)
    [ ${#disks[@]} -ge "$1" ] && return 0
    sleep 0.1
  done
  echo "${#disks[@]} disks of $1"; return 1
}
disks() {
  for device in /sys/class/scsi_disk/*; do
    [ -e "$device" ] && echo "${device##*:} $(ls "$device/device/block")"
  done | sort -n | while read -r _ name; do [ -b "/dev/$name" ] && echo "/dev/$name"; done
}

# answers_pings: in some idle seconds the kernel's pings are answered. Not always in the first ones: a machine that is stopped for as long
# as an answer may take makes one late, and an answer that never comes is missing each time.
answers_pings() {
  local late='ping timeout|conn error' before
  for _ in 1 2 3 4; do
    before=$(dmesg | grep -ciE "$late")
    # Ping interval and its time limit, and a moment: a ping that nobody answers is told within this.
    sleep 8
    [ "$(iscsiadm -m session | wc -l)" = 1 ] || return
    [ "$(dmesg | grep -ciE "$late")" != "$before" ] || return 0
  done
  dmesg | tail; return 1
}

# fresh DEVICE: forget what the kernel has cached of it.
fresh() { echo 3 >/proc/sys/vm/drop_caches; blockdev --flushbufs "$1"; }

# verify_fio DEVICE [fio's options]: random writes of mixed sizes with checksums, read back and verified.
verify_fio() {
  local device=$1; shift
  (cd /tmp && timeout 200 fio --name=verify --filename="$device" --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite \
    --bsrange=4k-64k --size=32m --verify=crc32c --verify_fatal=1 --verify_state_save=0 --output-format=terse --minimal "$@")
}

# same_file_system DEVICE: make ext4 on it, fill it, and find the same again after a new mount, with nothing to repair.
same_file_system() {
  mkdir -p /run/disk
  mke2fs -q -F -t ext4 "$1" && mount "$1" /run/disk || return
  for n in $(seq 40); do head -c $((n * 7919)) /dev/urandom >"/run/disk/file$n"; done
  mkdir /run/disk/deep && cp /run/disk/file1? /run/disk/deep && rm /run/disk/file2?
  (cd /run/disk && find . -type f -exec sha256sum {} + | sort) >/tmp/sums
  umount /run/disk && fresh "$1" && mount "$1" /run/disk || return
  (cd /run/disk && sha256sum --quiet -c /tmp/sums) || return
  umount /run/disk && e2fsck -fn "$1"
}

# ask NAME: have the host do something (restart the target…); answered N: wait until it has done what was asked as the
# Nth; ask_and_wait NAME: both.
asked=0
ask() { echo "$1" >>/mnt/asked; asked=$((asked + 1)); }
answered() {
  for _ in $(seq 4000); do ls /mnt | grep -qx "answer.$(($1 - 1))" && return 0; sleep 0.1; done
  echo "the host did not answer request $1"; return 1
}
ask_and_wait() { ask "$1" && answered $asked; }

# ready: tell the host that what the guest serves can be reached, and wait until the host's client is done.
ready() { ask_and_wait ready; }

# siw_up, rxe_up: software iWARP, or RoCE, on the guest's network; ready when its verbs device and its address can be used.
siw_up() { rdma_device siw0 siw; }
rxe_up() { rdma_device rxe0 rxe; }
rdma_device() {
  rdma link add "$1" type "$2" netdev vec0 || return
  for _ in $(seq 200); do rdma link show | grep -q "$1/1 state ACTIVE" && [ -e /dev/infiniband/rdma_cm ] && return 0; sleep 0.1; done
  rdma link show; ls /dev/infiniband; return 1
}

# iser_up [KEY=VALUE...]: initiator_up over iSER. iser_login: log in to $IQN at $PORTAL without discovery, wait for $UNITS disks.
iser_up() { TRANSPORT=iser; initiator_up "$@"; }
iser_login() {
  iscsiadm -m node -T "$IQN" -p "$PORTAL" -o new -I iser || return
  timeout 90 iscsiadm -m node -T "$IQN" -p "$PORTAL" -I iser -l || return
  wait_disks "$UNITS"
}

# lio_up MIB|FILE [tcp]: Linux's own target with a disk of so much memory, or above a file, by iSER over siw (which must be up), or by
# TCP, at $GUEST:3260 as $LIO. Making a portal first opens iSCSI's TCP listener, and that takes the port from siw: so the portal is made from a
# network namespace where the address may be bound although no interface has it, and iSER is switched on after.
LIO=iqn.2026-01.example.lab:lio
lio_up() {
  local root=/sys/kernel/config/target group disk
  [ -d $root ] || mount -t configfs configfs /sys/kernel/config
  [ -d $root ] || mkdir $root
  group=$root/iscsi/$LIO/tpgt_1
  if [ -f "$1" ]; then
    disk=$root/core/fileio_0/disk
    mkdir -p $disk && echo "fd_dev_name=$1,fd_dev_size=$(stat -c %s "$1")" >$disk/control && echo 1 >$disk/enable || return
  else
    disk=$root/core/rd_mcp_0/disk
    mkdir -p $disk && echo "rd_pages=$(($1 * 256))" >$disk/control && echo 1 >$disk/enable || return
  fi
  # Without a serial number LIO lists no vital product data pages.
  echo 5a6b7c8d >$disk/wwn/vpd_unit_serial || return
  mkdir -p $group/lun/lun_0 && ln -s $disk $group/lun/lun_0/disk || return
  for attribute in authentication=0 generate_node_acls=1 cache_dynamic_acls=1 demo_mode_write_protect=0; do
    echo "${attribute#*=}" >$group/attrib/${attribute%=*} || return
  done
  if [ "${2:-iser}" = tcp ]; then
    mkdir -p "$group/np/$GUEST:3260" || return
  else
    unshare --net bash -c "echo 1 >/proc/sys/net/ipv4/ip_nonlocal_bind && mkdir -p $group/np/$GUEST:3260" || return
    echo 1 >"$group/np/$GUEST:3260/iser" || return
  fi
  echo 1 >$group/enable
}

# knfsd_up: Linux's own NFS server on memory: /run/export, which is the root of version 4.
knfsd_up() {
  mkdir -p /run/export /run/rpcbind && mount -t tmpfs tmpfs /run/export && chmod 777 /run/export || return
  mount -t tmpfs tmpfs /var/lib/nfs && mkdir -p /var/lib/nfs/v4recovery && : >/var/lib/nfs/etab && : >/var/lib/nfs/rmtab || return
  mount -t nfsd nfsd /proc/fs/nfsd && rpcbind -w && sleep 0.5 || return
  exportfs -i -o rw,fsid=0,no_root_squash,sync '*:/run/export' || return
  rpc.nfsd --grace-time 10 --lease-time 10 4 && rpc.mountd
}

# network DELAY LOSS | network fine: what leaves the guest from now on is late by DELAY (10ms) and lost at a rate of LOSS (1%).
network() {
  tc qdisc del dev vec0 root 2>/dev/null
  [ "$1" = fine ] || tc qdisc add dev vec0 root netem delay "$1" loss "$2"
}
