import { textOf } from "./errors.js";

/** A handler's request for something other than a retry by timerd's policy. Throw it, or return it. */
export abstract class Outcome extends Error {}

/** See `retryAfter`. */
export class RetryAfter extends Outcome {
  override name = "RetryAfter";
  constructor(readonly delay: number, message: string, options?: ErrorOptions) {
    super(message, options);
  }
}

/** See `postpone`. */
export class Postpone extends Outcome {
  override name = "Postpone";
  constructor(readonly delay: number, message: string, options?: ErrorOptions) {
    super(message, options);
  }
}

/** See `dead`. */
export class Dead extends Outcome {
  override name = "Dead";
}

/**
 * Asks for the event again after a number of milliseconds, in place of the delay of timerd's retry policy: for an HTTP
 * answer with Retry-After, say. The policy still limits the number of attempts.
 */
export function retryAfter(ms: number, reason?: unknown): RetryAfter {
  return new RetryAfter(delayOf(ms), because(reason, `try again after ${goDuration(delayOf(ms))}`), { cause: reason });
}

/**
 * Asks for the event again after a number of milliseconds, without using up an attempt: for work that could not be
 * tried, for example because of a taken lock or an open circuit.
 */
export function postpone(ms: number, reason?: unknown): Postpone {
  return new Postpone(delayOf(ms), because(reason, `postponed by ${goDuration(delayOf(ms))}`), { cause: reason });
}

/** Gives up on the event for good: it goes to the dead letters at once, with the reason. */
export function dead(reason?: unknown): Dead {
  return new Dead(because(reason, "given up"), { cause: reason });
}

/** timerd accepts delays of up to 10 years; fractions of a millisecond are useless. */
function delayOf(ms: number): number {
  if (!Number.isFinite(ms)) throw new TypeError(`timerd: a delay of ${ms}, want milliseconds`);
  return Math.max(0, Math.ceil(ms));
}

function because(reason: unknown, otherwise: string): string {
  return reason === undefined || reason === null ? otherwise : textOf(reason);
}

/** The action on an event after its handler. */
export type Verdict =
  | { kind: "done" }
  | { kind: "retry"; text: string; delay?: number; postponed?: boolean }
  | { kind: "dead"; text: string }
  | { kind: "giveBack"; text: string };

/**
 * Reads a handler's error or result. cutShort is set if the handler's signal was aborted before the handler ended: a
 * plain error then says nothing about the event.
 */
export function judge(failure: unknown, cutShort: boolean): Verdict {
  const text = errorText(textOf(failure));
  const all = chain(failure);
  if (all.some((e) => e instanceof Dead)) return { kind: "dead", text };
  const postponed = all.find((e): e is Postpone => e instanceof Postpone);
  if (postponed) return { kind: "retry", text, delay: postponed.delay, postponed: true };
  const later = all.find((e): e is RetryAfter => e instanceof RetryAfter);
  if (later) return { kind: "retry", text, delay: later.delay };
  return cutShort ? { kind: "giveBack", text } : { kind: "retry", text };
}

/** Lists an error, its causes and its joined errors. */
function chain(error: unknown, seen = new Set<unknown>()): unknown[] {
  if (!(error instanceof Error) || seen.has(error)) return [];
  seen.add(error);
  const joined: unknown[] = error instanceof AggregateError ? error.errors : [];
  return [error, ...chain(error.cause, seen), ...joined.flatMap((e) => chain(e, seen))];
}

/** Formats milliseconds as a Go duration, timerd's form of a delay: 1m30s, 1.5s, 300ms. */
export function goDuration(ms: number): string {
  if (ms === 0) return "0s";
  if (ms < 1000) return `${ms}ms`;
  const hours = Math.floor(ms / 3_600_000);
  const minutes = Math.floor((ms % 3_600_000) / 60_000);
  const seconds = `${(ms % 60_000) / 1000}s`;
  if (hours > 0) return `${hours}h${minutes}m${seconds}`;
  return minutes > 0 ? `${minutes}m${seconds}` : seconds;
}

const maxTextBytes = 1280;

/** Shortens a text to 1,280 bytes. */
export function clipText(text: string): string {
  const bytes = Buffer.from(text);
  if (bytes.length <= maxTextBytes) return bytes.toString(); // well-formed: no lone surrogates
  const ellipsis = "…";
  let end = maxTextBytes - Buffer.byteLength(ellipsis);
  while (((bytes[end] as number) & 0xc0) === 0x80) end--; // drop a character split by the cut
  return bytes.subarray(0, end).toString() + ellipsis;
}

/** Brings the text of an error into the form of a header: one line of at most 1,280 bytes. */
export function errorText(text: string): string {
  return clipText(text.replace(/[\u0000-\u001f\u007f-\u009f]/g, " ").trim());
}
