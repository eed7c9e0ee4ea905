#!/usr/bin/env bash
# What can be tested of deploy/ on one machine: formats, the unit, the image, and six containers that plan and then pass
# a feed. Names each skipped test in a line. No process is left running.
set -euo pipefail
cd "$(dirname "$0")/.."
failed=0
say() { echo "deploy: $*"; }
fail() { say "FAILED: $*"; failed=1; }

if command -v terraform >/dev/null; then
  export TF_CLI_CONFIG_FILE=/dev/null
  for module in deploy/terraform/*/; do
    terraform -chdir="$module" fmt -check >/dev/null || fail "terraform fmt $module"
  done
  for image in deploy/packer/*.pkr.hcl; do
    terraform fmt -check - <"$image" >/dev/null || fail "HCL format of $image"
  done
  say "terraform and packer files are well formed (providers are not fetched: no validate)"
else
  say "skipped: no terraform, formats of HCL unchecked"
fi

if command -v systemd-analyze >/dev/null; then
  units=$(mktemp -d)
  for unit in deploy/systemd/*.service deploy/systemd/*.timer; do
    sed "s#/usr/local/bin/evenfall[-a-z]*#/bin/true#" "$unit" >"$units/$(basename "$unit")"
  done
  systemd-analyze verify "$units"/* || fail "the units"
  rm -r "$units"
  say "the units are verified"
else
  say "skipped: no systemd-analyze (Debian's package systemd), units unchecked"
fi

# The containers need only the feature `agents`: all features of a published image (full) would be compiled for these
# tests alone. Only the program itself is told to be static, so that its crates are those of `make demo`, whose program
# it must not stay in the place of.
cargo rustc -q --profile lean --package evenfall-cli --bin evenfall --features agents -- -C target-feature=+crt-static
built=${CARGO_TARGET_DIR:-target}
rm -rf "$built/deploy"
mkdir "$built/deploy"
mv "$built/lean/evenfall" "$built/deploy/evenfall"
export PROGRAM=$built/deploy/evenfall
evenfall=$PROGRAM

booted=$(deploy/systemd/boot.sh "$evenfall") || fail "the units under systemd"
say "the units under a systemd of their own: $booted"

if command -v kubectl >/dev/null; then
  cluster=$(mktemp -d)
  cp deploy/kubernetes/*.yaml "$cluster"
  printf 00 >"$cluster/key"
  sed 's/"docker"/"kubernetes"/' plans/docker.toml >"$cluster/plan.toml"
  "$evenfall" plan deploy "$cluster/plan.toml" --out "$cluster/pool" \
    --hosts a=10.0.0.1,b=10.0.0.2,c=10.0.0.3,d=10.0.0.4,e=10.0.0.5,f=10.0.0.6 >/dev/null
  pods=$(kubectl kustomize "$cluster" | grep -c 'key: metadata.name$') || true
  [[ $pods -eq 6 ]] || fail "kustomize places agents on $pods hosts of 6"
  rm -r "$cluster"
  say "kustomize makes one set of agents on $pods hosts (no cluster: nothing was applied)"
else
  say "skipped: no kubectl, manifests not put together"
fi

if [[ -x target/venv-deploy/bin/kubernetes-validate ]]; then
  objects=$(mktemp -d)
  "$evenfall" config default >"$objects/evenfall.toml"
  for node in 0:root 1:proxy 2:receiver 3:recorder 4:agent; do
    printf '\n[[node]]\nname = "%s-%s"\nid = %s\nrole = "%s"\naddress = "10.0.0.%s:9000"\nhttp = "10.0.0.%s:9180"\n' \
      "${node#*:}" "${node%:*}" "${node%:*}" "${node#*:}" "${node%:*}" "${node%:*}"
  done >>"$objects/evenfall.toml"
  (umask 077 && printf '%064x' 1 >"$objects/key")
  "$evenfall" generate kubernetes "$objects/evenfall.toml" --storage 100Gi --set "run.key_file=$objects/key" \
    --hosts a=10.0.0.0,b=10.0.0.1,c=10.0.0.2,d=10.0.0.3,agent-4=10.0.0.4 --out "$objects/all.json" 2>/dev/null
  python3 -c 'import json, sys; [print("---", json.dumps(one), sep="\n") for one in json.load(sys.stdin)["items"]]' \
    <"$objects/all.json" >"$objects/all.yaml"
  target/venv-deploy/bin/kubernetes-validate --strict --quiet "$objects/all.yaml" || fail "the objects of generate"
  rm -r "$objects"
  say "the schemas of Kubernetes take the objects that generate makes"
else
  say "skipped: no kubernetes-validate (scripts/deps.sh installs it), objects of generate unchecked"
fi

if [[ $(id -u) -ne 0 ]] || ! command -v dockerd >/dev/null || ! command -v docker >/dev/null; then
  say "skipped: six containers need root and a Docker engine"
  exit $failed
fi

work=$(mktemp -d)
engine=""
names=(0 1 2 3 4 5)
cleanup() {
  status=$?
  for i in "${names[@]}"; do docker rm -f "evenfall-test-$i" >/dev/null 2>&1 || true; done
  docker network rm evenfall-test >/dev/null 2>&1 || true
  if [[ -n $engine ]]; then
    kill "$engine" 2>/dev/null || true
    wait "$engine" 2>/dev/null || true
  fi
  rm -rf "$work"
  exit $status
}
trap cleanup EXIT
trap 'exit 130' INT TERM

if ! docker info >/dev/null 2>&1; then
  # A separate Docker engine, which ends with the test. It adds no bridge and no packet rules except
  # those of the test's own network.
  export DOCKER_HOST="unix://$work/docker.sock"
  dockerd --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/pid" \
    --host "$DOCKER_HOST" \
    --bridge none --iptables=false --ip6tables=false --ip-forward=false >"$work/dockerd.log" 2>&1 &
  engine=$!
  for _ in $(seq 100); do docker info >/dev/null 2>&1 && break || sleep .2; done
  if ! docker info >/dev/null 2>&1; then
    say "skipped: six containers, for dockerd does not start: $(tail -1 "$work/dockerd.log")"
    exit $failed
  fi
fi

deploy/docker/build.sh evenfall:test >/dev/null
say "image: $(docker image inspect -f '{{.Size}}' evenfall:test) bytes, from scratch"

pool=$work/pool
subnet=10.213.77.0/24
mkdir -p "$pool"
head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$pool/evenfall.key"
chmod 600 "$pool/evenfall.key"
"$evenfall" plan deploy plans/docker.toml --out "$pool" --subnet "$subnet" \
  --feed-depth 2 --feed-fanout 2 --key-file "$pool/evenfall.key" --clock same-host
docker network create --subnet "$subnet" evenfall-test >/dev/null
mapfile -t machines < <(sed -n 's/^name = "\(.*\)"/\1/p' "$pool/agents.toml")

start() { # index, arguments of evenfall...
  local i=$1
  shift
  install -d -m 777 "$pool/run"
  # Runs as the user who owns the key, because a key that other users can read is refused.
  docker run -d --user "$(id -u):$(id -g)" --name "evenfall-test-$i" --network evenfall-test --ip "10.213.77.$((10 + i))" \
    -v "$pool:$pool:ro" -v "$pool/run:$pool/run" evenfall:test "$@" >/dev/null
}
stop() { for i in "${names[@]}"; do docker rm -f "evenfall-test-$i" >/dev/null; done; }

for i in "${names[@]}"; do
  start "$i" run agent --name "${machines[$i]}" --config "$pool/agents.toml"
done
for _ in $(seq 50); do
  docker logs evenfall-test-5 2>&1 | grep -q . && break || sleep .1
done
"$evenfall" plan run "$pool/plan.toml" --dir "$work/plan" --json >"$work/plan.json" \
  || { fail "the plan"; for i in "${names[@]}"; do docker logs "evenfall-test-$i" 2>&1 | tail -3; done; }
grep -q '"done":2' "$work/plan.json" || fail "a plan of six containers: $(cat "$work/plan.json")"
say "six agents planned: $(cat "$work/plan.json")"
stop

mapfile -t roles < <(sed -n 's/^name = "\(.*\)"/\1/p' "$pool/feed.toml")
for i in 5 4 3 2 1 0; do
  role=${roles[$i]%%-*}
  start "$i" run "$role" --name "${roles[$i]}" --config "$pool/feed.toml" \
    --set feed.synthetic.messages=10000
done
timeout 90 docker wait evenfall-test-0 >/dev/null || fail "the root does not end"
sleep 1
"$evenfall" report "$pool/run" --json >"$work/report.json" || fail "the report"
grep -q '"lost":0[,}]' "$work/report.json" && grep -q '"receivers":3[,}]' "$work/report.json" \
  && grep -q '"delivered":30000[,}]' "$work/report.json" \
  || { fail "the feed: $(head -c 600 "$work/report.json")"; docker logs evenfall-test-0 2>&1 | tail; }
say "six containers passed a feed: $(grep -o '"delivered":[0-9]*\|"lost":[0-9]*\|"receivers":[0-9]*' \
  "$work/report.json" | tr '\n' ' ')"
stop
[[ $failed -eq 0 ]] && say "ok"
exit $failed
