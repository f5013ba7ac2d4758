#!/bin/sh
# probe.sh: runs as a service of a systemd booted for it, beside stag.service, and tries what peers/service.py names.
# Each step writes a line to /probe/results: "ok NAME", or "failed NAME" and why, in one line.
#
# /probe holds: stag (the program), stag.service, stag.sysusers (as dist/ has them), results, journal (what it has logged, as JSON).
cd /root || exit 1
url=iscsi://127.0.0.1:3260/iqn.2026-01.org.example:service/0
secret=alices-secret-1
locked=127.0.0.1:3260/iqn.2026-01.org.example:locked/0

record() { # record NAME COMMAND...
  name=$1; shift
  if said=$("$@" 2>&1); then echo "ok $name"; else echo "failed $name: $(echo "$said" | tail -8 | tr '\n' '|')"; fi >>/probe/results
}
main() { systemctl show -p MainPID --value stag; }
of() { sed -n "s/^$1:[[:space:]]*//p" "/proc/$(main)/status"; }
is() { [ "$1" = "$2" ] || { echo "$3: $1 instead of $2"; return 1; }; }
until_ok() { # until_ok SECONDS COMMAND...: tries until it does well
  tries=$(($1 * 10)); shift
  for _ in $(seq $tries); do "$@" >/dev/null 2>&1 && return 0; sleep 0.1; done
  "$@"
}
moved() { now=$(main); [ "$now" != "$1" ] && [ "$now" != 0 ]; }

install_all() {
  # The program lies where a package would replace it.
  mkdir -p /opt /etc/stag /srv && install -m 755 /probe/stag /opt/stag || return 1
  sed 's,/usr/local/bin/stag,/opt/stag,' /probe/stag.service >/etc/systemd/system/stag.service
  mkdir -p /etc/systemd/system/stag.service.d
  printf '[Service]\nWatchdogSec=3\n' >/etc/systemd/system/stag.service.d/fast.conf
  document '' >/etc/stag/stag.toml && chown -R root:stag /etc/stag && chmod 640 /etc/stag/stag.toml
  truncate -s 64M /srv/disk.img && chown stag:stag /srv /srv/disk.img
  systemctl daemon-reload && ip link set lo up
}

document() {
  printf '[[portal]]\nlisten = "127.0.0.1:3260"\n[[target]]\niqn = "iqn.2026-01.org.example:service"\n'
  printf '[[target.unit]]\nlun = 0\npath = "/srv/disk.img"\n%s' "$1"
  printf '[[target]]\niqn = "iqn.2026-01.org.example:locked"\n[target.auth]\nusers = [{ name = "alice", secret = "%s" }]\n' $secret
  printf '[[target.unit]]\nlun = 0\npath = "/srv/locked.img"\nsize = "8M"\n'
}

starts() {
  systemctl start stag || { journalctl -u stag --no-pager -n 20; return 1; }
  is "$(systemctl is-active stag)" active state && iscsi-inq "$url"
}

confined() {
  pid=$(main)
  is "$(of CapEff)" 0000000000000000 CapEff && is "$(of CapBnd)" 0000000000000000 CapBnd &&
    is "$(of NoNewPrivs)" 1 NoNewPrivs && is "$(of Seccomp)" 2 Seccomp &&
    is "$(stat -c %U "/proc/$pid")" stag user && journalctl -u stag --no-pager | grep -q 'landlock, seccomp'
}

# Whom the journal has seen come and go is judged by peers/service.py.
audits() {
  iscsi-inq -i iqn.2026-01.org.example:alice "iscsi://alice%$secret@$locked" || return 1
  ! iscsi-inq -i iqn.2026-01.org.example:mallory "iscsi://alice%wrong-secret-1@$locked" || return 1
  until_ok 10 seen warning refused && seen info login && ! seen warning login && ! seen err refused
}
seen() { journalctl -u stag --no-pager -o cat -p "$1" | grep -q "stag::audit: .*what=\"$2\""; }

managed() {
  /opt/stag status --control /run/stag/control.sock && /opt/stag apply --control /run/stag/control.sock /etc/stag/stag.toml
}

reloads() {
  before=$(main)
  document "[[target.unit]]
lun = 1
path = \"/srv/more.img\"
size = \"8M\"
" >/etc/stag/stag.toml
  systemctl reload stag && until_ok 10 iscsi-inq "${url%/0}/1" && is "$(main)" "$before" 'main process'
}

# QEMU writes and reads back until it is told to end; it connects again by itself.
foreign_load() {
  rm -f /root/enough
  n=0
  while [ ! -e /root/enough ] && [ $n -lt 2000 ]; do
    n=$((n + 1)); at=$((n % 8))M; pattern=$((n % 255 + 1))
    echo "write -P $pattern $at 1M"; echo "read -P $pattern $at 1M"; echo "$n" >/root/rounds
    sleep 0.02
  done | qemu-io -f raw "${url%/0}/1" >/root/foreign 2>&1
}
foreign_load_ends() { # It has gone on until now, and each answer was right.
  : >/root/enough; wait "$1" || { tail -5 /root/foreign; return 1; }
  rounds=$(cat /root/rounds)
  if grep -qiE 'fail|error' /root/foreign; then grep -iE 'fail|error' /root/foreign; return 1; fi
  is "$(grep -c 'wrote 1048576/1048576' /root/foreign)" "$rounds" writes && is "$(grep -c 'read 1048576/1048576' /root/foreign)" "$rounds" reads &&
    [ "$rounds" -ge 20 ]
}

