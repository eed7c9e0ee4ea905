#!/usr/bin/env bash
# Builds the S3 server MinIO for `make test-long`, as target/minio; some minutes the first time. It
# needs Go (Debian: golang-go; an older one fetches the toolchain that it needs). The binary of
# another installation serves as well: EVENFALL_MINIO=/path/to/minio.
#
#   scripts/minio.sh prints the path of the binary
set -euo pipefail
cd "$(dirname "$0")/.."

version=v0.0.0-20260212201848-7aac2a2c5b7c
if [[ -n ${EVENFALL_MINIO:-} ]]; then
  echo "$EVENFALL_MINIO"
elif command -v minio >/dev/null 2>&1; then
  command -v minio
elif [[ -x target/minio ]]; then
  echo "$PWD/target/minio"
elif [[ ${NO_INSTALL:-} == 1 ]]; then
  echo "skipped: MinIO is not here, and NO_INSTALL=1 keeps it from being downloaded and built" >&2
  exit 1
elif command -v go >/dev/null 2>&1; then
  echo "downloading and building MinIO $version into target/, for the tests of a store on S3" >&2
  mkdir -p target
  GOBIN="$PWD/target" go install "github.com/minio/minio@$version" >&2
  echo "$PWD/target/minio"
else
  echo "no go here, so no MinIO: apt-get install golang-go" >&2
  exit 1
fi
