import type { TimerEvent } from "./event.js";
import { durableOf, type Namespace } from "./names.js";

/** A consumer's log. `console` is one. */
export interface Logger {
  info(message: string, fields: object): void;
  warn(message: string, fields: object): void;
  error(message: string, fields: object): void;
}

/** Writes each message and its fields to `console` in one line. */
const consoleLogger: Logger = {
  info: (message, fields) => console.info(lineOf(message, fields)),
  warn: (message, fields) => console.warn(lineOf(message, fields)),
  error: (message, fields) => console.error(lineOf(message, fields)),
};

/** Returns a message with its fields as name=value; a value other than a plain word is written as JSON. */
function lineOf(message: string, fields: object): string {
  const words = Object.entries(fields).filter(([, value]) => value !== undefined).map(([name, value]) => {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    return `${name}=${/^[\w:.+-]+$/.test(text) ? text : JSON.stringify(text)}`;
  });
  return [message, ...words].join(" ");
}

/**
 * Works on one event. Several run at once. Its end decides about the event:
 *
 * - it ends: the work is done, and the event is acknowledged.
 * - it throws, or returns an Error: timerd sets the timer again with the next attempt, after the delay of its retry
 *   policy, or makes it a dead letter when its attempts are used up.
 * - it throws or returns `retryAfter(ms)`: the same, after that time.
 * - it throws or returns `postpone(ms)`: the same, and the attempt is not used up.
 * - it throws or returns `dead()`: the event goes to the dead letters now.
 *
 * The signal is aborted if the consumer has to stop and the handler has used up `stopTimeout`; a plain error after that
 * costs no attempt.
 */
export type Handler = (event: TimerEvent, context: { signal: AbortSignal }) => unknown;

/** Options of `consume`. Durations are in milliseconds. */
export interface ConsumeOptions {
  /** Ends the consumption. Without it, it ends with the connection. */
  signal?: AbortSignal;
  /** The stream of timerd's events, TIMERD_STREAM. Default: `TIMERS`. */
  stream?: string;
  /** The beginning of every subject, TIMERD_SUBJECT_PREFIX. Default: `timers`. */
  prefix?: string;
  /**
   * Names the consumer in JetStream, which keeps the acknowledgements under this name. Consumers with the same name, in
   * any number of processes, share the events; consumers with different names each get all events. Default: a name made
   * of the namespace, the same as the Go client's, such as `timerd~shop~order` for shop:order.
   */
  durable?: string;
  /**
   * The beginning of a new durable consumer: the oldest event of the stream, which may be a week old, the next firing,
   * or the first event stored at a time or later. An existing one goes on where it was. Default: `all`.
   */
  start?: "all" | "now" | Date;
  /** The number of simultaneous handlers. An event is fetched only for a free handler. Default: 16. */
  concurrency?: number;
  /**
   * The time after which JetStream delivers a dead process's event to another one. It does not limit a handler: while
   * one runs, its event's deadline is extended. Default: 30,000.
   */
  ackWait?: number;
  /**
   * The most events with handlers in all processes that share `durable`; -1 is unlimited. Default: 1,000, or
   * `concurrency` if that is greater; fewer where NATS limits it (max_ack_pending).
   */
  maxAckPending?: number;
  /**
   * The time for running handlers to finish after `signal` is aborted; then their own signals are aborted too. Default:
   * 10,000.
   */
  stopTimeout?: number;
  /** The domain of JetStream's API, or the prefix of its subjects, if it is not the default. */
  jetstream?: { domain?: string; apiPrefix?: string };
  /**
   * Gets a line for every failed attempt, dead letter, bad event and lasting trouble with NATS. Default: lines to
   * `console`.
   */
  logger?: Logger;
}

/** Options with every field set, but for the signal. */
export type Settings = Required<Omit<ConsumeOptions, "signal" | "jetstream">> & {
  signal: AbortSignal;
  /** Reports whether maxAckPending is a default. A default gives way to the server's limit. */
  yields: boolean;
};

/** The least ack wait: it leaves time to extend a running handler's deadline over a network. */
const minAckWait = 100;

/** Fills in the defaults. */
export function settingsOf(options: ConsumeOptions, namespace: Namespace): Settings {
  const concurrency = options.concurrency ?? 16;
  return {
    signal: options.signal ?? new AbortController().signal,
    stream: options.stream ?? "TIMERS",
    prefix: options.prefix ?? "timers",
    durable: options.durable ?? durableOf(namespace),
    start: options.start ?? "all",
    concurrency,
    ackWait: options.ackWait ?? 30_000,
    maxAckPending: options.maxAckPending ?? Math.max(1000, concurrency),
    yields: options.maxAckPending === undefined,
    stopTimeout: options.stopTimeout ?? 10_000,
    logger: options.logger ?? consoleLogger,
  };
}

/** Returns the faults of settings; empty if there are none. */
export function faultsOf(s: Settings): string[] {
  const faults: string[] = [];
  const name = /^[^\s.*>/\\]+$/; // JetStream's rule
  if (!name.test(s.stream)) faults.push(`stream is ${JSON.stringify(s.stream)}, which is no name of a stream`);
  if (!name.test(s.durable)) faults.push(`durable is ${JSON.stringify(s.durable)}, which is no name of a consumer`);
  const starts = s.start instanceof Date ? !Number.isNaN(s.start.getTime()) : s.start === "all" || s.start === "now";
  if (!starts) faults.push(`start is ${String(s.start)}, want "all", "now" or a valid Date`);
  if (!Number.isInteger(s.concurrency) || s.concurrency < 1)
    faults.push(`concurrency is ${s.concurrency}, want at least 1`);
  if (!(s.ackWait >= minAckWait && s.ackWait < 2 ** 31))
    faults.push(`ackWait is ${s.ackWait}, want at least ${minAckWait} ms`);
  if (!Number.isInteger(s.maxAckPending) || s.maxAckPending < -1 || s.maxAckPending === 0) {
    faults.push(`maxAckPending is ${s.maxAckPending}, want at least 1, or -1 for no limit`);
  }
  if (!(s.stopTimeout >= 0 && s.stopTimeout < 2 ** 31))
    faults.push(`stopTimeout is ${s.stopTimeout}, want 0 ms or more`);
  return faults;
}
