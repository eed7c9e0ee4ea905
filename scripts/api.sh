#!/usr/bin/env bash
# Changes of public APIs that break a program which uses them: since the last tag, or, where there is
# no tag, since the state of main before this one. A change that breaks is allowed when CHANGELOG.md
# names it and the version says so; the check makes it impossible to break something unnoticed.
#
#   scripts/api.sh [REVISION]     compare with this revision instead
set -euo pipefail
cd "$(dirname "$0")/.."
# What programs of users depend on: the face, and the crates behind it.
packages=(evenfall evenfall-core evenfall-multicast-service evenfall-store-engine evenfall-collectives-member)

# The state of main from which this one was made: where a branch has left main, or the last commit.
landed() {
  local head main base
  head=$(git rev-parse HEAD)
  for main in origin/main main; do
    base=$(git merge-base "$main" HEAD 2>/dev/null) || continue
    [ "$base" = "$head" ] || { echo "$base"; return; }
  done
  git rev-parse --verify --quiet HEAD^
}

if ! cargo semver-checks --version >/dev/null 2>&1; then
  echo "skipped: changes of APIs need cargo-semver-checks (cargo install cargo-semver-checks --locked)"
  exit 0
fi
if ! since=${1:-$(git describe --tags --abbrev=0 2>/dev/null || landed)}; then
  echo "skipped: no tag and no earlier commit here to compare APIs with (scripts/api.sh REVISION)"
  exit 0
fi
for package in "${packages[@]}"; do
  # The face has a feature for each of its parts, and most are off by default.
  cargo semver-checks --package "$package" --all-features --baseline-rev "$since"
done
