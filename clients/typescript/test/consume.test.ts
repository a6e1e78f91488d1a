// What of a consumer the cases of clients/conformance do not tell: how it stops, and how it takes trouble.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import {
  AckPolicy, jetstream, jetstreamManager, type ConsumerInfo, type JetStreamClient, type JetStreamManager,
  type StoredMsg,
} from "@nats-io/jetstream";
import { connect, headers, type NatsConnection } from "@nats-io/transport-node";

import {
  consume, type ConsumeOptions, dead, type Handler, InvalidError, postpone, retryAfter, TimerdError, UnavailableError,
} from "@timerd-io/client";
import type { TestTimerd } from "@timerd-io/client/testing";
import { begin, type Consumption, eventually, startEnvironment } from "./environment.js";
import { Proxy } from "./proxy.js";

let env: TestTimerd;
let nc: NatsConnection;
let js: JetStreamClient;
let jsm: JetStreamManager;

before(async () => {
  env = await startEnvironment("*=1h");
  nc = await connect({ servers: env.natsURL });
  js = jetstream(nc);
  jsm = await jetstreamManager(nc);
});

after(async () => {
  await nc.close();
  await env.stop();
});

/** Streams of a test, with events of its own. No timerd looks at them. */
class Bench {
  readonly durable = "consumer";
  readonly stream: string;

  private constructor(readonly prefix: string) {
    this.stream = prefix.toUpperCase();
  }

  static async make(prefix: string, maxMsgSize = -1): Promise<Bench> {
    const bench = new Bench(prefix);
    for (const [suffix, kind] of [["", "fired"], ["_RETRY", "retry"], ["_DEAD", "dead"]] as const) {
      const limit = kind === "fired" ? -1 : maxMsgSize;
      await jsm.streams.add({
        name: bench.stream + suffix, subjects: [`${prefix}.${kind}.>`], allow_direct: true, max_msg_size: limit,
      });
    }
    return bench;
  }

  /** Publishes the event of a timer. */
  async publish(id: string, members = ""): Promise<string> {
    const key = `a:b:c:${id}`;
    const event = 
      `{"specversion":"1.0","id":"${key}@1795176847361.1","type":"timerd.timer.fired","subject":"${key}",` +
      `"dueat":"2026-11-20T12:14:07.361Z","attempt":1,"trigger":"deadline"${members}}`;
    await js.publish(`${this.prefix}.fired.a.b.c`, event);
    return event;
  }

  consume(handler: Handler, options: ConsumeOptions = {}, connection = nc): Consumption {
    const { prefix, stream, durable } = this;
    return begin((rest) => consume(connection, "a:b:c", handler, rest), { prefix, stream, durable, ...options });
  }

  info(): Promise<ConsumerInfo> {
    return jsm.consumers.info(this.stream, this.durable);
  }

  /** Waits until so many events are acknowledged. */
  async settled(n: number): Promise<void> {
    await eventually(
      `${n} acknowledgements`,
      async () => (await this.info().catch(() => null))?.ack_floor.stream_seq === n,
    );
  }

  async stored(kind: "retry" | "dead"): Promise<StoredMsg[]> {
    const all: StoredMsg[] = [];
    const name = `${this.stream}_${kind.toUpperCase()}`;
    const { state } = await jsm.streams.info(name);
    for (let seq = 1; seq <= state.last_seq; seq++) all.push((await jsm.direct.getMessage(name, { seq })) as StoredMsg);
    return all;
  }
}

/** A promise, and how to fulfil it. */
function signal(): { done: Promise<void>; give: () => void } {
  let give = () => {};
  const done = new Promise<void>((resolve) => (give = resolve));
  return { done, give };
}

