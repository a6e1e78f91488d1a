/*
timerd in Promela: one key, two timerds, Redis, NATS and everything that can go
wrong between them. README.md says what is left out and how to run it.

Each d_step is one atomic step of Redis: one script of schedule/lua, under
its name, or one command of a client. Between any two of them anything can happen,
and time may pass.

Time goes by in ticks. Until H everything may be slow, crash, or be lost, as far as
the switches allow. From H on nothing fails any more, and time passes only when
there is nothing left to do; at TMAX whatever is owed has to be in the stream.
*/

/* Scope: how much of each may happen. run.sh sets other values. */
#ifndef LIVES
#define LIVES 1			/* how often the client sets the key */
#endif
#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef LOSSES
#define LOSSES 0		/* subscriptions that go deaf */
#endif
#ifndef CANCELS
#define CANCELS 0		/* timer_cancel */
#endif
#ifndef DELS
#define DELS 0			/* DEL */
#endif
#ifndef EXTENDS
#define EXTENDS 0		/* EXPIRE to a later time */
#endif
#ifndef FAULTS
#define FAULTS 1		/* replies of a claim, messages and acknowledgements lost on their way */
#endif
#ifndef RETRIES
#define RETRIES 0		/* 1: the first event is given back to be retried, twice over */
#endif
#ifndef DENIALS
#define DENIALS 0		/* how often timerd loses the right to read the key, for a while */
#endif
#ifndef HOLDS
#define HOLDS 0			/* how often the timers are held; each hold is resumed */
#endif
#ifndef FAILOVERS
#define FAILOVERS 0		/* that lose the partition's copy of the list of holds */
#endif
#ifndef GUARDS
#define GUARDS 0		/* how often the key of the timers' guard comes or goes; it says no after the first time */
#endif
#ifndef N
#define N 2			/* timerds */
#endif

/* Times in ticks. What matters is their order, which is that of the real ones. */
#ifndef H
#define H 4
#endif
#define TMAX (H + 9)
#define LEASE 2			/* 10 s */
#ifdef WINDOW
#define FORGETS			/* NATS forgets ids within the run */
#else
#define WINDOW TMAX		/* the duplicate window: 2 min */
#endif
#define PAUSE 1			/* 1 s at least: how long what NATS or Redis refused is left alone */
#define GRACE 2			/* 10 s: how long a timer stays contested */
#define CANARY 1		/* 3 s: how long deafness goes unnoticed */
#define MAXAGE 1		/* 3 s: age up to which an expired event proves something by itself */
#define FRESH 2			/* 4 s: age up to which a tombstone explains an expired event */
#ifndef HINT_DELAY
#define HINT_DELAY 1		/* how long a hint waits at most in a timerd that lives */
#endif

#define NO_EVENTS 255		/* since, of a timerd that hears no events */
#define UNREAD 254		/* PEXPIRETIME of a key that timerd may not read */
#define BUFFER 3		/* hints that may wait; beyond it is a gap */
#define RETRY (LIVES + 1)	/* the life of the retry */
#define REF(d, att) ((d) * 2 + (att))
#define REFS (2 * (TMAX + 2))
#define F 3			/* firings at once */
#if CANCELS || HOLDS || GUARDS || defined(LATE) || defined(FORGETS)
#define MARKS				/* what may be stored is told from what cannot be */
#define OWED 1
#define UNSURE 2
#define RELEASED 3			/* by a resume, or after a pause: only a hold that is not being resumed holds it */
#endif
#if HOLDS || defined(LATE)
#define LETTERS				/* some timers become dead letters */
#endif

/* What the list of holds says of the key, which is in one namespace. */
#define OPEN 0
#define HOLDING 1
#define PLAINLY 2			/* being resumed: they fire at once, */
#define SHIFTING 3			/* are set again, */
#define BURYING 4			/* become dead letters, */
#define SPACING 5			/* or fire at times of their own */
#define NEVER 255			/* the lease of a firing that is held */

mtype = { touched, gone, expired };					/* hints */
mtype = { live, over, tie, replaced, deleted, cancelled, guarded };	/* what became of a life */
mtype = { idle, claimed, sent, acked };					/* what a timerd does with its firing */
mtype = { off, on, deaf };						/* subscriptions */
mtype = { none, pending, finished };					/* the retry request */

/* Redis: the clock, the trigger key, the schedule. A life stands for a payload. */
byte now = 1;
byte key_at, key_life, key_used;	/* PEXPIRETIME, 0: no key; value; last access */
bool key_mark;				/* the value is timer_set's mark */
byte due, due_life; bit due_att;	/* due, data: 0 is none; att 1 is a retry's attempt */
byte contested_due, contested_life, contested_end;	/* :?:key */
byte past_due, past_life, past_end;	/* :d:key, a contested timer that was dismissed */
bool contested_owed, past_owed;		/* what check_ran_out said when the timer was contested */
bool contested_unconfirmed;			/* it was contested because of an event of a change */
byte aside_due[LIVES], aside_life[LIVES], aside_look[LIVES];	/* :sdue.attempt:key, by due time; when to look again */
bool denied;				/* timerd may not read the key */
byte beside_due[2], beside_life[2];	/* :due.attempt:key, of a retry or of what was shifted */
byte firing_ref[F], firing_lease[F], firing_life[F];	/* firing, firingdata; ref 0 is none */
#ifdef MARKS
byte firing_free[F];			/* OWED, UNSURE if its event may be stored, 0 if somebody has claimed it */
#define SET_FREE(slot, how) firing_free[slot] = how
#else
#define SET_FREE(slot, how) skip
#endif
#ifdef LETTERS
bool firing_dead[F];			/* it is to become a dead letter: flag h */
#define SET_DEAD(slot, is) firing_dead[slot] = is
#else
#define SET_DEAD(slot, is) skip
#endif
#if GUARDS
bool guard_refuses;			/* the guard says no: its key is there, or gone */
bool firing_refused[F];			/* it said so to a claim: option G */
#define REFUSED(slot) firing_refused[slot]
#define SET_REFUSED(slot, is) firing_refused[slot] = is
#else
#define REFUSED(slot) false
#define SET_REFUSED(slot, is) skip
#endif
byte fired, fired_c;			/* tombstones: key and :c:key, 0 is none */
bool retried;
#if HOLDS && LIVES > 1
#define SHIFTS_BESIDE			/* a timer may be shifted to when another one of the key was due */
#endif
#if defined(PAYLOAD_STATES_ATTEMPT) || defined(SHIFTS_BESIDE)
#define ID_TOMBSTONE(at) id_tombstone[at]
bool id_tombstone[TMAX + 2];		/* :i:due:key; outlives the duplicate window */
#else
#define ID_TOMBSTONE(at) false
#endif

/* The list of holds, and the partition's copy of it, which claims obey. cut is since when it is
   held, or, if it is being resumed, up to which due time; by is how long it was held. */
#if HOLDS
byte list_gen, list_mode, list_cut, list_by;
byte copy_gen, copy_mode, copy_cut;		/* generation 0: there is none */
#endif

/* NATS: when each id was stored last; what is on its way to it; its answers. */
byte stored[REFS];
byte wire_id[N], wire_life[N];		/* 0 is none */
#ifdef LETTERS
byte wire_letter[N];			/* 1: it is a dead letter; 2: one that says that its event may be stored */
#define SET_WIRE_LETTER(i, kind) wire_letter[i] = kind
#else
#define SET_WIRE_LETTER(i, kind) skip
#endif
bool answer[N];				/* the acknowledgement of what wire_id was */
mtype request = none;			/* the retry request in its stream */
byte request_due;

/* The timerds. */
bool up[N] = true;
mtype phase[N] = idle;
byte hand_ref[N], hand_life[N], hand_lease[N];
#ifdef MARKS
bool hand_unsure[N];			/* an earlier claim or try may have published it */
#define SET_UNSURE(i, is) hand_unsure[i] = is
#else
#define SET_UNSURE(i, is) skip
#endif
#ifdef LETTERS
bool hand_dead[N];			/* the firing becomes a dead letter */
#define SET_HAND_DEAD(i, is) hand_dead[i] = is
#else
#define SET_HAND_DEAD(i, is) skip
#endif
#if GUARDS
bool hand_refused[N];			/* the guard has refused the firing */
#define HAND_REFUSED(i) hand_refused[i]
#define SET_HAND_REFUSED(i, is) hand_refused[i] = is
#else
#define HAND_REFUSED(i) false
#define SET_HAND_REFUSED(i, is) skip
#endif
#if HOLDS
bool hand_free[N];			/* the firing was released, or had a pause */
#ifdef FOUND_FREE_FORGOTTEN
#define SET_HAND_FREE(i, is) skip
#else
#define SET_HAND_FREE(i, is) hand_free[i] = is
#endif
byte known_gen[N], known_mode[N], known_cut[N], known_by[N];	/* the list as it was read last */
bool nothing_left[N];			/* to be released, when it was looked last */
#else
#define SET_HAND_FREE(i, is) skip
#endif
mtype sub[N] = on;
byte since[N] = 1;
byte deaf_at[N];
bool audit_keys[N], audit_index[N];
/* Only where keys run out early: whether one has run out since the last mark, whether
   timerd i knows what became of absent keys, and whether the timer is kept without. */
