import { inspect } from "node:util";

import { InvalidError, NoLibraryError, textOf, TimerdError, UnavailableError } from "./errors.js";
import { encodePayload } from "./payload.js";
import { type Caller, callerOf, type RedisClient } from "./redis.js";

/** A key `app:module:type:id`: a string, which is UTF-8 in Redis, or bytes. */
export type Key = string | Uint8Array;

/**
 * What a timer carries. A string and bytes (a Buffer, an ArrayBuffer or any view of one) are kept as they are, `undefined`
 * and `null` are an empty payload, and of anything else its JSON is kept. A Map, a Set and other objects of which JSON would
 * keep nothing are refused. `JSON.stringify` writes a number as JavaScript has it, so pass 64-bit integers and
 * amounts as strings.
 */
export type Payload = unknown;

/** When a timer is due: after so many milliseconds, or at a time, at once if that has passed; by the clock of the Redis server. */
export type When = { after: number; at?: never } | { at: Date; after?: never };

/** Options of every call that sets. Durations are in milliseconds, rounded up to whole ones. */
export interface CommonOptions {
  /** Set only if there is no timer, and no Redis key, of this name; the result is null otherwise. */
  nx?: boolean;
  /** Set only if there is one. */
  xx?: boolean;
  /** A timer that is claimed later than this after its due time becomes a dead letter; 0 is no limit. */
  late?: number;
  /** With `late`: such a timer is forgotten instead. */
  dropLate?: boolean;
}

/** Options of `set`. */
export interface SetOptions extends CommonOptions {
  /** The attempt that the timer fires as, from 1 on. It wins over an `attempt` in the payload. */
  attempt?: number;
  /** A W3C `traceparent`, which the event has too. */
  trace?: string;
}

/** By what a timer repeats: every so many milliseconds, or by a cron expression in an IANA zone, UTC by default. */
export type Repetition = { every: number; cron?: never; tz?: never } | { cron: string; tz?: string; every?: never };

/** Options of `repeat`. */
export interface RepeatOptions extends CommonOptions {
  /** Nothing is due before, and the grid of `every` counts from there. */
  from?: Date;
  /** The last moment at which the timer may be due. */
  until?: Date;
  /** How often it fires in all. */
  times?: number;
  /** Of what was missed, that of the last so many milliseconds fires in order. */
  catchUp?: number;
}

/** What a cancellation found: `fired` is too late, or lately fired; `unknown` is no such timer. */
export type CancelOutcome = "cancelled" | "fired" | "unknown";

/** How far a timer has come; see docs/reference.md. Later versions of timerd may know other states. */
export type State = "pending" | "held" | "owed" | "firing";

/** A timer that is not settled: its event is not known to be in NATS. Of one that is `firing` only the state is certain. */
export interface Timer {
  state: State;
  /** By the clock of the Redis server. */
  due: Date;
  /** That it will fire as. */
  attempt: number;
  /** Byte for byte; null if it has none that fires with it. */
  payload: Buffer | null;
  /** Its own limit on how late it may fire, in ms; null if it has none. */
  late: number | null;
  /** What it repeats by, such as `every 5m0s`; null if it does not repeat. */
  repeat: string | null;
  /** Which of its firings the next one is, from 1 on; null if it does not repeat. */
  occurrence: number | null;
  /** The trace that it was set in; null if it was set without one. */
  traceparent: string | null;
}

/**
 * Timers sets, cancels and reads timers through timerd's function library in Redis. It needs no NATS, and no running
 * timerd once the library is loaded. Calls may run at once.
 *
 * Each throws `InvalidError`, `NoLibraryError` or `UnavailableError`.
 */
export class Timers {
  readonly #redis: Caller;

  constructor(client: RedisClient) {
    this.#redis = callerOf(client);
  }

