#!/usr/bin/env bash
# Tests the client for Node.js, or packs it into bin/. Usage: scripts/client-typescript.sh test|pack
# Where there is no Node.js that is new enough, or no way to npm's registry, `test` says so and is no failure.
set -euo pipefail
cd "$(dirname "$0")/../clients/typescript"

# cannot WHY: ends the script. What is not tested is said in a form that scripts/test.sh repeats at its end.
cannot() {
  echo "NOT TESTED: clients/typescript: $1" >&2
  [ "$what" = test ] || exit 1
  exit 0
}

# installed installs the packages that the lock file names.
installed() {
  local said
  command -v node >/dev/null || cannot "Node.js is not installed"
  command -v npm >/dev/null || cannot "npm is not installed"
  node -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 18 || (a === 18 && b >= 19) ? 0 : 1)' ||
    cannot "it needs Node.js 18.19 or later, this is $(node --version)"
  said=$(npm ci --prefer-offline --ignore-scripts --no-audit --no-fund --fetch-retries=1 --fetch-timeout=20000 2>&1) && return
  echo "$said"
  grep -qE 'ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ENETUNREACH|ETIMEDOUT|ERR_SOCKET_TIMEOUT' <<<"$said" &&
    cannot "npm does not reach its registry"
  return 1
}

what=${1:-test}
installed
case $what in
  test)
    rm -rf dist build
    npm run --silent build
    node_modules/.bin/tsc -p test/tsconfig.json
    node --test --test-reporter=spec build/
    ;;
  pack)
    rm -rf dist
    mkdir -p ../../bin
    npm pack --silent --pack-destination ../../bin
    ;;
  *) echo "client-typescript: $what: want test or pack" >&2; exit 2 ;;
esac
