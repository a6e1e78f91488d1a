#!/usr/bin/env bash
# Installs the missing ones of: go (only checked), redis (redis-server or valkey-server, 7.0 or later), redis_cli,
# cc (a C compiler, for the race detector), chromium (a browser and a font, for the tests of the console), promtool
# (Prometheus's, for its rules), node (Node.js 18.19 or later, with npm), python_redis (Python 3 with its client of
# Redis), php (with the extension redis), dpkg, systemd (its systemd-analyze), openssl. Usage: scripts/deps.sh WHAT...
# Uses the system's package manager, with sudo where needed. Says nothing when all is there.
set -euo pipefail

fail() { echo "deps: $*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# may_install PACKAGE... ends the script where nobody may install packages.
may_install() {
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
    fail "missing, and neither root nor sudo to install it: $*"
}

# apt_install installs Debian packages without starting their services: a Redis on port 6379 that
# nobody asked for would be in the way of the user's own.
apt_install() {
  local policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    trap 'as_root rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
  fi
  # A broken source may not matter.
  as_root apt-get update -q || echo "deps: apt-get update failed, going on with what apt knows" >&2
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends -o DPkg::Lock::Timeout=120 "$@"
}

# install_packages APT APK DNF BREW: package names for each; a | separates alternatives.
install_packages() {
  local apt=$1 apk=$2 dnf=$3 brew=$4 try tries
  if [ "$(uname -s)" = Darwin ]; then
    command -v brew >/dev/null || fail "no brew: install by hand: $brew"
    brew install $brew
    return
  fi
  may_install "${apt%%|*}"
  if command -v apt-get >/dev/null; then
    IFS='|' read -ra tries <<<"$apt"
    for try in "${tries[@]}"; do apt_install $try && return; done
  elif command -v apk >/dev/null; then
    IFS='|' read -ra tries <<<"$apk"
    for try in "${tries[@]}"; do as_root apk add --no-cache $try && return; done
  elif command -v dnf >/dev/null; then
    IFS='|' read -ra tries <<<"$dnf"
    for try in "${tries[@]}"; do as_root dnf install -y $try && return; done
  else
    fail "no apt-get, apk or dnf: install by hand: $apt"
  fi
  fail "the package manager could not install: $apt"
}

# disable keeps services from running at the next boot: Debian's packages enable them, and are to lend their binaries.
disable() {
  if command -v update-rc.d >/dev/null; then
    local service
    for service in "$@"; do
      [ ! -e "/etc/init.d/$service" ] || as_root update-rc.d "$service" disable
    done
  fi
}

# redis_binary prints the path of the server that the tests and `timerd dev` will find.
redis_binary() {
  command -v "${TIMERD_TEST_REDIS_SERVER:-redis-server}" || command -v valkey-server ||
    PATH=/usr/bin:/usr/local/bin:/usr/sbin:/opt/homebrew/bin command -v redis-server
}

need_redis() {
  if ! redis_binary >/dev/null; then
    install_packages "redis-server|valkey-server" "redis|valkey" "redis|valkey" "redis"
    disable redis-server valkey-server
  fi
  local binary version
  binary=$(redis_binary) || fail "redis-server was installed but is not found in PATH"
  version=$("$binary" --version | sed -n 's/.* v=\([0-9]*\)\..*/\1/p')
  [ "${version:-0}" -ge 7 ] ||
    fail "$binary is too old: $("$binary" --version); timerd needs Redis 7.0 or later, or Valkey"
}

# The tests use the client too; on Debian it is a package of its own.
need_redis_cli() {
  command -v redis-cli >/dev/null || install_packages "redis-tools" "redis" "redis|valkey" "redis"
}

need_cc() {
  # The race detector needs cgo everywhere but on macOS.
  if [ "$(uname -s)" != Darwin ] && ! command -v "${CC:-cc}" >/dev/null && ! command -v gcc >/dev/null; then
    install_packages "gcc libc6-dev" "gcc musl-dev" "gcc glibc-devel" "gcc"
  fi
}

# browser_binary prints the path of the browser that the console's tests will find.
browser_binary() { command -v chromium || command -v chromium-browser || command -v google-chrome; }

# Only Debian's package is known to work: Ubuntu's is a snap, which does not see every file, and macOS's is in no PATH.
need_chromium() {
  if browser_binary >/dev/null; then return; fi
  grep -qs '^ID=debian' /etc/os-release ||
    fail "no chromium, chromium-browser or google-chrome in PATH, which the console's tests drive: install one by hand"
  may_install chromium
  apt_install chromium fonts-dejavu-core
}

# It is part of the server's package everywhere.
need_promtool() {
  if ! command -v promtool >/dev/null; then
    install_packages "prometheus" "prometheus" "golang-github-prometheus|prometheus" "prometheus"
    disable prometheus
    command -v promtool >/dev/null ||
      fail "prometheus was installed, but promtool is not found in PATH: get it from https://prometheus.io/download"
  fi
}

need_go() {
  command -v go >/dev/null || fail "no go in PATH or /usr/local/go/bin: install Go 1.26 or later from https://go.dev/dl"
}

node_fits() {
  command -v npm >/dev/null && node -e '
    const [major, minor] = process.versions.node.split(".").map(Number);
    process.exit(major > 18 || (major === 18 && minor >= 19) ? 0 : 1);' 2>/dev/null
}

need_node() {
  node_fits && return
  install_packages "nodejs npm" "nodejs npm" "nodejs npm" "node"
  node_fits || fail "the system's Node.js is too old: clients/typescript and examples/node need 18.19 or later," \
    "and npm: see https://nodejs.org"
}

# The system's packages are for its own Python, which another one may hide.
python_redis_fits() { python3 -c 'import redis' 2>/dev/null || /usr/bin/python3 -c 'import redis' 2>/dev/null; }

need_python_redis() {
  python_redis_fits && return
  install_packages "python3 python3-redis" "python3 py3-redis" "python3 python3-redis" "python"
  python_redis_fits || fail "examples/python needs Python 3 and its package redis: install it by hand"
}

php_fits() { php -r "exit(extension_loaded('redis') ? 0 : 1);" 2>/dev/null; }

need_php() {
  php_fits && return
  install_packages "php-cli php-redis" "php83 php83-pecl-redis|php82 php82-pecl-redis" \
    "php-cli php-pecl-redis6|php-cli php-pecl-redis" "php"
  php_fits || fail "examples/php needs PHP with its extension redis: install it by hand, with pecl install redis"
}

need_dpkg() {
  command -v dpkg-deb >/dev/null || install_packages "dpkg" "dpkg" "dpkg" "dpkg"
}

# The units are checked by systemd itself, which need not run.
need_systemd() {
  if ! command -v systemd-analyze >/dev/null; then
    [ "$(uname -s)" = Linux ] || fail "the tests of deploy/systemd need systemd-analyze, which is for Linux"
    install_packages "systemd" "systemd" "systemd" ""
  fi
}

need_openssl() {
  command -v openssl >/dev/null || install_packages "openssl" "openssl" "openssl" "openssl"
}

for what in "$@"; do
  "need_$what"
done
