#!/usr/bin/env bash
# Makes the files of the packages that are not in the tree: manual pages, completions, copyright and changelogs.
# Usage: deploy/packages/files.sh DIRECTORY VERSION. Used by scripts/dist.sh and .goreleaser.yaml.
set -euo pipefail
dir=$(mkdir -p "$1" && cd "$1" && pwd)
version=$2
cd "$(dirname "$0")/../.."

rm -rf "${dir:?}"/*
mkdir "$dir/man" "$dir/doc"
# For this machine, whatever the packages are for.
CGO_ENABLED=0 GOFLAGS='' GOOS='' GOARCH='' \
  go build -trimpath -ldflags "-s -w -X main.version=$version" -o "$dir/timerd" ./cmd/timerd
"$dir/timerd" man "$dir/man"
gzip -9 --no-name "$dir"/man/*
for shell in bash zsh fish; do "$dir/timerd" completion "$shell" >"$dir/timerd.$shell"; done
rm "$dir/timerd"

gzip -9 --no-name --stdout CHANGELOG.md >"$dir/doc/changelog.gz"
gzip -9 --no-name --stdout >"$dir/doc/changelog.Debian.gz" <<END
timerd (${version#v}-1) unstable; urgency=medium

  * Made of the release $version; see changelog.gz.

 -- the timerd authors <timerd@users.noreply.github.com>  $(date -u -R)
END
cat >"$dir/doc/copyright" <<END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Source: https://github.com/timerd-io/timerd

Files: *
Copyright: 2026 the timerd authors
License: Apache-2.0
 On Debian systems, the text of this license is in /usr/share/common-licenses/Apache-2.0.
END