test("what a handler throws or returns decides", async () => {
  const bench = await Bench.make("outcomes");
  const cases: Record<string, [handler: () => unknown, headers: Record<string, string> | null]> = {
    thrown: [() => { throw new Error("boom"); }, { "Timer-Error": "boom" }],
    returned: [() => new Error("boom"), { "Timer-Error": "boom" }],
    rejected: [async () => { throw new TypeError("boom"); }, { "Timer-Error": "boom" }],
    silent: [() => { throw new RangeError(); }, { "Timer-Error": "RangeError" }],
    text: [() => { throw "boom"; }, { "Timer-Error": "boom" }],
    nothing: [() => { throw undefined; }, { "Timer-Error": "undefined" }],
    later: [() => retryAfter(90_000), { "Timer-Delay": "1m30s", "Timer-Error": "try again after 1m30s" }],
    fraction: [() => retryAfter(0.2, "busy"), { "Timer-Delay": "1ms", "Timer-Error": "busy" }],
    wrapped: [
      () => {
        throw new Error("outer", { cause: retryAfter(5, new Error("inner")) });
      },
      { "Timer-Delay": "5ms", "Timer-Error": "outer" },
    ],
    joined: [
      () => {
        throw new AggregateError([new Error("a"), retryAfter(5)], "both");
      },
      { "Timer-Delay": "5ms", "Timer-Error": "both" },
    ],
    postponed: [
      () => postpone(60_000, new Error("locked")),
      { "Timer-Delay": "1m0s", "Timer-Postpone": "1", "Timer-Error": "locked" },
    ],
    "postponed-wins": [
      () => new Error("x", { cause: retryAfter(1, postpone(2)) }),
      { "Timer-Delay": "2ms", "Timer-Postpone": "1", "Timer-Error": "x" },
    ],
    done: [() => "a value", null],
    async: [async () => {}, null],
  };
  for (const id of Object.keys(cases)) await bench.publish(id);
  const consumption = bench.consume((event) => cases[event.timerId]?.[0]());
  await bench.settled(Object.keys(cases).length);
  await consumption.stop();
  const requests = new Map(
    (await bench.stored("retry")).map((m) => [m.json<{ subject: string }>().subject.split(":")[3], m]),
  );
  for (const [id, [, want]] of Object.entries(cases)) {
    const got = requests.get(id)?.header;
    const names = ["Timer-Delay", "Timer-Postpone", "Timer-Error"].filter((name) => got?.has(name));
    assert.deepEqual(got ? Object.fromEntries(names.map((name) => [name, got.get(name)])) : null, want, id);
  }
  assert.deepEqual(await bench.stored("dead"), []);
  assert.equal(consumption.log.lines.length, Object.values(cases).filter(([, want]) => want).length);
});

test("a new durable consumer begins where it is told, one that exists where it was", async () => {
  const bench = await Bench.make("beginnings");
  await bench.publish("1");
  const between = new Date((await jsm.streams.info(bench.stream)).state.last_ts);
  between.setMilliseconds(between.getMilliseconds() + 1);
  await eventually("another millisecond", async () => Date.now() > between.getTime());
  await bench.publish("2");
  const seen: string[] = [];
  const run = async (durable: string, start: ConsumeOptions["start"], next: string) => {
    const consumption = bench.consume(
      (event) => {
        seen.push(`${durable} ${event.timerId}`);
      },
      { durable, start, concurrency: 1 },
    );
    const info = () => jsm.consumers.info(bench.stream, durable).catch(() => null);
    await eventually(`${durable} asks`, async () => ((await info())?.num_waiting ?? 0) > 0);
    await bench.publish(next);
    const { last_seq } = (await jsm.streams.info(bench.stream)).state;
    await eventually("acknowledgements", async () => (await info())?.ack_floor.stream_seq === last_seq);
    await consumption.stop();
  };
  await run("all", "all", "3");
  await run("at", between, "4");
  await run("now", "now", "5");
  await run("now", undefined, "6");
  assert.deepEqual(seen, ["all 1", "all 2", "all 3", "at 2", "at 3", "at 4", "now 5", "now 6"]);
  const refused = consume(nc, "a:b:c", () => {}, { start: new Date(NaN) });
  await assert.rejects(
    refused,
    (error) => error instanceof InvalidError && error.message.includes("start is Invalid Date"),
  );
});