#ifdef SHORTENED_UNHEARD
bool ran_out, sure[N] = true, kept;
#define NOTE_RUN_OUT ran_out = true
#define NOT_KEPT kept = false
#else
#define NOTE_RUN_OUT skip
#define NOT_KEPT skip
#endif
chan hints[N] = [BUFFER] of { mtype, byte, byte };	/* kind, life (for the judge only), when */
mtype last_hint[N];
byte oldest_hint[N];
#ifdef WAITS
byte waiting_at[N], waiting_life[N];	/* an expired event that waits for the claim of its timer; at 0 is none */
#define WAITING(i) (waiting_at[i] != 0)
#define waited(i) waiting_at[i]
#define MAY_WAIT (due != 0 && due <= now && key_at == 0 && !denied)
#else
#define WAITING(i) false
#define waited(i) 0
#endif

/* The judge: what really became of each life, and what is in the stream. */
byte lives;				/* set so far */
byte holder;				/* the life that the key stands for */
mtype life[LIVES + 2];
byte life_due[LIVES + 2];
bool known[LIVES + 2];			/* acknowledged or adopted: has to fire */
byte messages[LIVES + 2];
#ifdef LETTERS
byte letters[LIVES + 2];		/* as wire_letter */
#define LETTER(whose) letters[whose]
#else
#define LETTER(whose) 0
#endif
#if HOLDS
byte bound[LIVES + 2];			/* HELD_BY: held, and to be released as the resume says; SHIFTED: it was, by this resume */
#define HELD_BY 1
#define SHIFTED 2
bool unheld, escaped, twice;
byte holds = HOLDS, failovers = FAILOVERS;
#endif
#if GUARDS
bool refused;
byte guards = GUARDS;
#endif
bool early, duplicate, lost, revived, stale, undead, bare;

byte crashes = CRASHES, losses = LOSSES, cancels = CANCELS, dels = DELS, extends = EXTENDS, denials = DENIALS, faults = FAULTS;

/* Scratch of the scripts; always 0 between them, so that it adds no states. */
byte s_was, s_at, s_ref, s_due, s_i, s_life, s_t, s_slot, s_old;
bool s_hit;
mtype s_kind;

/* ---- Redis ---------------------------------------------------------------- */

inline emit(kind, whose) {
	for (s_i : 0 .. N - 1) {
		if
		:: sub[s_i] == on && last_hint[s_i] != kind ->
			if
			:: empty(hints[s_i]) -> oldest_hint[s_i] = now
			:: full(hints[s_i]) -> silence(s_i)
			:: nempty(hints[s_i]) && nfull(hints[s_i])
			fi;
			if
			:: sub[s_i] == on -> hints[s_i]!kind,whose,now; last_hint[s_i] = kind
			:: else
			fi
		:: else
		fi
	}
	s_i = 0
}

inline drop_hints(i) {
	do :: nempty(hints[i]) -> hints[i]?_,_,_ :: empty(hints[i]) -> break od;
	last_hint[i] = 0; oldest_hint[i] = 0;
#ifdef WAITS
	waiting_at[i] = 0; waiting_life[i] = 0
#endif
}

/* The subscription is over, and what had come of it is dropped. */
inline silence(i) {
	sub[i] = off; since[i] = NO_EVENTS; deaf_at[i] = 0;
	drop_hints(i)
}

/* A key that has run out vanishes when it is looked at. In the tick of its due
   time it is still there. s_at is PEXPIRETIME. */
inline look() {
	if
	:: key_at != 0 && key_at < now -> s_life = key_life; key_at = 0; key_life = 0; key_mark = 0; key_used = 0; emit(expired, s_life); s_life = 0; NOTE_RUN_OUT
	:: else
	fi;
	s_at = key_at
}

/* What a step that runs with timerd's rights sees. */
inline look_if_allowed() {
	if
	:: denied -> s_at = UNREAD
	:: !denied -> look()
	fi
}

inline put_key(at, whose, marked) { key_at = at; key_life = whose; key_mark = marked; key_used = now; holder = whose }

inline write_key(at, whose, marked) { put_key(at, whose, marked); emit(touched, 0) }

inline delete_key() { key_at = 0; key_life = 0; key_mark = 0; key_used = 0; emit(gone, 0) }

/* ---- schedule/lua ---------------------------------------------------------- */

#define ATTEMPT(whose) (whose == RETRY -> 1 : 0)

/* Has a timer wait beside the newer one of the key, from s_due on. */
inline add_beside(whose) {
	s_slot = (beside_due[0] == 0 -> 0 : 1);
	assert(beside_due[s_slot] == 0);
	if :: beside_due[1 - s_slot] == s_due && ATTEMPT(beside_life[1 - s_slot]) == ATTEMPT(whose) -> s_due++ :: else fi;
	beside_due[s_slot] = s_due; beside_life[s_slot] = whose;
	s_slot = 0
}

inline drop_beside(slot) { beside_due[slot] = 0; beside_life[slot] = 0 }

inline forget() { due = 0; due_life = 0; due_att = 0; NOT_KEPT }

/* Sets s_slot to where ref is in firing, or to F. */
inline find(ref) {
	s_slot = 0;
	do
	:: s_slot < F && firing_ref[s_slot] != ref -> s_slot++
	:: else -> break
	od
}

inline remove_firing(slot) { firing_ref[slot] = 0; firing_lease[slot] = 0; firing_life[slot] = 0; SET_FREE(slot, 0); SET_DEAD(slot, false); SET_REFUSED(slot, false) }

/* A claim leaves a tombstone of the id if another timer of the key may be shifted to it. */
#if defined(SHIFTS_BESIDE) && !defined(FOUND_SHIFT_SHARES)
#define LISTED(slot, other) (slot != other && firing_free[other] != 0)
#define TELL_ID(slot) if :: LISTED(slot, 0) || LISTED(slot, 1) || LISTED(slot, 2) || beside_due[0] == firing_ref[slot] / 2 || beside_due[1] == firing_ref[slot] / 2 -> id_tombstone[firing_ref[slot] / 2] = true :: else fi
#else
#define TELL_ID(slot) skip
#endif

/* Sets s_ref. lease is its end, or 0 for owed, or NEVER for held. */
inline fire(at, att, whose, lease) {
	s_due = at;
	do
	:: find(REF(s_due, att)); if :: s_slot < F -> s_due-- :: else -> break fi
	od;
	find(0);
	assert(s_slot < F);
	s_ref = REF(s_due, att);
	firing_ref[s_slot] = s_ref; firing_lease[s_slot] = lease; firing_life[s_slot] = whose;
	SET_FREE(s_slot, (lease == 0 || lease == NEVER -> OWED : 0));
	if :: lease != 0 && lease != NEVER -> TELL_ID(s_slot) :: else fi;
#ifdef PAYLOAD_STATES_ATTEMPT
	id_tombstone[s_due] = true;
#endif
	s_due = 0; s_slot = 0;
#ifndef MISTAKE_NO_TOMBSTONE
	fired = now
#endif
}

/* The retry, or what was shifted, moves back from whatever may have its id. */
inline fire_retry(at, att, whose, lease) {
	s_t = at;
#ifndef FOUND_SAME_ATTEMPT
	do
	:: find(REF(s_t, 0)); if :: due == s_t || s_slot < F || ID_TOMBSTONE(s_t) -> s_t-- :: else -> break fi
	od;
	s_slot = 0;
#endif
	fire(s_t, att, whose, lease);
	s_t = 0
}

inline owe(at) {
	s_life = due_life; s_t = due_att;
	forget();
	fire(at, s_t, s_life, 0);
	s_life = 0; s_t = 0
}

/* was is s_was; the key lives on with s_at. */
inline upsert() {
	if
	:: due == 0 || !key_mark -> due_life = key_life; due_att = 0
	:: else
	fi;
	key_used = now;
	due = s_at;
	NOT_KEPT;
	known[due_life] = true
}

