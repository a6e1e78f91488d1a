// Tests startTimerd: timers, retries and a cron timer on the virtual clock.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { jetstreamManager } from "@nats-io/jetstream";
import { connect, type NatsConnection } from "@nats-io/transport-node";
import { createClient } from "redis";
import { consume, TimerdError, Timers } from "@timerd-io/client";
import { startTimerd, type TestTimerd } from "@timerd-io/client/testing";

import { begin, eventually, programs } from "./environment.js";

const minute = 60_000;
let timerd: TestTimerd;
let timers: Timers;
let redis: ReturnType<typeof createClient>;
let nc: NatsConnection;

before(async () => {
  timerd = await startTimerd({ ...programs(), virtual: true, settings: { TIMERD_RETRY: "pay=wechatpay" } });
  redis = createClient({ url: timerd.redisURL });
  await redis.connect();
  timers = new Timers(redis);
  nc = await connect({ servers: timerd.natsURL });
});
after(async () => {
  await nc.close();
  await redis.close();
  await timerd.stop();
});

test("an order that is not paid in time fires", async () => {
  await redis.set("shop:order:timeout:41", "{}", { EX: 1800 });
  await timers.set("shop:order:timeout:42", { total: 99 }, { after: 30 * minute, unless: "shop:order:paid:42" });
  await redis.set("shop:order:paid:42", "1");
  assert.deepEqual(await timerd.advance(29 * minute), []);
  const fired = await timerd.advance(2 * minute);
  assert.deepEqual(fired.map((event) => event.key), ["shop:order:timeout:41"]);
});

test("a callback is tried by its policy until it succeeds", async () => {
  const seen: number[] = [];
  const consumption = begin((options) => consume(nc, "pay:callback", async (event) => {
    seen.push(event.attempt);
    if (event.attempt < 7) throw new Error("503 Service Unavailable");
  }, options), { durable: "callbacks" });
  const manager = await jetstreamManager(nc);
  await eventually("the consumer", async () =>
    (await manager.consumers.info("TIMERS", "callbacks").catch(() => null))?.num_waiting || null);
  const set = await timers.set("pay:callback:notify:1", "", { after: 1000 });
  const fired = await timerd.advance(72 * 60 * minute);
  await consumption.stop();
  assert.deepEqual(seen, [1, 2, 3, 4, 5, 6, 7]);
  const after = fired.map((event) => (event.due.getTime() - set.getTime()) / 15_000);
  assert.deepEqual(after.map(Math.floor), [0, 1, 2, 4, 16, 56, 136]);
});

test("without a virtual clock advance says so", async () => {
  const real = await startTimerd(programs());
  await assert.rejects(real.advance(1000), (error) => error instanceof TimerdError && /virtual/.test(error.message));
  await real.stop();
});

test("without the program it says what to do", async () => {
  await assert.rejects(startTimerd({ timerd: "/nowhere/timerd" }), /\/nowhere\/timerd: .*put timerd in PATH/);
});
