// A timerd with a Redis and a NATS of its own: `timerd dev`, the program that TIMERD names, or bin/timerd.

import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

import type { ConsumeOptions, Logger } from "@timerd-io/client";

/** The directory of the package. */
export const root = fileURLToPath(new URL("..", import.meta.url));

/** Bounds each wait. */
export const patience = 30_000;

/** A running `timerd dev`. */
export class Environment {
  private constructor(
    private readonly process: ChildProcess,
    private readonly bin: string,
    readonly redisURL: string,
    readonly natsURL: string,
  ) {}

  /** Starts servers. The caller stops them. */
  static async start(retry: string): Promise<Environment> {
    const bin = mkdtempSync(join(tmpdir(), "timerd-client-"));
    const env: NodeJS.ProcessEnv = { TIMERD_RETRY: retry, TIMERD_LOG_LEVEL: "warn" };
    for (const [name, value] of Object.entries(process.env)) if (!name.startsWith("TIMERD_")) env[name] = value;
    const server = process.env["TIMERD_TEST_REDIS_SERVER"]; // that the tests are to run against
    if (server) {
      const path = spawnSync("sh", ["-c", 'command -v "$0"', server], { encoding: "utf8" }).stdout.trim();
      symlinkSync(resolve(path), join(bin, "redis-server"));
      env["PATH"] = bin + delimiter + env["PATH"];
    }
    const timerd = process.env["TIMERD"] ?? join(root, "..", "..", "bin", "timerd");
    const child = spawn(timerd, ["dev", "--no-samples"], { env, stdio: ["ignore", "pipe", "pipe"] });
    let said = "";
    const ready = new Promise<[string, string]>((done, fail) => {
      const listen = (text: Buffer) => {
        said += text;
        const redis = /TIMERD_REDIS_URL=(\S+)/.exec(said);
        const nats = /TIMERD_NATS_URL=(\S+)/.exec(said);
        if (redis && nats && said.includes("Ctrl-C")) done([redis[1] as string, nats[1] as string]);
      };
      child.stdout.on("data", listen);
      child.stderr.on("data", listen);
      child.once("error", (error) => fail(new Error(`${timerd}: ${error.message}; make build makes it`)));
      child.once("exit", (code) => fail(new Error(`timerd dev ended with exit code ${code}:\n${said}`)));
    });
    const [redisURL, natsURL] = await ready;
    return new Environment(child, bin, redisURL, natsURL);
  }

  /** Ends the servers. */
  async stop(): Promise<void> {
    const ended = new Promise<number | null>((done) => this.process.once("exit", done));
    this.process.kill("SIGTERM");
    const code = await ended;
    rmSync(this.bin, { recursive: true });
    if (code !== 0) throw new Error(`timerd dev ended with exit code ${code}`);
  }
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
