#!/usr/bin/env bash
# Makes what a release consists of, in target/dist: static programs, a package for Debian, the C library, the wheel of
# the Python package, an inventory of what is inside, and checksums. `make dist` calls it.
#
#   scripts/dist.sh [PART...]    parts: lean wheel full deb c (all by default); the inventory and the sums always
#   scripts/dist.sh --test       installs what is there into empty roots, and runs it there (needs root)
#
# MAINTAINER="Name <address>" is who answers for the package. FEATURES=man,arrow makes the full program with fewer
# features. A part whose tool is missing is named in a line that begins with "skipped:".
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
machine=$(uname -m)
triple=$machine-unknown-linux-gnu
out=target/dist
features=${FEATURES:-full}
maintainer=${MAINTAINER:-evenfall <evenfall@example.com>}
# What an installation by pip may load.
wheel_bytes_max=$((12 << 20))
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { echo "dist: $*"; }

# A static program with glibc. The named target keeps build scripts and macros dynamic. A static program finds no
# getrandom of the C library at run time, and would open /dev/random, which an empty root has not. So it asks the kernel.
build_static() {
  RUSTFLAGS="-C target-feature=+crt-static --cfg getrandom_backend=\"linux_getrandom\"" \
    cargo build --quiet --profile lean --target "$triple" --package evenfall-cli "$@"
}

# An archive with one program, its licences and its page: end of the name, and the program.
pack_program() {
  local name=evenfall-$version-$machine$1
  mkdir "$work/$name"
  cp "$2" "$work/$name/evenfall"
  cp LICENSE-APACHE LICENSE-MIT README.md CHANGELOG.md "$work/$name/"
  tar -C "$work" --owner=0 --group=0 --sort=name -czf "$out/$name.tar.gz" "$name"
  say "$name.tar.gz: a static program of $(stat -c %s "$work/$name/evenfall") bytes"
}

make_lean() {
  build_static
  pack_program -lean "target/$triple/lean/evenfall"
}

# The program with all features, built once for the archive and the package.
build_full() {
  [[ -x $work/full ]] && return
  # The full program takes the place of the lean one in the directory of builds.
  build_static --features "$features"
  cp "target/$triple/lean/evenfall" "$work/full"
}

make_full() {
  build_full
  pack_program "" "$work/full"
}

