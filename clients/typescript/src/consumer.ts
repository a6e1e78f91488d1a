import {
  AckPolicy, type ConsumerConfig, type ConsumerInfo, type ConsumerUpdateConfig, JetStreamApiCodes, JetStreamApiError,
  type JetStreamManager, jetstream, jetstreamManager,
} from "@nats-io/jetstream";
import type { NatsConnection } from "@nats-io/nats-core";

import { InvalidError, textOf, TimerdError, UnavailableError } from "./errors.js";
import type { TimerEvent } from "./event.js";
import { durableOf, filterOf, type Namespace, parseNamespace } from "./names.js";
import { Run } from "./run.js";

/** Where a consumer says what happens. `console` is one. */
export interface Logger {
  info(message: string, fields: object): void;
  warn(message: string, fields: object): void;
  error(message: string, fields: object): void;
}

/**
 * Works on one event. Several run at once. What it does decides what becomes of the event:
 *
 * - it ends: the work is done, and the event is acknowledged.
 * - it throws, or returns an Error: timerd sets the timer again with the next attempt, after the delay of its retry
 *   policy, or makes it a dead letter when its attempts are used up.
 * - it throws or returns `retryAfter(ms)`: the same, after that time.
 * - it throws or returns `postpone(ms)`: the same, and the attempt is not used up.
 * - it throws or returns `dead()`: the event goes to the dead letters now.
 *
 * The signal is aborted when the consumer has to stop and the handler has used up `stopTimeout`; a plain error after
 * that costs no attempt.
 */
export type Handler = (event: TimerEvent, context: { signal: AbortSignal }) => unknown;

/** Options of `consume`. Durations are in milliseconds. */
export interface ConsumeOptions {
  /** Ends the consumption. Without one it ends with the connection. */
  signal?: AbortSignal;
  /** The stream of timerd's events, TIMERD_STREAM. Default: `TIMERS`. */
  stream?: string;
  /** What every subject begins with, TIMERD_SUBJECT_PREFIX. Default: `timers`. */
  prefix?: string;
  /**
   * Names the consumer in JetStream, which keeps what was acknowledged under it. Consumers with the same name, in any
   * number of processes, share the events; each one with a name of its own sees all of them. Default: a name made of
   * the namespace, the same as the Go client's, such as `timerd~shop~order` for shop:order.
   */
  durable?: string;
  /** How many handlers run at a time. No event is fetched before there is a handler free for it. Default: 16. */
  concurrency?: number;
  /**
   * How soon JetStream hands an event to another process after this one died. It does not limit a handler: while one
   * runs, its event's deadline is extended. Default: 30,000.
   */
  ackWait?: number;
  /**
   * How many events may be with handlers in all the processes that share `durable`; -1 is unlimited. Default: 1,000, or
   * `concurrency` if that is greater.
   */
  maxAckPending?: number;
  /** How long running handlers get to finish after `signal`, until their own is aborted too. Default: 10,000. */
  stopTimeout?: number;
  /** The domain, or the prefix of the subjects, of JetStream's API, where that is not the default. */
  jetstream?: { domain?: string; apiPrefix?: string };
  /** Gets a line for every failed attempt, dead letter, bad event and lasting trouble with NATS. Default: `console`. */
  logger?: Logger;
}

/** Options with every field set, but for the signal. */
export type Settings = Required<Omit<ConsumeOptions, "signal" | "jetstream">> & { signal: AbortSignal };

/** An ack wait leaves time to extend a running handler's deadline over a network. */
const minAckWait = 100;

/** How many requests may wait at a consumer: JetStream's own default, or room for 16 processes of a concurrency. */
const minMaxWaiting = 512;
const waitingShare = 16;

const nanos = 1_000_000;

/**
 * Hands the events of a namespace to handler until `options.signal` is aborted. A namespace is app[:module[:type]], where
 * * and what is left out stand for any.
 *
 * If the durable consumer does not exist in JetStream it is made, and begins with the oldest event of the stream.
 * Otherwise it goes on where that was left, with the ack wait and the limit that are given now. It recovers from losses
 * and restarts of NATS by itself, if the connection reconnects for ever (`maxReconnectAttempts: -1`). An event that is
 * not one of timerd's goes to the dead letters, with a line in the log.
 *
 * When the signal is aborted no handler is called any more, and running ones get `stopTimeout` to finish. The promise is
 * then fulfilled, or rejected if handlers ran on even after that: their events are delivered again. It is also rejected
 * with an `InvalidError` if it cannot begin as asked, and with an `UnavailableError` when the connection is closed, or
 * the stream or the durable consumer is deleted. The connection stays the caller's.
 */
export async function consume(nc: NatsConnection, namespace: string, handler: Handler, options: ConsumeOptions = {}): Promise<void> {
  const what = `timerd: consume ${namespace}`;
  let parsed: Namespace;
  try {
    parsed = parseNamespace(namespace);
  } catch (error) {
    throw new InvalidError(`timerd: consume: ${textOf(error)}`, { cause: error });
  }
  const settings = settingsOf(options, parsed);
  const faults = faultsOf(settings);
  if (faults.length > 0) throw new InvalidError(`${what}: ${faults.join("; ")}`);
  try {
    const api = { ...options.jetstream };
    const jsm = await jetstreamManager(nc, { ...api, checkAPI: false });
    await bind(jsm, settings, namespace, filterOf(settings.prefix, parsed));
    const apiPrefix = api.domain ? `$JS.${api.domain}.API` : (api.apiPrefix?.replace(/\.$/, "") ?? "$JS.API");
    await new Run(nc, jetstream(nc, { ...api }), jsm, apiPrefix, settings, handler).run();
  } catch (error) {
    const Kind = error instanceof TimerdError ? (error.constructor as typeof TimerdError) : UnavailableError;
    throw new Kind(`${what}: ${textOf(error)}`, { cause: error });
  }
}

