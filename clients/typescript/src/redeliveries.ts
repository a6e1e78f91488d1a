/** The number of remembered settled events: more than can be on their way to this process a second time. */
const size = 4096;

/**
 * Redeliveries has the messages with a handler of this process, and recently settled ones. JetStream delivers them
 * again if their ack deadline could not be extended, because the process or its connection stood still. So handlers do
 * not see them twice. A place identifies a message for good.
 */
export class Redeliveries {
  readonly #working = new Set<string>();
  readonly #settled = new Set<string>(); // in the order of settlement

  /** Notes that work on a message begins, unless it has begun before or has been settled. */
  begin(place: string): "fresh" | "working" | "settled" {
    if (this.#settled.has(place)) return "settled";
    if (this.#working.has(place)) return "working";
    this.#working.add(place);
    return "fresh";
  }

  /** Notes that work on a message has ended, and whether it was settled. */
  end(place: string, settled: boolean): void {
    this.#working.delete(place);
    if (!settled) return;
    this.#settled.add(place);
    if (this.#settled.size > size) this.#settled.delete(this.#settled.values().next().value as string);
  }
}