# The files of the package: the program, units, limits of the kernel, completions and pages.
make_deb() {
  command -v dpkg-deb >/dev/null || { say "skipped: deb, for there is no dpkg-deb"; return; }
  build_full
  local root=$work/deb unit
  install -D -m 755 "$work/full" "$root/usr/bin/evenfall"
  for unit in deploy/systemd/*.service deploy/systemd/*.timer; do
    mkdir -p "$root/usr/lib/systemd/system"
    sed 's#/usr/local/bin/evenfall#/usr/bin/evenfall#g' "$unit" >"$root/usr/lib/systemd/system/$(basename "$unit")"
  done
  install -D -m 755 deploy/systemd/evenfall-settings "$root/usr/bin/evenfall-settings"
  install -D -m 644 deploy/systemd/evenfall.sysctl "$root/usr/lib/sysctl.d/90-evenfall.conf"
  install -D -m 644 deploy/systemd/evenfall.sysusers "$root/usr/lib/sysusers.d/evenfall.conf"
  mkdir -p "$root"/usr/share/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d,man/man1}
  "$work/full" completions bash >"$root/usr/share/bash-completion/completions/evenfall"
  "$work/full" completions zsh >"$root/usr/share/zsh/vendor-completions/_evenfall"
  "$work/full" completions fish >"$root/usr/share/fish/vendor_completions.d/evenfall.fish"
  "$work/full" man "$root/usr/share/man/man1" >/dev/null
  printf '.TH EVENFALL-SETTINGS 1 "" "evenfall %s"\n.SH NAME\nevenfall-settings \\- takes new settings of this host and restarts what they change\n' \
    "$version" >"$root/usr/share/man/man1/evenfall-settings.1"
  find "$root/usr/share/man" -name '*.1' -exec gzip -9n {} +
  local docs=$root/usr/share/doc/evenfall
  install -D -m 644 README.md "$docs/README.md"
  {
    echo "evenfall, licensed under MIT or Apache-2.0, as you choose."
    echo
    echo "The licence of Apache is in /usr/share/common-licenses/Apache-2.0. That of MIT follows."
    echo
    cat LICENSE-MIT
  } >"$docs/copyright"
  printf 'evenfall (%s) stable; urgency=medium\n\n  * See CHANGELOG.md of the sources.\n\n -- %s  %s\n' \
    "$version" "$maintainer" "$(git log -1 --format=%cD)" | gzip -9n >"$docs/changelog.gz"
  chmod 644 "$docs"/*
  find "$root" -type d -exec chmod 755 {} +
  mkdir "$root/DEBIAN"
  local size architecture control
  size=$(du -sk "$root/usr" | cut -f1)
  architecture=$(dpkg --print-architecture)
  control=$(sed "s/@VERSION@/$version/; s/@SIZE@/$size/; s/@ARCHITECTURE@/$architecture/" deploy/debian/control.in)
  # Not by sed, which would take an "&" or a "/" of the name for its own.
  echo "${control//@MAINTAINER@/"$maintainer"}" >"$root/DEBIAN/control"
  install -m 755 deploy/debian/postinst "$root/DEBIAN/postinst"
  local package=$out/evenfall_${version}_$architecture.deb
  dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >/dev/null
  say "$(basename "$package"): $(stat -c %s "$package") bytes"
  if command -v lintian >/dev/null; then
    # A static program is what the package is for.
    lintian --suppress-tags statically-linked-binary,embedded-library,shared-library-lacks-prerequisites \
      --fail-on error,warning "$package"
  else
    say "skipped: lintian is not here"
  fi
}

make_c() {
  scripts/c.sh --install >/dev/null
  local name=evenfall-c-$version-$machine
  cp -r target/c "$work/$name"
  cp -r apps/c/examples LICENSE-APACHE LICENSE-MIT "$work/$name/"
  tar -C "$work" --owner=0 --group=0 --sort=name -czf "$out/$name.tar.gz" "$name"
  say "$name.tar.gz: header, library and examples"
}

make_wheel() {
  # Lines of functions would be stripped from the module again, and cost a part of its build.
  export CARGO_PROFILE_RELEASE_DEBUG=false
  local maturin=target/venv-store/bin/maturin
  [[ -x $maturin ]] || { say "skipped: wheel, for there is no $maturin (make deps)"; return; }
  build_static
  rm -f "$out"/*.whl
  (cd apps/python && "$OLDPWD/$maturin" build --quiet --release --strip --out "$OLDPWD/$out")
  local wheel
  wheel=$(echo "$out"/*.whl)
  scripts/wheel_program.py "$wheel" "target/$triple/lean/evenfall"
  say "$(basename "$wheel"): $(stat -c %s "$wheel") bytes, with the lean program"
  if [[ $(stat -c %s "$wheel") -gt $wheel_bytes_max ]]; then
    say "FAILED: a wheel has $wheel_bytes_max bytes at most"
    return 1
  fi
}

if [[ ${1:-} == --test ]]; then
  exec scripts/dist_test.sh "$out" "$version"
fi

mkdir -p "$out"
parts=("$@")
[[ ${#parts[@]} -gt 0 ]] || parts=(lean wheel full deb c)
for part in "${parts[@]}"; do
  case $part in
    lean | wheel | full | deb | c) "make_$part" ;;
    *) echo "dist: $part is no part; parts are lean, wheel, full, deb and c" >&2; exit 2 ;;
  esac
done
scripts/inventory.py "$features" >"$out/evenfall-$version.cdx.json"
say "evenfall-$version.cdx.json: $(grep -c '"purl"' "$out/evenfall-$version.cdx.json") parts of the program"
(cd "$out" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%f\n' | sort | xargs sha256sum >SHA256SUMS)
cat "$out/SHA256SUMS"
