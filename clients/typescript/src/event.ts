import { textOf } from "./errors.js";
import { type Member, members } from "./json.js";
import { bytes, decodeText, eventId, type KeyParts, parseKey, readable } from "./names.js";

/** One firing of a timer, for a handler. */
export interface TimerEvent {
  /** The id of this firing. The same firing always has the same id, and no other firing has it. */
  readonly id: string;
  /**
   * The id of the timer's first event; on the first event it is `id`. It is the same over all attempts, so it is a key
   * for idempotent work.
   */
  readonly origin: string;
  /** The key and its parts; bytes that are not UTF-8 are U+FFFD here, and exact in `keyBytes`. */
  readonly key: string;
  readonly keyBytes: Buffer;
  readonly app: string;
  readonly module: string;
  readonly timerType: string;
  readonly timerId: string;
  /** The due time, and the publication of the event, by the clock of Redis. */
  readonly due: Date;
  readonly time: Date | null;
  /** 1 for the first firing. */
  readonly attempt: number;
  /** The attempts allowed by the retry policy; null if unknown. */
  readonly maxAttempts: number | null;
  /** The cause of the firing, such as `deadline`. */
  readonly trigger: string | null;
  /** The payload as the producer set it, byte for byte; null if there is none, and then `dataStatus` has the reason. */
  readonly payload: Buffer | null;
  readonly contentType: string | null;
  /** `missing` or `toolarge`, only where there is no payload. */
  readonly dataStatus: string | null;
  /** The timer's own limit on lateness, in ms, 0 for no limit; null if it has none of its own. */
  readonly late: number | null;
  readonly dropLate: boolean;
  /** Its rhythm, such as `every 5m0s`, and the number of this firing; null for a single timer. */
  readonly repeat: string | null;
  readonly occurrence: number | null;
  /** The producer's trace, in the form of W3C Trace Context; null without one. */
  readonly traceparent: string | null;
  readonly tracestate: string | null;
  /** The message that brought the event. */
  readonly raw: Uint8Array;

  /** Returns the payload as text; null if there is none. */
  text(): string | null;
  /**
   * Returns the payload parsed as JSON; undefined if there is none. JSON.parse rounds integers over 2^53. It throws a
   * SyntaxError if the payload is not JSON.
   */
  json<T = unknown>(): T | undefined;
}

/** An event with the parts needed for a message about it. */
export interface ParsedEvent extends TimerEvent {
  readonly parts: KeyParts;
  /** The event's members as they came. */
  readonly members: readonly Member[];
}

const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Reads the message of a firing. The error names every missing or wrong member. */
export function parseFired(raw: Uint8Array): ParsedEvent {
  let text: string;
  try {
    text = utf8.decode(raw);
  } catch {
    throw new Error("event: not valid UTF-8");
  }
  let found: ReturnType<typeof members>;
  try {
    found = members(text);
  } catch (error) {
    throw new Error(`event: not a JSON object: ${textOf(error)}`);
  }
  const reader = new Reader(found.all);
  const event = reader.event(raw, !found.loose);
  if (reader.faults.length > 0) throw new Error(`event: ${reader.faults.join("; ")}`);
  return event;
}

const maxInt32 = 2 ** 31 - 1;
const maxLate = 10 * 366 * 24 * 3_600_000; // no limit is longer
const known = new Set([
  "specversion", "id", "type", "subject", "time", "dueat", "attempt", "maxattempts", "late", "latedrop", "repeat",
  "guardunless", "guardif",
  "occurrence", "trigger", "datastatus", "deadreason", "lasterror", "datacontenttype", "data", "data_base64", "origin",
  "originat",
  "replayedat",
  "traceparent", "tracestate",
]);

// The forms of W3C Trace Context. Malformed values are left out.
const traceparent = /^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$/;
const tracestate = /^[\t -~]{1,512}$/;

/** Reader reads an event's members, and notes their faults. */
class Reader {
  readonly faults: string[] = [];
  readonly #members = new Map<string, Member>();

