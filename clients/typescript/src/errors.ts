/** Every error that this package throws is one of these. */
export class TimerdError extends Error {
  override name = "TimerdError";
}

/**
 * The arguments of the call were refused: not a timer key or a namespace, a delay that is not positive or over 10
 * years, a payload over the limit, a bad option. Nothing was changed, and repeating the call does not help. The message
 * names the fault.
 */
export class InvalidError extends TimerdError {
  override name = "InvalidError";
}

/**
 * This Redis does not have timerd's function library. timerd loads it at its start; after that no timerd needs to run.
 */
export class NoLibraryError extends TimerdError {
  override name = "NoLibraryError";
}

/**
 * The connection or the server failed; `cause` is the error of the package that speaks to it. A call of Redis may or
 * may not have taken effect, and calling again is safe.
 */
export class UnavailableError extends TimerdError {
  override name = "UnavailableError";
}

/** Returns the text of anything that was thrown. */
export function textOf(thrown: unknown): string {
  if (!(thrown instanceof Error)) return String(thrown);
  return thrown.message || thrown.name;
}
