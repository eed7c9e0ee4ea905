#!/bin/sh
# Whether one seed gives one result in every build: digests of runs (lab/examples/same.rs) without
# optimisation, with all of it, and with all of it for a processor that has AVX2 and fused
# multiplication. Ends with the digests when they are equal, and with the difference otherwise. To
# compare another family of processors, run the script on such a computer and compare the digests.
set -eu
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
out=target/same-everywhere
mkdir -p "$out"

# Each build has its own directory, because different compiler flags would rebuild everything.
run() {
    name=$1
    profile=$2
    flags=$3
    RUSTFLAGS="$flags" CARGO_TARGET_DIR="$out/$name" \
        CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_DEBUG=false \
        CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG=false \
        "$cargo" build --quiet --profile "$profile" --package evenfall-lab --no-default-features \
        --example same
    directory=$profile
    [ "$profile" = dev ] && directory=debug
    "$out/$name/$directory/examples/same" >"$out/$name.txt"
}

run optimised release ""
run plain dev ""
builds="plain"
case $(uname -m) in
x86_64)
    if grep -qw avx2 /proc/cpuinfo && grep -qw fma /proc/cpuinfo; then
        run fused release "-C target-feature=+avx2,+fma"
        builds="$builds fused"
    else
        echo "skipped: this processor has no AVX2 and no fused multiplication"
    fi
    ;;
*) echo "skipped: only the family x86_64 is built with and without fused multiplication" ;;
esac

for build in $builds; do
    diff "$out/optimised.txt" "$out/$build.txt" || {
        echo "the build \"$build\" has other results than the build \"optimised\"" >&2
        exit 1
    }
done
cat "$out/optimised.txt"
echo "equal in the builds: optimised $builds"
