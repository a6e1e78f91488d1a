/** How many settled events are remembered: more than can be on their way to this process a second time. */
const size = 4096;

/**
 * Redeliveries knows the messages that are with a handler of this process and those that were settled lately. JetStream
 * delivers them again if their ack deadline could not be extended, because the process or its connection stood still.
 * It keeps handlers from seeing them twice. A place names a message for good.
 */
export class Redeliveries {
  readonly #working = new Set<string>();
  readonly #settled = new Set<string>(); // in the order of settlement

  /** Notes that a message is being worked on, unless it is already or has been settled. */
  begin(place: string): "fresh" | "working" | "settled" {
    if (this.#settled.has(place)) return "settled";
    if (this.#working.has(place)) return "working";
    this.#working.add(place);
    return "fresh";
  }

  /** Notes that a message is no longer worked on, and whether it was settled. */
  end(place: string, settled: boolean): void {
    this.#working.delete(place);
    if (!settled) return;
    this.#settled.add(place);
    if (this.#settled.size > size) this.#settled.delete(this.#settled.values().next().value as string);
  }
}
