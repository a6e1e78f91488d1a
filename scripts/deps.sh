#!/usr/bin/env bash
# Installs what is missing of: go (only checked), redis (redis-server or valkey-server, 7.0 or later),
# cc (a C compiler, for the race detector). Usage: scripts/deps.sh WHAT...
# Uses the system's package manager, with sudo where needed. Says nothing when all is there.
set -euo pipefail

fail() { echo "deps: $*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "not root and no sudo: run as root: $*"
  fi
}

# apt_install installs Debian packages without starting their services: a Redis on port 6379 that
# nobody asked for would be in the way of the user's own.
apt_install() {
  local policy=/usr/sbin/policy-rc.d made=""
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod 755 "$policy"
    made=1
  fi
  local status=0
  { as_root apt-get update -q &&
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"; } || status=$?
  [ -z "$made" ] || as_root rm -f "$policy"
  return "$status"
}

# install_packages APT APK DNF BREW: package lists of the package managers; a | separates alternatives.
install_packages() {
  local apt=$1 apk=$2 dnf=$3 brew=$4 try tries
  if command -v apt-get >/dev/null; then
    IFS='|' read -ra tries <<<"$apt"
    for try in "${tries[@]}"; do apt_install $try && return; done
  elif command -v apk >/dev/null; then
    IFS='|' read -ra tries <<<"$apk"
    for try in "${tries[@]}"; do as_root apk add --no-cache $try && return; done
  elif command -v dnf >/dev/null; then
    IFS='|' read -ra tries <<<"$dnf"
    for try in "${tries[@]}"; do as_root dnf install -y $try && return; done
  elif command -v brew >/dev/null; then
    IFS='|' read -ra tries <<<"$brew"
    for try in "${tries[@]}"; do brew install $try && return; done
  else
    fail "no apt-get, apk, dnf or brew: install by hand: $apt"
  fi
  fail "the package manager could not install: $apt"
}

# redis_binary prints the path of the server that the tests and `timerd dev` will find.
redis_binary() {
  command -v "${TIMERD_TEST_REDIS_SERVER:-redis-server}" || command -v valkey-server ||
    PATH=/usr/bin:/usr/local/bin:/usr/sbin:/opt/homebrew/bin command -v redis-server
}

need_redis() {
  if ! redis_binary >/dev/null; then
    install_packages "redis-server|valkey-server" "redis|valkey" "redis|valkey" "redis"
    # The package is to lend its binary, not to run at the next boot.
    if command -v systemctl >/dev/null && [ -d /run/systemd/system ]; then
      for unit in redis-server redis valkey-server valkey; do
        as_root systemctl disable --quiet "$unit" 2>/dev/null || true
      done
    fi
  fi
  local binary version
  binary=$(redis_binary) || fail "redis-server was installed but is not found in PATH"
  version=$("$binary" --version | sed -n 's/.* v=\([0-9]*\)\..*/\1/p')
  [ "${version:-0}" -ge 7 ] ||
    fail "$binary is too old: $("$binary" --version); timerd needs Redis 7.0 or later, or Valkey"
}

need_cc() {
  # The race detector needs cgo everywhere but on macOS.
  if [ "$(uname -s)" != Darwin ] && ! command -v "${CC:-cc}" >/dev/null && ! command -v gcc >/dev/null; then
    install_packages "gcc libc6-dev" "gcc musl-dev" "gcc glibc-devel" "gcc"
  fi
}

need_go() {
  command -v go >/dev/null || fail "no go in PATH or /usr/local/go/bin: install Go 1.26 or later from https://go.dev/dl"
}

for what in "$@"; do
  "need_$what"
done
