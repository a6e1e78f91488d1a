#!/usr/bin/env bash
# Checks timerd.pml, and repeat.pml where the name begins with repeat, exhaustively in every configuration below: the
# right ones hold, and the ones with a part dropped or wrong have the expected counterexample.
# Usage: docs/model/run.sh [NAME...]   all, or the named ones with their counterexamples step by step
# Needs spin and a C compiler; MEMORY (6000) is the limit of each run in MB.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# NAME | what must come of it: holds, or the assertion that fails | switches
configurations='
one-life            | holds     | -DCRASHES=2 -DLOSSES=1
set-again           | holds     | -DLIVES=2 -DCRASHES=1 -DFAULTS=0
set-again-deaf      | holds     | -DLIVES=2 -DCRASHES=0 -DFAULTS=0 -DLOSSES=1
timer-set-again     | holds     | -DLIVES=2 -DONLY_TIMER_SET
extend-cancel       | holds     | -DCRASHES=1 -DFAULTS=0 -DLOSSES=1 -DEXTENDS=1 -DCANCELS=1
delete              | holds     | -DCRASHES=1 -DLOSSES=1 -DDELS=1
retry               | holds     | -DONLY_TIMER_SET -DRETRIES=1 -DCANCELS=1
retry-beside        | holds     | -DLIVES=2 -DONLY_TIMER_SET -DRETRIES=1 -DFAULTS=0 -DH=3
same-attempt        | holds     | -DPAYLOAD_STATES_ATTEMPT -DLIVES=2 -DONLY_TIMER_SET -DRETRIES=1 -DCRASHES=0 -DFAULTS=0 -DH=3
window              | holds     | -DNO_DELAYS -DCRASHES=1 -DWINDOW=3
window-too-short    | holds     | -DNO_DELAYS -DCRASHES=1 -DWINDOW=2
paused-firings      | holds     | -DPAUSES -DCRASHES=1 -DFAULTS=0
denied              | holds     | -DDENIALS=2 -DCRASHES=1 -DFAULTS=0
denied-set-again    | holds     | -DDENIALS=1 -DLIVES=2 -DCRASHES=0 -DFAULTS=0
denied-cancel       | holds     | -DDENIALS=1 -DLIVES=2 -DN=1 -DCANCELS=1 -DCRASHES=1 -DFAULTS=0
cancel-contested    | holds     | -DLIVES=2 -DCANCELS=1 -DCRASHES=0 -DFAULTS=0
cancel-owed         | holds     | -DPAUSES -DREFUSES -DCANCELS=1 -DCRASHES=1 -DH=5
cancel-owed-deaf    | holds     | -DPAUSES -DREFUSES -DCANCELS=1 -DCRASHES=0 -DFAULTS=0 -DLOSSES=1 -DH=5
cancel-owed-set-again | holds   | -DREFUSES -DLIVES=2 -DN=1 -DONLY_TIMER_SET -DCANCELS=1 -DCRASHES=1 -DFAULTS=0 -DH=5
waits               | holds     | -DWAITS -DCRASHES=1 -DLOSSES=1 -DFAULTS=0 -DEXTENDS=1
waits-set-again     | holds     | -DWAITS -DLIVES=2 -DCRASHES=0 -DFAULTS=0
waits-deaf          | holds     | -DWAITS -DLIVES=2 -DN=1 -DCRASHES=0 -DFAULTS=0 -DLOSSES=1
waits-cancel        | holds     | -DWAITS -DLIVES=2 -DN=1 -DCRASHES=0 -DFAULTS=0 -DCANCELS=1
paused              | holds     | -DHINTS_TOO_LATE -DLIVES=2 -DN=1 -DONLY_TIMER_SET -DCRASHES=0 -DFAULTS=0 -DH=6
hold                | holds     | -DHOLDS=1 -DONLY_TIMER_SET -DCRASHES=0 -DFAULTS=0
hold-crash          | holds     | -DHOLDS=1 -DONLY_TIMER_SET -DCRASHES=1 -DFAULTS=0 -DH=3
hold-twice          | holds     | -DHOLDS=2 -DN=1 -DONLY_TIMER_SET -DCRASHES=1 -DFAULTS=0
hold-cancel         | holds     | -DHOLDS=1 -DCANCELS=1 -DONLY_TIMER_SET -DCRASHES=0 -DFAULTS=0 -DH=3
hold-copies         | holds     | -DHOLDS=1 -DCOPIES_FOLLOW -DN=1 -DONLY_TIMER_SET -DCRASHES=1 -DFAULTS=0
hold-failover       | holds     | -DHOLDS=1 -DCOPIES_FOLLOW -DFAILOVERS=1 -DN=1 -DONLY_TIMER_SET -DCRASHES=0 -DFAULTS=0
hold-shift          | holds     | -DHOLDS=1 -DRESUME=SHIFTING -DLIVES=2 -DN=1 -DONLY_TIMER_SET -DCRASHES=1 -DFAULTS=0
hold-shift-both     | holds     | -DHOLDS=1 -DRESUME=SHIFTING -DLIVES=2 -DONLY_TIMER_SET -DCRASHES=0 -DFAULTS=0 -DH=3
late                | holds     | -DLATE=1 -DONLY_TIMER_SET -DCRASHES=1
hold-late           | holds     | -DHOLDS=1 -DLATE=1 -DN=1 -DONLY_TIMER_SET -DCRASHES=1 -DFAULTS=0
guard               | holds     | -DGUARDS=2 -DCRASHES=1
guard-plain         | holds     | -DGUARDS=2 -DLIVES=2 -DONLY_PLAIN -DCRASHES=0 -DFAULTS=0
guard-set-again     | holds     | -DGUARDS=1 -DLIVES=2 -DN=1 -DONLY_TIMER_SET -DCRASHES=1 -DFAULTS=0
guard-cancel        | holds     | -DGUARDS=2 -DN=1 -DCANCELS=1 -DONLY_TIMER_SET -DCRASHES=1 -DFAULTS=0
guard-retry         | holds     | -DGUARDS=2 -DONLY_TIMER_SET -DRETRIES=1 -DCRASHES=1 -DFAULTS=0
guard-window        | holds     | -DGUARDS=2 -DNO_DELAYS -DCRASHES=1 -DWINDOW=2
guard-hold          | holds     | -DGUARDS=2 -DHOLDS=1 -DN=1 -DONLY_TIMER_SET -DCRASHES=1 -DFAULTS=0
guard-late          | holds     | -DGUARDS=2 -DLATE=1 -DONLY_TIMER_SET -DCRASHES=1 -DFAULTS=0
shortened-down      | holds     | -DSHORTENED_UNHEARD -DIGNORE_PAYLOADS -DEXTENDS=1 -DCRASHES=2 -DFAULTS=0

