#!/bin/sh
# After the files of a package are in place. dpkg sets DPKG_ROOT to install into a directory that is no running system.
set -e

systemd-sysusers ${DPKG_ROOT:+--root="$DPKG_ROOT"} timerd.conf

# A timerd that runs goes on as the new version. The first start is the user's, after the configuration.
if [ -z "$DPKG_ROOT" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl try-restart timerd.service timerd-deliver.service 'timerd-consume@*.service' || :
fi
