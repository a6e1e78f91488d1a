#!/usr/bin/env bash
# Every check, then the tests. All of them run, whatever fails: one run tells everything. `make test`
# calls this with the version of govulncheck.
#
# The tests wait for clocks and servers half of the time. So the linters are built and run beside them,
# with less priority, and their output comes at the end.
set -uo pipefail
cd "$(dirname "$0")/.."

# How many tests of a package run at a time: they mostly wait.
PARALLEL=8

work=$(mktemp -d)
trap 'kill -- "-${linters:-}" 2>/dev/null; rm -rf "$work"' EXIT

# step NAME COMMAND...: runs a check and notes its failure.
step() {
  local name=$1
  shift
  echo "== $name"
  "$@" || echo "$name" >>"$work/failed"
}

# sources prints the Go files whose names end as given. It does not ask git, which may not trust a tree
# that belongs to somebody else.
sources() {
  find . -path './.*' -prune -o -path ./bin -prune -o -name "*$1" -print0
}

formatted() {
  local files
  files=$(sources .go | xargs -0 gofmt -l) || return
  [ -z "$files" ] || { echo "not gofmt-ed:"; echo "$files"; return 1; }
}

# sleepless refuses time.Sleep in tests, except in the fake time of testing/synctest.
sleepless() {
  local found
  found=$(sources _test.go | xargs -0 grep -l 'time\.Sleep(' | while read -r file; do
    grep -q '"testing/synctest"' "$file" || echo "$file"
  done)
  [ -z "$found" ] || { echo "time.Sleep in tests; wait for a signal, or poll with testenv.Eventually:"; echo "$found"; return 1; }
}

# vulnerable tells of known vulnerabilities. They come to light whenever somebody finds one, so
# they are no failure of this tree; `make vuln` fails on them.
vulnerable() {
  local out status=0
  if ! scripts/tool.sh "golang.org/x/vuln/cmd/govulncheck@$GOVULNCHECK_VERSION"; then
    echo "govulncheck cannot be built here: skipped"
    return
  fi
  out=$(bin/govulncheck ./... 2>&1) || status=$?
  case $status in
    0) echo "$out" ;;
    3) echo "$out"; echo "WARNING: known vulnerabilities, see above" ;;
    *) echo "govulncheck could not run, vuln.go.dev may be out of reach: skipped: $(tail -n 1 <<<"$out")" ;;
  esac
}

linters() {
  step golangci-lint make --no-print-directory lint
  step govulncheck vulnerable
}

# tested runs the tests, PARALLEL of a package at a time and as many packages as there are processors.
# Those of examples also tell what they skipped, the only ones that may skip anything: where there is
# no Node.js that is new enough, or no way to npm's registry.
tested() {
  local status=0
  go list ./... | grep -v /examples$ | xargs go test -race -timeout 15m -parallel "$PARALLEL" || status=1
  go test -race -timeout 15m -v ./examples || status=1
  return $status
}

set -m # a process group of its own, to be stopped as a whole
(renice -n 19 -p "$BASHPID" >/dev/null; linters) >"$work/linters" 2>&1 </dev/null &
linters=$!
set +m

step gofmt formatted
step "sleeps in tests" sleepless
step "go mod tidy" go mod tidy -diff
step "go vet" go vet ./...
step "go test" tested
step bench make --no-print-directory bench-test
step "console API" make --no-print-directory api-test
step docker-compose.yml make --no-print-directory compose-test
step console make --no-print-directory console-test
wait "$linters"
linters=
cat "$work/linters"

if [ -s "$work/failed" ]; then
  sed 's/^/FAILED: /' "$work/failed" >&2
  exit 1
fi