/* Sets s_hit. */
inline check_ran_out(at, whose) {
	if
	:: key_at != 0 && key_used + 1 < at -> s_hit = false
	:: key_at != 0 && key_used + 1 >= at && key_mark -> s_hit = false
#ifdef SAME_VALUE
	:: key_at != 0 && key_used + 1 >= at && !key_mark -> s_hit = false
#else
	:: key_at != 0 && key_used + 1 >= at && !key_mark -> s_hit = (key_life != whose)
#endif
	:: key_at == 0 -> s_hit = true
	fi
}

/* Sets s_ref to the ref of an owed firing, or to 0. */
inline contest(heard, lease, unconfirmed) {
	s_ref = 0;
	if
	:: s_was >= heard && contested_due == 0 ->
		contested_due = s_was; contested_life = due_life; contested_end = now + GRACE;
		check_ran_out(s_was, due_life); contested_owed = s_hit; s_hit = false; contested_unconfirmed = unconfirmed
#ifdef MISTAKE_PUNCTUAL
	:: s_was < heard && now - s_was <= 1
#endif
	:: else ->
		check_ran_out(s_was, due_life);
		if
		:: s_hit -> s_life = due_life; s_t = due_att; forget(); fire(s_was, s_t, s_life, lease); s_life = 0; s_t = 0
		:: else
		fi;
		s_hit = false
	fi
}

inline drop_contested() { contested_due = 0; contested_life = 0; contested_end = 0; contested_owed = false; contested_unconfirmed = false }

/* The hint that dismisses a contested timer may be older than the contest: an expired event may follow. */
inline dismiss() {
	past_due = contested_due; past_life = contested_life; past_end = now + GRACE; past_owed = contested_owed;
	drop_contested()
}

inline drop_past() { past_due = 0; past_life = 0; past_end = 0; past_owed = false }

inline done() { s_was = 0; s_at = 0; s_ref = 0; s_hit = false }

/* Whether a live key runs out at another time than the index, which is due, says. */
#ifdef FOUND_DUE_TICK_OVERWRITES
#define LATER(at, was) (at > now)
#else
#define LATER(at, was) (at >= now && at != was)
#endif

/* The message of timer_set or of a claim that explains what was heard of the key. It may come
   too late, when the hint is being taken in. A contested timer needs the hint. */
#ifdef MISTAKE_TELLS_OF_CONTESTED
#define MAY_TELL true
#else
#define MAY_TELL (contested_due == 0)
#endif

/* The claim says that whatever was heard of the key until then is explained. */
inline tell_claimed() {
	if
	:: MAY_TELL -> for (s_i : 0 .. N - 1) { if :: sub[s_i] == on -> drop_hints(s_i) :: else fi }; s_i = 0
	:: else
	fi
}

inline timer_set(px, tells) {
	look(); s_was = due;
#ifndef MISTAKE_OVERWRITE_OWED
	if
	:: s_was != 0 && s_was <= now && LATER(s_at, s_was) -> contest(0, 0, false)
	:: s_was != 0 && s_was <= now && !LATER(s_at, s_was) -> owe(s_was)
	:: else
	fi;
#endif
	put_key(now + px, lives, true);
	if :: tells && MAY_TELL :: else -> emit(touched, 0) fi;
	due = now + px; due_life = lives; due_att = 0; NOT_KEPT;
	known[lives] = true;
	done()
}

/* What has been published may arrive at any time: only what nobody can have published may be called cancelled. */
#ifdef MISTAKE_CANCEL_CLAIMED
#define CANCELLABLE(slot) (firing_ref[slot] != 0 && firing_free[slot] != UNSURE)
#else
#ifdef MISTAKE_CANCEL_UNSURE
#define CANCELLABLE(slot) (firing_free[slot] != 0)
#else
#define CANCELLABLE(slot) (firing_free[slot] == OWED || firing_free[slot] == RELEASED)
#endif
#endif

/* Sets s_ref if it has cancelled any. */
inline cancel_owed() {
	for (s_i : 0 .. F - 1) {
		if
		:: CANCELLABLE(s_i) ->
			judge_cancel_owed(firing_life[s_i]);
			s_ref = firing_ref[s_i];
#ifndef MISTAKE_CANCEL_LEAVES_OWED
			remove_firing(s_i)
#endif
#ifdef MISTAKE_CANCEL_DROPS_CLAIMED
		:: firing_ref[s_i] != 0 && firing_free[s_i] == 0 -> remove_firing(s_i)
#endif
		:: else
		fi
	}
	s_i = 0
}

inline timer_cancel() {
	look(); s_was = due;
	s_hit = (s_at != 0);
	if
	:: s_hit -> delete_key()
	:: else
	fi;
	cancel_owed();
	if
	:: s_was != 0 || contested_due != 0 || beside_due[0] != 0 || beside_due[1] != 0 || aside_due[0] != 0 || s_ref != 0 || s_hit && (s_at > now || fired == 0) ->
		/* The answer is "cancelled". */
		judge_cancel(due_life); judge_cancel(contested_life); judge_cancel(past_life);
		judge_cancel(beside_life[0]); judge_cancel(beside_life[1]);
		if :: s_hit -> judge_cancel(holder) :: else fi;
#ifdef FOUND_CANCEL_ASIDE_UNTOLD
		if :: contested_due != 0 || past_due != 0 || s_was != 0 && (!s_hit || s_was <= now) -> fired_c = now :: else fi;
#else
		if :: contested_due != 0 || past_due != 0 || aside_due[0] != 0 || s_was != 0 && (!s_hit || s_was <= now) -> fired_c = now :: else fi;
#endif
		forget();
#ifndef MISTAKE_CANCEL_SPARES_CONTESTED
		drop_contested();
#endif
#ifndef MISTAKE_CANCEL_SPARES_DISMISSED
		drop_past();
#endif
		do
		:: aside_due[0] != 0 ->
			judge_cancel(aside_life[0]);
#ifdef MISTAKE_CANCEL_SPARES_ASIDE
			break
#else
			take_aside(0); s_due = 0; s_life = 0
#endif
		:: else -> break
		od
	:: else
	fi;
	drop_beside(0); drop_beside(1);
	holder = 0;
	done()
}

/* Sets a due timer aside, behind those that were due before it. */
inline set_aside() {
#ifndef MISTAKE_SET_ASIDE_FORGETS
	s_slot = 0;
	do
	:: s_slot < LIVES && aside_due[s_slot] != 0 -> s_slot++
	:: else -> break
	od;
	assert(s_slot < LIVES);
	aside_due[s_slot] = due; aside_life[s_slot] = due_life; aside_look[s_slot] = now + PAUSE;
	s_slot = 0;
#endif
	forget()
}

/* Takes one out: s_due and s_life are its due time and payload. */
inline take_aside(slot) {
	s_due = aside_due[slot]; s_life = aside_life[slot];
	for (s_i : slot .. LIVES - 1) {
		if
		:: s_i + 1 < LIVES -> aside_due[s_i] = aside_due[s_i + 1]; aside_life[s_i] = aside_life[s_i + 1]; aside_look[s_i] = aside_look[s_i + 1]
		:: else -> aside_due[s_i] = 0; aside_life[s_i] = 0; aside_look[s_i] = 0
		fi
	}
	s_i = 0
}

inline touch(heard, changed) {
	if
	:: s_at == 0 || s_at == UNREAD
	:: s_at != 0 && s_at != UNREAD && s_was != 0 && s_was <= now && LATER(s_at, s_was) -> contest(heard, 0, changed); upsert()
	:: s_at != 0 && s_at != UNREAD && !(s_was != 0 && s_was <= now && LATER(s_at, s_was)) ->
		if
		:: s_at > now || fired == 0 -> upsert()
		:: else
		fi
	fi
}

inline kind_g(heard) {
	if
	:: s_at != 0 -> touch(heard, false)
#ifdef MISTAKE_ABSENCE_CANCELS
	:: s_at == 0 -> forget()
#else
	:: s_at == 0 -> if :: s_was > now -> forget() :: else fi
#endif
	fi
}

inline told() {
	s_hit = (fired != 0 && now - fired <= FRESH || fired_c != 0 && now - fired_c <= FRESH)
}

#ifdef CHECK_EVERY_PAYLOAD
#define PAYLOAD_EXPECTED(i) true
#else
#ifdef IGNORE_PAYLOADS
#define PAYLOAD_EXPECTED(i) false
#else
#define PAYLOAD_EXPECTED(i) known[i]
#endif
#endif

/* An event that is old proves nothing of a timer that the index does not know. */
#ifdef FOUND_OLD_EXPIRED_FIRES
#define PROVES(at) true
#else
#define PROVES(at) (now - at <= MAXAGE)
#endif

