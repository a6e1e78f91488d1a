#!/usr/bin/env bash
# Installs the systems measured beside timerd: rabbitmq (the Debian package, without starting its service), postgresql
# (likewise), bullmq (npm packages into bench/bullmq/node_modules). The Go ones come with go.mod. Usage: bench/deps.sh
# PEER... A failed installation is named, and is no failure: the benchmark leaves that system out and reports it.
set -uo pipefail
cd "$(dirname "$0")"

peers=("$@")
set --
. ../scripts/deps.sh
set +e

missing() { echo "deps: NOT MEASURED without it: $*" >&2; }

# debian PACKAGE PATH: installs a package unless PATH, which it brings, is there, and keeps its service from starting
# at the next boot.
debian() {
  compgen -G "$2" >/dev/null && return
  command -v apt-get >/dev/null || { missing "$1 (only Debian's package is known here)"; return; }
  # In a shell of its own: a failure ends that shell only.
  (may_install "$1" && apt_install "$1") || { missing "$1"; return; }
  if command -v update-rc.d >/dev/null && [ -e "/etc/init.d/$1" ]; then as_root update-rc.d "$1" disable; fi
  if command -v systemctl >/dev/null; then as_root systemctl disable "$1" 2>/dev/null; fi
}

peer_rabbitmq() { debian rabbitmq-server /usr/lib/rabbitmq/bin/rabbitmq-server; }
peer_postgresql() { debian postgresql '/usr/lib/postgresql/*/bin/postgres'; }

peer_bullmq() {
  [ -d bullmq/node_modules/bullmq ] && return
  command -v node >/dev/null && command -v npm >/dev/null || { missing "bullmq (node and npm are needed)"; return; }
  (cd bullmq && npm install --no-package-lock --no-audit --no-fund --silent) || missing bullmq
}

for peer in "${peers[@]}"; do
  "peer_$peer"
done
exit 0