claim-early         | early     | -DMISTAKE_CLAIM_EARLY -DCRASHES=0 -DFAULTS=0
claim-ignores-key   | early     | -DMISTAKE_CLAIM_IGNORES_KEY -DEXTENDS=1 -DCRASHES=0 -DFAULTS=0
claim-without-lease | lost      | -DMISTAKE_CLAIM_WITHOUT_LEASE
settle-before-ack   | lost      | -DMISTAKE_SETTLE_BEFORE_ACK
overwrite-owed      | lost      | -DMISTAKE_OVERWRITE_OWED -DIGNORE_PAYLOADS -DN=1 -DLIVES=2 -DONLY_TIMER_SET -DCRASHES=1 -DFAULTS=0
absence-cancels     | lost      | -DMISTAKE_ABSENCE_CANCELS -DHINT_DELAY=2 -DLIVES=2 -DCRASHES=0 -DFAULTS=0
trusts-absence      | lost      | -DMISTAKE_TRUSTS_ABSENCE -DSHORTENED_UNHEARD -DIGNORE_PAYLOADS -DEXTENDS=1 -DCRASHES=2 -DFAULTS=0
marks-too-soon      | lost      | -DMISTAKE_MARKS_TOO_SOON -DSHORTENED_UNHEARD -DIGNORE_PAYLOADS -DEXTENDS=1 -DCRASHES=2 -DFAULTS=0
new-id-each-try     | duplicate | -DMISTAKE_NEW_ID_EACH_TRY
no-tombstone        | duplicate | -DMISTAKE_NO_TOMBSTONE -DIGNORE_PAYLOADS
punctual-claim      | lost      | -DMISTAKE_PUNCTUAL -DIGNORE_PAYLOADS -DN=1 -DONLY_PLAIN -DLIVES=2 -DCRASHES=1 -DFAULTS=0
retry-forgets-id    | duplicate | -DMISTAKE_RETRY_FORGETS_ID -DRETRIES=1 -DONLY_TIMER_SET
no-look             | duplicate | -DMISTAKE_NO_LOOK -DNO_DELAYS -DCRASHES=1 -DWINDOW=2
pause-moves-due     | duplicate | -DMISTAKE_PAUSE_MOVES_DUE -DPAUSES -DCRASHES=1 -DFAULTS=0
aside-forgets       | bare      | -DMISTAKE_SET_ASIDE_FORGETS -DDENIALS=1 -DCRASHES=0 -DFAULTS=0
aside-ignores-key   | early     | -DMISTAKE_ASIDE_IGNORES_KEY -DDENIALS=1 -DEXTENDS=1 -DCRASHES=0 -DFAULTS=0
cancel-not-aside    | revived   | -DMISTAKE_CANCEL_SPARES_ASIDE -DDENIALS=1 -DCANCELS=1 -DCRASHES=0 -DFAULTS=0
cancel-not-contested | revived  | -DMISTAKE_CANCEL_SPARES_CONTESTED -DLIVES=2 -DCANCELS=1 -DCRASHES=0 -DFAULTS=0
cancel-leaves-owed  | revived   | -DMISTAKE_CANCEL_LEAVES_OWED -DCANCELS=1 -DCRASHES=0 -DFAULTS=0
cancel-claimed      | revived   | -DMISTAKE_CANCEL_CLAIMED -DCANCELS=1 -DCRASHES=0 -DFAULTS=0
cancel-unsure       | revived   | -DMISTAKE_CANCEL_UNSURE -DCANCELS=1 -DCRASHES=0 -DFAULTS=0
cancel-drops-claimed | lost     | -DMISTAKE_CANCEL_DROPS_CLAIMED -DCANCELS=1 -DCRASHES=0 -DFAULTS=0
reclaim-is-sure     | revived   | -DMISTAKE_RECLAIM_IS_SURE -DCANCELS=1 -DCRASHES=0 -DFAULTS=0 -DH=5
waits-overtaken     | lost      | -DWAITS -DMISTAKE_OVERTAKES -DLIVES=2 -DCRASHES=0 -DFAULTS=0
told-contested      | lost      | -DMISTAKE_TELLS_OF_CONTESTED -DLIVES=2 -DCRASHES=0 -DFAULTS=0
cancel-not-dismissed | revived  | -DMISTAKE_CANCEL_SPARES_DISMISSED -DLIVES=2 -DN=1 -DCANCELS=1 -DCRASHES=0 -DLOSSES=1 -DFAULTS=0
hold-unchecked      | unheld    | -DMISTAKE_HOLD_UNCHECKED -DHOLDS=1 -DONLY_TIMER_SET -DCRASHES=0 -DFAULTS=0
hold-behind         | unheld    | -DMISTAKE_BEHIND_UNCHECKED -DHOLDS=1 -DCOPIES_FOLLOW -DFAILOVERS=1 -DONLY_TIMER_SET -DCRASHES=0 -DFAULTS=0
hold-stale          | unheld    | -DMISTAKE_RELEASES_STALE -DHOLDS=2 -DONLY_TIMER_SET -DCRASHES=0 -DFAULTS=0
hold-ends-early     | escaped   | -DMISTAKE_ENDS_EARLY -DHOLDS=1 -DONLY_TIMER_SET -DCRASHES=0 -DFAULTS=0
hold-forgets        | lost      | -DMISTAKE_NO_ORPHANS -DHOLDS=1 -DONLY_TIMER_SET -DCRASHES=0 -DFAULTS=0
hold-published      | escaped   | -DMISTAKE_HOLDS_UNSURE -DHOLDS=1 -DONLY_TIMER_SET -DCRASHES=0 -DFAULTS=0
guard-forgets       | refused   | -DMISTAKE_GUARD_FORGETS -DGUARDS=1 -DCRASHES=1 -DFAULTS=0
guard-asks-again    | refused   | -DMISTAKE_GUARD_ASKS_AGAIN -DGUARDS=1 -DCRASHES=1 -DFAULTS=0
guard-held          | refused   | -DMISTAKE_HOLDS_REFUSED -DGUARDS=2 -DHOLDS=1 -DRESUME=SHIFTING -DN=1 -DONLY_TIMER_SET -DCRASHES=1 -DFAULTS=0
late-silent         | duplicate | -DMISTAKE_LETTER_SILENT -DLATE=1 -DONLY_TIMER_SET -DCRASHES=1

