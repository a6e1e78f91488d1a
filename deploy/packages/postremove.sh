#!/bin/sh
# After the files of a package are removed. The user timerd and its data in /var/lib/timerd stay.
set -e

if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload || :
fi
