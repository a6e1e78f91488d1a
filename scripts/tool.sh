#!/usr/bin/env bash
# Builds a Go tool into bin/ unless it is there in this version. Usage: scripts/tool.sh PACKAGE@VERSION
set -euo pipefail
cd "$(dirname "$0")/.."

package=${1%@*} version=${1#*@}
binary=bin/$(basename "${package%/v[0-9]}") # the major version at the end of a path is no name
if [ -x "$binary" ] && go version -m "$binary" | awk '$1 == "mod" {print $3}' | grep -qx "$version"; then
  exit
fi
echo "building $binary $version (once, takes minutes)"
for _ in 1 2 3; do # the proxy may be out of reach for a moment
  # A binary for this machine, whatever the build is for.
  GOBIN=$PWD/bin GOOS='' GOARCH='' GOFLAGS='' go install "$1" && exit
done
exit 1
