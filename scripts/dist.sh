#!/usr/bin/env bash
# Makes the archives and packages of a release from this tree, as .goreleaser.yaml does for a tag; a test compares the
# two. The packages, for Linux alone, are made by bin/nfpm, which `make dist` builds.
# Usage: scripts/dist.sh DIRECTORY VERSION SYSTEM/ARCHITECTURE...
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$1 version=$2
shift 2
export CGO_ENABLED=0 GOFLAGS=
files=(LICENSE README.md CHANGELOG.md deploy/README.md deploy/redis.conf deploy/nats.conf deploy/users.acl
  deploy/systemd/timerd.service deploy/systemd/timerd-deliver.service deploy/systemd/timerd-consume@.service)

mkdir -p "$dir"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
made=()

# settings ARCHITECTURE: those of nfpm for $work/timerd, by the section nfpms of .goreleaser.yaml.
settings() {
  case $version in
    v[0-9]*.* | [0-9]*.*) echo "version: $version" ;;
    *) echo "version: 0.0.0-g$version" ;; # of a commit without a tag
  esac
  printf 'name: timerd\nplatform: linux\narch: %s\n' "$1"
  sed -n '/^nfpms:/,/^[a-z]*:$/s/^    //p' .goreleaser.yaml |
    sed -e '/^file_name_template:/d; /^formats:/d; s/^\( *\)dependencies:/\1depends:/' \
      -e "s|\.cache/packages|$work/files|"
  printf '  - {src: %s, dst: /usr/bin/timerd, file_info: {mode: 0755}}\n' "$work/timerd"
}

for target in "$@"; do
  system=${target%/*} architecture=${target#*/}
  name=timerd_${version}_${system}_$architecture.tar.gz
  GOOS=$system GOARCH=$architecture \
    go build -trimpath -ldflags "-s -w -X main.version=$version" -o "$work/timerd" ./cmd/timerd
  tar --create --gzip --file "$dir/$name" --directory "$work" timerd --directory "$PWD" "${files[@]}"
  made+=("$name")
  [ "$system" = linux ] || continue
  [ -d "$work/files" ] || deploy/packages/files.sh "$work/files" "$version"
  settings "$architecture" >"$work/nfpm.yaml"
  for format in deb rpm; do
    said=$(bin/nfpm package --config "$work/nfpm.yaml" --packager "$format" --target "$dir")
    made+=("$(basename "${said##*created package: }")")
  done
done
cd "$dir"
sum=(sha256sum)
command -v sha256sum >/dev/null || sum=(shasum -a 256)
"${sum[@]}" "${made[@]}" >checksums.txt
printf "$dir/%s\n" "${made[@]}" checksums.txt
