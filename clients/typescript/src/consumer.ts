import {
  AckPolicy, type ConsumerConfig, type ConsumerInfo, type ConsumerUpdateConfig, DeliverPolicy, JetStreamApiCodes,
  JetStreamApiError, type JetStreamManager, jetstream, jetstreamManager,
} from "@nats-io/jetstream";
import type { NatsConnection } from "@nats-io/nats-core";

import { InvalidError, textOf, TimerdError, UnavailableError } from "./errors.js";
import { filterOf, type Namespace, parseNamespace } from "./names.js";
import { type ConsumeOptions, faultsOf, type Handler, type Settings, settingsOf } from "./options.js";
import { Run } from "./run.js";

/**
 * The limit of waiting requests at a consumer created here. JetStream refuses to change it later, so it depends on no
 * option.
 */
const maxWaiting = 4096;

const nanos = 1_000_000;

/**
 * Hands the events of a namespace to handler until `options.signal` is aborted. A namespace is app[:module[:type]], *
 * or a part left out stands for any.
 *
 * If the durable consumer does not exist in JetStream, it is created and begins at `options.start`, by default with the
 * oldest event of the stream. An existing one goes on where it was, with the ack wait and the limit given now. It
 * recovers from losses and restarts of NATS by itself, if the connection reconnects for ever (`maxReconnectAttempts:
 * -1`). A message that is no event of timerd goes to the dead letters, with a line in the log.
 *
 * After the abort no handler is called any more, and running ones get `stopTimeout` to finish. The promise is then
 * fulfilled, or rejected if handlers ran on even after that: their events are delivered again. It is also rejected with
 * an `InvalidError` if it cannot begin with these options, and with an `UnavailableError` when the connection is
 * closed, or the stream or the durable consumer is deleted. The connection stays the caller's.
 */
export async function consume(
  nc: NatsConnection, namespace: string, handler: Handler, options: ConsumeOptions = {},
): Promise<void> {
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

/** JetStream's error codes for a consumer that exists with other settings. */
const consumerExists = [10013, 10105, 10148];

/** Finds the durable consumer and corrects its settings, or creates it. */
async function bind(jsm: JetStreamManager, s: Settings, namespace: string, filter: string): Promise<void> {
  const want = {
    durable_name: s.durable,
    description: `timerd client, ${namespace}`,
    filter_subject: filter,
    ...beginning(s.start),
    ack_policy: AckPolicy.Explicit,
    ack_wait: Math.round(s.ackWait * nanos),
    max_deliver: -1,
    max_ack_pending: s.maxAckPending,
    max_waiting: maxWaiting,
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
    throw new InvalidError(
      `${title} has ack policy ${have.ack_policy}, not ${want.ack_policy}: give durable another name`,
    );
  }
  const same =
    have.ack_wait === want.ack_wait && have.max_deliver === -1 && have.max_ack_pending === want.max_ack_pending;
  if (same && !have.backoff?.length) return;
  const change: Partial<ConsumerUpdateConfig> & { backoff: undefined } = {
    ack_wait: want.ack_wait, max_deliver: want.max_deliver, max_ack_pending: want.max_ack_pending, backoff: undefined,
  };
  await put(s, change, (config) => jsm.consumers.update(s.stream, s.durable, config));
}

/**
 * JetStream's error code for a consumer with more max_ack_pending than the server, the account or the stream allows.
 */
const exceedsAckPending = 10121;

/**
 * Makes or updates the durable consumer. If maxAckPending is a default and exceeds a limit of JetStream, the limit is
 * used.
 */
async function put<C extends { max_ack_pending?: number }>(
  s: Settings,
  config: C,
  call: (config: C) => Promise<unknown>,
): Promise<void> {
  try {
    await call(config);
  } catch (error) {
    if (!(error instanceof JetStreamApiError && error.code === exceedsAckPending)) throw error;
    if (s.yields && config.max_ack_pending !== 0) return put(s, { ...config, max_ack_pending: 0 }, call);
    const limit = "more than NATS allows (max_ack_pending of the server, the account or the stream)";
    throw new InvalidError(`maxAckPending is ${s.maxAckPending}, ${limit}: set a lower one, or raise that limit`, {
      cause: error,
    });
  }
}

/** Sets the beginning of a new durable consumer. */
function beginning(start: Settings["start"]): Partial<ConsumerConfig> {
  if (start === "all") return { deliver_policy: DeliverPolicy.All };
  if (start === "now") return { deliver_policy: DeliverPolicy.New };
  return { deliver_policy: DeliverPolicy.StartTime, opt_start_time: start.toISOString() };
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

/** Makes the durable consumer. It returns one that somebody else created meanwhile, or null. */
async function make(jsm: JetStreamManager, s: Settings, config: Partial<ConsumerConfig>): Promise<ConsumerInfo | null> {
  try {
    await put(s, config, (config) => jsm.consumers.add(s.stream, config));
    return null;
  } catch (error) {
    if (error instanceof JetStreamApiError && consumerExists.includes(error.code)) return find(jsm, s);
    throw error;
  }
}