inline fire_aside(slot, lease) {
	take_aside(slot);
	s_t = s_due;
	fire(s_t, 0, s_life, lease);
	s_t = 0; s_life = 0
}

inline kind_x(heard, whose, at) {
	s_hit = (contested_due != 0 && !(contested_unconfirmed && s_was <= now));
	if :: contested_unconfirmed && s_was <= now -> contested_unconfirmed = false :: else fi;
	if
	:: s_hit -> fire(contested_due, 0, contested_life, 0); drop_contested()
	:: !s_hit && s_was != 0 && s_was <= now -> owe(s_was); s_was = 0
	:: !s_hit && !(s_was != 0 && s_was <= now) ->
		told();
		if
		:: s_hit
		:: !s_hit && contested_due != 0 -> fire(contested_due, 0, contested_life, 0); drop_contested()
		:: !s_hit && contested_due == 0 && past_due != 0 -> fire(past_due, 0, past_life, 0); drop_past()
		:: !s_hit && contested_due == 0 && past_due == 0 && aside_due[0] != 0 -> fire_aside(0, 0)
		:: !s_hit && contested_due == 0 && past_due == 0 && aside_due[0] == 0 && s_was != 0 && s_at == 0 -> owe(now); s_was = 0
		:: !s_hit && contested_due == 0 && past_due == 0 && aside_due[0] == 0 && s_was != 0 && s_at == UNREAD
		:: !s_hit && contested_due == 0 && past_due == 0 && aside_due[0] == 0 && !(s_was != 0 && (s_at == 0 || s_at == UNREAD)) ->
			if
			:: PROVES(at) -> fire(now, 0, whose, 0); if :: PAYLOAD_EXPECTED(whose) -> bare = true :: else fi
			:: else
			fi
		fi
	fi;
	s_hit = false;
	touch(heard, false)
}

/* Whether a key that is touched shows that it had not run out before: only if this
   timerd would have heard of that first. */
#ifdef FOUND_ANYONE_DISMISSES
#define DISMISSES(heard) true
#else
#define DISMISSES(heard) (heard <= contested_due)
#endif

/* One hint of those that timerd i has heard. An expired event that is old says
   something only about timers that the index knows. */
inline observe(i, kind, whose, at) {
	look_if_allowed(); s_was = due;
	if
	:: kind == touched ->
		if :: contested_due != 0 && DISMISSES(since[i]) -> dismiss() :: else fi;
		touch(since[i], true)
	:: kind == gone -> kind_g(since[i])
	:: kind == expired && (now - at <= MAXAGE || s_was != 0 || contested_due != 0) -> kind_x(since[i], whose, at)
	:: else
	fi;
	done()
}

/* The audit's SCAN: a hint of kind a. */
inline observe_audited(i) { look_if_allowed(); s_was = due; touch(since[i], false); done() }

#ifdef MISTAKE_TRUSTS_ABSENCE
#define TRUSTING true
#else
#define TRUSTING false
#endif

/* A key that is gone was deleted if nothing else can have taken it: then the timer is
   cancelled, otherwise kept. */
inline audit_absent(i) {
#ifdef SHORTENED_UNHEARD
	if
	:: kept
	:: !kept && (sure[i] || TRUSTING) -> forget()
	:: !kept && !(sure[i] || TRUSTING) -> kept = true
	fi
#else
	forget()
#endif
}

inline audit(i) {
	look_if_allowed(); s_was = due;
	if
	:: s_was > now && s_at == 0 -> audit_absent(i)
	:: s_was > now && s_at > now && s_at != UNREAD && s_at != s_was -> upsert()
	:: else
	fi;
	done()
}

/* A firing that was claimed too late becomes a dead letter, whatever its first claim did. */
#ifdef LATE
#define BECOMES_LETTER(slot) (firing_dead[slot] || now - firing_ref[slot] / 2 > LATE)
#else
#define BECOMES_LETTER(slot) firing_dead[slot]
#endif

/* A claim asks the guard, and notes a no in the same step; but not where the event may have been published. */
#if GUARDS
inline ask_guard(slot, perhaps) {
	if
#ifdef MISTAKE_GUARD_ASKS_AGAIN
	:: guard_refuses ->
#else
	:: guard_refuses && !firing_refused[slot] && !(perhaps) ->
#endif
		firing_refused[slot] = true;
		judge_guarded(firing_life[slot])
	:: else
	fi
}
#endif

/* claim, with a limit of one firing and once for each thing that it may meet
   first. take hands the firing s_ref to timerd i, unless the reply is lost. */
inline take(i, reply) {
#if HOLDS
	if
	:: s_ref != 0 -> find(s_ref); if :: firing_free[s_slot] != 0 -> s_ref = 0 :: else fi; s_slot = 0	/* it is owed, or held */
	:: else
	fi;
#endif
	if
	:: s_ref != 0 ->
		find(s_ref);
		if
		:: reply -> phase[i] = claimed; hand_ref[i] = s_ref; hand_life[i] = firing_life[s_slot]; hand_lease[i] = firing_lease[s_slot];
			SET_HAND_DEAD(i, BECOMES_LETTER(s_slot)); SET_HAND_REFUSED(i, firing_refused[s_slot])
		:: else
		fi;
#ifdef MISTAKE_GUARD_FORGETS
		SET_REFUSED(s_slot, false);
#endif
#ifdef MISTAKE_CLAIM_WITHOUT_LEASE
		remove_firing(s_slot);
#endif
		s_slot = 0
	:: else
	fi;
	done()
}

/* Whether a timer of a due time is held: then a claim moves it to where none looks. */
#if HOLDS
#ifdef MISTAKE_HOLD_UNCHECKED
#define COVERS(at) false
#else
#define COVERS(at) (copy_mode == HOLDING || copy_mode >= SHIFTING && (at) <= copy_cut)
#endif
#define LEASE_OF(at, covered) (COVERS(at) -> covered : now + LEASE)
#else
#define LEASE_OF(at, covered) (now + LEASE)
#endif

/* What is owed is held; not what may have been published; and what was released only by another hold. */
#ifdef MISTAKE_HOLDS_UNSURE
#define HOLDABLE(slot) COVERS(firing_ref[slot] / 2)
#else
#ifdef MISTAKE_HOLDS_REFUSED
#define MAY_BE_HELD(slot) true
#else
#define MAY_BE_HELD(slot) (!REFUSED(slot))
#endif
#define HOLDABLE(slot) (MAY_BE_HELD(slot) && (firing_free[slot] == OWED && COVERS(firing_ref[slot] / 2) || firing_free[slot] == RELEASED && COVERS(NEVER)))
#endif

#define FREE(slot) (firing_ref[slot] != 0 && firing_lease[slot] <= now)

/* What was claimed by somebody whose lease ran out may have been published. */
#ifdef MISTAKE_RECLAIM_IS_SURE
#define UNSURE_AGAIN(slot) (firing_free[slot] == UNSURE)
#else
#define UNSURE_AGAIN(slot) (firing_free[slot] != OWED && firing_free[slot] != RELEASED)
#endif

inline take_first(i, reply) {
#if HOLDS
	if
	:: s_ref != 0 -> find(s_ref); if :: firing_free[s_slot] == 0 -> judge_claim(i) :: else fi; s_slot = 0
	:: else
	fi;
#endif
#if GUARDS
	if
	:: s_ref != 0 -> find(s_ref);
#if HOLDS
		if :: firing_free[s_slot] == 0 -> ask_guard(s_slot, false) :: else fi;
#else
		ask_guard(s_slot, false);
#endif
		s_slot = 0
	:: else
	fi;
#endif
	take(i, reply)
}

inline claim_free(i, reply) {
	do
	:: FREE(s_slot) -> break
	:: else -> s_slot++
	od;
#if HOLDS
	if
	:: HOLDABLE(s_slot) -> firing_lease[s_slot] = NEVER; firing_free[s_slot] = OWED; firing_dead[s_slot] = false
	:: else ->
		if :: !UNSURE_AGAIN(s_slot) && !REFUSED(s_slot) -> judge_claim(i) :: else fi;
#endif
	s_ref = firing_ref[s_slot];
	firing_lease[s_slot] = now + LEASE;
	fired = now;
#if GUARDS
	ask_guard(s_slot, UNSURE_AGAIN(s_slot));
#endif
	SET_UNSURE(i, (reply && UNSURE_AGAIN(s_slot) && !REFUSED(s_slot)));
	SET_HAND_FREE(i, (reply && firing_free[s_slot] == RELEASED));
	SET_FREE(s_slot, 0);
	TELL_ID(s_slot);
#if HOLDS
	fi;
	s_slot = 0;
#endif
	take(i, reply)
}

