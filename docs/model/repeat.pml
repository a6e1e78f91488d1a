/*
Timers that repeat, in Promela: one key, its repetitions, two timerds, Redis and NATS. README.md says
what is left out and how to run it. timerd.pml has the hints and what they prove; here a timerd
that takes in a key learns the truth about it, or takes it in late.

Each d_step is one atomic step of Redis, or one command of a client. Time goes by as in timerd.pml:
until H everything may be slow, crash or be lost; from H on nothing fails any more, and time passes
only when there is nothing left to do. At TMAX every occurrence has to be accounted for.
*/

/* Scope: how much of each may happen. run.sh sets other values. */
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef FAULTS
#define FAULTS 0		/* messages, acknowledgements, replies of settlements that are lost */
#endif
#ifndef AGAIN
#define AGAIN 0			/* timer_repeat in place of the repetition */
#endif
#ifndef SETS
#define SETS 0			/* timer_set in its place */
#endif
#ifndef PLAIN
#define PLAIN 0			/* SET ... EX by a client, once at most */
#endif
#ifndef EXTENDS
#define EXTENDS 0		/* EXPIRE of a live key to a later time, that of another occurrence */
#endif
#ifndef NO_TTL
#define NO_TTL 0		/* SET without a TTL, or PERSIST */
#endif
#ifndef DELS
#define DELS 0			/* DEL */
#endif
#ifndef CANCELS
#define CANCELS 0		/* timer_cancel */
#endif
#ifndef UNTILS
#define UNTILS 0		/* timer_cancel UNTIL now */
#endif
#ifndef HOLDS
#define HOLDS 0			/* each is resumed, plainly or with --shift */
#endif
#ifndef N
#define N 2			/* timerds */
#endif
#ifndef K
#define K 3			/* occurrences of a repetition: UNTIL is that of the last */
#endif
#ifndef EVERY
#define EVERY 2			/* ticks between two of them */
#endif
#ifndef CATCHUP
#define CATCHUP 0
#endif
#ifndef H
#define H 6
#endif
#define TMAX (H + EVERY * K + 6)
#define LEASE 2
#define FOREVER 255		/* key_at of a key without a TTL */
#define HELD 255		/* the lease of a firing that is held */
#define F 3			/* firings at once */

/* A record is the serial, 0 for a single timer, the number of the occurrence from 0 on, and whose
   value it has: 1 for a client's own, 0 for that of the function. A serial has its repetition. */
#define SERIAL(rep) ((rep) * 16)
#define REP(ser) ((ser) / 16)
#define nominal(ser, n) (first[REP(ser)] + EVERY * (n))

/* Redis. */
byte now = 1;
byte key_at; bit key_own;
byte due, due_ser, due_n; bit due_own, due_u;		/* due, data; u: its key may be absent */
byte contested_due, contested_ser, contested_n; bit contested_own;
byte firing_due[F], firing_ser[F], firing_n[F], firing_lease[F];
bit firing_own[F], firing_plan[F];			/* attempt 0: it is to be planned */
bit firing_sure[F];					/* owed, and cannot be stored */
byte serial;						/* ZSET repeat: 0 is none */
bool id_tombstone[TMAX + 2];				/* :i:due:key */
bool held; byte held_at;

/* NATS, and what is on its way to it. */
bool stored[TMAX + 2];					/* by id: the due time */
byte wire_due[N], wire_ser[N], wire_n[N]; bit wire_own[N];
bool answer[N];

/* The timerds. ready: the next occurrence is computed. */
mtype = { idle, claimed, sent, acked, ready, second };
bool up[N] = true;
mtype phase[N] = idle;
byte hand_due[N], hand_ser[N], hand_n[N], hand_lease[N];
bit hand_own[N], hand_plan[N];
byte next[N], clock_read[N];				/* the occurrence that follows, K if none; the clock that it was computed by */

/* The judge. */
mtype = { unset, lives, ended, unsure };
mtype rep[4] = unset;					/* what the clients have made of each repetition */
byte first[4];						/* when its first occurrence is due */
#define NONE 0
#define FIRED 1
#define SKIPPED 2
#define CANCELLED 3
#define MUST 4						/* it has to fire, whatever becomes of its repetition */
byte fate[4 * K];					/* of occurrences; (0, 0) is the client's own timer, (3, 0) that of timer_set */
#define FATE(ser, n) fate[REP(ser) * K + (n)]
bool seen[8 * K];					/* stored, by repetition, value and occurrence */
bool dead[8 * K];					/* cancelled before anybody had claimed it */
#define DEAD(ser, n, own) dead[(REP(ser) * 2 + (own)) * K + (n)]
#define SEEN(ser, n, own) seen[(REP(ser) * 2 + (own)) * K + (n)]
bool ran_out;						/* the pending timer's key ran out */
bool early, doubled, foreign, lost, skipped, revived, stalled, twice;

