#!/usr/bin/env bash
# Tests the client for Node.js, or packs it into bin/. Usage: scripts/client-typescript.sh test|pack
set -euo pipefail
cd "$(dirname "$0")/../clients/typescript"

# installed installs the packages that the lock file names.
installed() {
  node -e 'const [a, b] = process.versions.node.split(".").map(Number);
    process.exit(a > 18 || (a === 18 && b >= 19) ? 0 : 1)' ||
    { echo "client-typescript: it needs Node.js 18.19 or later, this is $(node --version)" >&2; return 1; }
  npm ci --prefer-offline --ignore-scripts --no-audit --no-fund --fetch-retries=1 --fetch-timeout=20000
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
