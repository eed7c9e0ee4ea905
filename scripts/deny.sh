#!/usr/bin/env bash
# Licences, sources and advisories of all dependencies, as deny.toml has them. Crates of which there are
# two versions are listed by `cargo deny check bans`. Without cargo-deny, licences and sources are
# checked by `cargo xtask licences`; the rest is named as skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! cargo deny --version >/dev/null 2>&1; then
  cargo xtask licences
  echo "skipped: advisories and bans need cargo-deny (cargo install cargo-deny --locked, ten minutes)"
  exit 0
fi
cargo deny --offline --log-level error check --hide-inclusion-graph licenses bans sources
if compgen -G "${CARGO_HOME:-$HOME/.cargo}/advisory-db*/*" >/dev/null; then
  cargo deny --offline check --hide-inclusion-graph advisories
else
  echo "skipped: no advisory database here (cargo deny fetch, with a network)"
fi
