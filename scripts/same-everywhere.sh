#!/bin/sh
# Whether one seed gives one result in every build: digests of runs (lab/studies/examples/same.rs)
# without optimisation, with all of it, and with all of it for a processor that has AVX2 and fused
# multiplication. Ends with the digests when they are equal, and with the difference otherwise. To
# compare another family of processors, run the script on such a computer and compare the digests.
set -eu
cd "$(dirname "$0")/.."

cargo=${CARGO:-cargo}
out=target/same-everywhere
mkdir -p "$out"

# Each build has its own directory, because different compiler flags would rebuild everything. All
# builds have the profile `release`, because `dev` optimises our own crates whatever its level is.
run() {
    name=$1
    level=$2
    flags=$3
    RUSTFLAGS="$flags" CARGO_TARGET_DIR="$out/$name" CARGO_PROFILE_RELEASE_OPT_LEVEL="$level" \
        CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG=false \
        "$cargo" build --quiet --release --package evenfall-studies --example same
    "$out/$name/release/examples/same" >"$out/$name.txt"
}

run optimised 3 ""
run plain 0 ""
builds="plain"
case $(uname -m) in
x86_64)
    if grep -qw avx2 /proc/cpuinfo && grep -qw fma /proc/cpuinfo; then
        run fused 3 "-C target-feature=+avx2,+fma"
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
