#!/usr/bin/env python3
"""Sets, reads and cancels timers from Python, with its package redis (Debian: python3-redis).

    timers.py redis://127.0.0.1:6379

That is the Redis of a running timerd; `make run` starts one and prints its port.
"""

import json
import sys
import time

import redis


class Timers:
    """The calls of timerd's function library. An error of Redis that begins with "timerd: " names what was wrong."""

    def __init__(self, client):
        self.client = client

    def set(self, key, payload, *options):
        """Returns when the timer is due, in unix ms, or None if NX or XX said no."""
        return self.client.fcall("timer_set", 1, key, payload, *options)

    def repeat(self, key, payload, *options):
        """Returns when it is due first, in unix ms, or b"planned" for CRON, or None."""
        return self.client.fcall("timer_repeat", 1, key, payload, *options)

    def cancel(self, key):
        """Returns cancelled, fired (too late) or unknown."""
        some = False
        while True:
            try:
                outcome = self.client.fcall("timer_cancel", 1, key).decode()
                return "cancelled" if some else outcome
            except redis.ResponseError as error:
                if not str(error).startswith("AGAIN timerd"):
                    raise
                some = True  # there are more timers of this key than one call cancels

    def get(self, key):
        """Returns the fields of a timer by their names, or None. The payload is bytes, as it was set."""
        reply = self.client.fcall_ro("timer_get", 1, key)
        if reply is None:
            return None
        fields = {name.decode(): value for name, value in zip(reply[::2], reply[1::2])}
        return {name: value.decode() if isinstance(value, bytes) and name != "payload" else value for name, value in fields.items()}


def shown(timer):
    """Leaves out of a timer what differs from run to run."""
    return timer and {name: value for name, value in timer.items() if name != "due"}


url = sys.argv[1] if len(sys.argv) > 1 else "redis://127.0.0.1:6379"
client = redis.Redis.from_url(url)  # without decode_responses: payloads are bytes
timers = Timers(client)

# Amounts and identifiers of 64 bits are strings: most JSON libraries round numbers.
order = json.dumps({"total": "99.00"})
due = timers.set("shop:python:timeout:1", order, "EX", 1800)
seconds, micros = client.time()
print("due in half an hour by the clock of Redis:", 1_790_000 < due - seconds * 1000 - micros // 1000 <= 1_800_000)
print("get:", shown(timers.get("shop:python:timeout:1")))
print("only if there is none:", timers.set("shop:python:timeout:1", "other", "EX", 60, "NX"))
print("extended:", timers.set("shop:python:timeout:1", order, "PX", 3600 * 1000) > due)
print("cancel:", timers.cancel("shop:python:timeout:1"), "then", timers.cancel("shop:python:timeout:1"))

timers.set("shop:python:bytes:1", b"\xff\x00", "EX", 60, "ATTEMPT", 3, "LATE", 30_000, "DROP")
print("bytes:", shown(timers.get("shop:python:bytes:1")))
print("cancel:", timers.cancel("shop:python:bytes:1"))

timers.repeat("shop:python:count:1", b"", "EVERY", 300_000)
print("repeating:", shown(timers.get("shop:python:count:1")))
print("cancel:", timers.cancel("shop:python:count:1"))

try:
    timers.set("shop:python", "x", "EX", 60)
except redis.ResponseError as error:
    print("refused:", error)

timers.set("shop:python:soon:1", "x", "PX", 200)
for _ in range(100):
    if timers.get("shop:python:soon:1") is None:
        break
    time.sleep(0.1)
print("it has fired:", timers.cancel("shop:python:soon:1"))
