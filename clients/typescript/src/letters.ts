import { JetStreamApiError, type JetStreamClient, type JetStreamManager, type PubAck } from "@nats-io/jetstream";
import { headers, InvalidArgumentError } from "@nats-io/nats-core";

import { textOf } from "./errors.js";
import { type ParsedEvent, parseFired } from "./event.js";
import { encodeText, eventId, hashed, type KeyParts, messageId, standInKey, subjectOf } from "./names.js";
import { clipText, goDuration } from "./outcome.js";

/** A message to publish. */
interface Message {
  subject: string;
  header: Record<string, string>;
  data: Uint8Array | string;
}

const contentType = "application/cloudevents+json";

/**
 * Returns the message that asks timerd to fire a timer again: first whole, then without dispensable parts, in case the
 * whole message is too large. It names the durable consumer, for timerd's counts. It has no Nats-Msg-Id, because
 * somebody else could use that id first. timerd recognises repetitions by the event's id.
 */
export function retryRequest(
  prefix: string, consumer: string, event: ParsedEvent, text: string, delay?: number, postponed?: boolean,
): Message[] {
  const header: Record<string, string> = { "Timer-Consumer": consumer };
  if (delay !== undefined) header["Timer-Delay"] = goDuration(delay);
  if (postponed) header["Timer-Postpone"] = "1";
  const message = { subject: subjectOf(prefix, "retry", event.parts), data: event.raw };
  return [
    { ...message, header: { "Content-Type": contentType, "Timer-Error": text, ...header } },
    { ...message, header },
  ];
}

/** A dead letter in ever smaller forms, because NATS and the stream limit the size. */
export interface DeadLetter {
  id: string;
  key: KeyParts;
  forms: Message[];
  /** The letter's content, for a fresh id. */
  content: Uint8Array;
  /** Reports whether a stored message is a letter about the same firing. */
  same(subject: string, data: Uint8Array): boolean;
}

/** Returns the letter of an event that its consumer gave up. */
export function givenUp(prefix: string, event: ParsedEvent, text: string): DeadLetter {
  const attributes = new Map(event.members.filter((m) => m.value !== "null").map((m) => [m.name, m.value]));
  const payload = new Map<string, string>();
  for (const name of ["datacontenttype", "data", "data_base64", "datastatus"]) {
    const value = attributes.get(name);
    attributes.delete(name);
    if (value !== undefined) payload.set(name, value);
  }
  const due = event.due.getTime();
  if (!attributes.has("origin")) {
    const own = eventId(event.parts, due, event.attempt);
    attributes.set("origin", JSON.stringify(own));
    if (own.startsWith("sha256:")) attributes.set("originat", `"${due}.${event.attempt}"`);
  }
  attributes.set("deadreason", JSON.stringify("given up by the consumer"));
  const lastError = new Map([["lasterror", JSON.stringify(text)]]);
  const small = new Map(attributes);
  small.delete("trigger");
  const trace: Record<string, string> = {};
  if (event.traceparent) trace["traceparent"] = event.traceparent;
  if (event.tracestate) trace["tracestate"] = event.tracestate;
  return letter(prefix, event.id, event.parts, event.raw, trace, [
    [attributes, lastError, payload],
    [attributes, payload],
    [small, new Map([["datastatus", '"toolarge"']])],
  ]);
}

/** A message in a stream. */
export interface Stored {
  subject: string;
  data: Uint8Array;
  stream: string;
  sequence: string;
  /** Its stored time, in unix ns. */
  time: bigint;
}

/** Returns the letter of a message that is no event: the letter of a stand-in with the message as its payload. */
export function malformed(prefix: string, stored: Stored, reason: string): DeadLetter {
  const key = standInKey(prefix, stored.subject, stored.stream, stored.sequence);
  const due = Number(stored.time / 1_000_000n);
  const id = eventId(key, due, 1);
  const [app, module, type, timerId] = [key.app, key.module, key.type, key.id].map(encodeText);
  const at = new Date(due).toISOString();
  const attributes = Object.entries({
    specversion: "1.0", source: "/timerd", subject: `${app}:${module}:${type}:${timerId}`, time: at, app, module,
    timertype: type, timerid: timerId, dueat: at, attempt: 1,
  });
  const why = `malformed: ${clipText(reason)}`;
  const form = (data: Uint8Array, cut: string) =>
    new Map(
      [...attributes, ["deadreason", why + cut] as const, ...payloadOf(data)].map(([name, v]) => [
        name,
        JSON.stringify(v),
      ]),
    );
  const whole = [form(stored.data, "")];
  const forms = [whole, whole];
  for (let room = stored.data.length >> 1; room > 0; room >>= 1) {
    forms.push([form(stored.data.subarray(0, room), ` (cut to ${room} of ${stored.data.length} bytes)`)]);
  }
  return letter(prefix, id, key, Buffer.concat([Buffer.from(`${id} `), stored.data]), {}, forms);
}