test("it fetches no more events than handlers are free", async () => {
  const bench = await Bench.make("greedy");
  for (let i = 1; i <= 5; i++) await bench.publish(`${i}`);
  const all = signal();
  const seen: string[] = [];
  const slow = bench.consume(async (e) => { seen.push(e.timerId); await all.done; }, { concurrency: 2 });
  await eventually("two events", async () => seen.length === 2);
  const info = await bench.info();
  assert.deepEqual([info.num_ack_pending, info.num_pending], [2, 3]);
  const other = bench.consume((e) => void seen.push(e.timerId), { concurrency: 1 });
  await eventually("the rest", async () => seen.length === 5);
  all.give();
  await bench.settled(5);
  await Promise.all([slow.stop(), other.stop()]);
  assert.deepEqual([...seen].sort(), ["1", "2", "3", "4", "5"]);
});

test("a stop lets running handlers finish, and calls no other", async () => {
  const bench = await Bench.make("stop");
  for (let i = 1; i <= 3; i++) await bench.publish(`${i}`);
  const working = signal();
  const release = signal();
  const seen: string[] = [];
  const consumption = bench.consume(async (e) => {
    seen.push(e.timerId);
    working.give();
    await release.done;
  }, { concurrency: 1 });
  await working.done;
  const stopped = consumption.stop();
  release.give();
  await stopped;
  assert.deepEqual(seen, ["1"]);
  const info = await bench.info();
  assert.deepEqual([info.ack_floor.stream_seq, info.num_ack_pending], [1, 0]);
});

test("a handler that is cut short gives its event back at no cost", async () => {
  const bench = await Bench.make("short");
  await bench.publish("1");
  const working = signal();
  const first = bench.consume(async (_, { signal }) => {
    working.give();
    await new Promise<void>((_, fail) => signal.addEventListener("abort", () => fail(new Error("aborted"))));
  }, { stopTimeout: 20 });
  await working.done;
  await first.stop();
  assert.deepEqual(await bench.stored("retry"), []);
  assert.match(first.log.lines.join("\n"), /cut short/);

  const again = signal(); // long before the ack wait is over
  const second = bench.consume(() => again.give());
  await again.done;
  await bench.settled(1);
  await second.stop();
});

test("a handler that does not end is left behind, with an error", async () => {
  const bench = await Bench.make("stuck");
  await bench.publish("1");
  const working = signal();
  const release = signal();
  const consumption = bench.consume(async () => { working.give(); await release.done; }, { stopTimeout: 20 });
  await working.done;
  await assert.rejects(
    consumption.stop(),
    (e: Error) => e instanceof TimerdError && /1 handlers still run/.test(e.message),
  );
  release.give();
  assert.equal((await bench.info()).num_ack_pending, 1);
});

test("an event that is delivered again while its handler runs is not handled twice", async () => {
  const bench = await Bench.make("twice");
  await bench.publish("1");
  const release = signal();
  let calls = 0;
  const consumption = bench.consume(async () => {
    calls++;
    for (const end = Date.now() + 600; Date.now() < end; ); // nothing else runs: the deadline passes
    await release.done;
  }, { ackWait: 200 });
  await eventually("second delivery", async () => {
    const info = await bench.info().catch(() => null);
    return info && info.delivered.consumer_seq >= 2;
  });
  release.give();
  await bench.settled(1);
  await consumption.stop();
  assert.equal(calls, 1);
});

