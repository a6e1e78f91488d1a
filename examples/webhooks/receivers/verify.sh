#!/bin/sh
# Verifies a webhook with openssl alone. The body is on standard input, as the bytes that came.
#
#   WEBHOOK_SECRET=whsec_… verify.sh WEBHOOK_ID WEBHOOK_TIMESTAMP WEBHOOK_SIGNATURE < body
set -eu

now=$(date +%s)
if [ "$2" -lt $((now - 300)) ] || [ "$2" -gt $((now + 300)) ]; then
  echo "refused: the timestamp is over five minutes off"
  exit 1
fi
key=$(printf %s "${WEBHOOK_SECRET#whsec_}" | openssl base64 -d -A | od -An -v -tx1 | tr -d ' \n')
want=$({ printf %s.%s. "$1" "$2"; cat; } |
  openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" -binary | openssl base64 -A)
for signature in $3; do # several while a secret is replaced
  if [ "$signature" = "v1,$want" ]; then
    echo verified
    exit 0
  fi
done
echo "refused: no signature matches"
exit 1