inline claim_contested(i, reply) {
	look();
	if
#ifdef FOUND_CONTEST_DECIDED_LATE
	:: contested_due < since[i] -> check_ran_out(contested_due, contested_life)
#else
	:: contested_due < since[i] -> s_hit = contested_owed
#endif
	:: else -> s_hit = false
	fi;
	if
	:: s_hit -> fire(contested_due, 0, contested_life, LEASE_OF(contested_due, 0))
	:: else
	fi;
	drop_contested();
	take_first(i, reply)
}

inline claim_past(i, reply) {
	look();
	if
	:: past_owed && past_due < since[i] -> fire(past_due, 0, past_life, LEASE_OF(past_due, 0))
	:: else
	fi;
	drop_past();
	take_first(i, reply)
}

inline claim_beside(i, reply) {
	s_i = (beside_due[0] != 0 && beside_due[0] <= now -> 0 : 1);
	s_due = beside_due[s_i]; s_life = beside_life[s_i];
	drop_beside(s_i);
	s_i = 0;
	s_old = LEASE_OF(s_due, 0);
	fire_retry(s_due, ATTEMPT(s_life), s_life, s_old);
	s_life = 0; s_old = 0;
	take_first(i, reply)
}

inline claim_due(i, reply, tells) {
	look_if_allowed(); s_was = due;
	if
	:: s_at == UNREAD -> set_aside()
#ifndef MISTAKE_CLAIM_IGNORES_KEY
	:: s_at != UNREAD && LATER(s_at, s_was) ->
		contest(since[i], LEASE_OF(s_was, 0), false);
		upsert()
	:: s_at != UNREAD && !LATER(s_at, s_was) ->
#else
	:: s_at != UNREAD ->
#endif
		s_life = due_life; s_t = due_att;
		forget();
		if :: s_at != 0 -> delete_key() :: else fi;
		fire(s_was, s_t, s_life, LEASE_OF(s_was, NEVER));
		s_life = 0; s_t = 0;
		if :: tells -> tell_claimed() :: else fi
	fi;
	take_first(i, reply)
}

/* In the tick in which a key runs out it says nothing: it may be a newer timer's that was claimed. */
#ifdef FOUND_ASIDE_IN_DUE_TICK
#define SILENT (s_at == UNREAD)
#else
#define SILENT (s_at == UNREAD || s_at == now)
#endif

/* Whether the key was set again since its timer was set aside: sets s_hit. */
inline set_again(slot) {
	if
#ifdef FOUND_ASIDE_PENDING_FIRES
	:: due != 0 -> s_hit = true
#else
	:: due != 0 && key_mark -> s_hit = (due_life != aside_life[slot])
	:: due != 0 && !key_mark -> check_ran_out(aside_due[slot], aside_life[slot])
#endif
	:: due == 0 -> check_ran_out(aside_due[slot], aside_life[slot])
	fi
}

/* Looks again at a timer that is set aside. */
inline claim_aside(i, reply) {
	s_slot = 0;
	do
	:: aside_due[s_slot] == 0 || aside_look[s_slot] > now -> s_slot++
	:: else -> break
	od;
	s_t = s_slot; s_slot = 0;
	look_if_allowed();
	if
	:: SILENT -> aside_look[s_t] = now + PAUSE; s_t = 0
	:: !SILENT ->
		s_was = aside_due[s_t];
		s_hit = true;
#ifndef MISTAKE_ASIDE_IGNORES_KEY
		if :: LATER(s_at, s_was) -> set_again(s_t) :: else fi;
#endif
		if
		:: s_hit ->
			fire_aside(s_t, LEASE_OF(s_was, 0));
			if :: LATER(s_at, s_was) -> upsert() :: else fi
		:: else ->
			take_aside(s_t);
			if :: due == 0 -> due_life = s_life; due_att = 0 :: else fi;
			due = s_at;
			s_due = 0; s_life = 0; s_t = 0
		fi
	fi;
	take_first(i, reply)
}

inline settle(i) {
	find(hand_ref[i]);
	if
	:: s_slot < F -> remove_firing(s_slot)
	:: else
	fi;
	s_slot = 0;
	let_go(i)
}

#ifdef FOUND_LETTER_FREE
#define MAY_BE_STORED(i) (!hand_dead[i])
#else
#define MAY_BE_STORED(i) true
#endif
#if HOLDS
#define FREED(i, until) (until != 0 || hand_free[i] -> RELEASED : OWED)
#else
#define FREED(i, until) OWED
#endif

/* Gives a claim back; until says when anybody may have it, 0 for at once. */
inline release(i, until) {
	find(hand_ref[i]);
	if
	:: s_slot < F && firing_lease[s_slot] == hand_lease[i] -> firing_lease[s_slot] = until;
		SET_FREE(s_slot, (hand_unsure[i] || phase[i] == sent && MAY_BE_STORED(i) -> UNSURE : FREED(i, until)));
#ifdef MISTAKE_PAUSE_MOVES_DUE
		if :: until != 0 -> firing_ref[s_slot] = REF(until, 0) :: else fi
#endif
	:: else
	fi;
	s_slot = 0;
	let_go(i)
}

inline let_go(i) { SET_UNSURE(i, false); phase[i] = idle; hand_ref[i] = 0; hand_life[i] = 0; hand_lease[i] = 0; answer[i] = false; SET_HAND_DEAD(i, false); SET_HAND_FREE(i, false); SET_HAND_REFUSED(i, false) }

/* The retry of the first event, due at request_due. */
inline retry() {
#ifdef MISTAKE_RETRY_FORGETS_ID
	if
	:: true ->
#else
	if
	:: retried
	:: !retried ->
#endif
		retried = true;
		life[RETRY] = live; life_due[RETRY] = request_due; known[RETRY] = true;
		look();
		s_due = request_due;
		if
		:: s_due <= now -> s_life = s_due; fire_retry(s_life, 1, RETRY, 0); s_life = 0
		:: s_due > now && due == 0 && s_at == 0 ->
			write_key(s_due, RETRY, true);
			due = s_due; due_life = RETRY; due_att = 1; NOT_KEPT
		:: s_due > now && !(due == 0 && s_at == 0) ->
			if :: due == s_due -> s_due++ :: else fi;
			add_beside(RETRY)
		fi;
		s_due = 0
	fi;
	done()
}

/* ---- holds ---------------------------------------------------------------- */

#if HOLDS
#define HELD(slot) (firing_ref[slot] != 0 && firing_lease[slot] == NEVER)
#define held_now (HELD(0) || HELD(1) || HELD(2))

/* What a claim says of the list that its timerd has read; what the copies state; whether timerd i's list is newer than the copy. */
#define KNOWS(i) (known_mode[i] == OPEN || known_mode[i] == PLAINLY -> 0 : known_gen[i])
#define STATED(i) (known_mode[i] == OPEN -> 0 : known_gen[i])
#if defined(COPIES_FOLLOW) || defined(FOUND_COPIES_OLD)
#define MAY_COPY(i) true
#else
#define MAY_COPY(i) (known_gen[i] == list_gen)
#endif
#define COPY_OLD(i) (MAY_COPY(i) && copy_gen < known_gen[i] && (known_mode[i] != OPEN || copy_gen != 0))

#ifdef MISTAKE_BEHIND_UNCHECKED
#define may_claim(i) true
#else
#define may_claim(i) (copy_gen >= KNOWS(i))
#endif

/* The list changes, by compare-and-set; a single Redis has the copy in the same step. */
inline hold_write(mode, cut, by) {
	list_by = by; list_cut = cut; list_gen++; list_mode = mode;
#ifdef CHECK_UNREPLICATED
	confirmed = false;
#endif
#ifndef COPIES_FOLLOW
	copy_gen = (list_mode == OPEN -> 0 : list_gen); copy_mode = list_mode; copy_cut = list_cut
#else
	skip
#endif
}

inline hold() {
	hold_write(HOLDING, now, 0);
	for (s_i : 1 .. LIVES + 1) { bound[s_i] = 0 }
	s_i = 0
}

inline resume(how) {
	hold_write(how, now, now - list_cut);
	for (s_i : 0 .. F - 1) {
		if :: HELD(s_i) && how != PLAINLY && firing_ref[s_i] / 2 <= now -> bound[firing_life[s_i]] = HELD_BY :: else fi
	}
	s_i = 0
}

inline read_list(i) {
	known_gen[i] = list_gen; known_mode[i] = list_mode; known_cut[i] = list_cut; known_by[i] = list_by; nothing_left[i] = false
}