byte crashes = CRASHES, faults = FAULTS, again = AGAIN, sets = SETS, plain = PLAIN, extends = EXTENDS, no_ttl = NO_TTL, dels = DELS,
	cancels = CANCELS, untils = UNTILS, holds = HOLDS;
byte s_i, s_n, s_t, s_due, s_ser; bool s_hit;		/* scratch; always 0 between the steps */

#define calm (now < H)
#define fails (calm && faults > 0)
#define live_key (key_at >= now)
#define SINGLE SERIAL(3)				/* stands for the record of timer_set, which no repetition has */
#define repeats(ser) (REP(ser) == 1 || REP(ser) == 2)

/* ---- schedule/lua ---------------------------------------------------------- */

inline forget() { due = 0; due_ser = 0; due_n = 0; due_own = 0; due_u = 0; ran_out = false }
inline drop_contested() { contested_due = 0; contested_ser = 0; contested_n = 0; contested_own = 0 }
inline drop_firing(s) { firing_due[s] = 0; firing_ser[s] = 0; firing_n[s] = 0; firing_lease[s] = 0; firing_own[s] = 0; firing_plan[s] = 0; firing_sure[s] = 0 }
inline put(at, ser, n, own) { due = at; due_ser = ser; due_n = n; due_own = own }
inline put_key(at, own) { key_at = at; key_own = own }
inline drop_key() { key_at = 0; key_own = 0 }

/* Adds a firing; s_i is its place then. One of the same ref moves it back. */
inline fire(at, ser, n, own, plan, lease) {
	s_due = at;
	s_i = 0;
	do
	:: s_i < F && firing_due[s_i] == s_due && firing_plan[s_i] == plan -> s_due--; s_i = 0
	:: s_i < F && !(firing_due[s_i] == s_due && firing_plan[s_i] == plan) -> s_i++
	:: s_i == F -> break
	od;
	s_i = 0;
	do :: firing_due[s_i] != 0 -> s_i++; assert(s_i < F) :: else -> break od;
	firing_due[s_i] = s_due; firing_ser[s_i] = ser; firing_n[s_i] = n; firing_own[s_i] = own; firing_plan[s_i] = plan;
	firing_lease[s_i] = lease; firing_sure[s_i] = (lease == 0 || lease == HELD);
	s_due = 0
}

/* Takes the serial away, and what is to be planned. */
inline end_repetition() {
	serial = 0;
	for (s_i : 0 .. F - 1) { if :: firing_plan[s_i] -> drop_firing(s_i) :: else fi }
	s_i = 0
}

inline cancel_pending() { forget(); end_repetition() }

/* The client's own timer is in the index. */
inline adopt() { if :: key_own && FATE(0, 0) == NONE -> FATE(0, 0) = MUST :: else fi }

/* The index takes in the key, which lives. Its record stays an occurrence's, with the key's value. */
inline follow() {
	if
	:: key_at == FOREVER -> if :: due != 0 -> cancel_pending() :: else -> forget(); end_repetition() fi
	:: key_at != FOREVER ->
		if
		:: due == 0 -> put(key_at, 0, 0, key_own)
		:: else -> due = key_at; due_own = due_own | key_own; due_u = 0; ran_out = false
		fi;
		adopt()
	fi
}

/* The pending timer is due while its key lives on. Whether it ran out before, timerd.pml checks. */
inline contest(lease) {
	if
	:: ran_out && contested_due == 0 -> contested_due = due; contested_ser = due_ser; contested_n = due_n; contested_own = due_own
	:: ran_out -> s_t = due; s_ser = due_ser; s_n = due_n; s_hit = due_own; forget(); fire(s_t, s_ser, s_n, s_hit, 0, lease); s_t = 0; s_ser = 0; s_n = 0; s_hit = 0; s_i = 0
	:: !ran_out
	fi;
	follow()
}

