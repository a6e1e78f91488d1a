#!/usr/bin/env bash
# Fetches the Redis or Valkey server of another Debian release into a directory of its own, to test against,
# and prints the path to give to TIMERD_TEST_REDIS_SERVER. For Debian and its like; nothing is installed
# and apt's own configuration stays as it is.
#
#   scripts/get-server.sh valkey-server trixie     # Valkey 8.1
#   scripts/get-server.sh redis-server trixie      # Redis 8.0
#   scripts/get-server.sh valkey-server sid        # Valkey 9.1
#   scripts/get-server.sh redis-server experimental # Redis 8.6
#
# Usage: scripts/get-server.sh PACKAGE RELEASE [DIRECTORY]
set -euo pipefail

if [ $# -lt 2 ]; then
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
package=$1 release=$2
dir=${3:-$(cd "$(dirname "$0")/.." && pwd)/.cache/servers/$release}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
wrapper=$dir/$package

# The mirror that this system uses for Debian itself.
mirror=$(apt-get indextargets --format '$(SITE) $(ORIGIN)' 'Created-By: Packages' |
  awk '$2 == "Debian" {print $1; exit}')
[ -n "$mirror" ] || { echo "get-server: this system's apt has no Debian mirror" >&2; exit 1; }

# An apt of its own, which believes that nothing is installed and so fetches every library too.
apt=$dir/apt
mkdir -p "$apt"/lists/partial "$apt"/cache/archives/partial "$apt"/none
: >"$apt/status"
echo "deb $mirror $release main" >"$apt/sources.list"
# The release experimental has only what differs from sid.
[ "$release" != experimental ] || echo "deb $mirror sid main" >>"$apt/sources.list"
cat >"$apt/apt.conf" <<CONF
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "$apt/none";
Dir::Etc::preferencesparts "$apt/none";
Dir::State "$apt";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Acquire::Languages "none";
APT::Install-Recommends "false";
Debug::NoLocking "true";
CONF
export APT_CONFIG=$apt/apt.conf
apt-get update -q >&2
apt-get install -q -y --download-only --target-release "$release" "$package" >&2

root=$dir/root
mkdir -p "$root"
for deb in "$apt"/cache/archives/*.deb; do
  dpkg-deb -x "$deb" "$root"
done

# The server runs with the libraries of its own release, found by that release's loader.
loader=$(find "$root" -name 'ld-linux*.so.*' -type f | head -n 1)
[ -n "$loader" ] || { echo "get-server: no loader among the packages of $package" >&2; exit 1; }
libraries=$(find "$root" -path '*/lib/*' -name 'lib*.so.*' -printf '%h\n' | sort -u | paste -s -d :)
cat >"$wrapper" <<WRAPPER
#!/bin/sh
exec '$loader' --argv0 '$package' --library-path '$libraries' '$root/usr/bin/$package' "\$@"
WRAPPER
chmod +x "$wrapper"
"$wrapper" --version >&2
echo "$wrapper"
