#!/usr/bin/env php
<?php
// Sets, reads and cancels timers from PHP, with its extension redis (Debian: php-redis).
//
//     timers.php redis://127.0.0.1:6379
//
// That is the Redis of a running timerd; `make run` starts one and prints its port.

declare(strict_types=1);

/** The calls of timerd's function library. A RedisException that begins with "ERR timerd: " names the fault. */
final class Timers
{
    public function __construct(private Redis $redis)
    {
    }

    /** Returns when the timer is due, in unix ms, or null if NX or XX said no. */
    public function set(string $key, string $payload, string|int ...$options): ?int
    {
        return $this->call('FCALL', 'timer_set', 1, $key, $payload, ...$options);
    }

    /** Returns when it is due first, in unix ms, or "planned" for CRON, or null. */
    public function repeat(string $key, string $payload, string|int ...$options): int|string|null
    {
        return $this->call('FCALL', 'timer_repeat', 1, $key, $payload, ...$options);
    }

    /** Returns cancelled, fired (too late) or unknown. */
    public function cancel(string $key): string
    {
        for ($some = false;; $some = true) {
            try {
                $outcome = $this->call('FCALL', 'timer_cancel', 1, $key);
                return $some ? 'cancelled' : $outcome;
            } catch (RedisException $error) {
                if (!str_starts_with($error->getMessage(), 'AGAIN timerd')) {
                    throw $error;
                } // else there are more timers of this key than one call cancels
            }
        }
    }

    /** Returns the fields of a timer by their names, or null. The payload has the bytes that were set. */
    public function get(string $key): ?array
    {
        $reply = $this->call('FCALL_RO', 'timer_get', 1, $key);
        return $reply === null ? null : array_column(array_chunk($reply, 2), 1, 0);
    }

    /** The extension returns false for an error of Redis as well as for no value. */
    private function call(string|int ...$command): mixed
    {
        $this->redis->clearLastError();
        $reply = $this->redis->rawCommand(...$command);
        if ($this->redis->getLastError() !== null) {
            throw new RedisException($this->redis->getLastError());
        }
        return $reply === false ? null : $reply;
    }
}

/** Leaves out of a timer what differs from run to run. */
function shown(?array $timer): string
{
    unset($timer['due']);
    ksort($timer);
    return json_encode($timer, JSON_THROW_ON_ERROR);
}

$url = parse_url($argv[1] ?? 'redis://127.0.0.1:6379');
$redis = new Redis();
$redis->connect($url['host'], $url['port'] ?? 6379);
$timers = new Timers($redis);

// Amounts and identifiers of 64 bits are strings: many JSON libraries round numbers.
$order = json_encode(['total' => '99.00'], JSON_THROW_ON_ERROR);
$due = $timers->set('shop:php:timeout:1', $order, 'EX', 1800);
[$seconds, $micros] = $redis->time();
$left = $due - (int) $seconds * 1000 - intdiv((int) $micros, 1000);
echo 'due in half an hour by the clock of Redis: ', var_export($left > 1_790_000 && $left <= 1_800_000, true), "\n";
echo 'get: ', shown($timers->get('shop:php:timeout:1')), "\n";
echo 'only if there is none: ', json_encode($timers->set('shop:php:timeout:1', 'other', 'EX', 60, 'NX')), "\n";
echo 'extended: ', var_export($timers->set('shop:php:timeout:1', $order, 'PX', 3600 * 1000) > $due, true), "\n";
echo 'cancel: ', $timers->cancel('shop:php:timeout:1'), ' then ', $timers->cancel('shop:php:timeout:1'), "\n";

$timers->set('shop:php:bytes:1', "\xff\x00", 'EX', 60, 'ATTEMPT', 3, 'LATE', 30_000, 'DROP');
echo 'bytes: ', bin2hex($timers->get('shop:php:bytes:1')['payload']), "\n";
echo 'cancel: ', $timers->cancel('shop:php:bytes:1'), "\n";

$timers->repeat('shop:php:count:1', '', 'EVERY', 300_000);
echo 'repeating: ', shown($timers->get('shop:php:count:1')), "\n";
echo 'cancel: ', $timers->cancel('shop:php:count:1'), "\n";

try {
    $timers->set('shop:php', 'x', 'EX', 60);
} catch (RedisException $error) {
    echo 'refused: ', $error->getMessage(), "\n";
}

$timers->set('shop:php:soon:1', 'x', 'PX', 200);
for ($tries = 0; $tries < 100 && $timers->get('shop:php:soon:1') !== null; $tries++) {
    usleep(100_000);
}
echo 'it has fired: ', $timers->cancel('shop:php:soon:1'), "\n";
