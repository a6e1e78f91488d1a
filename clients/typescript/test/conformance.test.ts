// Runs the cases of clients/conformance/cases.json, which README.md there explains.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";

import {
  jetstream, jetstreamManager, type JetStreamClient, type JetStreamManager, type StoredMsg,
} from "@nats-io/jetstream";
import { connect, type NatsConnection } from "@nats-io/transport-node";
import { createClient } from "redis";

import {
  consume, type ConsumeOptions, dead, InvalidError, postpone, type Repetition, type RepeatOptions, retryAfter,
  type SetOptions, type TimerEvent, Timers, type When,
} from "@timerd-io/client";
import type { TestTimerd } from "@timerd-io/client/testing";
import { clients, type Connected, nodeVersion } from "./clients.js";
import { begin, eventually, root, startEnvironment } from "./environment.js";

/** Bytes in the cases: a text, repeated perhaps, or base64. */
type Octets = string | { text: string; times?: number; then?: string } | { base64: string };

/** A call of set or repeat. */
interface Setting {
  key: string;
  payload: Octets | null;
  after_ms?: number; at_in_ms?: number; at_ms?: number; every_ms?: number; cron?: string; tz?: string;
  from_in_ms?: number; until_in_ms?: number; times?: number; catchup_ms?: number; late_ms?: number; late_drop?: boolean;
  attempt?: number; nx?: boolean; xx?: boolean; unless?: string; if?: string; trace?: string;
}

type Fields = Record<string, unknown>;

interface Want {
  not_set?: boolean; error?: string; says?: string; due?: string; due_in_ms?: number; due_within_ms?: number;
}

interface Step extends Setting {
  do: "set" | "repeat" | "get" | "cancel";
  until?: boolean;
  want: Want | string | null;
}

interface Action { do: string; ms?: number; text?: Octets; because?: Action }

interface WantDead {
  subject?: string; headers?: Record<string, Octets>; attributes?: Fields;
  dead_reason: string; last_error?: string; payload?: Octets; attempt?: number;
}

interface TimerCase extends Setting {
  name: string;
  handlers: Action[];
  want: { events: Fields[]; dead?: WantDead };
}

interface ConsumerCase {
  name: string; type: string; namespace?: string; subject?: string; members?: string; message?: Octets;
  handler: Action | null; takes_ms?: number; ack_wait_ms?: number;
  want: {
    calls?: number; deliveries?: number; event?: Fields;
    retry?: { subject: string; headers: Record<string, Octets>; without: string[] }; dead?: WantDead;
  };
}

interface DurableCase {
  name: string; namespace: string; durable?: string; stream?: string; concurrency?: number; ack_wait_ms?: number;
  max_ack_pending?: number;
  want: Fields & Want;
}

interface Suite {
  version: number; retry: string; event: string;
  producer: { name: string; steps: Step[] }[]; timers: TimerCase[]; consumer: ConsumerCase[]; durables: DurableCase[];
}

const text = readFileSync(join(root, "..", "conformance", "cases.json"), "utf8");

/** The cases with {run} and {prefix} replaced. */
function suiteOf(run: string): Suite {
  const suite = JSON.parse(text.replaceAll("{run}", run).replaceAll("{prefix}", `conf-${run}`)) as Suite;
  assert.equal(suite.version, 1, "this runner knows version 1 of the cases");
  return suite;
}

function bytes(octets: Octets): Buffer {
  if (typeof octets === "string") return Buffer.from(octets);
  if ("base64" in octets) return Buffer.from(octets.base64, "base64");
  return Buffer.from(octets.text.repeat(octets.times ?? 1) + (octets.then ?? ""));
}

/** Decodes %XX in a key. */
function keyOf(key: string): Buffer {
  const utf8 = Buffer.from(key).toString("latin1");
  return Buffer.from(
    utf8.replace(/%([0-9A-F]{2})/g, (_, hex: string) => String.fromCharCode(parseInt(hex, 16))),
    "latin1",
  );
}

/** Compares the fields that a case names. */
function check(what: string, got: Fields, want: Fields): void {
  for (const [name, wanted] of Object.entries(want)) {
    assert.ok(name in got, `${what}: this runner knows no field ${name}`);
    const value = got[name];
    if (name === "key") assert.deepEqual(value, keyOf(wanted as string), `${what}: ${name}`);
    else if (Buffer.isBuffer(value)) assert.deepEqual(value, wanted && bytes(wanted as Octets), `${what}: ${name}`);
    else assert.deepEqual(value, wanted, `${what}: ${name}`);
  }
}

