import { JetStreamApiCodes, JetStreamApiError, type JetStreamClient, type JetStreamManager } from "@nats-io/jetstream";
import type { NatsConnection } from "@nats-io/nats-core";

import { textOf, TimerdError, UnavailableError } from "./errors.js";
import type { Handler, Settings } from "./options.js";
import { backoff, pause, within } from "./pause.js";
import { Redeliveries } from "./redeliveries.js";
import { heartbeat, Source } from "./source.js";
import { Worker } from "./work.js";

/** The time for handlers to end after their signal is aborted. */
const lastCall = 1_000;

/**
 * The time for which a server must keep reporting a missing stream or durable consumer before the consumption ends: a
 * cluster that has just started may say so in error.
 */
const goneAfter = 5_000;

/** The least interval between log lines about the same failure to fetch. */
const warnEvery = 30_000;

/**
 * Run is one consumption: a source of events, and as many lanes as simultaneous handlers. Each lane takes one event,
 * calls the handler, settles the event, and takes the next.
 */
export class Run {
  readonly #nc: NatsConnection;
  readonly #jsm: JetStreamManager;
  readonly #settings: Settings;
  readonly #source: Source;
  readonly #worker: Worker;
  readonly #fetching = new AbortController(); // ends with the caller's signal, or when nothing can be fetched any more
  readonly #handlers = new AbortController(); // stopTimeout later; handlers get it
  readonly #settle = new AbortController(); // lastCall after that; lanes end with it at the latest
  #fault: ((fault: Error | null) => void) | null = null; // wakes feed

  constructor(
    nc: NatsConnection, js: JetStreamClient, jsm: JetStreamManager, apiPrefix: string, settings: Settings,
    handler: Handler,
  ) {
    this.#nc = nc;
    this.#jsm = jsm;
    this.#settings = settings;
    const subject = `${apiPrefix}.CONSUMER.MSG.NEXT.${settings.stream}.${settings.durable}`;
    this.#source = new Source(nc, subject, (fault) => this.#fault?.(fault));
    this.#worker = new Worker(
      js, jsm, settings, handler, this.#source, new Redeliveries(), this.#handlers.signal, this.#settle.signal,
    );
  }

  /** Consumes until the caller's signal is aborted. */
  async run(): Promise<void> {
    const { signal, concurrency, stopTimeout } = this.#settings;
    const stop = () => this.#stop();
    signal.addEventListener("abort", stop);
    if (signal.aborted) stop();
    let failure: unknown;
    const feeding = this.#feed()
      .catch((error: unknown) => (failure = error))
      .then(() => this.#stop())
      .then(() => this.#source.close());
    const ended = Promise.all([feeding, ...Array.from({ length: concurrency }, () => this.#lane())]);
    try {
      await aborted(this.#fetching.signal);
      if (!(await within(stopTimeout, ended))) {
        this.#handlers.abort();
        if (!(await within(lastCall, ended))) this.#settle.abort();
      }
      await ended;
    } finally {
      signal.removeEventListener("abort", stop);
    }
    const faults = failure === undefined ? [] : [textOf(failure)];
    const left = this.#worker.unfinished;
    if (left > 0)
      faults.push(`${left} handlers still run ${lastCall} ms after their signal; their events are delivered again`);
    if (faults.length > 0)
      throw new (failure === undefined ? TimerdError : UnavailableError)(faults.join("; "), { cause: failure });
  }

  #stop(): void {
    this.#fetching.abort();
    this.#fault?.(null);
  }

  /** Handles one event after the other until fetching ends. */
  async #lane(): Promise<void> {
    while (!this.#fetching.signal.aborted) {
      const msg = await this.#source.next();
      if (!msg) return;
      if (this.#fetching.signal.aborted) return this.#source.giveBack(msg);
      await this.#worker.work(msg);
    }
  }

  /** Keeps the source fetching until fetching ends. It throws if nothing can be fetched any more. */
  async #feed(): Promise<void> {
    let warned = -Infinity;
    const statuses = this.#nc.status()[Symbol.asyncIterator]();
    void this.#listen(statuses).catch(() => {}); // ends with the connection; closed reports that
    const tick = setInterval(() => this.#source.tend(), heartbeat);
    void this.#nc.closed().then(() => this.#fault?.(new UnavailableError("the connection to NATS was closed")));
    try {
      while (!this.#fetching.signal.aborted) {
        const fault = await new Promise<Error | null>((resolve) => {
          this.#fault = resolve;
          if (this.#nc.isClosed()) resolve(new UnavailableError("the connection to NATS is closed"));
          else this.#source.renew();
        });
        if (!fault) return;
        if (Date.now() - warned > warnEvery && !this.#nc.isClosed()) {
          warned = Date.now();
          this.#settings.logger.warn("timerd client: fetching events failed, trying again", {
            durable: this.#settings.durable,
            err: fault.message,
          });
        }
        await this.#recover(fault);
      }
    } finally {
      this.#fault = null;
      clearInterval(tick);
      void statuses.return?.();
    }
  }

  /** Renews the requests whenever the connection is back, because they may be lost. */
  async #listen(statuses: AsyncIterator<{ type: string }>): Promise<void> {
    for (let next = await statuses.next(); !next.done; next = await statuses.next()) {
      if (next.value.type === "reconnect" && this.#fault && !this.#fetching.signal.aborted) this.#source.renew();
    }
  }

  /** Waits until events can be fetched again, or until fetching ends. It throws if they can never be fetched again. */
  async #recover(fault: Error): Promise<void> {
    const { stream, durable } = this.#settings;
    let gone = 0;
    for (let failures = 1; ; failures++) {
      if (this.#nc.isClosed()) throw fault;
      if (!(await pause(backoff(failures), this.#fetching.signal))) return;
      try {
        await this.#jsm.consumers.info(stream, durable);
        return;
      } catch (error) {
        const codes: number[] = [JetStreamApiCodes.ConsumerNotFound, JetStreamApiCodes.StreamNotFound];
        if (!(error instanceof JetStreamApiError && codes.includes(error.code))) gone = 0;
        else if (gone === 0) gone = Date.now();
        else if (Date.now() - gone > goneAfter) {
          throw new UnavailableError(
            `the durable consumer ${JSON.stringify(durable)} was deleted, or its stream ${JSON.stringify(stream)}`,
            { cause: error },
          );
        }
      }
    }
  }
}

/** Waits until a signal is aborted. */
function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", () => resolve(), { once: true });
  });
}
