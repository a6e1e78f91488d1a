#!/usr/bin/env bash
# Makes the archives of a release from this tree, as .goreleaser.yaml does for a tag; a test compares the two.
# Usage: scripts/dist.sh DIRECTORY VERSION SYSTEM/ARCHITECTURE...
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$1 version=$2
shift 2
export CGO_ENABLED=0 GOFLAGS=
files=(LICENSE README.md CHANGELOG.md deploy/README.md deploy/redis.conf deploy/nats.conf deploy/users.acl deploy/timerd.service)

mkdir -p "$dir"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
archives=()
for target in "$@"; do
  name=timerd_${version}_${target%/*}_${target#*/}
  GOOS=${target%/*} GOARCH=${target#*/} go build -trimpath -ldflags "-s -w -X main.version=$version" -o "$work/timerd" ./cmd/timerd
  tar --create --gzip --file "$dir/$name.tar.gz" --directory "$work" timerd --directory "$PWD" "${files[@]}"
  archives+=("$name.tar.gz")
  echo "$dir/$name.tar.gz"
done
cd "$dir"
if command -v sha256sum >/dev/null; then sha256sum "${archives[@]}"; else shasum -a 256 "${archives[@]}"; fi >checksums.txt
echo "$dir/checksums.txt"