found-letter-free   | duplicate | -DFOUND_LETTER_FREE -DHOLDS=2 -DN=1 -DONLY_TIMER_SET -DCRASHES=0 -DFAULTS=0
found-shifted-twice | twice     | -DFOUND_FREE_FORGOTTEN -DHOLDS=1 -DRESUME=SHIFTING -DN=1 -DONLY_TIMER_SET -DCRASHES=0 -DFAULTS=0
found-shift-shares  | lost      | -DFOUND_SHIFT_SHARES -DHOLDS=1 -DRESUME=SHIFTING -DLIVES=2 -DN=1 -DONLY_TIMER_SET -DCRASHES=0 -DFAULTS=0
found-copied-late   | escaped   | -DFOUND_COPIES_OLD -DHOLDS=1 -DRESUME=BURYING -DONLY_TIMER_SET -DCRASHES=0 -DFAULTS=0
found-aside-untold  | revived   | -DFOUND_CANCEL_ASIDE_UNTOLD -DDENIALS=1 -DLIVES=2 -DN=1 -DCANCELS=1 -DCRASHES=0 -DFAULTS=0
found-aside-due-tick | lost     | -DFOUND_ASIDE_IN_DUE_TICK -DDENIALS=1 -DLIVES=2 -DCRASHES=0 -DFAULTS=0
found-aside-pending | early     | -DFOUND_ASIDE_PENDING_FIRES -DDENIALS=1 -DEXTENDS=1 -DCRASHES=0 -DFAULTS=0
found-anyone        | lost      | -DFOUND_ANYONE_DISMISSES -DIGNORE_PAYLOADS -DLIVES=2 -DCRASHES=1 -DFAULTS=0
found-due-tick      | lost      | -DFOUND_DUE_TICK_OVERWRITES -DLIVES=2 -DCRASHES=1 -DFAULTS=0
found-late-cancel   | revived   | -DFOUND_CONTEST_DECIDED_LATE -DMISTAKE_CANCEL_SPARES_CONTESTED -DFAULTS=0 -DEXTENDS=1 -DCANCELS=1
found-old-expired   | duplicate | -DFOUND_OLD_EXPIRED_FIRES -DHINTS_TOO_LATE -DIGNORE_PAYLOADS -DLIVES=2 -DN=1 -DCRASHES=0 -DFAULTS=0 -DH=6
found-same-attempt  | lost      | -DFOUND_SAME_ATTEMPT -DPAYLOAD_STATES_ATTEMPT -DLIVES=2 -DONLY_TIMER_SET -DRETRIES=1 -DCRASHES=0 -DFAULTS=0 -DH=3
found-late-twice    | duplicate | -DFOUND_CONTEST_DECIDED_LATE -DFAULTS=0 -DEXTENDS=1

