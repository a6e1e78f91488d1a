#!/usr/bin/env bash
# Every check, then the tests. All of them run, whatever fails: one run tells everything. `make test`
# calls this with the versions of the tools.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()

# step NAME COMMAND...: runs a check and notes its failure.
step() {
  local name=$1
  shift
  echo "== $name"
  "$@" || failed+=("$name")
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

lint() {
  scripts/tool.sh "github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$GOLANGCI_LINT_VERSION" &&
    bin/golangci-lint run ./...
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

# untested prints what was skipped in the tests of examples/node, the only ones that may be: where there is no
# Node.js that is new enough, or no way to npm's registry. go test does not tell by itself.
untested() {
  local out
  out=$(go test -race -v -run "^TestNode\$" ./examples) || { echo "$out"; return 1; }
  grep -A 5 'NOT TESTED' <<<"$out" || echo "nothing"
}

step gofmt formatted
step "sleeps in tests" sleepless
step "go mod tidy" go mod tidy -diff
step "go vet" go vet ./...
step golangci-lint lint
step govulncheck vulnerable
step "go test" go test -race -timeout 15m ./...
step "what was not tested" untested
step bench make --no-print-directory bench-test

if [ ${#failed[@]} -gt 0 ]; then
  printf 'FAILED: %s\n' "${failed[@]}" >&2
  exit 1
fi