/* timerd i brings the copy up to the list that it has read, which may be an old one. */
inline hold_copy(i) {
	if
	:: known_mode[i] == OPEN -> copy_gen = 0; copy_mode = OPEN; copy_cut = 0
	:: else -> copy_gen = known_gen[i]; copy_mode = known_mode[i]; copy_cut = known_cut[i]
	fi;
#ifdef CHECK_UNREPLICATED
	confirmed = confirmed || copy_gen == list_gen && list_mode == HOLDING
#else
	skip
#endif
}

/* A step of a resume acts only where the copy is of the list that it goes by. Where no hold is left
   it releases what is still held. */
#ifdef MISTAKE_RELEASES_STALE
#define CURRENT(i) true
#else
#define CURRENT(i) (copy_gen == STATED(i))
#endif
#ifdef MISTAKE_NO_ORPHANS
#define releases(i) (held_now && known_mode[i] > HOLDING && CURRENT(i))
#else
#define releases(i) (held_now && known_mode[i] != HOLDING && CURRENT(i))
#endif

/* Sets the firing s_slot again, as a retry is set. */
inline hold_shift(i) {
	look();
	s_old = firing_ref[s_slot]; s_life = firing_life[s_slot]; s_due = s_old / 2 + known_by[i];
	life_due[s_life] = s_due;
	if
	:: s_due <= now -> fire_retry(s_due, 0, s_life, 0); find(s_ref); firing_free[s_slot] = RELEASED
	:: s_due > now && due == 0 && s_at == 0 ->
		life[s_life] = live;
		write_key(s_due, s_life, true);
		due = s_due; due_life = s_life; due_att = 0; NOT_KEPT
	:: s_due > now && !(due == 0 && s_at == 0) ->
		if :: due == s_due -> s_due++ :: else fi;
		add_beside(s_life)
	fi;
	find(s_old);
	remove_firing(s_slot);
	s_old = 0; s_life = 0; s_due = 0
}

inline hold_release(i) {
	judge_release();
	do
	:: HELD(s_slot) -> break
	:: else -> s_slot++
	od;
	if
	:: known_mode[i] == SHIFTING && firing_ref[s_slot] / 2 <= known_cut[i] ->
		twice = (bound[firing_life[s_slot]] == SHIFTED); assert(!twice);
		bound[firing_life[s_slot]] = SHIFTED
	:: known_mode[i] == SPACING -> bound[firing_life[s_slot]] = 0
	:: else
	fi;
	if
	:: known_mode[i] <= PLAINLY || known_mode[i] != BURYING && firing_ref[s_slot] / 2 > known_cut[i] -> firing_lease[s_slot] = 0
	:: known_mode[i] == SHIFTING && firing_ref[s_slot] / 2 <= known_cut[i] -> hold_shift(i)
	:: known_mode[i] == BURYING -> firing_lease[s_slot] = 0; firing_free[s_slot] = RELEASED; firing_dead[s_slot] = (firing_ref[s_slot] / 2 <= known_cut[i])
	:: known_mode[i] == SPACING && firing_ref[s_slot] / 2 <= known_cut[i] -> firing_lease[s_slot] = now + PAUSE; firing_free[s_slot] = RELEASED
	fi;
	s_slot = 0;
	done()
}

/* Whether there is something up to the resume's due time that no claim has looked at yet. */
#define TO_LOOK_AT(slot) (firing_ref[slot] != 0 && firing_lease[slot] == 0 && firing_free[slot] == OWED)
#define BY_THEN(i, at) (at != 0 && at <= known_cut[i])
#define unseen(i) (known_mode[i] != PLAINLY && (TO_LOOK_AT(0) || TO_LOOK_AT(1) || TO_LOOK_AT(2) || \
	BY_THEN(i, due) || BY_THEN(i, contested_end) || BY_THEN(i, past_end) || BY_THEN(i, beside_due[0]) || BY_THEN(i, beside_due[1]) || BY_THEN(i, aside_look[0])))
#ifdef MISTAKE_ENDS_EARLY
#define finishes(i) (known_mode[i] > HOLDING && !nothing_left[i])
#else
#define finishes(i) (known_mode[i] > HOLDING && !nothing_left[i] && !held_now && !unseen(i))
#endif

/* No timer is claimed for the first time or released under a hold that its partition knows, nor claimed by a timerd that knows it. */
#ifdef CHECK_UNREPLICATED
bool confirmed;
#define CONFIRMED confirmed
#else
#define CONFIRMED (copy_gen == list_gen)
#endif
inline judge_claim(i) { unheld = (list_mode == HOLDING && (CONFIRMED || known_gen[i] == list_gen)); assert(!unheld) }
inline judge_release() { unheld = (list_mode == HOLDING && CONFIRMED); assert(!unheld) }
#else
#define may_claim(i) true
#endif

/* ---- the judge ------------------------------------------------------------ */

/* The client is about to replace or delete what the key stands for. */
inline judge_end(how) {
	if
	:: holder != 0 && life[holder] == live ->
		if
		:: now < life_due[holder] -> life[holder] = how
		:: now == life_due[holder] -> life[holder] = tie
		:: now > life_due[holder] -> life[holder] = over
		fi
	:: else
	fi
}

inline judge_cancel(whose) {
	if
	:: whose != 0 && life[whose] != 0 -> life[whose] = cancelled
	:: else
	fi
}

/* What was owed is not called cancelled when it is in the stream already. */
inline judge_cancel_owed(whose) {
	if :: messages[whose] > 0 || LETTER(whose) != 0 -> revived = true :: else fi;
	assert(!revived);
	judge_cancel(whose)
}

#if GUARDS
/* The guard refuses only what nobody has published. */
inline judge_guarded(whose) {
	refused = (messages[whose] > 0 || wire_life[0] == whose || wire_life[N - 1] == whose);
	assert(!refused);
	if :: life[whose] != cancelled -> life[whose] = guarded :: else fi
}
#endif

inline judge_stored(whose) {
	if :: now < life_due[whose] -> early = true :: else fi;
	if :: messages[whose] > 0 || LETTER(whose) == 1 -> duplicate = true :: else messages[whose]++ fi;
#if HOLDS
	escaped = (bound[whose] == HELD_BY);
	assert(!escaped);
#endif
	if :: life[whose] == cancelled -> revived = true :: else fi;
#if GUARDS
	refused = (life[whose] == guarded);
	assert(!refused);
#endif
#ifdef CHECK_STALE
	if :: life[whose] == replaced -> stale = true :: else fi;
#endif
#ifdef CHECK_DEL
	if :: life[whose] == deleted -> undead = true :: else fi;
#endif
	assert(!early); assert(!duplicate); assert(!revived); assert(!stale); assert(!undead); assert(!bare)
}

#ifdef LETTERS
/* A dead letter stands beside its event only if it says so; that it is stored once is its id's work. */
inline judge_letter(i) {
	if :: messages[wire_life[i]] > 0 && wire_letter[i] == 1 -> duplicate = true :: else fi;
	if :: life[wire_life[i]] == cancelled -> revived = true :: else fi;
	if :: LETTER(wire_life[i]) == 0 -> letters[wire_life[i]] = wire_letter[i] :: else fi;
	assert(!duplicate); assert(!revived)
}
#endif

#ifdef CHECK_EVERY_SET
#define HAS_TO_FIRE(i) true
#else
#define HAS_TO_FIRE(i) known[i]
#endif

inline judge_all() {
	for (s_i : 1 .. LIVES + 1) {
		if
		:: (life[s_i] == live || life[s_i] == over) && messages[s_i] == 0 && LETTER(s_i) == 0 && HAS_TO_FIRE(s_i) -> lost = true
		:: else
		fi
	}
	s_i = 0;
	assert(!lost)
}

/* ---- processes ------------------------------------------------------------ */

#define calm (now < H)

