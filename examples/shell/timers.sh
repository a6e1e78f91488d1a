#!/bin/sh
# Sets, extends, cancels and watches timers with redis-cli alone.
#
#   examples/shell/timers.sh redis://127.0.0.1:6379
#
# That is the Redis of a running timerd; `make run` starts one and prints its port. REDIS_CLI names
# another client, such as valkey-cli.
set -eu

url=${1:-redis://127.0.0.1:6379}

redis() { "${REDIS_CLI:-redis-cli}" -e -u "$url" "$@"; }

# get KEY: the attempt and the payload of a pending timer, on one line.
get() { redis FCALL_RO timer_get 1 "$1" | sed -n '4p;6p' | paste -s -d ' ' -; }

# until_is WANT COMMAND...: runs a command until it prints WANT, for 10 s at most.
until_is() {
  want=$1
  shift
  for _ in $(seq 100); do
    [ "$("$@")" != "$want" ] || return 0
    sleep 0.1
  done
  echo "not within 10 s: $* prints $want" >&2
  return 1
}

echo "- set a timer with a plain SET: the TTL says when, the value is the payload"
redis SET shop:shell:plain:1 '{"order":1}' EX 60
until_is '1 {"order":1}' get shop:shell:plain:1 # timerd takes it up within a millisecond or so
get shop:shell:plain:1

echo "- extend it: EXPIRE moves the due time and keeps the payload"
redis EXPIRE shop:shell:plain:1 3600
redis TTL shop:shell:plain:1

echo "- cancel it: DEL"
redis DEL shop:shell:plain:1
until_is '' get shop:shell:plain:1
redis FCALL timer_cancel 1 shop:shell:plain:1

echo "- set one that is in the schedule as soon as Redis answers, whether a timerd runs or not"
redis FCALL timer_set 1 shop:shell:explicit:2 '{"order":2}' EX 60 | sed 's/^[0-9]\{13\}$/due, in unix ms/'
get shop:shell:explicit:2

echo "- set it only if there is none: nothing, because there is one"
redis FCALL timer_set 1 shop:shell:explicit:2 other EX 60 NX

echo "- extend it: set it again, or EXPIRE; and cancel it, with a definite answer"
redis FCALL timer_set 1 shop:shell:explicit:2 '{"order":2,"extended":true}' EX 3600 XX |
  sed 's/^[0-9]\{13\}$/due, in unix ms/'
get shop:shell:explicit:2
redis FCALL timer_cancel 1 shop:shell:explicit:2
redis FCALL timer_cancel 1 shop:shell:explicit:2

echo "- let one fire: it is not pending any more, and cancelling it comes too late"
redis FCALL timer_set 1 shop:shell:explicit:3 '{"order":3}' PX 200 | sed 's/^[0-9]\{13\}$/due, in unix ms/'
until_is '' get shop:shell:explicit:3
redis FCALL timer_cancel 1 shop:shell:explicit:3
