#!/usr/bin/env bash
# The checks of the units that deploy/systemd/boot.sh runs once systemd is up. Writes the faults, or
# `ok`.
exec >"$1" 2>&1
failed=0
wrong() { echo "WRONG: $*"; failed=1; }
show() { systemctl show --property "$2" --value "evenfall@$1.service"; }

settled() { systemctl start evenfall-settings.service || wrong "evenfall-settings failed"; }

# A machine comes up as an agent; the feed is started later, and the agent keeps running.
echo agent:m1 >/run/pool/services
settled
for _ in $(seq 50); do [[ $(show agent:m1 ActiveState) == active ]] && break || sleep .1; done
agent=$(show agent:m1 MainPID)
echo agent:m1 receiver:receiver-1 root:root >/run/pool/services
settled
for _ in $(seq 50); do [[ $(show root:root ActiveState) == active ]] && break || sleep .1; done
for _ in $(seq 300); do
  [[ $(show root:root ActiveState) == active ]] || break
  sleep .1
done
for role in root:root receiver:receiver-1; do
  for _ in $(seq 50); do [[ $(show $role ActiveState) == active ]] && sleep .1; done
  [[ $(show $role Result) == success && $(show $role ExecMainStatus) == 0 ]] \
    || { wrong "$role: $(show $role Result) $(show $role ExecMainCode) $(show $role ExecMainStatus)"
         tail -5 "/run/$role.log"; }
  [[ $(show $role NRestarts) == 0 ]] || wrong "$role was restarted $(show $role NRestarts) times"
done
[[ $(show agent:m1 ActiveState) == active && $(show agent:m1 NRestarts) == 0 ]] \
  || { wrong "the agent: $(show agent:m1 ActiveState)"; tail -5 /run/agent:m1.log; }
pid=$(show agent:m1 MainPID)
[[ $pid == "$agent" ]] || wrong "the start of the feed restarted the agent"
if [[ $pid -gt 0 ]]; then
  grep -q '^Seccomp:[[:space:]]2' "/proc/$pid/status" || wrong "the agent runs without a filter"
  user=$(stat -c %U "/proc/$pid")
  [[ $user == evenfall ]] || wrong "the agent runs as $user"
fi
owners=$(find /var/lib/evenfall/ -printf '%u\n' 2>/dev/null | sort -u | tr '\n' ' ')
[[ $owners == 'evenfall ' ]] || wrong "/var/lib/evenfall belongs to $owners"
/usr/local/bin/evenfall report /var/lib/evenfall/run --json >/run/report.json || wrong "no report"
grep -q '"delivered":200[,}]' /run/report.json && grep -q '"lost":0[,}]' /run/report.json \
  || wrong "the feed: $(head -c 300 /run/report.json)"
grep -h -i 'clock' /run/root:root.log | head -2
# The next pass of evenfall-settings leaves services alone that ended without an error, restarts
# services whose settings changed, and stops services that are no longer wanted.
settled
[[ $(show root:root ActiveState) == inactive ]] || wrong "a root that was done was started again"
echo "# edited" >>/run/pool/agents.toml
settled
for _ in $(seq 50); do [[ $(show agent:m1 MainPID) != "$agent" ]] && break || sleep .1; done
[[ $(show agent:m1 MainPID) != "$agent" ]] || wrong "edited settings did not reach the agent"
echo >/run/pool/services
settled
for _ in $(seq 50); do [[ $(show agent:m1 ActiveState) == inactive ]] && break || sleep .1; done
[[ $(show agent:m1 ActiveState) == inactive ]] || wrong "an agent that is not wanted still runs"
[[ $failed -eq 0 ]] && echo ok