function eventFields(e: TimerEvent, due?: Date, first?: string): Fields {
  return {
    id: e.id, origin: e.origin === first ? "first" : e.origin, key: e.keyBytes, app: e.app, module: e.module,
    type: e.timerType, timer_id: e.timerId, due_ms: e.due.getTime(),
    due: due?.getTime() === e.due.getTime() ? "as set" : e.due, time_ms: e.time?.getTime(), attempt: e.attempt,
    max_attempts: e.maxAttempts, trigger: e.trigger, payload: e.payload, content_type: e.contentType,
    data_status: e.dataStatus, late_ms: e.late, late_drop: e.dropLate, repeat: e.repeat, occurrence: e.occurrence,
    traceparent: e.traceparent, tracestate: e.tracestate,
  };
}

/** Does a handler's action. */
function act(action: Action | null): unknown {
  if (!action || action.do === "ok") return undefined;
  const cause = action.because && act(action.because);
  const reason = new Error(action.text === undefined ? "" : bytes(action.text).toString(), { cause });
  switch (action.do) {
    case "fail": throw reason;
    case "retry_after": return retryAfter(action.ms as number, reason);
    case "postpone": return postpone(action.ms as number, reason);
    case "dead": throw dead(reason);
    default: throw new Error(`no such action: ${action.do}`);
  }
}

let env: TestTimerd;
let redis: ReturnType<typeof createClient>;
let nc: NatsConnection;
let js: JetStreamClient;
let jsm: JetStreamManager;

/** The time of the Redis server. */
async function now(): Promise<number> {
  const [seconds, micros] = (await redis.sendCommand(["TIME"])) as unknown as [string, string];
  return Number(seconds) * 1000 + Math.floor(Number(micros) / 1000);
}

/** Sets a timer, and returns the time that it was asked for too, if it was. */
async function call(timers: Timers, s: Setting): Promise<{ due: Date | "planned" | null; given: number }> {
  let given = 0;
  const key = keyOf(s.key);
  const payload = s.payload && bytes(s.payload);
  const common = { nx: s.nx, xx: s.xx, late: s.late_ms, dropLate: s.late_drop, unless: s.unless, if: s.if };
  if (s.every_ms !== undefined || s.cron !== undefined) {
    const options = {
      ...common, every: s.every_ms, cron: s.cron, tz: s.tz, times: s.times, catchUp: s.catchup_ms,
    } as Repetition & RepeatOptions;
    if (s.from_in_ms !== undefined) options.from = new Date((given = (await now()) + s.from_in_ms));
    if (s.until_in_ms !== undefined) options.until = new Date((await now()) + s.until_in_ms);
    return { due: await timers.repeat(key, payload, options), given };
  }
  const options = { ...common, attempt: s.attempt, trace: s.trace, after: s.after_ms } as When & SetOptions;
  if (s.at_in_ms !== undefined) options.at = new Date((given = (await now()) + s.at_in_ms));
  if (s.at_ms !== undefined) options.at = new Date((given = s.at_ms));
  return { due: await timers.set(key, payload, options), given };
}

/** Takes one step of a producer. set is when the last timer that was set is due; it returns when its own is. */
async function take(timers: Timers, step: Step, set: Date | null): Promise<Date | null> {
  const want: Want = typeof step.want === "object" && step.want ? step.want : {};
  const what = `${step.do} ${step.key}`;
  if (want.error) {
    const calling =
      step.do === "get"
        ? timers.get(keyOf(step.key))
        : step.do === "cancel"
          ? timers.cancel(keyOf(step.key))
          : call(timers, step);
    await assert.rejects(
      calling,
      (error: Error) => error instanceof InvalidError && error.message.includes(want.says ?? ""),
      what,
    );
    return set;
  }
  switch (step.do) {
    case "cancel":
      assert.equal(await timers.cancel(keyOf(step.key)), step.want, what);
      return set;
    case "get": {
      const get = () => timers.get(keyOf(step.key));
      const timer = step.until ? await eventually("the timer", get) : await get();
      if (timer === null || step.want === null) {
        assert.equal(timer, step.want, what);
        return set;
      }
      const due = timer.due.getTime() === set?.getTime() ? "as set" : timer.due;
      const { state, attempt, payload, late, repeat, occurrence, unless } = timer;
      const got = { state, due, attempt, payload, late_ms: late, repeat, occurrence, unless, if: timer.if };
      check(what, got, want as Fields);
      return set;
    }
    default: {
      const early = await now();
      const { due, given } = await call(timers, step);
      const latest = await now();
      if (step.want === "planned" || want.not_set) assert.equal(due, step.want === "planned" ? "planned" : null, what);
      if (!(due instanceof Date)) return set;
      const [from, to] =
        want.due_in_ms !== undefined
          ? [early + want.due_in_ms, latest + want.due_in_ms]
          : want.due_within_ms !== undefined
            ? [early, latest + want.due_within_ms]
            : [given, given];
      assert.ok(
        due.getTime() >= from && due.getTime() <= to,
        `${what} is due at ${due.getTime()}, want from ${from} to ${to}`,
      );
      return due;
    }
  }
}