  /**
   * Sets a timer and returns when it is due; null if `nx` or `xx` said no. A pending timer of the key is replaced. Once
   * the promise is fulfilled the timer is in the schedule, whether or not a timerd runs.
   */
  set(key: Key, payload: Payload, options: When & SetOptions & ({ nx: true } | { xx: true })): Promise<Date | null>;
  set(key: Key, payload: Payload, options: When & SetOptions & { nx?: false; xx?: false }): Promise<Date>;
  set(key: Key, payload: Payload, options: When & SetOptions): Promise<Date | null>;
  async set(key: Key, payload: Payload, options: When & SetOptions): Promise<Date | null> {
    const args = new Arguments("set", key, options ?? null);
    args.payload(payload).when(options).common(options);
    if (options.attempt !== undefined) args.push("ATTEMPT", String(options.attempt));
    if (options.trace !== undefined) args.push("TRACE", options.trace);
    const reply = await this.#call("timer_set", args);
    return reply === null ? null : new Date(Number(reply));
  }

  /**
   * Sets a timer that repeats, and returns when it is due first: `"planned"` for `cron`, since a timerd finds that;
   * null if `nx` or `xx` said no. It replaces what is pending of the key.
   */
  async repeat(key: Key, payload: Payload, options: Repetition & RepeatOptions): Promise<Date | "planned" | null> {
    const args = new Arguments("repeat", key, options ?? null);
    args.payload(payload).repetition(options).common(options);
    args.time("FROM", "from", options.from).time("UNTIL", "until", options.until);
    if (options.times !== undefined) args.push("TIMES", String(options.times));
    args.duration("CATCHUP", "catchUp", options.catchUp);
    const reply = await this.#call("timer_repeat", args);
    if (reply === null) return null;
    return String(reply) === "planned" ? "planned" : new Date(Number(reply));
  }

  /**
   * Cancels all timers of a key that are pending, held or owed, deletes the Redis key, and says what it found. Called
   * again it answers `unknown`.
   */
  async cancel(key: Key): Promise<CancelOutcome> {
    const args = new Arguments("cancel", key);
    for (let some = false; ; some = true) {
      try {
        const outcome = String(await this.#call("timer_cancel", args));
        return some ? "cancelled" : (outcome as CancelOutcome);
      } catch (error) {
        // So many timers of the key are owed that one call does not cancel them all.
        if (!(error instanceof UnavailableError && /\bAGAIN timerd has cancelled/.test(textOf(error.cause)))) throw error;
      }
    }
  }

  /**
   * Returns a timer that is not settled, or null. Of several timers of a key it returns the pending one, else one that
   * is held, owed or firing.
   */
  async get(key: Key): Promise<Timer | null> {
    const { what, key: bytes } = new Arguments("get", key);
    let reply: unknown;
    try {
      reply = await this.#redis.read("timer_get", bytes);
    } catch (error) {
      throw explained(what, error);
    }
    if (reply === null || reply === undefined) return null;
    const timer = readTimer(reply as unknown[]);
    if (!timer) throw new TimerdError(`timerd: ${what}: timer_get answered without a due time and an attempt`);
    return timer;
  }

  async #call(name: string, args: Arguments): Promise<unknown> {
    try {
      return (await this.#redis.call(name, args.key, args.list)) ?? null;
    } catch (error) {
      throw explained(args.what, error);
    }
  }
}

/** Arguments collects those of one call, and checks what the function library cannot. */
class Arguments {
  readonly list: (string | Buffer)[] = [];
  readonly key: Buffer;
  /** The call and its key, for errors. */
  readonly what: string;

  constructor(name: string, key: Key, options: object = {}) {
    this.what = name;
    if (typeof key !== "string" && !(key instanceof Uint8Array)) {
      throw this.#invalid(`the key is ${inspect(key, { depth: 0, breakLength: Infinity })}, want a string or bytes`);
    }
    this.key = bytesOf(key);
    this.what = `${name} ${JSON.stringify(this.key.toString())}`;
    if (typeof options !== "object" || options === null) throw this.#invalid("give the options as an object");
  }

  push(...args: (string | Buffer)[]): this {
    this.list.push(...args);
    return this;
  }

