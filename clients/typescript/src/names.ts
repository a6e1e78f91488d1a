import { createHash } from "node:crypto";

// Names are bytes. Inside this package a part of a key is a string with one character per byte (latin1), so that any
// bytes can be split, compared and encoded.

/** The four parts of a key, one character per byte. */
export interface KeyParts {
  app: string;
  module: string;
  type: string;
  id: string;
}

const maxKeyBytes = 1024;
const maxPartBytes = 128;
const maxEventIdBytes = 512;

/** Splits a key into its parts. It throws unless the key has the form of a timer's. */
export function parseKey(key: string): KeyParts {
  const [app = "", module = "", type = "", ...rest] = key.split(":");
  const id = rest.join(":");
  if (!app || !module || !type || !id)
    throw new Error("not a timer key: want app:module:type:id with four non-empty parts");
  const tooLong = [app, module, type].some((part) => part.length > maxPartBytes) || key.length > maxKeyBytes;
  if (tooLong) throw new Error("timer key too long");
  return { app, module, type, id };
}

/** The bytes of a name. */
export function bytes(name: string): Buffer {
  return Buffer.from(name, "latin1");
}

/** A name as text for people and logs; bytes that are not UTF-8 become U+FFFD. */
export function readable(name: string): string {
  return bytes(name).toString();
}

function percent(byte: number): string {
  return `%${byte.toString(16).toUpperCase().padStart(2, "0")}`;
}

/** Encodes a part for a token of a NATS subject: every byte outside A-Z a-z 0-9 _ - is written %XX. */
export function encodeToken(part: string): string {
  return part.replace(/[^A-Za-z0-9_-]/g, (c) => percent(c.charCodeAt(0)));
}

/** The inverse of encodeToken; null for any other text. */
function decodeToken(token: string): string | null {
  const part = token.replace(/%([0-9A-Fa-f]{2})/g, (_, hex: string) => String.fromCharCode(parseInt(hex, 16)));
  return /^(?:[A-Za-z0-9_-]|%[0-9A-Fa-f]{2})+$/.test(token) ? part : null;
}

/** Decodes %XX in a text, which is UTF-8 otherwise, and returns the bytes as a name. It throws at an invalid %. */
export function decodeText(text: string): string {
  const utf8 = Buffer.from(text).toString("latin1");
  if (/%(?![0-9A-Fa-f]{2})/.test(utf8)) throw new Error(`${JSON.stringify(text)}: a % without two hex digits`);
  return utf8.replace(/%([0-9A-Fa-f]{2})/g, (_, hex: string) => String.fromCharCode(parseInt(hex, 16)));
}

/** Encodes a name for an attribute of an event: control characters, % and bytes that are not UTF-8 are written %XX. */
export function encodeText(name: string): string {
  const b = bytes(name);
  let text = "";
  for (let i = 0; i < b.length; ) {
    const lead = b[i] as number;
    const size = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    const rune = b.subarray(i, i + size);
    const char = rune.toString();
    if (!Buffer.from(char).equals(rune)) {
      text += percent(lead); // not UTF-8
      i++;
      continue;
    }
    const code = char.codePointAt(0) as number;
    const noncharacter = (code >= 0xfdd0 && code <= 0xfdef) || (code & 0xfffe) === 0xfffe;
    const plain = code >= 0x20 && !(code >= 0x7f && code <= 0x9f) && char !== "%" && !noncharacter;
    text += plain ? char : Array.from(rune, percent).join("");
    i += size;
  }
  return text;
}

/** The subject of a key's events of some kind: fired, retry or dead. */
export function subjectOf(prefix: string, kind: "fired" | "retry" | "dead", key: KeyParts): string {
  return [prefix, kind, ...[key.app, key.module, key.type].map(encodeToken)].join(".");
}

/** The id that timerd gives the firing of a key that was due at the unix ms. */
export function eventId(key: KeyParts, due: number, attempt: number): string {
  const name = `${key.app}:${key.module}:${key.type}:${key.id}`;
  const id = `${name.replace(/[^!-$&-~]/g, (c) => percent(c.charCodeAt(0)))}@${due}.${attempt}`;
  return id.length > maxEventIdBytes ? hashed(id) : id;
}