function checkDead(want: WantDead, data: Uint8Array): void {
  const letter = JSON.parse(Buffer.from(data).toString()) as Fields;
  check("dead letter", letter, want.attributes ?? {});
  assert.equal(letter["type"], "timerd.timer.dead");
  const reason = letter["deadreason"] as string;
  const begins = want.dead_reason.endsWith(": ") && reason.startsWith(want.dead_reason);
  assert.ok(begins || reason === want.dead_reason, `dead letter with reason ${reason}, want ${want.dead_reason}`);
  if (want.last_error !== undefined) assert.equal(letter["lasterror"], want.last_error);
  if (want.attempt !== undefined) assert.equal(letter["attempt"], want.attempt);
  if (want.payload !== undefined)
    assert.deepEqual(payloadOf(letter, data), bytes(want.payload), "payload of the dead letter");
}

/** The payload of a letter. Embedded JSON is cut out of it, since JSON.parse may change it. */
function payloadOf(letter: Fields, data: Uint8Array): Buffer {
  if (letter["data_base64"] !== undefined) return Buffer.from(letter["data_base64"] as string, "base64");
  if (letter["datacontenttype"] !== "application/json") return Buffer.from(letter["data"] as string);
  const all = Buffer.from(data).toString();
  const begin = all.indexOf('"data":') + '"data":'.length;
  for (let end = begin + 1; end <= all.length; end++) {
    try {
      if (JSON.stringify(JSON.parse(all.slice(begin, end))) === JSON.stringify(letter["data"]))
        return Buffer.from(all.slice(begin, end));
    } catch {} // not yet all of it
  }
  throw new Error(`no data in ${all}`);
}

function checkHeaders(stored: StoredMsg, want: Record<string, Octets>, without: string[] = []): void {
  for (const [name, value] of Object.entries(want))
    assert.equal(stored.header.get(name), bytes(value).toString(), `header ${name}`);
  for (const name of without) assert.ok(!stored.header.has(name), `there is a header ${name}`);
}

/** The messages on a subject of a stream. */
async function stored(stream: string, subject: string): Promise<StoredMsg[]> {
  const all: StoredMsg[] = [];
  for (let seq = 1; ; ) {
    const message = await jsm.direct.getMessage(stream, { seq, next_by_subj: subject });
    if (!message) return all;
    all.push(message);
    seq = message.seq + 1;
  }
}

before(async () => {
  env = await startEnvironment(suiteOf("x").retry);
  redis = createClient({ url: env.redisURL });
  await redis.connect();
  nc = await connect({ servers: env.natsURL, maxReconnectAttempts: -1 });
  js = jetstream(nc);
  jsm = await jetstreamManager(nc);
});

after(async () => {
  await nc.close();
  await redis.close();
  await env.stop();
});

describe("producer", () => {
  for (const [i, one] of clients.entries()) {
    const skip =
      nodeVersion < (one.node ?? 0) && `NOT TESTED: it needs Node.js ${one.node}, this is ${process.versions.node}`;
    describe(one.name, { skip }, () => {
      let connected: Connected;
      before(async () => void (connected = await one.connect(env.redisURL)));
      after(async () => void (await connected.close()));
      for (const { name, steps } of suiteOf(`ts${i}`).producer) {
        test(name, async () => {
          const timers = new Timers(connected.client);
          let due: Date | null = null;
          for (const step of steps) due = await take(timers, step, due);
        });
      }
    });
  }
});

describe("timers", { concurrency: true }, () => {
  for (const one of suiteOf("ts").timers) {
    test(one.name, async () => {
      const { due } = await call(new Timers(redis), one);
      const events: TimerEvent[] = [];
      const namespace = one.key.split(":", 3).join(":");
      const consumption = begin((options) => consume(nc, namespace, (event) => {
        events.push(event);
        return act(one.handlers[events.length - 1] as Action);
      }, options));
      try {
        await eventually("the events", async () => events.length >= one.want.events.length);
        for (const [i, want] of one.want.events.entries()) {
          const event = events[i] as TimerEvent;
          if (typeof want["id"] === "string") want["id"] = want["id"].replace("{due}", String(event.due.getTime()));
          check(`event ${i + 1}`, eventFields(event, due as Date, (events[0] as TimerEvent).id), want);
        }
        if (!one.want.dead) return;
        const subject = `timers.dead.${namespace.replaceAll(":", ".")}`;
        const [letter] = await eventually("the dead letter", async () => {
          const all = await stored("TIMERS_DEAD", subject);
          return all.length > 0 && all;
        });
        const want = JSON.parse(
          JSON.stringify(one.want.dead).replaceAll("{first}", (events[0] as TimerEvent).id),
        ) as WantDead;
        checkDead(want, (letter as StoredMsg).data);
      } finally {
        await consumption.stop();
      }
      assert.equal(events.length, one.want.events.length);
    });
  }
});

