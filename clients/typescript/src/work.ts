import type { JetStreamClient, JetStreamManager } from "@nats-io/jetstream";
import type { Msg } from "@nats-io/nats-core";

import { textOf } from "./errors.js";
import { type ParsedEvent, parseFired } from "./event.js";
import { givenUp, malformed, publish, publishDead, retryRequest, type Stored } from "./letters.js";
import { subjectOf } from "./names.js";
import type { Handler, Settings } from "./options.js";
import { judge, type Verdict } from "./outcome.js";
import { backoff, pause } from "./pause.js";
import type { Redeliveries } from "./redeliveries.js";
import type { Source } from "./source.js";

/**
 * Bounds the tries to publish a handler's decision and to acknowledge its event. It outlasts a restart of NATS. After
 * it the event is delivered again.
 */
const settleTimeout = 60_000;

/**
 * The number of times within the ack wait that an event's deadline is extended, so that one or two lost messages do no
 * harm.
 */
const extensions = 3;

/** The longest wait for an answer of JetStream, in ms. */
const callTimeout = 5_000;

/** Publishes a handler's decision, within a number of milliseconds. */
type Publish = (timeout: number) => Promise<unknown>;

/** Worker handles events and settles them. */
export class Worker {
  /** The number of handlers left behind because the consumption had to end. */
  unfinished = 0;

  constructor(
    private readonly js: JetStreamClient,
    private readonly jsm: JetStreamManager,
    private readonly settings: Settings,
    private readonly handler: Handler,
    private readonly source: Source,
    private readonly redeliveries: Redeliveries,
    private readonly handlers: AbortSignal,
    private readonly settling: AbortSignal,
  ) {}

  /**
   * Handles and settles the event of one message, unless this process has begun to handle it or has settled it already.
   * It never throws.
   */
  async work(msg: Msg): Promise<void> {
    const stored = storedOf(msg);
    if (!stored) {
      this.settings.logger.error("timerd client: message skipped, it does not come from a stream", {
        subject: msg.subject,
      });
      return;
    }
    const place = `${stored.sequence} ${stored.time}`; // a stream created again counts from 1
    switch (this.redeliveries.begin(place)) {
      case "working":
        return;
      case "settled":
        await this.#settle(msg, null, { subject: msg.subject });
        return;
      case "fresh":
        this.redeliveries.end(place, await this.#attend(msg, stored));
    }
  }

  /** Calls the handler for one event and settles the event. It reports whether the event is settled. */
  async #attend(msg: Msg, stored: Stored): Promise<boolean> {
    const { prefix, logger } = this.settings;
    let event: ParsedEvent;
    try {
      event = parseFired(msg.data);
      if (subjectOf(prefix, "fired", event.parts) !== msg.subject) {
        throw new Error(`event: its timer ${JSON.stringify(event.key)} does not match its NATS subject`);
      }
    } catch (error) {
      const fields = { subject: msg.subject, err: textOf(error) };
      logger.error("timerd client: malformed event, sending it to the dead letters", fields);
      const letter = malformed(prefix, stored, textOf(error));
      return this.#settle(msg, (timeout) => publishDead(this.js, this.jsm, letter, timeout), fields);
    }
    const extend = setInterval(() => this.source.extend(msg), this.settings.ackWait / extensions);
    const verdict = await this.#handle(event).finally(() => clearInterval(extend));
    if (verdict) return this.#conclude(msg, event, verdict);
    this.unfinished++;
    return false;
  }

  /** Calls the handler and judges its result. It returns null if the consumption has to end before the handler does. */
  #handle(event: ParsedEvent): Promise<Verdict | null> {
    return new Promise((resolve) => {
      const end = () => resolve(null);
      const judged = (failure: unknown) => {
        this.settling.removeEventListener("abort", end);
        resolve(judge(failure, this.handlers.aborted));
      };
      const ended = (result: unknown) => (result instanceof Error ? judged(result) : done());
      const done = () => {
        this.settling.removeEventListener("abort", end);
        resolve({ kind: "done" });
      };
      this.settling.addEventListener("abort", end);
      void (async () => this.handler(event, { signal: this.handlers }))().then(ended, judged);
    });
  }

  /** Carries out a handler's verdict, and reports whether the event is settled. */
  async #conclude(msg: Msg, event: ParsedEvent, verdict: Verdict): Promise<boolean> {
    const { prefix, durable, logger } = this.settings;
    const fields = { key: event.key, due_at: event.due.toISOString(), attempt: event.attempt };
    switch (verdict.kind) {
      case "done":
        return this.#settle(msg, null, fields);
      case "giveBack":
        logger.info("timerd client: handler was cut short, giving its event back", { ...fields, err: verdict.text });
        this.source.giveBack(msg);
        return false;
      case "dead": {
        logger.warn("timerd client: event given up, sending it to the dead letters", { ...fields, err: verdict.text });
        const letter = givenUp(prefix, event, verdict.text);
        return this.#settle(msg, (timeout) => publishDead(this.js, this.jsm, letter, timeout), fields);
      }
      case "retry": {
        const { text, delay, postponed } = verdict;
        const about = { ...fields, err: text, ...(delay !== undefined && { delay }) };
        if (postponed) logger.info("timerd client: event postponed, its attempt is not used up", about);
        else logger.warn("timerd client: attempt failed, asking for a retry", about);
        const request = retryRequest(prefix, durable, event, text, delay, postponed);
        return this.#settle(msg, (timeout) => publish(this.js, request, timeout), fields);
      }
    }
  }

  /**
   * Publishes a message, if there is one, waits until it is stored, and then acknowledges the event. It retries both
   * until the consumption ends or settleTimeout is over. It reports whether the event is settled; if not, the event is
   * delivered again.
   */
  async #settle(msg: Msg, publishing: Publish | null, fields: object): Promise<boolean> {
    const end = Date.now() + settleTimeout;
    try {
      if (publishing) await this.#persist(msg, end, publishing);
      await this.#persist(msg, end, (timeout) => this.source.acknowledge(msg, timeout));
      return true;
    } catch (error) {
      this.settings.logger.error("timerd client: event not settled, it is delivered again", {
        ...fields,
        err: textOf(error),
      });
      return false;
    }
  }

  /** Tries something until it succeeds. Meanwhile it extends the ack deadline of the message. */
  async #persist(msg: Msg, end: number, attempt: Publish): Promise<void> {
    const share = this.settings.ackWait / extensions;
    for (let failures = 1; ; failures++) {
      try {
        await attempt(Math.min(callTimeout, share));
        return;
      } catch (error) {
        const closed = this.source.closedConnection();
        if (closed || Date.now() > end || !(await pause(Math.min(backoff(failures), share), this.settling)))
          throw error;
        this.source.extend(msg);
      }
    }
  }
}

/** Reads the place of a message from its acknowledgement subject; null if it does not come from a stream. */
function storedOf(msg: Msg): Stored | null {
  const tokens = (msg.reply ?? "").split(".");
  if (tokens[0] !== "$JS" || tokens[1] !== "ACK") return null;
  if (tokens.length === 9) tokens.splice(2, 0, "_", ""); // earlier servers omit domain and account
  const [stream, sequence, time] = [tokens[4], tokens[7], tokens[9]];
  if (stream === undefined || !/^\d+$/.test(sequence ?? "") || !/^\d+$/.test(time ?? "")) return null;
  return { subject: msg.subject, data: msg.data, stream, sequence: sequence as string, time: BigInt(time as string) };
}