proctype client() {
	byte px;
end:	do
	:: calm && lives < LIVES ->
		if :: px = 1 :: px = 2 fi;
		if
#ifndef ONLY_TIMER_SET
		:: d_step {
			lives++;
			printf("%d: client: SET life %d, due %d\n", now, lives, now + px);
			look(); done();
			judge_end(replaced);
			life[lives] = live; life_due[lives] = now + px;
			write_key(now + px, lives, false);
			px = 0
		}
#endif
#ifndef ONLY_PLAIN
		:: d_step {
			lives++;
			printf("%d: client: timer_set life %d, due %d\n", now, lives, now + px);
			judge_end(replaced);
			life[lives] = live; life_due[lives] = now + px;
			timer_set(px, false);
			px = 0
		}
		:: d_step {
			lives++;
			printf("%d: client: timer_set life %d, due %d, and tells\n", now, lives, now + px);
			judge_end(replaced);
			life[lives] = live; life_due[lives] = now + px;
			timer_set(px, true);
			px = 0
		}
#endif
		fi
	:: d_step { calm && dels > 0 && key_at >= now -> printf("%d: client: DEL\n", now); dels--; judge_end(deleted); holder = 0;
#ifdef VALKEY_EXPIRE_IN_THE_PAST
		s_life = key_life; key_at = 0; key_life = 0; key_mark = 0; key_used = 0; emit(expired, s_life); s_life = 0
#else
		delete_key()
#endif
		}
	:: d_step { calm && extends > 0 && key_at >= now -> extends--; printf("%d: client: EXPIRE\n", now);
#ifdef SHORTENED_UNHEARD
		key_at = now;
#else
		key_at = key_at + 2;
#endif
		life_due[holder] = key_at; key_used = now; emit(touched, 0) }
#if CANCELS
	:: d_step { calm && cancels > 0 && lives > 0 -> cancels--; printf("%d: client: timer_cancel\n", now); timer_cancel() }
#endif
#if GUARDS
	:: d_step { calm && guards > 0 -> guards--; guard_refuses = !guard_refuses; printf("%d: client: the guard says %c\n", now, (guard_refuses -> 'n' : 'y')) }
#endif
#if HOLDS
	:: d_step { calm && holds > 0 && list_mode != HOLDING -> holds--; printf("%d: client: hold\n", now); hold() }
#ifdef RESUME
	:: d_step { list_mode == HOLDING && now > list_cut -> printf("%d: client: resume\n", now); resume(RESUME) }
#else
	:: d_step { list_mode == HOLDING -> printf("%d: client: resume\n", now); resume(PLAINLY) }
	:: d_step { list_mode == HOLDING && now > list_cut -> printf("%d: client: resume, shifting\n", now); resume(SHIFTING) }
	:: d_step { list_mode == HOLDING -> printf("%d: client: resume, to dead letters\n", now); resume(BURYING) }
	:: d_step { list_mode == HOLDING -> printf("%d: client: resume at a rate\n", now); resume(SPACING) }
#endif
#endif
	od
}

/* Redis deletes what has run out when it gets round to it. */
proctype redis() {
end:	do
	:: d_step { key_at != 0 && key_at < now -> printf("%d: redis deletes what ran out\n", now); look(); done() }
	:: d_step { calm && denials > 0 && !denied -> printf("%d: redis: the right to read the key is taken away\n", now); denials--; denied = true }
	:: d_step { denied && aside_due[0] != now && aside_due[LIVES - 1] != now -> printf("%d: redis: the right to read the key is given back\n", now); denied = false }
#ifdef ASYNC_REPLICATION_LOSS
	/* A failover to a replica that lacks the last set, or a power cut. */
	:: d_step { calm && key_at != 0 && key_life == lives && due_life == lives -> key_at = 0; key_life = 0; key_mark = 0; key_used = 0; forget() }
#endif
#if FAILOVERS
	/* A failover to a replica that lacks the copy. */
	:: d_step { calm && failovers > 0 && copy_gen != 0 -> printf("%d: redis: a failover loses the copy of the list\n", now); failovers--; copy_gen = 0; copy_mode = OPEN; copy_cut = 0;
		for (s_i : 1 .. LIVES + 1) { bound[s_i] = 0 }
		s_i = 0 }
#endif
#ifdef NATS_LOSS
	/* JetStream loses what it has acknowledged: a power cut before its next fsync. */
	:: d_step { calm && stored[REF(2, 0)] != 0 -> stored[REF(2, 0)] = 0; messages[1] = 0 }
#endif
	od
}

/* A message reaches JetStream, which stores it unless it has its id, and answers. */
inline deliver(i) {
	if
#ifdef LETTERS
	:: wire_letter[i] != 0 -> judge_letter(i)
	:: wire_letter[i] == 0 && stored[wire_id[i]] != 0 && now - stored[wire_id[i]] < WINDOW
#else
	:: stored[wire_id[i]] != 0 && now - stored[wire_id[i]] < WINDOW
#endif
	:: else ->
		stored[wire_id[i]] = now;
		judge_stored(wire_life[i]);
		if :: RETRIES && wire_life[i] == 1 && request == none && calm -> request = pending; request_due = now + 1 :: else fi
	fi;
	answer[i] = (phase[i] == sent);
	wire_id[i] = 0; wire_life[i] = 0; SET_WIRE_LETTER(i, 0)
}

/* The id of an event is its ref, unless the payload states the attempt, as life 2's may. */
#ifdef PAYLOAD_STATES_ATTEMPT
#define ID(ref, whose) (whose == 2 -> (ref) | 1 : (ref))
#else
#ifdef MISTAKE_NEW_ID_EACH_TRY
#define ID(ref, whose) REF(now, 0)
#else
#define ID(ref, whose) (ref)
#endif
#endif

/* Whether a dead letter says that its event may be stored. */
#if defined(LATE) && !defined(MISTAKE_LETTER_SILENT)
#define SAID(i) hand_unsure[i]
#else
#define SAID(i) 0
#endif

/* How far ahead of its due time a timer may be claimed: not at all. */
#ifdef MISTAKE_CLAIM_EARLY
#define AHEAD 1
#else
#define AHEAD 0
#endif

#define fails		(calm && faults > 0)
#define idles(i)	(up[i] && phase[i] == idle)
#define flies(i)	(up[i] && (phase[i] == claimed || phase[i] == sent))
#define in_time(i)	(now < hand_lease[i])
#define free_now	(FREE(0) || FREE(1) || FREE(2))
#define due_now		(due != 0 && due <= now + AHEAD)
#define contested_now	(contested_due != 0 && contested_end <= now)
#define past_now	(past_due != 0 && past_end <= now)
#define beside_at(slot)	(beside_due[slot] != 0 && beside_due[slot] <= now)
#define beside_now	(beside_at(0) || beside_at(1))
#define aside_now	(aside_due[0] != 0 && aside_look[0] <= now || aside_due[LIVES - 1] != 0 && aside_look[LIVES - 1] <= now)

/* Beyond the duplicate window since the due time what may have been published is looked for before it is published again. */
#if defined(FORGETS) && !defined(MISTAKE_NO_LOOK)
#define finds(i) (hand_unsure[i] && hand_lease[i] - hand_ref[i] / 2 >= WINDOW && stored[ID(hand_ref[i], hand_life[i])] != 0)
#else
#define finds(i) false
#endif

/* A dead letter comes before the guard. */
#ifdef LETTERS
#define is_refused(i) (HAND_REFUSED(i) && !hand_dead[i])
#else
#define is_refused(i) HAND_REFUSED(i)
#endif

#ifdef SHORTENED_UNHEARD
#define BE_SURE(i, is) sure[i] = is
#define RECALL(i) sure[i] = sure[i] || !ran_out
#else
#define BE_SURE(i, is) skip
#define RECALL(i) skip
#endif

#if HOLDS
#define FORGET_LIST(i) known_gen[i] = 0; known_mode[i] = OPEN; known_cut[i] = 0; known_by[i] = 0; nothing_left[i] = false
#else
#define FORGET_LIST(i) skip
#endif

