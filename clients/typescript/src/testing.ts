// A timerd for tests: the program `timerd dev`, as a child process.

import { type ChildProcess, execFile, spawn } from "node:child_process";
import { promisify } from "node:util";

import { TimerdError } from "./errors.js";
import { parseFired, type TimerEvent } from "./event.js";

/** Options of startTimerd. */
export interface TimerdOptions {
  /** The program. Default: the one that the variable TIMERD names, or `timerd` in PATH. */
  timerd?: string;
  /** The program to run as Redis. Default: redis-server or valkey-server in PATH. */
  redisServer?: string;
  /** Have a virtual clock, which advance moves. Default: false, Redis's clock. */
  virtual?: boolean;
  /** Settings, such as `{ TIMERD_RETRY: "pay=wechatpay" }`. Others of this process's settings are not passed on. */
  settings?: Record<string, string>;
}

/** A running timerd with a private Redis and NATS on free ports of 127.0.0.1. */
export interface TestTimerd {
  readonly redisURL: string;
  readonly natsURL: string;
  /**
   * Moves the virtual clock forward by so many ms, and returns the firings on the way in the order of their due times.
   * Consumers of this package have answered them by then. It throws a TimerdError if that takes longer than 10 s at one
   * due time, or if the clock is not virtual.
   */
  advance(ms: number): Promise<TimerEvent[]>;
  /** Ends timerd and its servers, and deletes their data. */
  stop(): Promise<void>;
}

/**
 * Starts a timerd for tests, and returns once it works. The caller stops it. It throws a TimerdError without the
 * programs timerd and redis-server.
 */
export async function startTimerd(options: TimerdOptions = {}): Promise<TestTimerd> {
  const program = options.timerd ?? process.env["TIMERD"] ?? "timerd";
  const env: NodeJS.ProcessEnv = { TIMERD_LOG_LEVEL: "warn", ...options.settings };
  for (const [name, value] of Object.entries(process.env)) if (!name.startsWith("TIMERD")) env[name] = value;
  const args = ["dev", "--no-samples", "--console-addr", "off"];
  if (options.virtual) args.push("--virtual");
  if (options.redisServer) args.push("--redis-server", options.redisServer);
  const child = spawn(program, args, { env, stdio: ["ignore", "pipe", "pipe"] });
  const [redisURL, natsURL] = await started(program, child);
  const ended = new Promise<number | null>((done) => child.once("exit", done));
  const servers = { ...env, TIMERD_REDIS_URL: redisURL, TIMERD_NATS_URL: natsURL };
  return {
    redisURL,
    natsURL,
    advance: (ms) => advance(program, servers, ms),
    stop: async () => {
      child.kill("SIGTERM");
      const code = await ended;
      if (code !== 0) throw new TimerdError(`timerd dev ended with exit code ${code}`);
    },
  };
}

/** Waits until timerd dev has said that it works, and returns the URLs of its servers. */
function started(program: string, child: ChildProcess): Promise<[redis: string, nats: string]> {
  return new Promise((done, fail) => {
    let said = "";
    const listen = (text: Buffer) => {
      said += text;
      const redis = /TIMERD_REDIS_URL='?([^\s']+)/.exec(said)?.[1];
      const nats = /TIMERD_NATS_URL='?([^\s']+)/.exec(said)?.[1];
      if (redis && nats && said.includes("Ctrl-C")) done([redis, nats]);
    };
    child.stdout?.on("data", listen);
    child.stderr?.on("data", listen);
    child.once("error", ({ message }) =>
      fail(new TimerdError(`${program}: ${message}: put timerd in PATH, or its path into TIMERD`)));
    child.once("exit", (code) => fail(new TimerdError(`timerd dev ended with exit code ${code}:\n${said}`)));
  });
}

/** Runs timerd advance, and returns the printed firings. */
async function advance(program: string, env: NodeJS.ProcessEnv, ms: number): Promise<TimerEvent[]> {
  try {
    const { stdout } = await promisify(execFile)(program, ["advance", "--json", `${ms}ms`],
      { env, maxBuffer: Infinity });
    return stdout.split("\n").filter(Boolean).map((line) => parseFired(Buffer.from(line)));
  } catch (error) {
    const { stderr, message } = error as Error & { stderr?: string };
    throw new TimerdError(stderr?.trim() || message, { cause: error });
  }
}
