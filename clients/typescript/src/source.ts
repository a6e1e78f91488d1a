import type { Msg, NatsConnection, Subscription } from "@nats-io/nats-core";
import { createInbox } from "@nats-io/nats-core";

import { textOf, UnavailableError } from "./errors.js";

/** The interval at which the server confirms that it knows a request. */
export const heartbeat = 5_000;

/** The interval at which all requests are replaced: a cluster may have lost some of them and answer the others. */
const renewEvery = 30_000;

/** The lifetime of a request at the server. */
const pullExpiry = 2 * renewEvery;

/**
 * Keeps the number of requests small. The source asks for more events only once the handlers without a request are this
 * part of the expected events.
 */
const askShare = 4;

/** Bounds the wait for events on their way after the last request. */
const drainTimeout = 2_000;

const nanos = 1_000_000;

/**
 * Source fetches events from a durable consumer: as many as there are free handlers, and no more. So no event waits in
 * this process with a running ack deadline while a handler elsewhere is free. It speaks JetStream's pull protocol
 * itself, because the iterators of the package fetch ahead.
 */
export class Source {
  #inbox: Subscription | null = null; // for the last requests
  #ended: Promise<unknown> = Promise.resolve(); // when older inboxes have delivered everything
  #began = 0; // creation of inbox
  #waiting: ((msg: Msg | null) => void)[] = []; // the free handlers
  #asked = 0; // expected events in inbox
  #heard = 0; // the server's last answer, while events are expected
  #asking = false; // ask is about to be called
  #closed = false;

  /** subject is the subject of requests. onFault is called when the requests are void. */
  constructor(
    private readonly nc: NatsConnection,
    private readonly subject: string,
    private readonly onFault: (fault: Error) => void,
  ) {}

  /** Asks for an event for one more handler. The promise is fulfilled with null when the source is closed. */
  next(): Promise<Msg | null> {
    if (this.#closed) return Promise.resolve(null);
    return new Promise((resolve) => {
      this.#waiting.push(resolve);
      if (this.#asking) return;
      this.#asking = true;
      queueMicrotask(() => {
        this.#asking = false;
        this.#ask();
      });
    });
  }

  /** Drops all requests and makes new ones, or reports a fault. */
  renew(): void {
    const old = this.#inbox;
    const options = (this.nc as { options?: { inboxPrefix?: string } }).options;
    let inbox: Subscription;
    try {
      inbox = this.nc.subscribe(createInbox(options?.inboxPrefix), {
        callback: (error, msg) => (error ? this.onFault(error) : this.#receive(inbox, msg)),
      });
    } catch (error) {
      this.onFault(new UnavailableError(textOf(error), { cause: error }));
      return;
    }
    this.#inbox = inbox;
    this.#began = Date.now();
    this.#asked = 0;
    this.#ask();
    this.#end(old);
  }

  /**
   * Must be called about every heartbeat. It reports a fault if the server has been silent for too long: then the
   * server must have lost the requests.
   */
  tend(): void {
    const now = Date.now();
    if (this.#asked > 0 && now - this.#heard > 2 * heartbeat)
      this.onFault(new UnavailableError("JetStream sends no heartbeats"));
    else if (this.#asked > 0 && now - this.#began > renewEvery) this.renew();
    else this.#ask();
  }

  /** Ends every wait, and gives back the events on their way. */
  async close(): Promise<void> {
    this.#closed = true;
    const inbox = this.#inbox;
    this.#inbox = null;
    for (const resolve of this.#waiting.splice(0)) resolve(null);
    this.#end(inbox);
    let timer: NodeJS.Timeout | undefined;
    await Promise.race([this.#ended, new Promise((resolve) => (timer = setTimeout(resolve, drainTimeout)))]);
    clearTimeout(timer);
  }

  /**
   * Hands an event back to JetStream, which delivers it again at once, or after the ack wait if this message is lost.
   */
  giveBack(msg: Msg): void {
    this.#answer(msg, "-NAK");
  }

  /** Postpones the deadline after which JetStream delivers an event again. */
  extend(msg: Msg): void {
    this.#answer(msg, "+WPI");
  }

  /** Tells JetStream that an event is settled, and waits for its confirmation. */
  async acknowledge(msg: Msg, timeout: number): Promise<void> {
    await this.nc.request(msg.reply as string, "+ACK", { timeout });
  }

  /** Reports whether the connection is closed for good. */
  closedConnection(): boolean {
    return this.nc.isClosed();
  }

  #answer(msg: Msg, answer: string): void {
    this.#publish(msg.reply as string, answer); // if it is lost, the event only comes again
  }

  /** Publishes, unless the connection is drained or closed. */
  #publish(subject: string, text: string, reply?: string): boolean {
    try {
      this.nc.publish(subject, text, { reply });
      return true;
    } catch {
      return false;
    }
  }

  /**
   * Requests events for free handlers without a request, if they are enough for one. If it fails, the next renew or
   * tend asks.
   */
  #ask(): void {
    const batch = this.#waiting.length - this.#asked;
    if (!this.#inbox || batch < Math.max(1, Math.floor(this.#asked / askShare))) return;
    const request = { batch, expires: pullExpiry * nanos, idle_heartbeat: heartbeat * nanos };
    if (!this.#publish(this.subject, JSON.stringify(request), this.#inbox.getSubject())) return;
    if (this.#asked === 0) this.#heard = Date.now();
    this.#asked += batch;
  }

  /** Takes a message of the server: an event, or the status of a request. */
  #receive(inbox: Subscription, msg: Msg): void {
    const current = inbox === this.#inbox;
    if (current) this.#heard = Date.now();
    if (msg.reply) { // a reply subject to acknowledge: this is an event
      if (current) this.#asked = Math.max(0, this.#asked - 1);
      const resolve = this.#waiting.shift();
      if (resolve) resolve(msg);
      else this.giveBack(msg);
      this.#ask();
      return;
    }
    if (!current) return;
    const status = msg.headers?.code ?? 0;
    const left = Number.parseInt(msg.headers?.get("Nats-Pending-Messages") ?? "", 10);
    if (status === 100) return; // a heartbeat
    if ((status === 404 || status === 408) && !Number.isNaN(left)) { // the request has ended
      this.#asked = Math.max(0, this.#asked - left);
      this.#ask();
      return;
    }
    this.onFault(new UnavailableError(`JetStream: ${status} ${msg.headers?.description ?? ""}`));
  }

  /** Ends a subscription. Events on their way to it still arrive, if possible. */
  #end(inbox: Subscription | null): void {
    if (!inbox || this.nc.isClosed()) return;
    this.#ended = Promise.allSettled([this.#ended, inbox.drain()]);
  }
}