inline take(i, slot) {
	hand_due[i] = firing_due[slot]; hand_ser[i] = firing_ser[slot]; hand_n[i] = firing_n[slot]; hand_own[i] = firing_own[slot];
	hand_plan[i] = firing_plan[slot]; hand_lease[i] = now + LEASE; firing_lease[slot] = now + LEASE; firing_sure[slot] = 0;
	phase[i] = claimed
}

inline let_go(i) {
	hand_due[i] = 0; hand_ser[i] = 0; hand_n[i] = 0; hand_own[i] = 0; hand_plan[i] = 0; hand_lease[i] = 0;
	next[i] = 0; clock_read[i] = 0; answer[i] = false; phase[i] = idle
}

#define FREE(s) (firing_due[s] != 0 && firing_lease[s] <= now && (!held || firing_plan[s] || !firing_sure[s]))
#define TO_HOLD(s) (held && firing_due[s] != 0 && firing_lease[s] == 0 && firing_sure[s] && !firing_plan[s])

/* claim of what is due. */
inline claim_due(i) {
	if
	:: live_key && key_at != due -> contest(0)
	:: else ->
		if :: key_at <= now -> drop_key() :: else fi;
		s_t = due; s_ser = due_ser; s_n = due_n; s_hit = due_own;
		forget();
		fire(s_t, s_ser, s_n, s_hit, 0, (held -> HELD : now + LEASE));
		if :: !held -> take(i, s_i) :: else fi;
		s_t = 0; s_ser = 0; s_n = 0; s_hit = 0; s_i = 0
	fi
}

/* The first occurrence after n that is no longer past than the catch-up at the time at. */
inline compute(i, n) {
	next[i] = n; clock_read[i] = now;
	do
#ifdef MISTAKE_NO_CATCHUP
	:: next[i] < K && nominal(hand_ser[i], next[i]) < now -> next[i]++
#else
	:: next[i] < K && nominal(hand_ser[i], next[i]) + CATCHUP < now -> next[i]++
#endif
	:: else -> break
	od
}

/* Accounts for what a settlement skips: only what was due before it by more than the catch-up. */
inline judge_skips(i, from) {
	s_n = from;
	do
	:: s_n < next[i] ->
		if :: nominal(hand_ser[i], s_n) + CATCHUP >= clock_read[i] -> skipped = true :: else fi;
		if :: FATE(hand_ser[i], s_n) == NONE -> FATE(hand_ser[i], s_n) = SKIPPED :: else fi;
		s_n++
	:: else -> break
	od;
	s_n = 0;
	assert(!skipped)
}

#ifdef MISTAKE_KEY_UNSEEN
#define SET_SINCE false
#define NOT_TAKEN_IN false
#else
#define SET_SINCE (due != 0)
#define NOT_TAKEN_IN live_key
#endif

/* Arms the next occurrence, or ends the repetition. */
inline arm(i) {
	judge_skips(i, (hand_plan[i] -> 0 : hand_n[i] + 1));
	if
	:: next[i] < K && rep[REP(hand_ser[i])] == ended -> revived = true
	:: else
	fi;
	assert(!revived);
	if
	:: next[i] == K -> serial = 0
	:: next[i] < K && SET_SINCE -> due_ser = hand_ser[i] + 1; due_n = next[i]; serial = hand_ser[i] + 1
	:: next[i] < K && !(SET_SINCE) && NOT_TAKEN_IN && key_at == FOREVER -> serial = 0;
		if :: rep[REP(hand_ser[i])] == lives -> rep[REP(hand_ser[i])] = unsure :: else fi
	:: next[i] < K && !(SET_SINCE) && NOT_TAKEN_IN && key_at != FOREVER -> put(key_at, hand_ser[i] + 1, next[i], key_own); adopt(); serial = hand_ser[i] + 1
	:: else ->
		s_due = nominal(hand_ser[i], next[i]);
#ifndef MISTAKE_SHARES_ID
		do :: id_tombstone[s_due] -> s_due++ :: else -> break od;
#endif
		put(s_due, hand_ser[i] + 1, next[i], 0);
		due_u = 0; ran_out = false;
		if :: s_due <= now -> due_u = 1 :: else -> put_key(s_due, 0) fi;
		s_due = 0;
		serial = hand_ser[i] + 1
	fi
}