hold-unreplicated   | unheld    | -DCHECK_UNREPLICATED -DHOLDS=1 -DCOPIES_FOLLOW -DFAILOVERS=1 -DONLY_TIMER_SET -DCRASHES=0 -DFAULTS=0
hold-copied-late    | escaped   | -DHOLDS=1 -DRESUME=BURYING -DCOPIES_FOLLOW -DONLY_TIMER_SET -DCRASHES=0 -DFAULTS=0
downtime            | lost      | -DCHECK_EVERY_SET -DONLY_PLAIN -DCRASHES=2
short-payload       | bare      | -DCHECK_EVERY_PAYLOAD -DHINT_DELAY=2 -DONLY_PLAIN -DCRASHES=0
short-set-again     | lost      | -DCHECK_EVERY_SET -DONLY_PLAIN -DLIVES=2 -DCRASHES=0 -DFAULTS=0
lost-del            | undead    | -DCHECK_DEL -DDELS=1 -DLOSSES=1 -DCRASHES=0
valkey-past         | undead    | -DCHECK_DEL -DDELS=1 -DVALKEY_EXPIRE_IN_THE_PAST -DCRASHES=0
same-value          | lost      | -DSAME_VALUE -DIGNORE_PAYLOADS -DN=1 -DONLY_PLAIN -DLIVES=2 -DCRASHES=1 -DFAULTS=0
changed-unheard     | stale     | -DCHECK_STALE -DONLY_PLAIN -DLIVES=2 -DCRASHES=2 -DFAULTS=0
shortened-deaf      | lost      | -DSHORTENED_UNHEARD -DIGNORE_PAYLOADS -DN=1 -DEXTENDS=1 -DLOSSES=1 -DCRASHES=0 -DFAULTS=0
denied-extended     | duplicate | -DDENIALS=1 -DEXTENDS=1 -DCRASHES=0 -DFAULTS=0
replication         | lost      | -DASYNC_REPLICATION_LOSS -DCRASHES=0
nats-loss           | lost      | -DNATS_LOSS -DCRASHES=0
hints-too-late      | lost      | -DHINTS_TOO_LATE -DIGNORE_PAYLOADS -DLIVES=2 -DN=1 -DCRASHES=0 -DFAULTS=0 -DH=6
deafness-unnoticed  | lost      | -DDEAFNESS_UNNOTICED -DLIVES=2 -DN=1 -DLOSSES=1 -DCRASHES=0 -DFAULTS=0 -DH=6