/** The attributes for bytes of unknown content. UTF-8 is sent as text, even if it is JSON. */
function payloadOf(data: Uint8Array): [string, string][] {
  const text = Buffer.from(data).toString();
  if (Buffer.from(text).equals(data)) return [["datacontenttype", "text/plain"], ["data", text]];
  return [["datacontenttype", "application/octet-stream"], ["data_base64", Buffer.from(data).toString("base64")]];
}

/** Builds the forms of a letter. The second form has no Content-Type, so it is as large as the firing. */
function letter(
  prefix: string, firing: string, key: KeyParts, content: Uint8Array, headers: Record<string, string>,
  forms: Map<string, string>[][],
): DeadLetter {
  const id = messageId(firing);
  const subject = subjectOf(prefix, "dead", key);
  const all = forms.map((maps, i) => {
    const attributes = new Map(maps.flatMap((map) => [...map]));
    attributes.set("id", JSON.stringify(id)).set("type", '"timerd.timer.dead"');
    const data = `{${[...attributes].map(([name, value]) => `${JSON.stringify(name)}:${value}`).join(",")}}`;
    const header: Record<string, string> = { "Nats-Msg-Id": id, ...headers };
    if (i !== 1) header["Content-Type"] = contentType;
    return { subject, header, data };
  });
  const identity = all.map((form) => identityOf(Buffer.from(form.data)));
  return {
    id, key, content, forms: all,
    same: (on, data) => on === subject && identity.includes(identityOf(data) ?? ""),
  };
}

/**
 * Returns the identity of a dead letter, which no letter of another firing has; null if the message is not a dead
 * letter.
 */
function identityOf(data: Uint8Array): string | null {
  try {
    const fired = Buffer.from(
      Buffer.from(data).toString().replace('"type":"timerd.timer.dead"', '"type":"timerd.timer.fired"'),
    );
    const e = parseFired(fired);
    return JSON.stringify([
      e.keyBytes.toString("latin1"), e.due.getTime(), e.attempt, e.payload?.toString("latin1") ?? null,
    ]);
  } catch {
    return null;
  }
}

/** Reports whether a message was refused for its size, by NATS or by the stream. */
function isTooLarge(error: unknown): boolean {
  const messageTooLong = 10054;
  if (error instanceof JetStreamApiError) return error.code === messageTooLong;
  return error instanceof InvalidArgumentError && textOf(error).includes("max_payload");
}

/** Publishes the first of ever smaller forms that is not too large, and waits until it is stored. */
export async function publish(js: JetStreamClient, forms: Message[], timeout: number): Promise<PubAck> {
  for (const [i, form] of forms.entries()) {
    const h = headers();
    for (const [name, value] of Object.entries(form.header)) h.set(name, value);
    try {
      return await js.publish(form.subject, form.data, { headers: h, timeout });
    } catch (error) {
      if (isTooLarge(error) && i < forms.length - 1) continue;
      throw new Error(`publish to ${form.subject}: ${textOf(error)}`, { cause: error });
    }
  }
  throw new Error("nothing to publish");
}

/** The number of further ids that a dead letter tries, beside its own, before it is published without an id. */
const freshIds = 3;

/**
 * Publishes a dead letter once, however often it is called within the stream's duplicate window. If JetStream reports a
 * duplicate, the stored letter is compared: anybody with the right to publish a dead letter could have used this one's
 * id. If the stored letter is another one, or gone, this letter gets an id derived from its content. If the stored
 * letter cannot be read for want of a right, a taken id counts as this letter's from the second id on.
 */
export async function publishDead(
  js: JetStreamClient, jsm: JetStreamManager, dead: DeadLetter, timeout: number,
): Promise<void> {
  for (let n = 0; n <= freshIds; n++) {
    const forms = dead.forms.map((form) => {
      if (n === 0) return form;
      return { ...form, header: { ...form.header, "Nats-Msg-Id": hashed(`dead letter ${n} `, dead.content) } };
    });
    const ack = await publish(js, forms, timeout);
    if (!ack.duplicate) return;
    try {
      const stored = await jsm.direct.getMessage(ack.stream, { seq: ack.seq });
      if (stored && dead.same(stored.subject, stored.data)) return;
    } catch {
      if (n > 0) return;
    }
  }
  const forms = dead.forms.map((form) => {
    const { "Nats-Msg-Id": _, ...header } = form.header;
    return { ...form, header };
  });
  await publish(js, forms, timeout);
}