#ifdef MISTAKE_SERIAL_UNCHECKED
#define ITS_OWN(i) repeats(hand_ser[i])
#else
#ifdef MISTAKE_ARMS_TWICE
#define ITS_OWN(i) (serial != 0 && repeats(hand_ser[i]))
#else
#define ITS_OWN(i) (serial != 0 && serial == hand_ser[i])
#endif
#endif

inline go_on(i) {
	if
	:: ITS_OWN(i) ->
		if :: !hand_plan[i] && hand_due[i] != nominal(hand_ser[i], hand_n[i]) -> id_tombstone[hand_due[i]] = true :: else fi;
		arm(i)
	:: else
	fi
}

/* settle_repeat: the firing goes, and what follows it is armed if the serial is its own still. A plan of
   the same ms may have the ref of an earlier one. */
inline settle(i) {
	s_i = 0;
	do :: s_i < F && !(firing_due[s_i] == hand_due[i] && firing_plan[s_i] == hand_plan[i]) -> s_i++ :: else -> break od;
	if
#ifdef FOUND_PLAN_SHARES
	:: s_i < F ->
		if :: firing_ser[s_i] != hand_ser[i] -> foreign = true :: else fi;
		assert(!foreign);
#else
	:: s_i < F && firing_ser[s_i] != hand_ser[i] -> s_i = 0
	:: s_i < F && firing_ser[s_i] == hand_ser[i] ->
#endif
		drop_firing(s_i); s_i = 0;
#ifndef MISTAKE_ARMS_LATER
		go_on(i)
#endif
	:: s_i == F -> s_i = 0;
#ifdef MISTAKE_ARMS_TWICE
		go_on(i)
#endif
	fi
}

/* make_way: a timer that is due already is owed. */
inline make_way() {
	if
	:: due != 0 && due <= now ->
		if
		:: live_key && key_at != due -> contest(0)
		:: else ->
			s_t = due; s_ser = due_ser; s_n = due_n; s_hit = due_own;
			forget();
			fire(s_t, s_ser, s_n, s_hit, 0, 0);
			s_t = 0; s_ser = 0; s_n = 0; s_hit = 0; s_i = 0
		fi
	:: else
	fi
}

/* ---- the judge ------------------------------------------------------------- */

inline judge_cancelled(ser, n, own) {
	DEAD(ser, n, own) = true;
	if :: FATE(ser, n) != FIRED -> FATE(ser, n) = CANCELLED :: else fi
}

/* A command ends the repetition: what is pending is not to fire any more. */
inline judge_end() {
	if :: due != 0 && due_ser != 0 -> judge_cancelled(due_ser, due_n, due_own) :: else fi;
	if :: FATE(0, 0) == MUST && (due_own || !due) -> FATE(0, 0) = NONE :: else fi;
	for (s_i : 1 .. 2) { if :: rep[s_i] != unset -> rep[s_i] = ended :: else fi }
	s_i = 0
}

/* What is firing at its end fires. */
inline judge_replaced() {
	for (s_i : 0 .. F - 1) {
		if :: firing_due[s_i] != 0 && repeats(firing_ser[s_i]) && !firing_plan[s_i] && FATE(firing_ser[s_i], firing_n[s_i]) == NONE -> FATE(firing_ser[s_i], firing_n[s_i]) = MUST :: else fi
	}
	s_i = 0
}

inline judge_stored(i) {
	if :: wire_due[i] > now -> early = true :: else fi;
	if :: SEEN(wire_ser[i], wire_n[i], wire_own[i]) -> doubled = true :: else fi;
	SEEN(wire_ser[i], wire_n[i], wire_own[i]) = true;
	if :: DEAD(wire_ser[i], wire_n[i], wire_own[i]) -> revived = true :: else fi;
	FATE(wire_ser[i], wire_n[i]) = FIRED;
	if :: wire_own[i] -> FATE(0, 0) = FIRED :: else fi;
	assert(!early); assert(!doubled); assert(!revived)
}

inline judge_all() {
	for (s_i : 0 .. 3) {
		for (s_n : 0 .. K - 1) {
			if :: fate[s_i * K + s_n] == MUST || rep[s_i] == lives && fate[s_i * K + s_n] == NONE -> lost = true :: else fi
		}
	}
	s_i = 0; s_n = 0;
	assert(!lost)
}

/* What goes on with the repetition, once it is settled: there is always something, and never two. A
   contested timer and the one of the key that was set again may be both. */
