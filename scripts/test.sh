#!/usr/bin/env bash
# Runs checks and tests. All of them run, even after failures: one run shows everything. Usage: scripts/test.sh
# core|rest|server|quick
#
#   core    `make test`: vet, every package's tests with the race detector, and the core of the whole systems
#   rest    `make test-all`: all that core leaves out. `make` gives it the version of govulncheck
#   server  `make test-server`: of both, what talks to Redis, clusters and properties too
#   quick   `make quick`: for a change under way; tests do not run again if nothing has changed since they passed
set -uo pipefail
cd "$(dirname "$0")/.."

# What only rest runs: packages, and by their names tests of the other packages.
REST_PACKAGES='/(torture|examples|clients|test/system/(faults|cluster|holds|repeat|deliver))(/|$)'
REST_TESTS='Cluster|Sentinel|Random|AtScale'

# Compiling is most of a cold run. So everything is compiled with the same flags, with the race detector: the build
# cache keeps each set of flags separately. Without inlining in this module: each package that imports go-redis 9.23
# compiles its client's 500 promoted methods again, which takes half of the time then. And with a collector that saves
# time instead of memory: of the compilers alone, see ALWAYS.
export GOFLAGS="${GOFLAGS:-} -race -gcflags=github.com/timerd-io/timerd/...=-l"
export GOGC=400

# How many packages are tested at a time, and how many tests of each: they mostly wait. Whole systems less so.
PACKAGES=4
PARALLEL=8
# Flags of a run that believes no earlier one, and of the compilers' collector in no test.
ALWAYS=(-count=1 -exec "env -u GOGC")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# step NAME COMMAND...: runs a check, prints its duration, and notes its failure.
step() {
  local name=$1 TIMEFORMAT="== $1: %0lR, CPU %0lU and %0lS"
  shift
  echo "== $name"
  time "$@" || echo "$name" >>"$work/failed"
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
  [ -z "$found" ] && return
  echo "time.Sleep in tests; wait for a signal, or poll with testenv.Eventually:"
  echo "$found"
  return 1
}

# programs builds what the tests need: timerd, for tests of whole systems, and what prints their results.
programs() {
  go build -o .cache/test/ ./cmd/timerd ./test/report
}

# tested FLAGS... PACKAGES: runs tests and names the slowest ones.
tested() {
  TIMERD_TEST_PROGRAM=$PWD/.cache/test/timerd \
    go test -vet=off -json -timeout 20m -p "$PACKAGES" -parallel "$PARALLEL" "$@" | .cache/test/report
}

# packages prints the packages that only rest runs, with -v the ones that core runs.
packages() { go list ./... | grep -E "$@" "$REST_PACKAGES"; }

core() {
  step gofmt formatted
  step "sleeps in tests" sleepless
  step "go vet" go vet $(packages -v)
  step "go build" programs
  step "go test" tested "${ALWAYS[@]}" -skip "$REST_TESTS" $(packages -v)
}

server() {
  PACKAGES=1
  PARALLEL=3
  step "go build" programs
  step "go test" tested "${ALWAYS[@]}" ./schedule ./listener ./client ./internal/rights ./internal/doctor \
    ./test/system/core ./test/system/cluster # in each of them clusters
}

quick() {
  unset GOGC
  step "go vet" go vet $(packages -v)
  step "go build" programs
  step "go test" tested -skip "$REST_TESTS" $(packages -v | grep -vE '/(cmd|test)/')
}

# vulnerable prints known vulnerabilities. New ones appear at any time, so they are no failure of this tree; `make vuln`
# fails on them.
vulnerable() {
  local out status=0
  scripts/tool.sh "golang.org/x/vuln/cmd/govulncheck@$GOVULNCHECK_VERSION" || return
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

benchmarks() { step bench make --no-print-directory bench-test; }

modules() {
  step "console API" make --no-print-directory api-test
  step examples/tracing make --no-print-directory tracing-test
}

# idly NICENESS COMMAND... runs a command in the background, with what the processors have left: tests of whole systems
# mostly wait. idled waits for it, and prints its output.
idly() {
  renice -n "$1" "$BASHPID" >/dev/null
  "${@:2}" </dev/null
} >"$work/idly.$BASHPID" 2>&1
idled() {
  wait "$1"
  cat "$work/idly.$1"
}

# compiled is the checks that mostly compile.
compiled() {
  step "go mod tidy" go mod tidy -diff
  step "go vet" go vet $(packages)
  linters
  step deploy make --no-print-directory deploy-test
}

rest() {
  PACKAGES=2
  PARALLEL=4
  local compiling measuring
  step "go build" programs
  idly 19 compiled &
  compiling=$!
  export TIMERD_TEST_MESSAGES=$PWD/.cache/test/messages.jsonl # from torture to the tests of the schemas
  rm -f "$TIMERD_TEST_MESSAGES"
  # The longest first.
  step "tests of whole systems, torture, examples, clients" tested "${ALWAYS[@]}" \
    $(packages | grep -v /cluster | sort -r)
  # A cluster of three to six servers, with its timerds, takes up half a processor.
  PARALLEL=3 step "whole systems on a cluster" tested "${ALWAYS[@]}" ./test/system/cluster
  idly 10 benchmarks & # five minutes that mostly wait
  measuring=$!
  step "clusters, sentinels, properties, crowds" tested "${ALWAYS[@]}" -run "$REST_TESTS" $(packages -v)
  idly 5 modules & # servers that answer in time
  step console make --no-print-directory console-test
  step clients/typescript env TIMERD="$PWD/.cache/test/timerd" scripts/client-typescript.sh test
  idled $!
  idled $compiling
  idled $measuring
}

case ${1:-} in
  core | rest | server | quick) "$1" ;;
  *) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
times >"$work/times"
echo "CPU time, user and system: $(tail -n 1 "$work/times")"
if [ -s "$work/failed" ]; then
  sed 's/^/FAILED: /' "$work/failed" >&2
  exit 1
fi
