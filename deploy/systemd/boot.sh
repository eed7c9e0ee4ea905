#!/usr/bin/env bash
# Boots systemd as process 1 of its own namespaces, with nothing but our units, and starts a root, a receiver and an
# agent under them: their user, key, directories, capabilities and system calls are those of a real host. There is no
# chrony, so the clock's bound comes from the kernel. The host's files do not change: /etc, /var and /usr/local/bin are
# overlays that end with the namespaces.
#
#   deploy/systemd/boot.sh EVENFALL [UNITS]     as root; UNITS is this directory by default
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "$1")
units=$(realpath "${2:-$here}")
: "${EVENFALL_BOOT_SECONDS:=60}" # what hangs is ended; a boot and a run take about ten

if [[ ${3:-} != inside ]]; then
  for tool in /lib/systemd/systemd /usr/bin/unshare; do
    [[ -x $tool ]] || { echo "skipped: no $tool"; exit 0; }
  done
  [[ $(id -u) -eq 0 ]] || { echo "skipped: booting systemd needs root"; exit 0; }
  unshare --pid --fork --mount --uts --ipc --cgroup --net --mount-proc true 2>/dev/null \
    || { echo "skipped: namespaces cannot be made here"; exit 0; }
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  status=0
  EVENFALL_BOOT=$work timeout --kill-after 5 "$EVENFALL_BOOT_SECONDS" \
    unshare --kill-child --pid --fork --mount --uts --ipc --cgroup --net --mount-proc \
    "$here/boot.sh" "$binary" "$units" inside >"$work/console" 2>&1 || status=$?
  cat "$work/verdict" 2>/dev/null || { echo "systemd did not get to the checks ($status):"; tail -20 "$work/console"; }
  grep -q '^ok$' "$work/verdict" 2>/dev/null
  exit
fi

# ---- process 1 from here on -------------------------------------------------------------------
work=$EVENFALL_BOOT
mount --make-rprivate /
mkdir "$work/new"
mount -t tmpfs tmpfs "$work/new"
for there in /etc /var /usr/local/bin; do
  upper=$work/new$there
  mkdir -p "$upper/up" "$upper/work"
  mount -t overlay overlay -o "lowerdir=$there,upperdir=$upper/up,workdir=$upper/work" "$there"
done
# Units see /run as theirs, and `work`, which may lie under /tmp, as a place to leave what they found.
mount -t tmpfs -o mode=755 tmpfs /run
umount --recursive /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
# Two addresses beyond loopback, because a run on 127.0.0.1 alone does not use the synchronised
# clock.
ip link set lo up
ip address add 10.9.9.1/32 dev lo
ip address add 10.9.9.2/32 dev lo

install -m 755 "$binary" /usr/local/bin/evenfall
install -m 755 "$here/evenfall-settings" /usr/local/bin/evenfall-settings
install -d /run/units /run/pool /etc/evenfall /run/sysusers.d
install -m 644 "$units"/*.service /run/units
install -m 644 "$here/evenfall.sysusers" /run/sysusers.d/evenfall.conf
systemd-sysusers
rm -rf /var/lib/evenfall /var/lib/private/evenfall
od -An -v -tx1 -N32 /dev/urandom | tr -d ' \n' >/run/pool/evenfall.key
echo dir:/run/pool >/etc/evenfall/source
cat >/run/pool/feed.toml <<'TOML'
[run]
clock = "auto"
[feed.synthetic]
messages = 200
[[node]]
name = "root"
id = 0
role = "root"
address = "10.9.9.1:9000"
[[node]]
name = "receiver-1"
id = 1
role = "receiver"
address = "10.9.9.2:9000"
TOML
echo "# none" >/run/pool/plan.toml
cat >/run/pool/agents.toml <<'TOML'
[run]
clock = "auto"
[[node]]
name = "m1"
id = 7
role = "agent"
address = "10.9.9.1:9400"
TOML
for target in sysinit basic shutdown network-online time-sync multi-user; do
  printf '[Unit]\nDescription=%s\nDefaultDependencies=no\n' $target >"/run/units/$target.target"
done
install -d "/run/units/evenfall@.service.d"
# No journal runs here; what a role says goes into a file. A call outside of the filter kills here, so
# that no such call is missed.
printf '[Service]\n%s\n%s\n%s\n' StandardOutput=append:/run/%i.log StandardError=append:/run/%i.log \
  SystemCallErrorNumber= >"/run/units/evenfall@.service.d/log.conf"
cat >/run/units/checks.service <<UNIT
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=-/bin/bash $here/checks.sh $work/verdict
ExecStopPost=/bin/systemctl --force exit
StandardOutput=file:$work/checks.log
StandardError=inherit
UNIT
# Credentials reach a unit by mounts that process 1 passes on to it.
mount --make-rshared /
export SYSTEMD_UNIT_PATH=/run/units container=evenfall
exec /lib/systemd/systemd --system --unit=checks.service --log-target=console --show-status=no
