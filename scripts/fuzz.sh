#!/usr/bin/env bash
# Runs each fuzz target of the module for FUZZTIME, one after the other.
set -euo pipefail
cd "$(dirname "$0")/.."

for package in $(go list ./...); do
  for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
    echo "== $package $target"
    go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-30s}" "$package"
  done
done
