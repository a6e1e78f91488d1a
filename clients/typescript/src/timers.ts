import { inspect } from "node:util";

import { InvalidError, NoLibraryError, textOf, TimerdError, UnavailableError } from "./errors.js";
import { encodePayload } from "./payload.js";
import { type Caller, callerOf, type RedisClient } from "./redis.js";

/** A key `app:module:type:id`: a string (UTF-8 in Redis), or bytes. */
export type Key = string | Uint8Array;

/**
 * The payload of a timer. A string and bytes (a Buffer, an ArrayBuffer or any view of one) are kept as they are,
 * `undefined` and `null` are an empty payload, and anything else becomes JSON. A Map, a Set and other objects with
 * empty JSON are refused. `JSON.stringify` writes numbers with JavaScript's precision, so pass 64-bit integers and
 * amounts as strings.
 */
export type Payload = unknown;

/**
 * The due time of a timer: after a number of milliseconds, or at a time, at once if that has passed; by the clock of
 * the Redis server.
 */
export type When = { after: number; at?: never } | { at: Date; after?: never };

/** Options of every call that sets. Durations are in milliseconds, rounded up to whole ones. */
export interface CommonOptions {
  /** Set only if there is no timer, and no Redis key, of this name; the result is null otherwise. */
  nx?: boolean;
  /** Set only if there is a timer, or a Redis key, of this name. */
  xx?: boolean;
  /** A timer that is claimed later than this after its due time becomes a dead letter; 0 is no limit. */
  late?: number;
  /** With `late`: a timer claimed too late is dropped, without a dead letter. */
  dropLate?: boolean;
  /** The timer fires only if this key does not exist when it is claimed; its retries too. */
  unless?: string | Uint8Array;
  /** The timer fires only if this key exists when it is claimed; its retries too. */
  if?: string | Uint8Array;
}

/** Options of `set`. */
export interface SetOptions extends CommonOptions {
  /** The attempt of the firing, from 1. It overrides an `attempt` in the payload. */
  attempt?: number;
  /** A W3C `traceparent`; the event has it too. */
  trace?: string;
}

/** The rhythm of a timer: every number of milliseconds, or by a cron expression in an IANA zone, UTC by default. */
export type Repetition = { every: number; cron?: never; tz?: never } | { cron: string; tz?: string; every?: never };

/** Options of `repeat`. */
export interface RepeatOptions extends CommonOptions {
  /** No occurrence is due before this time, and the interval of `every` counts from it. */
  from?: Date;
  /** The last possible due time. */
  until?: Date;
  /** The number of firings in all. */
  times?: number;
  /** Occurrences missed within this time, in milliseconds, fire in order. */
  catchUp?: number;
}

/**
 * The result of a cancellation: `fired` means that the timer is firing or has fired lately; `unknown` means that there
 * is no such timer.
 */
export type CancelOutcome = "cancelled" | "fired" | "unknown";

/** The state of a timer; see docs/reference.md. Later versions of timerd may know other states. */
export type State = "pending" | "held" | "owed" | "firing";

/** An unsettled timer: its event is not known to be in NATS. If it is `firing`, only the state is certain. */
export interface Timer {
  state: State;
  /** By the clock of the Redis server. */
  due: Date;
  /** The attempt of the timer's next firing. */
  attempt: number;
  /** The payload, byte for byte; null if the timer fires without one. */
  payload: Buffer | null;
  /** Its own limit on lateness, in ms; null if it has none. */
  late: number | null;
  /** Its own guards, as text; null if it has none. */
  unless: string | null;
  if: string | null;
  /** Its rhythm, such as `every 5m0s`; null for a single timer. */
  repeat: string | null;
  /** The number of its next firing, from 1; null for a single timer. */
  occurrence: number | null;
  /** The trace in which the timer was set; null without one. */
  traceparent: string | null;
}

/**
 * Timers sets, cancels and reads timers through timerd's function library in Redis. It needs no NATS, and no running
 * timerd once the library is loaded. Calls may run concurrently.
 *
 * Each throws `InvalidError`, `NoLibraryError` or `UnavailableError`.
 */
export class Timers {
  readonly #redis: Caller;

  constructor(client: RedisClient) {
    this.#redis = callerOf(client);
  }

  /**
   * Sets a timer and returns its due time; null if `nx` or `xx` prevented it. A pending timer of the key is replaced.
   * Once the promise is fulfilled the timer is in the schedule, whether or not a timerd runs.
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
   * Sets a repeating timer, and returns its first due time: `"planned"` for `cron`, because a timerd computes it; null
   * if `nx` or `xx` prevented it. It replaces the pending timer of the key.
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
   * Cancels all pending, held and owed timers of a key, deletes the Redis key, and returns the outcome. A second call
   * returns `unknown`.
   */
  async cancel(key: Key): Promise<CancelOutcome> {
    const args = new Arguments("cancel", key);
    for (let some = false; ; some = true) {
      try {
        const outcome = String(await this.#call("timer_cancel", args));
        return some ? "cancelled" : (outcome as CancelOutcome);
      } catch (error) {
        // Too many timers of the key are owed for one call.
        if (!(error instanceof UnavailableError && /\bAGAIN timerd has cancelled/.test(textOf(error.cause))))
          throw error;
      }
    }
  }

  /**
   * Returns an unsettled timer, or null. Of several timers of a key it returns the pending one, or else a held, an owed
   * or a firing one.
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

/** Arguments collects the arguments of one call, and checks what the function library cannot check. */
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
    if (options.unless !== undefined) this.push("UNLESS", bytesOf(options.unless));
    if (options.if !== undefined) this.push("IF", bytesOf(options.if));
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

/** Reads the reply of timer_get: alternating names and values. Unknown names are a later version's. */
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
    unless: text("unless"),
    if: text("if"),
    repeat: text("repeat"),
    occurrence: number("occurrence"),
    traceparent: text("traceparent"),
  };
}

/** Returns this package's error for an error of Redis. */
function explained(what: string, error: unknown): TimerdError {
  const text = textOf(error);
  const message = `timerd: ${what}: ${text.replace(/^ERR /, "")}`;
  if (/^(ERR )?timerd: /.test(text)) return new InvalidError(message, { cause: error });
  if (/^(ERR )?(Function not found|unknown command)/.test(text)) {
    return new NoLibraryError(
      `${message}: timerd's function library is not in this Redis; start timerd on it once, or run \`timerd doctor\``,
      { cause: error },
    );
  }
  return new UnavailableError(message, { cause: error });
}
