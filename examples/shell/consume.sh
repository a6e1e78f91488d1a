#!/bin/sh
# Handles events with a shell, as the command of timerd consume.
#
#     timerd consume shop:order:timeout -- sh consume.sh
#
# With one event at a time an answer needs no id.
while IFS= read -r event; do
  order=$(printf '%s\n' "$event" | sed 's/.*"timerid":"\([^"]*\)".*/\1/')
  if echo "order $order is cancelled" >&2; then
    echo '{"result":"done"}'
  else
    echo '{"result":"retry","error":"standard error is closed"}'
  fi
done
