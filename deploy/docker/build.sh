#!/usr/bin/env bash
# Builds the static binary on this host, and an image that has only the binary. Needs Rust and a running Docker engine,
# and no registry.
#
#   deploy/docker/build.sh [TAG]          default evenfall:local
#   FEATURES=agents deploy/docker/build.sh    less than everything, of which the default is full
#   PROGRAM=FILE deploy/docker/build.sh       a static program that is built already
set -euo pipefail
cd "$(dirname "$0")/../.."
tag=${1:-evenfall:local}
program=${PROGRAM:-}
if [[ -z $program ]]; then
  target=$(uname -m)-unknown-linux-gnu
  # A static binary with glibc. glibc loads some of its parts by name at run time, and the program uses none of them. The
  # named target keeps build scripts and macros dynamic.
  RUSTFLAGS="-C target-feature=+crt-static" \
    cargo build --profile lean --target "$target" --package evenfall-cli --features "${FEATURES:-full}"
  program=target/$target/lean/evenfall
fi
context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
cp "$program" "$context/evenfall"
# Root certificates for a store on S3 over HTTPS. When this host has none, the image has none.
mkdir -p "$context/certs"
cp /etc/ssl/certs/ca-certificates.crt "$context/certs/" 2>/dev/null \
  || echo "no /etc/ssl/certs/ca-certificates.crt here: the image reaches no S3 over HTTPS" >&2
mkdir "$context/state"
cat >"$context/Dockerfile" <<'END'
FROM scratch
COPY evenfall /evenfall
COPY certs /etc/ssl/certs
COPY --chown=65534:65534 state /var/lib/evenfall
WORKDIR /var/lib/evenfall
USER 65534:65534
# Set HEALTH_HTTP to the `http` address of the container's node, such as 127.0.0.1:9180. While it is empty, nobody is
# asked, and the container counts as healthy.
ENV HEALTH_HTTP=""
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["/evenfall", "stat", "--healthy"]
ENTRYPOINT ["/evenfall"]
END
# Uses the classic builder, because the newer builder is a plugin that many engines lack.
DOCKER_BUILDKIT=0 docker build -q -t "$tag" "$context"
