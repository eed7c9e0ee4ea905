#!/usr/bin/env bash
# Installs what `make dist` has made into empty roots, and runs it there. Called by scripts/dist.sh --test.
#
#   scripts/dist_test.sh DIST VERSION
set -euo pipefail
out=$1
version=$2
machine=$(uname -m)
[[ $EUID == 0 ]] || { echo "skipped: the tests of a release, for only root can enter an empty root"; exit 0; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

(cd "$out" && sha256sum --check --quiet SHA256SUMS)
echo "dist: checksums agree"

# Runs a command beside an empty root, in a network of its own: in the root are the program, /proc and a directory for
# its files, and nothing else.
beside() {
  local root=$1
  shift
  mkdir -p "$root"/{proc,tmp,dev,run,etc}
  unshare --mount --net --pid --fork sh -c '
    mount -t proc proc "$1/proc"
    mknod -m 666 "$1/dev/null" c 1 3 2>/dev/null; mknod -m 666 "$1/dev/urandom" c 1 9 2>/dev/null
    ip link set lo up
    shift
    exec "$@"' sh "$root" "$@"
}

# Runs a program of an empty root.
inside() {
  local root=$1
  shift
  beside "$root" chroot "$root" "$@"
}

try_program() {
  local name=$1 root=$2 program=$3
  [[ $(inside "$root" "$program" --version) == "evenfall $version" ]]
  inside "$root" "$program" demo --receivers 3 --messages 600 --dir /tmp/demo --json >"$work/demo.json" 2>"$work/demo.log" \
    || { cat "$work/demo.log"; exit 1; }
  grep -q '"lost": *0' "$work/demo.json" || { echo "dist: FAILED: $name lost messages"; cat "$work/demo.json"; exit 1; }
  echo "dist: $name runs a demo in an empty root, and loses nothing"
}

for kind in -lean ""; do
  archive=$out/evenfall-$version-$machine$kind.tar.gz
  [[ -f $archive ]] || { echo "skipped: no $(basename "$archive")"; continue; }
  root=$work/root$kind
  mkdir "$root"
  tar -C "$root" --strip-components=1 -xzf "$archive"
  try_program "$(basename "$archive")" "$root" /evenfall
  beside "$root" python3 scripts/stumbles.py "$root" /evenfall ${kind:+--lean}
done

for package in "$out"/*.deb; do
  [[ -f $package ]] || { echo "skipped: no package for Debian"; break; }
  root=$work/deb
  mkdir -p "$root"/var/lib/dpkg/{info,updates}
  touch "$root"/var/lib/dpkg/{status,available}
  # The script of the package calls programs of a system; in an empty root there are none.
  dpkg-deb -R "$package" "$work/unpacked"
  rm "$work/unpacked/DEBIAN/postinst"
  dpkg-deb --root-owner-group --build "$work/unpacked" "$work/bare.deb" >/dev/null
  dpkg --root="$root" --log=/dev/null --install "$work/bare.deb" >/dev/null
  dpkg --root="$root" --status evenfall | grep -q '^Status: install ok installed'
  try_program "$(basename "$package")" "$root" /usr/bin/evenfall
  for file in lib/systemd/system/evenfall@.service lib/sysctl.d/90-evenfall.conf share/man/man1/evenfall.1.gz \
    share/bash-completion/completions/evenfall; do
    [[ -s $root/usr/$file ]] || { echo "dist: FAILED: the package has no /usr/$file"; exit 1; }
  done
done

archive=$out/evenfall-c-$version-$machine.tar.gz
if [[ -f $archive ]] && command -v cc >/dev/null; then
  mkdir "$work/c"
  tar -C "$work/c" --strip-components=1 -xzf "$archive"
  for how in dynamic static; do
    case $how in
      dynamic) libraries=(-L "$work/c/lib" -levenfall "-Wl,-rpath,$work/c/lib") ;;
      static) libraries=("$work/c/lib/libevenfall.a" -lpthread -lm -ldl) ;;
    esac
    for example in subscribe publish; do
      cc -std=c11 -D_GNU_SOURCE -I "$work/c/include" "$work/c/examples/$example.c" -o "$work/$example" "${libraries[@]}"
    done
    "$work/publish" 127.0.0.1:39100 7 127.0.0.1:39107 500 >/dev/null &
    "$work/subscribe" 127.0.0.1:39100 127.0.0.1:39107 7 | grep -q '^messages 500 lost 0'
    wait
    echo "dist: a program of C, $how, takes 500 messages of another"
  done
else
  echo "skipped: no C library in $out, or no compiler"
fi

for wheel in "$out"/*.whl; do
  [[ -f $wheel ]] || { echo "skipped: no wheel"; break; }
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "skipped: the wheel wants Python 3.11"; break; }
  python3 -m venv "$work/venv"
  "$work/venv/bin/pip" install --quiet --no-index --disable-pip-version-check "$wheel"
  "$work/venv/bin/python" -c 'import evenfall; print("dist: the wheel of", evenfall.__version__, "imports without any other package")'
  # The programs of the machine must not be found in the place of the wheel's.
  PATH= "$work/venv/bin/python" -m evenfall demo --receivers 3 --messages 600 --dir "$work/wheel-demo" --json >"$work/demo.json"
  grep -q '"lost": *0' "$work/demo.json"
  echo "dist: the program of the wheel runs a demo, and loses nothing"
done
