/** Waits for a number of milliseconds, or until a signal is aborted, and reports whether it waited to the end. */
export function pause(ms: number, signal: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve(false);
    const end = (waited: boolean) => {
      clearTimeout(timer);
      signal.removeEventListener("abort", aborted);
      resolve(waited);
    };
    const aborted = () => end(false);
    const timer = setTimeout(end, ms, true);
    signal.addEventListener("abort", aborted);
  });
}

/** Waits until a promise is settled, at most a number of milliseconds, and reports whether it was. */
export async function within(ms: number, promise: Promise<unknown>): Promise<boolean> {
  const over = new AbortController();
  const settled = promise.then(() => true, () => true);
  const first = await Promise.race([settled, pause(ms, over.signal).then(() => false)]);
  over.abort();
  return first;
}

const first = 100;
const longest = 2_000;

/** The pause after failures in a row: twice as long each time, and up to a fifth shorter, at random. */
export function backoff(failures: number): number {
  return Math.min(longest, first * 2 ** Math.min(failures - 1, 10)) * (1 - Math.random() / 5);
}
