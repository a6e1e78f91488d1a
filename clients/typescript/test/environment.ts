// A timerd with a Redis and a NATS of its own: `timerd dev`, the program that TIMERD names, or bin/timerd.

import { join } from "node:path";
import { fileURLToPath } from "node:url";

import type { ConsumeOptions, Logger } from "@timerd-io/client";
import { startTimerd, type TestTimerd, type TimerdOptions } from "@timerd-io/client/testing";

/** The directory of the package. */
export const root = fileURLToPath(new URL("..", import.meta.url));

/** Bounds each wait. */
export const patience = 30_000;

/** Starts a timerd with these retries and the Redis that the tests are to run against. The caller stops it. */
export function startEnvironment(retry: string): Promise<TestTimerd> {
  return startTimerd({ ...programs(), settings: { TIMERD_RETRY: retry } });
}

/** The programs to run: bin/timerd without another one. */
export function programs(): TimerdOptions {
  const redisServer = process.env["TIMERD_TEST_REDIS_SERVER"];
  const timerd = process.env["TIMERD"] ?? join(root, "..", "..", "bin", "timerd");
  return { timerd, ...(redisServer ? { redisServer } : {}) };
}

/** Waits until something is the case, and returns it. */
export async function eventually<T>(what: string, ask: () => Promise<T | false | null | undefined>): Promise<T> {
  for (const end = Date.now() + patience; ; ) {
    const answer = await ask();
    if (answer !== false && answer !== null && answer !== undefined) return answer;
    if (Date.now() > end) throw new Error(`waited in vain for ${what}`);
    await new Promise((done) => setTimeout(done, 10));
  }
}

/** A log that a test can look at. */
export class Log implements Logger {
  readonly lines: string[] = [];
  readonly info = this.#level("info");
  readonly warn = this.#level("warn");
  readonly error = this.#level("error");

  #level(level: string): (message: string, fields: object) => void {
    return (message, fields) => void this.lines.push(`${level} ${message} ${JSON.stringify(fields)}`);
  }
}

/** A consumption that a test ends. */
export interface Consumption {
  log: Log;
  stop(): Promise<void>;
  /** Rejected if the consumption failed. */
  ended: Promise<void>;
}

/** Begins a consumption. */
export function begin(
  consumption: (options: ConsumeOptions) => Promise<void>,
  options: ConsumeOptions = {},
): Consumption {
  const end = new AbortController();
  const log = new Log();
  const ended = consumption({ logger: log, ...options, signal: end.signal });
  ended.catch(() => {}); // stop tells
  return {
    log, ended,
    stop: () => {
      end.abort();
      return ended;
    },
  };
}
