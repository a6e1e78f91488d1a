// What of a producer the cases of clients/conformance do not tell: types, payloads, errors.

import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { Redis } from "ioredis";
import { Redis as Redis6 } from "ioredis-6";
import { createClient } from "redis";

import { InvalidError, NoLibraryError, type RedisClient, Timers, UnavailableError } from "@timerd-io/client";
import type { TestTimerd } from "@timerd-io/client/testing";
import { parseNamespace } from "../dist/names.js";
import { settingsOf } from "../dist/options.js";
import { nodeVersion } from "./clients.js";
import { eventually, root, startEnvironment } from "./environment.js";

let env: TestTimerd;
let redis: ReturnType<typeof createClient>;
let timers: Timers;

before(async () => {
  env = await startEnvironment("");
  redis = createClient({ url: env.redisURL });
  await redis.connect();
  timers = new Timers(redis);
});

after(async () => {
  await redis.close();
  await env.stop();
});

test("payloads: strings and bytes as they are, all else as JSON", async () => {
  const key = "a:b:payload:1";
  for (const [payload, want] of [
    ["text", "text"], ["", ""], [undefined, ""], [null, ""], [{ order: 1 }, '{"order":1}'], [[1, "2"], '[1,"2"]'],
    [7, "7"], [false, "false"], [Buffer.from([0, 255]), "\0\xff"], [new Uint8Array([1, 2, 3]).subarray(1, 2), "\x02"],
    [new Date(0), '"1970-01-01T00:00:00.000Z"'], [new Uint8Array([1, 2]).buffer, "\x01\x02"],
    [new DataView(new Uint8Array([3]).buffer), "\x03"], [new Uint16Array([0x0504]), "\x04\x05"], [new Number(7), "7"],
    [{}, "{}"], [Object.create(null), "{}"], [new (class Empty {})(), "{}"],
    [{ toJSON: () => "own" }, '"own"'],
  ] as const) {
    await timers.set(key, payload, { after: 60_000 });
    assert.equal((await timers.get(key))?.payload?.toString("latin1"), want);
  }
  const circle: { self?: unknown } = {};
  circle.self = circle;
  for (const payload of [
    { n: 1n },
    () => {},
    Symbol("s"), circle, new Map([[1, 2]]), new Set([1]), { nested: [new Map()] }, /x/, new Error("e"),
    Promise.resolve(1), { body: new ArrayBuffer(1) }, new URLSearchParams("a=1"), new WeakMap(),
  ]) {
    await assert.rejects(
      timers.set(key, payload, { after: 60_000 }), InvalidError, Object.prototype.toString.call(payload),
    );
  }
});

test("a call without a key of text or bytes, or without options, says so", async () => {
  for (const key of [undefined, null, 42, {}, ["a:b:c:1"], new ArrayBuffer(1)] as unknown as string[]) {
    for (const call of [
      timers.set(key, "", { after: 1000 }), timers.repeat(key, "", { every: 1000 }), timers.cancel(key),
      timers.get(key),
    ]) {
      await assert.rejects(
        call,
        (e: Error) => e instanceof InvalidError && e.message.includes("want a string or bytes"),
      );
    }
  }
  for (const options of [undefined, null, 1000] as unknown as { after: number }[]) {
    await assert.rejects(timers.set("a:b:c:1", "", options), InvalidError);
  }
});

for (const [name, open] of [
  ["ioredis 5", () => new Redis(env.redisURL, { enableAutoPipelining: true })],
  ...(nodeVersion < 20 ? [] : [["ioredis 6", () => new Redis6(env.redisURL, { enableAutoPipelining: true })]] as const),
] as const) {
  test(`${name} with enableAutoPipelining`, async () => {
    const client = open();
    try {
      const piped = new Timers(client);
      const key = "a:b:piped:1";
      assert.equal(await piped.get(key), null);
      await Promise.all([
        piped.set(key, Buffer.from([255]), { after: 60_000 }),
        piped.set(`${key}1`, "", { after: 60_000 }),
      ]);
      const [one, two] = await Promise.all([piped.get(key), piped.get(`${key}1`)]);
      assert.deepEqual([one?.payload, two?.payload], [Buffer.from([255]), Buffer.alloc(0)]);
      assert.equal(await piped.cancel(key), "cancelled");
    } finally {
      client.disconnect();
    }
  });
}