  payload(payload: Payload): this {
    try {
      return this.push(encodePayload(payload));
    } catch (error) {
      throw this.#invalid(`the payload is neither text, bytes nor JSON: ${textOf(error)}`, error);
    }
  }

  when(when: { after?: number; at?: Date }): this {
    if ((when.after === undefined) === (when.at === undefined)) throw this.#invalid("give either after or at");
    return this.duration("PX", "after", when.after).time("PXAT", "at", when.at);
  }

  repetition(by: { every?: number; cron?: string; tz?: string }): this {
    if ((by.every === undefined) === (by.cron === undefined)) throw this.#invalid("give either every or cron");
    this.duration("EVERY", "every", by.every);
    if (by.cron !== undefined) this.push("CRON", by.cron);
    return by.tz === undefined ? this : this.zone(by.tz);
  }

  zone(name: string): this {
    try { // an empty one is UTC
      if (name !== "") new Intl.DateTimeFormat("en", { timeZone: name });
    } catch (error) {
      throw this.#invalid(`there is no time zone ${JSON.stringify(name)}`, error);
    }
    return this.push("TZ", name);
  }

  common(options: CommonOptions): this {
    if (options.dropLate && options.late === undefined) throw this.#invalid("dropLate needs late");
    this.duration("LATE", "late", options.late);
    if (options.dropLate) this.push("DROP");
    if (options.nx) this.push("NX");
    if (options.xx) this.push("XX");
    return this;
  }

  duration(option: string, name: string, ms: number | undefined): this {
    if (ms === undefined) return this;
    if (!Number.isFinite(ms)) throw this.#invalid(`${name} is ${ms}, want milliseconds`);
    return this.push(option, BigInt(Math.ceil(ms)).toString());
  }

  time(option: string, name: string, at: Date | undefined): this {
    if (at === undefined) return this;
    if (!(at instanceof Date) || Number.isNaN(at.getTime())) throw this.#invalid(`${name} is not a valid Date`);
    return this.push(option, String(at.getTime()));
  }

  #invalid(text: string, cause?: unknown): InvalidError {
    return new InvalidError(`timerd: ${this.what}: ${text}`, { cause });
  }
}

/** Returns the bytes of a key or a payload, without a copy. */
function bytesOf(text: string | Uint8Array): Buffer {
  return typeof text === "string" ? Buffer.from(text) : Buffer.from(text.buffer, text.byteOffset, text.byteLength);
}

/** Reads the reply of timer_get: names and values in turn. Names that it does not know are a later version's. */
function readTimer(fields: unknown[]): Timer | null {
  const all = new Map<string, unknown>();
  for (let i = 0; i + 1 < fields.length; i += 2) all.set(String(fields[i]), fields[i + 1]);
  const number = (name: string) => (all.has(name) ? Number(all.get(name)) : null);
  const text = (name: string) => (all.has(name) ? String(all.get(name)) : null);
  const due = number("due");
  const attempt = number("attempt");
  if (due === null || attempt === null) return null;
  const payload = all.get("payload");
  return {
    state: (text("state") ?? "pending") as State,
    due: new Date(due),
    attempt,
    payload: payload === undefined || payload === null ? null : bytesOf(payload as string | Buffer),
    late: number("late"),
    repeat: text("repeat"),
    occurrence: number("occurrence"),
    traceparent: text("traceparent"),
  };
}

/** Says what an error of Redis means to the caller. */
function explained(what: string, error: unknown): TimerdError {
  const text = textOf(error);
  const message = `timerd: ${what}: ${text.replace(/^ERR /, "")}`;
  if (/^(ERR )?timerd: /.test(text)) return new InvalidError(message, { cause: error });
  if (/^(ERR )?(Function not found|unknown command)/.test(text)) {
    return new NoLibraryError(
      `${message}: timerd's function library is not in this Redis; start timerd on it once, or see what \`timerd doctor\` says`,
      { cause: error },
    );
  }
  return new UnavailableError(message, { cause: error });
}