#define CARRIES(s) (firing_due[s] != 0 && firing_ser[s] == serial)
#define IS_PENDING (due != 0 && due_ser == serial)
#define IS_CONTESTED (contested_due != 0 && contested_ser == serial)
#define is_stalled (serial != 0 && !(IS_PENDING || IS_CONTESTED || CARRIES(0) || CARRIES(1) || CARRIES(2)))
#define is_twice (serial != 0 && plain == PLAIN && IS_PENDING + CARRIES(0) + CARRIES(1) + CARRIES(2) > 1)

/* ---- the library, and holds -------------------------------------------------- */

inline timer_repeat(which) {
	make_way();
	judge_end(); judge_replaced();
	end_repetition();
	serial = SERIAL(which);
	rep[which] = lives;
	first[which] = now + EVERY;
#ifdef CRON
	drop_key(); forget();
	fire(now, serial, 0, 0, 1, 0);
	s_i = 0
#else
	put(now + EVERY, serial, 0, 0); due_u = 0; ran_out = false;
	put_key(now + EVERY, 0)
#endif
}

inline timer_set() {
	make_way();
	judge_end(); judge_replaced();
#ifndef MISTAKE_SET_KEEPS_SERIAL
	end_repetition();
#endif
	put(now + 2, SINGLE, 0, 0); due_u = 0; ran_out = false;
	put_key(now + 2, 0);
	FATE(SINGLE, 0) = MUST
}

/* Cancels what is owed and contested. s_hit is whether the repetition's own occurrence was owed. */
#define CANCELLABLE(s) (firing_due[s] != 0 && firing_sure[s])
inline cancel_owed() {
	s_hit = serial != 0 && (CANCELLABLE(0) && CARRIES(0) || CANCELLABLE(1) && CARRIES(1) || CANCELLABLE(2) && CARRIES(2));
	for (s_i : 0 .. F - 1) {
		if :: CANCELLABLE(s_i) && !firing_plan[s_i] -> judge_cancelled(firing_ser[s_i], firing_n[s_i], firing_own[s_i]) :: else fi;
		if :: CANCELLABLE(s_i) -> drop_firing(s_i) :: else fi
	}
	s_i = 0;
	if :: contested_due != 0 -> judge_cancelled(contested_ser, contested_n, contested_own); drop_contested() :: else fi
}

inline timer_cancel(until) {
	s_t = (until && (live_key -> key_at : due) > now);
	if
	:: s_t == 0 ->
		judge_end();
		cancel_owed();
		forget(); end_repetition();
		if :: key_at != FOREVER -> drop_key() :: else fi
	:: else ->
		cancel_owed();
#ifndef FOUND_UNTIL_STALLS
		if
		:: s_hit && !IS_PENDING -> end_repetition(); for (s_i : 1 .. 2) { if :: rep[s_i] != unset -> rep[s_i] = ended :: else fi } s_i = 0
		:: else
		fi
#endif
	fi;
	s_t = 0; s_hit = false
}

/* What is held is released, or set again as much later as it was held. That a newer timer of the key
   may be in the way then, timerd.pml checks. */
#define MAY_SHIFT (PLAIN + AGAIN + SETS + NO_TTL == 0)
inline resume(shifts) {
	for (s_i : 0 .. F - 1) {
		if
		:: firing_lease[s_i] == HELD && shifts && firing_due[s_i] + now - held_at > now ->
			assert(due == 0);
			put(firing_due[s_i] + now - held_at, firing_ser[s_i], firing_n[s_i], firing_own[s_i]);
			due_u = 0; put_key(due, 0);
			drop_firing(s_i)
		:: firing_lease[s_i] == HELD && !(shifts && firing_due[s_i] + now - held_at > now) -> firing_lease[s_i] = 0
		:: else
		fi
	}
	s_i = 0; held = false; held_at = 0
}

/* A client's own timer is not due in the very ms of an occurrence, unless SAME_MS allows it. */
#ifdef SAME_MS
#define MAY_BE(at) true
#else
#define MAY_BE(at) (((at) - first[1]) % EVERY != 0)
#endif

/* ---- processes ------------------------------------------------------------- */