describe("consumer", { concurrency: true }, () => {
  const run = "ts";
  const prefix = `conf-${run}`;
  const stream = prefix.toUpperCase();
  const suite = suiteOf(run);

  before(async () => {
    for (const [suffix, kind] of [["", "fired"], ["_RETRY", "retry"], ["_DEAD", "dead"]]) {
      await jsm.streams.add({ name: stream + suffix, subjects: [`${prefix}.${kind}.>`], allow_direct: true });
    }
  });

  for (const raw of suite.consumer) {
    test(raw.name, async () => {
      const key = `conf:${run}:${raw.type}:1`;
      const fill = (template: string) => template.replaceAll("{key}", key).replaceAll("{type}", raw.type);
      const one = JSON.parse(fill(JSON.stringify(raw))) as ConsumerCase;
      const message =
        one.message !== undefined
          ? bytes(one.message)
          : Buffer.from(fill(suite.event).replace("{members}", () => one.members ?? ""));
      const subject = (kind: string) => `${prefix}.${kind}.conf.${run}.${one.type}`;
      const { seq } = await js.publish(one.subject ?? subject("fired"), message);

      const events: TimerEvent[] = [];
      const options: ConsumeOptions = { stream, prefix, durable: `conf-${one.type}`, ackWait: one.ack_wait_ms };
      const consumption = begin((rest) => consume(nc, one.namespace ?? `conf:${run}:${one.type}`, async (event) => {
        events.push(event);
        await new Promise((done) => setTimeout(done, one.takes_ms ?? 0));
        return act(one.handler);
      }, rest), options);
      const info = await eventually("acknowledgement", async () => {
        const info = await jsm.consumers.info(stream, options.durable as string).catch(() => null);
        return info && info.ack_floor.stream_seq >= seq && info;
      });
      await consumption.stop();

      assert.equal(events.length, one.want.calls ?? 1, "calls of the handler");
      if (one.want.deliveries) assert.equal(info.delivered.consumer_seq, one.want.deliveries, "deliveries");
      if (one.want.event) check("event", eventFields(events[0] as TimerEvent), one.want.event);
      const retries = await stored(`${stream}_RETRY`, subject("retry"));
      assert.equal(retries.length, one.want.retry ? 1 : 0, "retry requests");
      if (one.want.retry) {
        const request = retries[0] as StoredMsg;
        assert.equal(request.subject, one.want.retry.subject);
        assert.deepEqual(Buffer.from(request.data), message, "the event goes back as it came");
        checkHeaders(request, one.want.retry.headers, one.want.retry.without);
      }
      const letters = await stored(`${stream}_DEAD`, one.want.dead?.subject ?? subject("dead"));
      assert.equal(letters.length, one.want.dead ? 1 : 0, "dead letters");
      if (one.want.dead) {
        checkHeaders(letters[0] as StoredMsg, one.want.dead.headers ?? {});
        checkDead(one.want.dead, (letters[0] as StoredMsg).data);
      }
    });
  }
});

describe("durables", () => {
  for (const one of suiteOf("ts").durables) {
    test(one.name, async () => {
      const {
        namespace, durable, stream, concurrency, ack_wait_ms: ackWait, max_ack_pending: maxAckPending, want,
      } = one;
      const options = { durable, stream, concurrency, ackWait, maxAckPending };
      const consumption = begin((rest) => consume(nc, namespace, () => {}, rest), options);
      if (want.error) {
        await assert.rejects(
          consumption.ended,
          (error: Error) => error instanceof InvalidError && error.message.includes(want.says ?? ""),
        );
        return;
      }
      const { config } = await eventually("the consumer", async () => {
        const info = await jsm.consumers.info("TIMERS", want["durable_name"] as string).catch(() => null);
        return info && info.num_waiting > 0 && info;
      });
      const { durable_name, filter_subject, ack_policy, max_deliver, max_ack_pending, max_waiting } = config;
      check(
        "consumer",
        {
          durable_name, filter_subject, ack_policy, ack_wait_ms: (config.ack_wait ?? 0) / 1e6, max_deliver,
          max_ack_pending, max_waiting,
        },
        want,
      );
      await consumption.stop();
    });
  }
});