repeat              | holds     | -DCRASHES=2 -DFAULTS=2
repeat-catch-up     | holds     | -DCATCHUP=3 -DCRASHES=2 -DFAULTS=2 -DK=4 -DH=8
repeat-again        | holds     | -DAGAIN=1 -DCRASHES=1 -DFAULTS=1
repeat-timer-set    | holds     | -DSETS=1 -DCRASHES=1 -DFAULTS=1
repeat-cancel       | holds     | -DCANCELS=1 -DAGAIN=1 -DCRASHES=1 -DFAULTS=1
repeat-plain        | holds     | -DPLAIN=1 -DCRASHES=1 -DFAULTS=1 -DCATCHUP=9 -DK=4 -DH=8
repeat-no-ttl       | holds     | -DPLAIN=1 -DNO_TTL=1 -DDELS=1 -DCRASHES=1 -DFAULTS=1
repeat-extend       | holds     | -DEXTENDS=2 -DCATCHUP=9 -DCRASHES=1 -DFAULTS=1 -DK=4 -DH=8
repeat-cancel-until | holds     | -DUNTILS=1 -DPLAIN=1 -DCRASHES=1 -DFAULTS=1
repeat-hold         | holds     | -DHOLDS=2 -DCANCELS=1 -DCRASHES=1 -DFAULTS=1
repeat-hold-plain   | holds     | -DHOLDS=1 -DPLAIN=1 -DUNTILS=1 -DCRASHES=1
repeat-cron         | holds     | -DCRON -DAGAIN=1 -DCANCELS=1 -DCRASHES=1 -DFAULTS=1
repeat-cron-plain   | holds     | -DCRON -DPLAIN=1 -DCRASHES=1 -DFAULTS=1

