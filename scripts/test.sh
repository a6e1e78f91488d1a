#!/usr/bin/env bash
# Every check, then the tests. All of them run, whatever fails: one run tells everything. `make test`
# calls this with the version of govulncheck.
#
# The tests wait for clocks and servers half of the time. So the linters, and the modules whose tests mind
# no company, are built and run beside them, with less priority, and their output comes at the end.
set -uo pipefail
cd "$(dirname "$0")/.."

# How many tests of a package run at a time: they mostly wait.
PARALLEL=8

work=$(mktemp -d)
trap 'for group in ${beside[*]:-}; do kill -- "-$group" 2>/dev/null; done; rm -rf "$work"' EXIT

# step NAME COMMAND...: runs a check, and notes its failure and what it says that it has not tested.
step() {
  local name=$1 said
  shift
  said=$(mktemp -p "$work")
  echo "== $name"
  "$@" 2>&1 | tee "$said" || echo "$name" >>"$work/failed"
  grep -o 'NOT TESTED.*' "$said" >>"$work/untested"
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

modules() {
  step deploy make --no-print-directory deploy-test
  step examples/tracing make --no-print-directory tracing-test
  step "console API" make --no-print-directory api-test
  step bench make --no-print-directory bench-test
}

# beside NICENESS FUNCTION runs a function beside what follows, as a process group of its own, to be
# stopped as a whole.
beside=()
beside() {
  set -m
  (renice -n "$1" -p "$BASHPID" >/dev/null; "$2") >"$work/$2" 2>&1 </dev/null &
  beside+=($!)
  set +m
}

# Here, because two cannot install at a time.
step "tools of some modules" scripts/deps.sh promtool chromium
beside 10 modules
beside 19 linters
step gofmt formatted
step "sleeps in tests" sleepless
step "go mod tidy" go mod tidy -diff
step "go vet" go vet ./...
step "go test" tested
step console make --no-print-directory console-test
step clients/typescript make --no-print-directory client-test-typescript
wait "${beside[@]}"
beside=()
cat "$work/modules" "$work/linters"

[ ! -s "$work/untested" ] || sort -u "$work/untested" >&2
if [ -s "$work/failed" ]; then
  sed 's/^/FAILED: /' "$work/failed" >&2
  exit 1
fi