test("it goes on after NATS was away, and handles nothing twice", async (t) => {
  const bench = await Bench.make("away");
  const proxy = await Proxy.start(env.natsURL);
  const cut = await connect({ servers: proxy.url, maxReconnectAttempts: -1, reconnectTimeWait: 50 });
  t.after(async () => {
    await cut.close();
    await proxy.stop();
  });
  const seen: string[] = [];
  const working = signal();
  const release = signal();
  await bench.publish("1");
  const consumption = bench.consume(async (e) => {
    seen.push(e.timerId);
    working.give();
    await release.done;
    if (e.timerId === "1") throw new Error("failed while NATS was away");
  }, { ackWait: 2_000 }, cut); // an event that the server sent to the connection that was cut comes again after that
  await working.done;
  proxy.cut();
  await bench.publish("2");
  release.give();
  proxy.mend();
  await bench.settled(2);
  await consumption.stop();
  assert.deepEqual(seen, ["1", "2"]);
  assert.ok((await bench.stored("retry")).length >= 1);
});

test("it ends with an error when nothing can come any more", async () => {
  // Each has a durable consumer of its own: JetStream counts the requests of a closed connection for a while.
  const begun = async (prefix: string, connection?: NatsConnection) => {
    const bench = await Bench.make(prefix);
    const consumption = bench.consume(() => {}, {}, connection);
    await eventually("requests", async () => (await bench.info().catch(() => null))?.num_waiting);
    return { bench, consumption };
  };
  const own = await connect({ servers: env.natsURL });
  const { consumption: closed } = await begun("gone", own);
  await own.close();
  await assert.rejects(closed.ended, (e: Error) => e instanceof UnavailableError && /closed/.test(e.message));

  const another = await connect({ servers: env.natsURL });
  const { consumption: drained } = await begun("drained", another);
  await another.drain();
  await assert.rejects(drained.ended, UnavailableError);

  const { bench, consumption: deleted } = await begun("deleted");
  await jsm.consumers.delete(bench.stream, bench.durable);
  await assert.rejects(deleted.ended, (e: Error) => e instanceof UnavailableError && /was deleted/.test(e.message));
});

test("durable consumers that are not its kind are refused", async () => {
  const bench = await Bench.make("foreign");
  const filter_subject = "foreign.fired.a.b.c";
  for (const [config, says] of [
    [{ durable_name: "all", ack_policy: AckPolicy.Explicit }, /reads every subject/],
    [{ durable_name: "none", ack_policy: AckPolicy.None, filter_subject }, /ack policy none/],
    [{ durable_name: "push", ack_policy: AckPolicy.Explicit, filter_subject, deliver_subject: "x" }, /push consumer/],
  ] as const) {
    await jsm.consumers.add(bench.stream, config);
    const { ended } = bench.consume(() => {}, { durable: config.durable_name });
    await assert.rejects(ended, (e: Error) => e instanceof InvalidError && says.test(e.message));
  }
  await jsm.consumers.add(bench.stream, {
    durable_name: "own", ack_policy: AckPolicy.Explicit, filter_subject, max_deliver: 3, backoff: [1e9, 2e9],
  });
  const consumption = bench.consume(() => {}, { durable: "own" });
  const config = await eventually("its settings", async () => {
    const info = await jsm.consumers.info(bench.stream, "own");
    return info.config.max_deliver === -1 && info.config;
  });
  assert.deepEqual([config.backoff, config.ack_wait], [undefined, 30e9]);
  await consumption.stop();
});

test("the default of maxAckPending gives way to a limit of NATS, another value is an error that names it", async () => {
  const bench = await Bench.make("limited");
  await jsm.streams.update(bench.stream, { consumer_limits: { max_ack_pending: 20 } });
  for (const events of [1, 2]) {
    await bench.publish(String(events));
    const consumption = bench.consume(() => {});
    await bench.settled(events);
    assert.equal((await bench.info()).config.max_ack_pending, 20);
    await consumption.stop();
  }
  for (const [durable, maxAckPending] of [["consumer", 21], ["another", 1000]] as const) {
    const { ended } = bench.consume(() => {}, { durable, maxAckPending });
    await assert.rejects(
      ended,
      (e: Error) =>
        e instanceof InvalidError && e.message.includes(`maxAckPending is ${maxAckPending}, more than NATS allows`),
    );
  }
});