proctype client() {
end:	do
	:: d_step { calm && rep[1] == unset -> printf("%d: client: timer_repeat\n", now); timer_repeat(1) }
	:: d_step { calm && again > 0 && rep[1] != unset -> printf("%d: client: timer_repeat again\n", now); again--; timer_repeat(2) }
	:: d_step { calm && sets > 0 && rep[1] != unset -> printf("%d: client: timer_set\n", now); sets--; timer_set() }
	:: d_step { calm && plain > 0 && rep[1] != unset && MAY_BE(now + 1) -> printf("%d: client: SET, due soon\n", now); plain--; put_key(now + 1, 1) }
	:: d_step { calm && plain > 0 && rep[1] != unset && MAY_BE(now + 2) -> printf("%d: client: SET, due later\n", now); plain--; put_key(now + 2, 1) }
	:: d_step { calm && extends > 0 && key_at > now && key_at != FOREVER -> printf("%d: client: EXPIRE\n", now); extends--; key_at = key_at + EVERY }
	:: d_step { calm && no_ttl > 0 && rep[1] != unset -> printf("%d: client: SET without a TTL\n", now); no_ttl--; put_key(FOREVER, 0);
		if :: FATE(0, 0) == MUST -> FATE(0, 0) = NONE :: else fi;
		for (s_i : 1 .. 2) { if :: rep[s_i] == lives -> rep[s_i] = unsure :: else fi }
		s_i = 0 }
	:: d_step { calm && dels > 0 && live_key -> printf("%d: client: DEL\n", now); dels--; drop_key();
		if :: FATE(0, 0) == MUST -> FATE(0, 0) = NONE :: else fi;
		for (s_i : 1 .. 2) { if :: rep[s_i] == lives -> rep[s_i] = unsure :: else fi }
		s_i = 0 }
	:: d_step { calm && cancels > 0 && rep[1] != unset -> printf("%d: client: timer_cancel\n", now); cancels--; timer_cancel(false) }
	:: d_step { calm && untils > 0 && rep[1] != unset -> printf("%d: client: timer_cancel UNTIL now\n", now); untils--; timer_cancel(true) }
	:: d_step { calm && holds > 0 && !held -> printf("%d: client: hold\n", now); holds--; held = true; held_at = now }
	:: d_step { held -> printf("%d: client: resume\n", now); resume(false) }
	:: d_step { held && MAY_SHIFT && now > held_at -> printf("%d: client: resume, shifting\n", now); resume(true) }
	od
}

/* A key that has run out vanishes; in the tick of its due time it is still there. */
proctype redis() {
end:	do
	:: d_step { key_at != 0 && key_at < now -> if :: key_at == due -> ran_out = true :: else fi; drop_key() }
	od
}

#define idles(i)	(up[i] && phase[i] == idle)
#define in_time(i)	(now < hand_lease[i])