repeat-arms-later   | lost      | -DMISTAKE_ARMS_LATER -DCRASHES=1
repeat-no-serial    | revived   | -DMISTAKE_SERIAL_UNCHECKED -DCANCELS=1
repeat-no-serial-again | revived | -DMISTAKE_SERIAL_UNCHECKED -DAGAIN=1
repeat-arms-twice   | twice     | -DMISTAKE_ARMS_TWICE -DFAULTS=1
repeat-settles-first | lost     | -DMISTAKE_SETTLE_BEFORE_ACK -DFAULTS=1
repeat-key-unseen   | lost      | -DMISTAKE_KEY_UNSEEN -DPLAIN=1
repeat-set-keeps    | stalled   | -DMISTAKE_SET_KEEPS_SERIAL -DSETS=1
repeat-no-catch-up  | skipped   | -DMISTAKE_NO_CATCHUP -DCATCHUP=3
repeat-shares-id    | lost      | -DMISTAKE_SHARES_ID -DCATCHUP=9 -DEXTENDS=1
repeat-found-until  | stalled   | -DFOUND_UNTIL_STALLS -DUNTILS=1 -DPLAIN=1
repeat-found-plan   | foreign   | -DFOUND_PLAN_SHARES -DCRON -DAGAIN=1
repeat-same-ms      | lost      | -DSAME_MS -DPLAIN=1
'

# check NAME WANT SWITCH... prints one line of the table and fails if it is not as wanted.
check() {
  local name=$1 want=$2 dir=$work/$1 model=timerd search='' got states seconds
  shift 2
  [[ $name != repeat* ]] || model=repeat
  mkdir "$dir"
  [ "$want" = holds ] || search=-DBFS # the shortest counterexample
  (cd "$dir" && spin -a "$@" "$here/$model.pml" >spin.out && "${CC:-cc}" -O2 -DSAFETY -DCOLLAPSE -DNOREDUCE \
    -DMEMLIM="${MEMORY:-6000}" $search -o pan pan.c && nice -n 10 ./pan -m1000000 >out) ||
    { cat "$dir"/*out; return 1; }
  got=$(sed -n -e 's/.*assertion violated *!(\([a-z]*\)).*/\1/p' \
    -e 's/^pan.*\(invalid end state\|out of memory\|max search depth\).*/\1/p' "$dir/out" | head -n 1)
  states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' "$dir/out")
  seconds=$(sed -n 's/.*elapsed time \([0-9.]*\) .*/\1/p' "$dir/out")
  if [ -z "$got" ] && grep -q 'errors: 0' "$dir/out" && ! grep -q 'not completed' "$dir/out"; then got=holds; fi
  printf '%-20s %-10s %12s %8s s  %s\n' "$name" "${got:-failed}" "$states" "$seconds" \
    "$([ "$got" = "$want" ] || echo "WANTED $want")"
  [ "${told:-}" = "" ] || [ ! -e "$dir/$model.pml.trail" ] ||
    (cd "$dir" && spin -k "$model.pml.trail" "$@" "$here/$model.pml" |
      sed -n 's/^ *\([0-9]*: \(timerd\|client\|redis\).*\)/    \1/p')
  rm -r "$dir"
  [ "$got" = "$want" ]
}

told="$*" bad=0 count=0
printf '%-20s %-10s %12s %10s\n' configuration outcome states time
while IFS='|' read -r name want switches; do
  name=${name// /} want=${want// /}
  if [ -z "$name" ] || { [ -n "$told" ] && [[ " $told " != *" $name "* ]]; }; then continue; fi
  count=$((count + 1))
  # shellcheck disable=SC2086 # switches are words
  check "$name" "$want" $switches || bad=$((bad + 1))
done <<<"$configurations"
if [ "$count" = 0 ]; then echo "no such configuration: $told" >&2; exit 2; fi
if [ "$bad" != 0 ]; then echo "$bad of $count configurations are not as they should be"; exit 1; fi
echo "all $count configurations are as they should be"