/** The Nats-Msg-Id of a message that carries the event with an id: the id, or a hash if a header cannot hold it. */
export function messageId(id: string): string {
  return Buffer.byteLength(id) > maxEventIdBytes || /[^!-~]/.test(id) ? hashed(id) : id;
}

/** Returns a hash in the form of an id. */
export function hashed(...parts: (string | Uint8Array)[]): string {
  const sum = createHash("sha256");
  for (const part of parts) sum.update(part);
  return `sha256:${sum.digest("hex")}`;
}

/** A namespace: app, module and type. An empty part stands for any. */
export type Namespace = readonly [string, string, string];

// Characters that slip into a namespace from the text around it: quotes, brackets, separators, blanks and invisible
// marks.
const stray = /[,;=|"'`\[\]()<>\\$\p{Z}\p{Cc}\p{Cf}\p{Pi}\p{Pf}，、；：＝＊｜＂＇]|(?![{}])[\p{Ps}\p{Pe}]/u;

/**
 * Reads app[:module[:type]], * or a part left out stands for any. It throws for anything else: quotes, brackets,
 * separators and white space must be written %XX.
 */
export function parseNamespace(text: string): Namespace {
  const parts = text.split(":");
  const fail = (why: string) => new Error(`namespace ${JSON.stringify(text)}: ${why}`);
  if (parts.length > 3) throw fail("want app[:module[:type]], at most three parts");
  const all = parts.map((part, i) => {
    if (part === "*") return "";
    if (part === "") throw fail(`part ${i + 1} is empty; write * for any`);
    if (part.includes("*")) throw fail("* stands for a whole part, not within one (write %2A for a literal star)");
    const decoded = decodeText(part);
    if (decoded.includes(":")) throw fail(`part ${i + 1} holds a colon, which no key can match`);
    if (decoded.length > maxPartBytes)
      throw fail(`part ${i + 1} has ${decoded.length} bytes, at most ${maxPartBytes} are allowed`);
    return decoded;
  });
  const found = stray.exec(text);
  if (found) {
    const written = text.replace(new RegExp(stray, "gu"), (c) => Array.from(Buffer.from(c), percent).join(""));
    throw fail(`${JSON.stringify(found[0])} is not allowed: leave it out; if keys have it, write ${written}`);
  }
  return [all[0] ?? "", all[1] ?? "", all[2] ?? ""];
}

/** The subject of all events of a namespace, with * for any. */
export function filterOf(prefix: string, namespace: Namespace): string {
  return [prefix, "fired", ...namespace.map((part) => (part === "" ? "*" : encodeToken(part)))].join(".");
}

/** JetStream's limit, in bytes. */
const maxDurableName = 255;

/** Returns the durable name of a namespace. It is unique, and the same as the Go client's. */
export function durableOf(namespace: Namespace): string {
  const name = ["timerd", ...namespace.map(encodeToken)].join("~").replace(/~+$/, "");
  return name.length > maxDurableName ? `timerd~~${hashed(name).slice("sha256:".length)}` : name;
}

/**
 * The key of a stand-in for a message that is no event: the parts in its subject, and its place in the stream as the
 * id.
 */
export function standInKey(prefix: string, subject: string, stream: string, sequence: string): KeyParts {
  const rest = subject.startsWith(`${prefix}.fired.`) ? subject.slice(`${prefix}.fired.`.length) : subject;
  const id = Buffer.from(`${stream}/${sequence}`).toString("latin1");
  const tokens = Buffer.from(rest).toString("latin1").split(".");
  const decoded = tokens.map(decodeToken);
  const [app, module, type] = decoded;
  if (rest !== subject && decoded.length === 3 && app && module && type) {
    const fits = [app, module, type].every((part) => !part.includes(":") && part.length <= maxPartBytes);
    if (fits) return { app, module, type, id };
  }
  const parts = [tokens[0], tokens[1], tokens.slice(2).join(".")];
  const [a, m, t] = parts.map((token) => (token || "-").replaceAll(":", "%3A").slice(0, maxPartBytes));
  return { app: a as string, module: m as string, type: t as string, id };
}
