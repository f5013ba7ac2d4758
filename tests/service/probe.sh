#!/bin/sh
# probe.sh: runs as a service of a systemd booted for it, beside stag.service, and tries what peers/service.py names.
# Each step writes a line to /probe/results: "ok NAME", or "failed NAME" and why, in one line.
#
# /probe holds: stag (the program), stag.service, stag.sysusers (as dist/ has them), results.
cd /root || exit 1
url=iscsi://127.0.0.1:3260/iqn.2026-01.org.example:service/0

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

stops() { systemctl stop stag && is "$(systemctl show -p Result --value stag)" success result; }

record installed install_all
record starts starts
record confined confined
record managed managed
record reloads reloads
record upgrades upgrades
record lives-on lives_on
record survives-kill survives_kill
record restarts-what-hangs restarts_what_hangs
record stops stops
echo done >>/probe/results