test("the lines of the default logger: one each, without unknown fields", () => {
  const lines: unknown[][] = [];
  const { warn } = console;
  console.warn = (...words) => lines.push(words);
  try {
    settingsOf({}, parseNamespace("a:b")).logger.warn("failed", {
      key: "a:b:c:1", attempt: 1, err: "no route to host\n", delay: undefined,
    });
  } finally {
    console.warn = warn;
  }
  assert.deepEqual(lines, [['failed key=a:b:c:1 attempt=1 err="no route to host\\n"']]);
});

test("times: rounded up to milliseconds, and refused where they are none", async () => {
  const key = "a:b:time:1";
  const at = new Date(Date.now() + 3_600_000);
  const due: Date = await timers.set(key, "", { at }); // not null: there is no condition
  assert.deepEqual(due, at);
  const early = Date.now();
  assert.ok((await timers.set(key, "", { after: 9_999.5 })).getTime() >= early + 10_000);
  for (const options of [
    {}, { after: 1, at }, { after: NaN }, { after: Infinity }, { at: new Date(NaN) }, { after: 1e30 },
    { after: 1, dropLate: true },
  ]) {
    await assert.rejects(timers.set(key, "", options as { after: number }), InvalidError, JSON.stringify(options));
  }
  for (const options of [{}, { every: 1000, cron: "* * * * *" }, { every: 1000, times: 1.5 }]) {
    await assert.rejects(timers.repeat(key, "", options as { every: number }), InvalidError, JSON.stringify(options));
  }
  assert.ok((await timers.repeat(key, "", { every: 60_000, times: 3 })) instanceof Date);
  assert.equal(await timers.cancel(key), "cancelled");
});

test("so many timers of a key may wait that one call does not cancel them", async () => {
  const key = "a:held:many:1";
  const hold = spawnSync(process.env["TIMERD"] ?? join(root, "..", "..", "bin", "timerd"), ["hold", "a:held"], {
    encoding: "utf8",
    env: { ...process.env, TIMERD_NAMESPACES: "*", TIMERD_REDIS_URL: env.redisURL, TIMERD_NATS_URL: env.natsURL },
  });
  assert.equal(hold.status, 0, hold.stderr);
  for (let i = 0; i < 310; i++) {
    await timers.set(key, String(i), { after: 1 });
    await eventually("its due time", async () => (await timers.get(key))?.state === "held");
  }
  assert.equal(await timers.cancel(key), "cancelled");
  assert.equal(await timers.get(key), null);
});

test("errors tell a Redis without the library, and one that is away", async () => {
  const dir = mkdtempSync(join(tmpdir(), "timerd-client-redis-"));
  const path = join(dir, "socket");
  const server = process.env["TIMERD_TEST_REDIS_SERVER"] ?? "redis-server";
  const child = spawn(server, ["--port", "0", "--unixsocket", path, "--dir", dir, "--save", ""], { stdio: "ignore" });
  const ended = new Promise((done) => child.once("exit", done));
  const client = new Redis({ path, retryStrategy: () => 20, maxRetriesPerRequest: 0, enableOfflineQueue: true });
  client.on("error", () => {});
  const plain = new Timers(client);
  try {
    await eventually("redis-server", async () => client.ping().catch(() => null));
    await assert.rejects(plain.set("a:b:c:1", "", { after: 1000 }), NoLibraryError);
    await assert.rejects(plain.get("a:b:c:1"), NoLibraryError);
    await assert.rejects(plain.cancel("a:b:c:1"), NoLibraryError);
    child.kill("SIGKILL");
    await ended;
    for (const call of [
      plain.set("a:b:c:1", "", { after: 1000 }), plain.get("a:b:c:1"), plain.repeat("a:b:c:1", "", { every: 1000 }),
    ]) {
      await assert.rejects(call, (e: Error) => e instanceof UnavailableError && e.cause instanceof Error);
    }
  } finally {
    child.kill("SIGKILL");
    client.disconnect();
    rmSync(dir, { recursive: true, force: true });
  }
  assert.throws(() => new Timers({} as RedisClient), TypeError);
});