  constructor(readonly all: Member[]) {
    for (const m of all) {
      if (m.value === "null" && m.name !== "data") continue;
      if (known.has(m.name) && this.#members.has(m.name)) this.fault(m.name, "given twice");
      this.#members.set(m.name, m);
    }
  }

  event(raw: Uint8Array, compact: boolean): ParsedEvent {
    for (const name of ["specversion", "id", "type", "subject", "dueat", "attempt"]) {
      if (!this.#members.has(name)) this.fault(name, "missing");
    }
    this.#want("specversion", "1.0");
    this.#want("type", "timerd.timer.fired");
    const id = this.text("id") ?? "";
    if (id === "" && this.#members.has("id")) this.fault("id", "empty");
    const parts = this.#subject();
    const name = `${parts.app}:${parts.module}:${parts.type}:${parts.id}`;
    const contentType = this.text("datacontenttype");
    const payload = this.#payload(contentType, compact);
    const late = this.#integer("late", 0, maxLate);
    const repeat = this.text("repeat");
    const occurrence = this.#integer("occurrence", 1, 2 ** 53);
    const trace = this.#matching("traceparent", traceparent);
    this.#time("replayedat"); // must be valid if present
    this.#guard("guardunless");
    this.#guard("guardif");
    const repeats = repeat !== null && occurrence !== null;
    return {
      id,
      origin: this.#origin(parts) ?? id,
      key: readable(name),
      keyBytes: bytes(name),
      app: readable(parts.app),
      module: readable(parts.module),
      timerType: readable(parts.type),
      timerId: readable(parts.id),
      due: this.#time("dueat") ?? new Date(0),
      time: this.#time("time"),
      attempt: this.#integer("attempt", 1, maxInt32) ?? 1,
      maxAttempts: this.#integer("maxattempts", 1, maxInt32),
      trigger: this.text("trigger"),
      payload,
      contentType: payload === null ? null : contentType,
      dataStatus: payload === null ? this.text("datastatus") : null,
      late,
      dropLate: late !== null && this.#members.get("latedrop")?.value === "true",
      repeat: repeats ? repeat : null,
      occurrence: repeats ? occurrence : null,
      traceparent: trace,
      tracestate: trace && this.#matching("tracestate", tracestate),
      raw,
      parts,
      members: this.all,
      text: () => payload && payload.toString(),
      json: <T>() => (payload === null ? undefined : (JSON.parse(payload.toString()) as T)),
    };
  }

  fault(name: string, text: string): void {
    this.faults.push(`${name}: ${text}`);
  }

  /** The string of a member; null if there is none. */
  text(name: string): string | null {
    const value = this.#members.get(name)?.value;
    if (value === undefined) return null;
    if (value.startsWith('"')) return JSON.parse(value) as string;
    this.fault(name, `${clipped(value)}, want a string`);
    return null;
  }

  /**
   * The id of the timer's first event. It must belong to the event's key. If it is a hash, originat names the firing.
   */
  #origin(parts: KeyParts): string | null {
    const origin = this.text("origin");
    if (origin === null) return null;
    const of = origin.startsWith("sha256:") ? this.text("originat") : origin.slice(origin.lastIndexOf("@") + 1);
    const [, due, attempt] = /^(\d{1,16})\.(\d{1,10})$/.exec(of ?? "") ?? [];
    if (eventId(parts, Number(due), Number(attempt)) !== origin)
      this.fault("origin", `${clipped(origin)}, want an id of the event's key`);
    return origin;
  }

  #want(name: string, want: string): void {
    const text = this.text(name);
    if (text !== null && text !== want) this.fault(name, `${clipped(text)}, want ${JSON.stringify(want)}`);
  }

  /** A text that is not required: its faults are ignored. */
  #matching(name: string, form: RegExp): string | null {
    const value = this.#members.get(name)?.value;
    const text = value?.startsWith('"') ? (JSON.parse(value) as string) : "";
    return form.test(text) ? text : null;
  }

  #integer(name: string, least: number, most: number): number | null {
    const value = this.#members.get(name)?.value;
    if (value === undefined) return null;
    const n = /^[-\d]/.test(value) ? Number(value) : NaN;
    if (Number.isInteger(n) && n >= least && n <= most) return n;
    this.fault(name, `${clipped(value)}, want an integer from ${least} to ${most}`);
    return null;
  }

  /** Checks the key of a guard. */
  #guard(name: string): void {
    const text = this.text(name);
    if (text === null) return;
    try {
      if (text === "" || decodeText(text).length > 1024) throw new Error("want a key of 1 to 1,024 bytes");
    } catch (error) {
      this.fault(name, textOf(error));
    }
  }

  #time(name: string): Date | null {
    const text = this.text(name);
    if (text === null) return null;
    const rfc3339 = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:\d\d)$/;
    const time = new Date(rfc3339.test(text) ? text : NaN);
    if (Number.isNaN(time.getTime())) this.fault(name, `${clipped(text)}, want a time as in RFC 3339`);
    return time;
  }

  #subject(): KeyParts {
    const text = this.text("subject");
    try {
      if (text !== null) return parseKey(decodeText(text));
    } catch (error) {
      this.fault("subject", textOf(error));
    }
    return { app: "", module: "", type: "", id: "" };
  }

  #payload(contentType: string | null, compact: boolean): Buffer | null {
    const data = this.#members.get("data");
    const base64 = this.text("data_base64");
    if (base64 !== null) {
      if (data) this.fault("data", "given together with data_base64");
      const decoded = Buffer.from(base64, "base64");
      if (decoded.toString("base64") !== base64.replace(/[\r\n]/g, "")) this.fault("data_base64", "not base64");
      return decoded;
    }
    if (!data) return null;
    if (data.value.startsWith('"') && !isJSON(contentType)) return Buffer.from(JSON.parse(data.value) as string);
    // White space around the payload belongs to it if there is none elsewhere.
    const others = this.all.filter((m) => m !== data);
    const exact = compact && this.all.at(-1) === data && others.every((m) => m.padded === m.value);
    return Buffer.from(exact ? data.padded : data.value);
  }
}

/** Reports whether data of a content type are JSON. By CloudEvents they are if none is given. */
function isJSON(contentType: string | null): boolean {
  const media = (contentType ?? "").toLowerCase().split(";")[0]?.trim() ?? "";
  return media === "" || media === "application/json" || media === "text/json" || media.endsWith("+json");
}

/** Quotes a stranger's text, cut short. */
function clipped(text: string): string {
  return JSON.stringify(text.length > 64 ? `${text.slice(0, 63)}…` : text);
}
