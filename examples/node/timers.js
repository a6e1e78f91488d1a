// Sets timers from Node.js, consumes their events, asks for a retry, and reads a dead letter.
//
//   node timers.js redis://127.0.0.1:6379 nats://127.0.0.1:4222
//
// These are the URLs of servers that a timerd runs on; `make run` starts some and prints theirs.

import { AckPolicy, DeliverPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { connect, headers } from "@nats-io/transport-node";
import { createClient } from "redis";

const [redisURL = "redis://127.0.0.1:6379", natsURL = "nats://127.0.0.1:4222"] = process.argv.slice(2);

/** An error with which a handler gives up on its event for good. */
class Hopeless extends Error {}

/** Does the work that an event asks for. It throws when that fails. */
function handle(event) {
  switch (event.timertype) {
    case "explicit":
      if (event.attempt === 1) throw new Error("503 Service Unavailable");
      return;
    case "hopeless":
      throw new Hopeless("410 Gone");
  }
}

/** The subject of an event's timer, of the kind retry or dead. */
function subject(kind, firedSubject) {
  return firedSubject.replace(/^timers\.fired\./, `timers.${kind}.`);
}

/** Has timerd set the timer again: the event goes back unchanged. Without the delay, the retry policy counts. */
async function retry(js, message, event, error, delay) {
  const h = headers();
  h.set("Timer-Delay", delay);
  h.set("Timer-Error", error.message);
  await js.publish(subject("retry", message.subject), message.data, { headers: h });
}

/** Makes the event a dead letter, which `timerd dead` can list and replay. */
async function giveUp(js, message, event, error) {
  const letter = {
    ...event, type: "timerd.timer.dead", deadreason: "given up by the consumer", lasterror: error.message,
  };
  await js.publish(subject("dead", message.subject), JSON.stringify(letter));
}

/** Handles one message. It acknowledges only after the work is stored, so a crash loses nothing. */
async function consume(js, message) {
  const event = message.json();
  const what = `${event.subject} attempt ${event.attempt}/${event.maxattempts} data ${JSON.stringify(event.data)}`;
  try {
    handle(event);
    console.log(`done: ${what}`);
  } catch (error) {
    if (error instanceof Hopeless) {
      await giveUp(js, message, event, error);
      console.log(`given up: ${what}: ${error.message}`);
    } else {
      await retry(js, message, event, error, "300ms");
      console.log(`again in 300ms: ${what}: ${error.message}`);
    }
  }
  await message.ackAck();
  return event;
}

const redis = createClient({ url: redisURL });
redis.on("error", (error) => console.error(`redis: ${error.message}`));
await redis.connect();
const nats = await connect({ servers: natsURL, maxReconnectAttempts: -1 });
const js = jetstream(nats);
const jsm = await jetstreamManager(nats);

// A worker would keep its consumer and leave out deliver_policy; an example takes only its own timers.
const durable = "example-node";
await jsm.consumers.add("TIMERS", {
  durable_name: durable,
  filter_subject: "timers.fired.shop.node.*",
  ack_policy: AckPolicy.Explicit,
  deliver_policy: DeliverPolicy.New,
});
try {
  // Any key app:module:type:id with a TTL is a timer.
  await redis.set("shop:node:plain:1", JSON.stringify({ order: 1 }), { PX: 300 });

  // The function library's answer means that the timer is in the schedule for certain.
  const payload = JSON.stringify({ order: 2 });
  const due = await redis.fCall("timer_set", { keys: ["shop:node:explicit:2"], arguments: [payload, "PX", "400"] });
  console.log(`timer_set: due at ${new Date(due).toISOString()}`);
  await redis.fCall("timer_set", { keys: ["shop:node:hopeless:3"], arguments: ["text", "PX", "500"] });

  // A cancelled timer does not fire. Deleting the key works, too.
  const cancelled = { keys: ["shop:node:plain:4"], arguments: [] };
  await redis.fCall("timer_set", { ...cancelled, arguments: ["never", "EX", "60"] });
  console.log(`timer_get: ${await redis.fCallRo("timer_get", cancelled)}`);
  console.log(`timer_cancel: ${await redis.fCall("timer_cancel", cancelled)}`);

  const open = new Set(["plain", "explicit", "hopeless"]);
  const consumer = await js.consumers.get("TIMERS", durable);
  for await (const message of await consumer.consume()) {
    const event = await consume(js, message);
    if (event.timertype !== "explicit" || event.attempt > 1) open.delete(event.timertype);
    if (open.size === 0) break;
  }

  const stored = await jsm.streams.getMessage("TIMERS_DEAD", { last_by_subj: "timers.dead.shop.node.hopeless" });
  const letter = stored.json();
  const { subject, attempt, deadreason, lasterror } = letter;
  console.log(`dead letter: ${subject} after attempt ${attempt}: ${deadreason}: ${lasterror}`);
} finally {
  await jsm.consumers.delete("TIMERS", durable);
  await nats.drain();
  await redis.close();
}