proctype timerd(byte i) {
end:	do
	/* The claims, and what the index takes in. */
	:: d_step { idles(i) && (FREE(0) || FREE(1) || FREE(2)) -> printf("%d: timerd %d claims what is in firing\n", now, i);
		s_i = (FREE(0) -> 0 : (FREE(1) -> 1 : 2)); s_t = s_i; s_i = 0; take(i, s_t); s_t = 0 }
	:: d_step { TO_HOLD(0) || TO_HOLD(1) || TO_HOLD(2) -> printf("%d: timerd %d holds what is owed\n", now, i);
		for (s_i : 0 .. F - 1) { if :: TO_HOLD(s_i) -> firing_lease[s_i] = HELD :: else fi }
		s_i = 0 }
	:: d_step { idles(i) && due != 0 && due <= now -> printf("%d: timerd %d claims what is due\n", now, i); claim_due(i) }
	:: d_step { up[i] && due != 0 && due <= now && key_at == 0 -> printf("%d: timerd %d hears that the key ran out\n", now, i); make_way() }
	:: d_step { up[i] && contested_due != 0 -> printf("%d: timerd %d hears that the contested timer ran out\n", now, i);
		s_t = contested_due; s_ser = contested_ser; s_n = contested_n; s_hit = contested_own; drop_contested();
		fire(s_t, s_ser, s_n, s_hit, 0, 0); s_t = 0; s_ser = 0; s_n = 0; s_hit = 0; s_i = 0 }
	:: d_step { up[i] && key_at > now && (due == 0 && (key_at != FOREVER && key_own) || due > now && (key_at != due || key_own && !due_own)) -> printf("%d: timerd %d takes in the key\n", now, i); follow() }
	:: d_step { up[i] && due > now && key_at == 0 && !due_u -> printf("%d: timerd %d takes in that the key is gone\n", now, i); judge_end(); cancel_pending() }

	/* The publisher. */
	:: d_step { up[i] && phase[i] == claimed && !hand_plan[i] && in_time(i) && wire_due[i] == 0 -> printf("%d: timerd %d publishes\n", now, i);
		wire_due[i] = hand_due[i]; wire_ser[i] = hand_ser[i]; wire_n[i] = hand_n[i]; wire_own[i] = hand_own[i]; phase[i] = sent }
	:: d_step { up[i] && phase[i] == sent && !answer[i] && wire_due[i] == 0 -> printf("%d: timerd %d gives up waiting\n", now, i); phase[i] = claimed }
#ifdef MISTAKE_SETTLE_BEFORE_ACK
	:: d_step { up[i] && phase[i] == sent -> printf("%d: timerd %d does not wait\n", now, i); phase[i] = acked; answer[i] = false }
#endif
	:: d_step { up[i] && phase[i] == sent && answer[i] -> printf("%d: timerd %d is acknowledged\n", now, i); phase[i] = acked; answer[i] = false }
	:: d_step { up[i] && phase[i] == claimed && !in_time(i) || up[i] && phase[i] == claimed && calm && !hand_plan[i] -> printf("%d: timerd %d gives back\n", now, i);
		for (s_i : 0 .. F - 1) { if :: firing_due[s_i] == hand_due[i] && firing_plan[s_i] == hand_plan[i] && firing_lease[s_i] == hand_lease[i] -> firing_lease[s_i] = 0 :: else fi }
		s_i = 0; let_go(i) }

	/* The settlement: what follows is computed by the clock, then armed. */
	:: d_step { up[i] && (phase[i] == acked || phase[i] == claimed && hand_plan[i]) -> printf("%d: timerd %d computes what follows\n", now, i); compute(i, (hand_plan[i] -> 0 : hand_n[i] + 1)); phase[i] = ready }
	:: d_step { up[i] && phase[i] == ready && fails -> printf("%d: timerd %d settles, reply lost\n", now, i); faults--; settle(i) }
#ifdef MISTAKE_ARMS_LATER
	:: d_step { up[i] && phase[i] == ready -> printf("%d: timerd %d settles\n", now, i); settle(i); phase[i] = second }
	:: d_step { up[i] && phase[i] == second -> printf("%d: timerd %d arms\n", now, i); go_on(i); let_go(i) }
#else
	:: d_step { up[i] && phase[i] == ready -> printf("%d: timerd %d settles\n", now, i); settle(i); let_go(i) }
#endif

	/* The network: NATS stores a message unless it has its id, and answers. */
	:: d_step { wire_due[i] != 0 -> printf("%d: timerd %d's message arrives\n", now, i);
		if :: stored[wire_due[i]] :: else -> stored[wire_due[i]] = true; judge_stored(i) fi;
		answer[i] = (phase[i] == sent); wire_due[i] = 0; wire_ser[i] = 0; wire_n[i] = 0; wire_own[i] = 0 }
	:: d_step { wire_due[i] != 0 && fails -> printf("%d: timerd %d's message is lost\n", now, i); faults--; wire_due[i] = 0; wire_ser[i] = 0; wire_n[i] = 0; wire_own[i] = 0 }
	:: d_step { answer[i] && fails -> printf("%d: timerd %d's acknowledgement is lost\n", now, i); faults--; answer[i] = false }

	/* kill -9, and a new start. */
	:: d_step { up[i] && calm && crashes > 0 -> printf("%d: timerd %d crashes\n", now, i); crashes--; up[i] = false; let_go(i) }
	:: d_step { !up[i] -> printf("%d: timerd %d starts\n", now, i); up[i] = true }
	od
}

proctype clock() {
	do
	:: atomic { calm -> now++ }
	:: atomic { !calm && now < TMAX && timeout -> now++ }
	:: d_step { now == TMAX && timeout -> judge_all(); now++ }
#ifndef MISTAKE_ARMS_LATER
	:: d_step { is_stalled -> stalled = true; assert(!stalled) }
#endif
	:: d_step { is_twice -> twice = true; assert(!twice) }
	:: now > TMAX -> break
	od
}

init {
	byte i;
	atomic {
		for (i : 0 .. N - 1) { run timerd(i) }
		i = 0;
		run client(); run redis(); run clock()
	}
}
