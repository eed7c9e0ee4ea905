#!/usr/bin/env bash
# Changes of public APIs since the last tag that break a program which uses them. A change that breaks
# is allowed when CHANGELOG.md names it and the version says so; the check makes it impossible to
# break something unnoticed.
#
#   scripts/api.sh [REVISION]     compare with this revision instead of the last tag
set -euo pipefail
cd "$(dirname "$0")/.."
# What programs of users depend on.
packages=(evenfall-core evenfall-multicast-service evenfall-store-engine evenfall-collectives-member)
if ! cargo semver-checks --version >/dev/null 2>&1; then
  echo "skipped: changes of APIs need cargo-semver-checks (cargo install cargo-semver-checks --locked)"
  exit 0
fi
if ! since=${1:-$(git describe --tags --abbrev=0 2>/dev/null)}; then
  echo "skipped: no tag here to compare APIs with (scripts/api.sh REVISION)"
  exit 0
fi
for package in "${packages[@]}"; do
  cargo semver-checks --package "$package" --baseline-rev "$since"
done