foreign_reload() {
  before=$(main)
  foreign_load & foreign=$!
  sleep 1
  systemctl reload stag || { : >/root/enough; return 1; }
  sleep 1
  foreign_load_ends $foreign && is "$(main)" "$before" 'main process' && until_ok 10 seen info apply
}

# The program is replaced, and systemd has it upgrade itself.
foreign_upgrade() {
  before=$(main)
  foreign_load & foreign=$!
  sleep 1
  install -m 755 /probe/stag /opt/stag.new && mv /opt/stag.new /opt/stag || return 1
  systemctl reload stag || { journalctl -u stag --no-pager -n 20; : >/root/enough; return 1; }
  sleep 1
  foreign_load_ends $foreign && until_ok 10 moved "$before" && until_ok 10 seen info takeover && confined &&
    is "$(systemctl show -p NRestarts --value stag)" 0 restarts
}

# What root types at a shell would leave the service.
upgrade_outside() {
  before=$(main)
  if /opt/stag upgrade --control /run/stag/control.sock >/root/said 2>&1; then cat /root/said; return 1; fi
  grep -q 'systemctl reload stag.service' /root/said || { cat /root/said; return 1; }
  is "$(main)" "$before" 'main process' && iscsi-inq "$url"
}

upgrades() {
  before=$(main)
  /opt/stag bench "$url" --bs 4K --depth 4 --time 6 --pattern randrw --verify --destroy --reconnect 20 >/root/load 2>&1 &
  load=$!
  sleep 1
  install -m 755 /probe/stag /opt/stag.new && mv /opt/stag.new /opt/stag || return 1
  systemctl reload stag || { journalctl -u stag --no-pager -n 20; return 1; }
  wait $load || { cat /root/load; return 1; }
  until_ok 10 moved "$before" || { echo "still process $before"; journalctl -u stag --no-pager -n 20; return 1; }
  is "$(systemctl show -p NRestarts --value stag)" 0 restarts && is "$(systemctl is-active stag)" active state &&
    [ ! -d "/proc/$before" ] && iscsi-inq "$url" && confined
}

lives_on() { # The watchdog hears of the new main process: nothing is restarted for longer than its limit.
  before=$(main); sleep 5
  is "$(main)" "$before" 'main process' && is "$(systemctl show -p NRestarts --value stag)" 0 restarts
}

survives_kill() {
  before=$(main)
  systemctl kill --kill-who=main -s KILL stag
  until_ok 20 moved "$before" && until_ok 20 iscsi-inq "$url"
}

restarts_what_hangs() {
  before=$(main)
  kill -STOP "$before"
  until_ok 30 moved "$before" && until_ok 20 iscsi-inq "$url"
}

# A secret in a file that only root can read: the service manager hands it in. A reload does not need to see it.
credential() {
  echo $secret >/etc/stag/alice.secret && chown root:root /etc/stag/alice.secret && chmod 600 /etc/stag/alice.secret || return 1
  printf '[Service]\nLoadCredential=alice:/etc/stag/alice.secret\n' >/etc/systemd/system/stag.service.d/credential.conf
  document '' | sed "s,secret = \"$secret\",secret-file = \"\$CREDENTIALS_DIRECTORY/alice\"," >/etc/stag/stag.toml
  ! grep -q $secret /etc/stag/stag.toml && grep -q CREDENTIALS_DIRECTORY /etc/stag/stag.toml || return 1
  systemctl daemon-reload && systemctl restart stag && alice_gets_in || return 1
  systemctl reload stag || { journalctl -u stag --no-pager -n 20; return 1; }
  alice_gets_in
}

# The daemon that a reload starts does not see the credentials by itself (systemd 252).
credential_upgrade() {
  for _ in 1 2; do
    before=$(main)
    install -m 755 /probe/stag /opt/stag.new && mv /opt/stag.new /opt/stag || return 1
    systemctl reload stag || { journalctl -u stag --no-pager -n 20; return 1; }
    until_ok 10 moved "$before" && alice_gets_in && confined || return 1
  done
  systemctl reload stag && alice_gets_in && is "$(systemctl show -p NRestarts --value stag)" 0 restarts || return 1
  # In a container without unified control groups, systemd does not wait when it stops a main process that it did not start itself.
  systemctl restart stag && alice_gets_in
}
alice_gets_in() { # And nobody with another secret.
  until_ok 20 iscsi-inq -i iqn.2026-01.org.example:alice "iscsi://alice%$secret@$locked" &&
    ! iscsi-inq -i iqn.2026-01.org.example:alice "iscsi://alice%wrong-secret-1@$locked"
}

stops() { systemctl stop stag && is "$(systemctl show -p Result --value stag)" success result; }

refuses() { # What keeps it from starting is an error in the journal, and systemd does not try again.
  document '[[target.unit]]
lun = 1
path = "/srv/missing.img"
' >/etc/stag/stag.toml
  ! systemctl start stag || return 1
  until_ok 10 is_told && is "$(systemctl is-active stag)" failed state
}
is_told() { journalctl -u stag --no-pager -o cat -p err | grep missing.img; }

record installed install_all
record starts starts
record confined confined
record audits audits
record managed managed
record reloads reloads
record foreign-reload foreign_reload
record upgrade-outside upgrade_outside
record foreign-upgrade foreign_upgrade
record upgrades upgrades
record lives-on lives_on
record survives-kill survives_kill
record restarts-what-hangs restarts_what_hangs
record credential credential
record credential-upgrade credential_upgrade
record stops stops
record refuses refuses
journalctl -u stag --no-pager -o json >/probe/journal
echo done >>/probe/results