function settingsOf(options: ConsumeOptions, namespace: Namespace): Settings {
  const concurrency = options.concurrency ?? 16;
  return {
    signal: options.signal ?? new AbortController().signal,
    stream: options.stream ?? "TIMERS",
    prefix: options.prefix ?? "timers",
    durable: options.durable ?? durableOf(namespace),
    concurrency,
    ackWait: options.ackWait ?? 30_000,
    maxAckPending: options.maxAckPending ?? Math.max(1000, concurrency),
    stopTimeout: options.stopTimeout ?? 10_000,
    logger: options.logger ?? console,
  };
}

function faultsOf(s: Settings): string[] {
  const faults: string[] = [];
  const name = /^[^\s.*>/\\]+$/; // as JetStream has it
  if (!name.test(s.stream)) faults.push(`stream is ${JSON.stringify(s.stream)}, which is no name of a stream`);
  if (!name.test(s.durable)) faults.push(`durable is ${JSON.stringify(s.durable)}, which is no name of a consumer`);
  if (!Number.isInteger(s.concurrency) || s.concurrency < 1) faults.push(`concurrency is ${s.concurrency}, want at least 1`);
  if (!(s.ackWait >= minAckWait && s.ackWait < 2 ** 31)) faults.push(`ackWait is ${s.ackWait}, want at least ${minAckWait} ms`);
  if (!Number.isInteger(s.maxAckPending) || s.maxAckPending < -1 || s.maxAckPending === 0) {
    faults.push(`maxAckPending is ${s.maxAckPending}, want at least 1, or -1 for no limit`);
  }
  if (!(s.stopTimeout >= 0 && s.stopTimeout < 2 ** 31)) faults.push(`stopTimeout is ${s.stopTimeout}, want 0 ms or more`);
  return faults;
}

/** JetStream's error codes for a consumer that exists with other settings. */
const consumerExists = [10013, 10105, 10148];

/** Finds the durable consumer and brings its settings in line, or makes it. */
async function bind(jsm: JetStreamManager, s: Settings, namespace: string, filter: string): Promise<void> {
  const want = {
    durable_name: s.durable,
    description: `timerd client, ${namespace}`,
    filter_subject: filter,
    ack_policy: AckPolicy.Explicit,
    ack_wait: Math.round(s.ackWait * nanos),
    max_deliver: -1,
    max_ack_pending: s.maxAckPending,
    max_waiting: Math.max(minMaxWaiting, waitingShare * s.concurrency),
  };
  const found = (await find(jsm, s)) ?? (await make(jsm, s, want));
  if (!found) return;

  const have = found.config;
  const title = `the durable consumer ${JSON.stringify(s.durable)} of stream ${JSON.stringify(s.stream)}`;
  const subjects = have.filter_subjects ?? [have.filter_subject || "every subject"];
  if (subjects.length !== 1 || subjects[0] !== filter) {
    throw new InvalidError(`${title} reads ${subjects.join(", ")}, not ${filter}: give durable another name`);
  }
  if (have.deliver_subject) throw new InvalidError(`${title} is a push consumer: give durable another name`);
  if (have.ack_policy !== want.ack_policy) {
    throw new InvalidError(`${title} has ack policy ${have.ack_policy}, not ${want.ack_policy}: give durable another name`);
  }
  const same = have.ack_wait === want.ack_wait && have.max_deliver === -1 && have.max_ack_pending === want.max_ack_pending;
  if (same && !have.backoff?.length) return;
  const change: Partial<ConsumerUpdateConfig> & { backoff: undefined } = {
    ack_wait: want.ack_wait, max_deliver: want.max_deliver, max_ack_pending: want.max_ack_pending, backoff: undefined,
  };
  await jsm.consumers.update(s.stream, s.durable, change);
}

/** Returns the durable consumer, or null if there is none. */
async function find(jsm: JetStreamManager, s: Settings): Promise<ConsumerInfo | null> {
  try {
    return await jsm.consumers.info(s.stream, s.durable);
  } catch (error) {
    if (!(error instanceof JetStreamApiError)) throw error;
    if (error.code === JetStreamApiCodes.ConsumerNotFound) return null;
    if (error.code === JetStreamApiCodes.StreamNotFound) {
      const text = `JetStream has no stream ${JSON.stringify(s.stream)}: start timerd, which makes it, or set stream`;
      throw new InvalidError(text, { cause: error });
    }
    throw error;
  }
}

/** Makes the durable consumer. It returns the one that somebody else has made meanwhile, or null. */
async function make(jsm: JetStreamManager, s: Settings, config: Partial<ConsumerConfig>): Promise<ConsumerInfo | null> {
  try {
    await jsm.consumers.add(s.stream, config);
    return null;
  } catch (error) {
    if (error instanceof JetStreamApiError && consumerExists.includes(error.code)) return find(jsm, s);
    throw error;
  }
}
