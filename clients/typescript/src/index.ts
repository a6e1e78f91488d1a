export { consume } from "./consumer.js";
export { InvalidError, NoLibraryError, TimerdError, UnavailableError } from "./errors.js";
export type { TimerEvent } from "./event.js";
export type { ConsumeOptions, Handler, Logger } from "./options.js";
export { Dead, dead, Outcome, Postpone, postpone, RetryAfter, retryAfter } from "./outcome.js";
export type { IORedis, NodeRedis, RedisClient } from "./redis.js";
export {
  type CancelOutcome, type CommonOptions, type Key, type Payload, type Repetition, type RepeatOptions, type SetOptions,
  type State, type Timer, Timers, type When,
} from "./timers.js";