proctype timerd(byte i) {
	byte at, whose;
	mtype kind;
end:	do
	/* The reconciler claims. A claim whose reply is lost has happened all the same. */
	:: d_step { idles(i) && may_claim(i) && free_now -> printf("%d: timerd %d claims what is in firing\n", now, i); claim_free(i, true) }
	:: d_step { idles(i) && may_claim(i) && due_now -> printf("%d: timerd %d claims what is due\n", now, i); claim_due(i, true, false) }
	:: d_step { idles(i) && may_claim(i) && due_now -> printf("%d: timerd %d claims what is due, and tells\n", now, i); claim_due(i, true, true) }
	:: d_step { idles(i) && may_claim(i) && contested_now -> printf("%d: timerd %d claims the contested timer\n", now, i); claim_contested(i, true) }
	:: d_step { idles(i) && may_claim(i) && past_now -> printf("%d: timerd %d claims the dismissed timer\n", now, i); claim_past(i, true) }
	:: d_step { idles(i) && may_claim(i) && beside_now -> printf("%d: timerd %d claims the retry beside\n", now, i); claim_beside(i, true) }
	:: d_step { idles(i) && may_claim(i) && aside_now -> printf("%d: timerd %d looks at what is set aside\n", now, i); claim_aside(i, true) }
	:: d_step { idles(i) && may_claim(i) && free_now && fails -> printf("%d: timerd %d claims what is in firing, reply lost\n", now, i); faults--; claim_free(i, false) }
	:: d_step { idles(i) && may_claim(i) && due_now && fails -> printf("%d: timerd %d claims what is due, reply lost\n", now, i); faults--; claim_due(i, false, true) }

	/* The publisher publishes, publishes again, settles, gives back. What the guard refused it settles at once. */
#if GUARDS
	:: d_step { up[i] && phase[i] == claimed && is_refused(i) -> printf("%d: timerd %d ends what its guard refused\n", now, i); settle(i) }
#endif
	:: d_step { up[i] && phase[i] == claimed && in_time(i) && finds(i) && !is_refused(i) -> printf("%d: timerd %d finds it stored\n", now, i); phase[i] = acked }
	:: d_step { up[i] && phase[i] == claimed && in_time(i) && wire_id[i] == 0 && !finds(i) && !is_refused(i) -> printf("%d: timerd %d publishes\n", now, i);
		wire_id[i] = ID(hand_ref[i], hand_life[i]); wire_life[i] = hand_life[i]; phase[i] = sent; SET_WIRE_LETTER(i, (hand_dead[i] -> 1 + SAID(i) : 0)) }
	:: d_step { up[i] && phase[i] == sent && !answer[i] && wire_id[i] == 0 -> printf("%d: timerd %d gives up waiting\n", now, i); phase[i] = claimed; SET_UNSURE(i, (hand_unsure[i] || MAY_BE_STORED(i))) }
#ifdef MISTAKE_SETTLE_BEFORE_ACK
	:: d_step { up[i] && phase[i] == sent -> printf("%d: timerd %d settles before the acknowledgement\n", now, i); settle(i) }
#else
	:: d_step { up[i] && phase[i] == sent && answer[i] -> printf("%d: timerd %d is acknowledged\n", now, i); phase[i] = acked; answer[i] = false }
	:: d_step { up[i] && phase[i] == acked -> printf("%d: timerd %d settles\n", now, i); settle(i) }
#endif
	:: d_step { flies(i) && (calm || !in_time(i)) -> printf("%d: timerd %d gives back\n", now, i); release(i, 0) }
#ifdef PAUSES
	:: d_step { flies(i) && calm -> printf("%d: timerd %d gives back for a while\n", now, i); release(i, now + PAUSE) }
#endif

	/* The network. */
	:: d_step { wire_id[i] != 0 -> printf("%d: timerd %d's message arrives\n", now, i); deliver(i) }
	:: d_step { wire_id[i] != 0 && fails -> printf("%d: timerd %d's message is lost\n", now, i); faults--; wire_id[i] = 0; wire_life[i] = 0; SET_WIRE_LETTER(i, 0) }
#ifdef REFUSES
	:: d_step { wire_id[i] != 0 && calm -> printf("%d: timerd %d's message is refused\n", now, i); wire_id[i] = 0; wire_life[i] = 0; SET_WIRE_LETTER(i, 0);
		if :: phase[i] == sent -> phase[i] = claimed :: else fi }
#endif
	:: d_step { answer[i] && fails -> printf("%d: timerd %d's acknowledgement is lost\n", now, i); faults--; answer[i] = false }

	/* The listener and the audit. */
#ifdef WAITS
	:: d_step { up[i] && len(hints[i]) == 1 && hints[i]?[expired,_,_] && MAY_WAIT && !WAITING(i) ->
		printf("%d: timerd %d lets the expired event wait\n", now, i);
		hints[i]?_,waiting_life[i],_; waiting_at[i] = now; oldest_hint[i] = 0 }
	:: d_step { up[i] && WAITING(i) && MAY_WAIT && waiting_at[i] != now -> printf("%d: timerd %d lets it wait on\n", now, i); waiting_at[i] = now }
	:: d_step { up[i] && WAITING(i) -> printf("%d: timerd %d observes what waited\n", now, i);
		whose = waiting_life[i]; at = waiting_at[i]; waiting_life[i] = 0; waiting_at[i] = 0;
		observe(i, expired, whose, at);
		whose = 0; at = 0 }
#endif
#ifdef MISTAKE_OVERTAKES
	:: d_step { up[i] && nempty(hints[i]) ->
#else
	:: d_step { up[i] && nempty(hints[i]) && !WAITING(i) ->
#endif
		hints[i]?kind,whose,at;
		if
		:: nempty(hints[i]) -> hints[i]?<s_kind,s_life,oldest_hint[i]>; s_kind = 0; s_life = 0
		:: empty(hints[i]) -> oldest_hint[i] = 0; last_hint[i] = 0
		fi;
		printf("%d: timerd %d observes %e of %d\n", now, i, kind, at);
		observe(i, kind, whose, at);
		kind = 0; whose = 0; at = 0 }
	:: d_step { up[i] && sub[i] == off -> printf("%d: timerd %d subscribes\n", now, i); sub[i] = on; since[i] = now; audit_keys[i] = true; RECALL(i) }
	:: d_step { up[i] && audit_keys[i] && sub[i] != off -> printf("%d: timerd %d audits the keys\n", now, i); observe_audited(i); audit_keys[i] = false; audit_index[i] = true }
	:: d_step { up[i] && audit_index[i] && sub[i] != off -> printf("%d: timerd %d audits the index\n", now, i); audit(i); audit_index[i] = false; BE_SURE(i, true) }
	:: d_step { up[i] && sub[i] == on && calm && losses > 0 -> printf("%d: timerd %d goes deaf\n", now, i); losses--; sub[i] = deaf; deaf_at[i] = now }
	:: d_step { up[i] && sub[i] == deaf -> printf("%d: timerd %d notices that it is deaf\n", now, i); sub[i] = off; since[i] = NO_EVENTS; deaf_at[i] = 0 }

#ifdef SHORTENED_UNHEARD
	/* What it has heard has to be taken in before, or a crash forgets it. */
#ifdef MISTAKE_MARKS_TOO_SOON
	:: d_step { up[i] && sure[i] && sub[i] == on && ran_out -> printf("%d: timerd %d leaves a mark\n", now, i); ran_out = false }
#else
	:: d_step { up[i] && sure[i] && sub[i] == on && ran_out && empty(hints[i]) && !WAITING(i) -> printf("%d: timerd %d leaves a mark\n", now, i); ran_out = false }
#endif
#endif

#if HOLDS
	/* The list of holds, its copy, and resumes. */
	:: d_step { up[i] && known_gen[i] != list_gen -> printf("%d: timerd %d reads the list of holds\n", now, i); read_list(i) }
	:: d_step { up[i] && COPY_OLD(i) -> printf("%d: timerd %d copies the list\n", now, i); hold_copy(i) }
	:: d_step { up[i] && releases(i) -> printf("%d: timerd %d releases\n", now, i); hold_release(i) }
	:: d_step { up[i] && finishes(i) -> printf("%d: timerd %d finds nothing left to release\n", now, i); nothing_left[i] = true }
	:: d_step { up[i] && nothing_left[i] && known_gen[i] == list_gen -> printf("%d: timerd %d removes the hold\n", now, i); hold_write(OPEN, 0, 0); read_list(i) }
#endif

	/* The retry consumer; the request comes again until it is acknowledged. */
	:: d_step { up[i] && request == pending -> printf("%d: timerd %d sets the retry\n", now, i); retry(); request = finished }
	:: d_step { up[i] && request == pending && fails -> printf("%d: timerd %d sets the retry, which will come again\n", now, i); faults--; retry() }

	/* kill -9, and a new start. */
	:: d_step { up[i] && calm && crashes > 0 -> printf("%d: timerd %d crashes\n", now, i); crashes--; up[i] = false; silence(i); let_go(i); audit_keys[i] = false; audit_index[i] = false; BE_SURE(i, false); FORGET_LIST(i) }
	:: d_step { !up[i] -> printf("%d: timerd %d starts\n", now, i); up[i] = true }
	od
}

/* A deaf subscription is noticed, and a hint taken in, within their time. */
#ifdef DEAFNESS_UNNOTICED
#define canary_ok(i) true
#else
#define canary_ok(i) (!up[i] || sub[i] != deaf || now < deaf_at[i] + CANARY)
#endif
#ifdef HINTS_TOO_LATE
#define hints_ok(i) true
#else
#define hints_ok(i) (!up[i] || (empty(hints[i]) || now < oldest_hint[i] + HINT_DELAY) && (!WAITING(i) || now < waited(i) + HINT_DELAY))
#endif

/* Without delays, time passes only when there is nothing left to do. */
#ifdef NO_DELAYS
#define PATIENT timeout
#else
#define PATIENT true
#endif

proctype clock() {
	do
	:: atomic { calm && PATIENT && canary_ok(0) && canary_ok(N - 1) && hints_ok(0) && hints_ok(N - 1) -> now++ }
	:: atomic { !calm && now < TMAX && timeout -> now++ }
	:: d_step { now == TMAX && timeout -> judge_all(); now++ }
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