test("a dead letter is stored once, also where somebody took its id", async () => {
  const bench = await Bench.make("letters");
  const foreign = headers();
  foreign.set("Nats-Msg-Id", "a:b:c:1@1795176847361.1");
  await js.publish("letters.dead.x.y.z", "not this letter", { headers: foreign });
  for (let i = 0; i < 2; i++) await bench.publish("1"); // the same event in two messages, as if it had come again
  await bench.publish("2");
  const consumption = bench.consume(() => dead("gone"), { concurrency: 1 });
  await bench.settled(3);
  await consumption.stop();
  const letters = (await bench.stored("dead")).slice(1);
  assert.deepEqual(
    letters.map((m) => m.json<{ id: string }>().id),
    ["a:b:c:1@1795176847361.1", "a:b:c:2@1795176847361.1"],
  );
  assert.match(letters[0]?.header.get("Nats-Msg-Id") ?? "", /^sha256:[0-9a-f]{64}$/);
});

test("letters that are too large go without dispensable parts", async () => {
  const bench = await Bench.make("large", 700);
  await bench.publish("again", `,"data":"${"x".repeat(400)}"`);
  await bench.publish("dead", `,"datacontenttype":"text/plain","data":"${"x".repeat(600)}"`);
  await js.publish("large.fired.a.b.c", "y".repeat(1000));
  const consumption = bench.consume((e) =>
    e.timerId === "again" ? new Error("e".repeat(300)) : dead("f".repeat(300)),
  );
  await bench.settled(3);
  await consumption.stop();
  const [request] = await bench.stored("retry");
  assert.equal(request?.header.get("Timer-Error"), "");
  assert.ok(request?.string().includes("x".repeat(400)));
  const letters = (await bench.stored("dead")).map((m) => m.json<Record<string, string>>());
  const given = letters.find((m) => m["timerid"] === undefined && m["subject"] === "a:b:c:dead");
  assert.deepEqual([given?.["datastatus"], given?.["data"], given?.["lasterror"]], ["toolarge", undefined, undefined]);
  const bad = letters.find((m) => m["deadreason"]?.startsWith("malformed: "));
  assert.match(bad?.["deadreason"] ?? "", /\(cut to \d+ of 1000 bytes\)$/);
  assert.match(bad?.["data"] ?? "", /^y+$/);
});

test("traces and the first event's id are handed on", async () => {
  const bench = await Bench.make("traces");
  const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
  const origin = "a:b:c:1@1795176840000.1";
  await bench.publish("1", `,"origin":"${origin}","traceparent":"${trace}","tracestate":"v=1"`);
  await bench.publish("2", `,"traceparent":"not one","tracestate":"v=1"`);
  await bench.publish("3", `,"origin":"a:b:c:other@1795176840000.1"`);
  const seen = new Map<string, unknown[]>();
  const consumption = bench.consume((e) => {
    seen.set(e.timerId, [e.origin, e.traceparent, e.tracestate]);
    return dead();
  });
  await bench.settled(3);
  await consumption.stop();
  assert.deepEqual([...seen], [["1", [origin, trace, "v=1"]], ["2", ["a:b:c:2@1795176847361.1", null, null]]]);
  const letters = new Map((await bench.stored("dead")).map((m) => [m.json<{ subject: string }>().subject, m]));
  const first = letters.get("a:b:c:1");
  assert.deepEqual(
    [first?.header.get("traceparent"), first?.header.get("tracestate"), first?.json<{ origin: string }>().origin],
    [trace, "v=1", origin],
  );
  const second = letters.get("a:b:c:2");
  assert.deepEqual(
    [second?.header.has("traceparent"), second?.json<{ origin: string }>().origin],
    [false, "a:b:c:2@1795176847361.1"],
  );
  assert.match(
    [...letters.values()].map((m) => m.json<{ deadreason: string }>().deadreason).join(),
    /malformed: event: origin/,
  );
});
