/**
 * Returns a payload for Redis: a string and bytes as they are, nothing as an empty one, and anything else as JSON.
 * Throws a TypeError for content that JSON would lose.
 */
export function encodePayload(payload: unknown): string | Buffer {
  if (payload === undefined || payload === null) return "";
  if (typeof payload === "string") return payload;
  const bytes = bufferOf(payload);
  if (bytes) return bytes;
  const json = JSON.stringify(payload, (_, value) => checked(value));
  if (json === undefined) throw new TypeError(`a ${typeof payload} is no payload`);
  return json;
}

/** Returns the bytes of an ArrayBuffer, or of a view of one such as a Buffer, without a copy; else null. */
function bufferOf(value: unknown): Buffer | null {
  if (ArrayBuffer.isView(value)) return Buffer.from(value.buffer, value.byteOffset, value.byteLength);
  if (value instanceof ArrayBuffer || value instanceof SharedArrayBuffer) return Buffer.from(value);
  return null;
}

/** Kinds of objects that JSON.stringify writes in full. */
const written = new Set(["Object", "Array", "Arguments", "Number", "String", "Boolean", "BigInt"]);

/**
 * Returns a value inside a payload. Throws a TypeError for a Map, a Set, an Error and the like, because JSON would lose
 * their content.
 */
function checked(value: unknown): unknown {
  if (typeof value !== "object" || value === null) return value;
  const kind = Object.prototype.toString.call(value).slice("[object ".length, -1);
  if (!written.has(kind) && (kind === "Error" || Object.keys(value).length === 0)) {
    throw new TypeError(`JSON cannot hold the content of a ${kind}; pass a plain object, an array, a string or bytes`);
  }
  return value;
}
