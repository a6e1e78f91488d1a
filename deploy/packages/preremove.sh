#!/bin/sh
# Before the files of a package are removed, and before an upgrade, in which nothing is stopped. Debian's first argument
# is then "upgrade", RPM's the number of versions that stay.
set -e

case $1 in
  remove | 0)
    if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
      systemctl disable --now timerd.service timerd-deliver.service || :
      systemctl stop 'timerd-consume@*.service' || :
    fi
    ;;
esac
