#!/usr/bin/env python3
"""Cancels orders that were not paid in time, as the command of timerd consume.

    timerd consume shop:order:timeout -- python3 cancel_order.py

It reads one event a line and answers with one line each. Standard error is free for messages.
"""

import json
import sys


def cancel(order, payload, attempt):
    """Stands for your own work. An event may come twice: the work has to be safe to repeat."""
    if payload["total"] < 0:
        raise ValueError("a negative total")  # hopeless: a dead letter
    if payload.get("flaky") and attempt == 1:
        raise ConnectionError("the shop does not answer")  # another attempt, by the policy of TIMERD_RETRY
    print(f"order {order} is cancelled, attempt {attempt}", file=sys.stderr)


for line in sys.stdin:
    event = json.loads(line)
    answer = {"id": event["id"], "result": "done"}
    try:
        cancel(event["timerid"], event["data"], event["attempt"])
    except ValueError as error:
        answer |= {"result": "dead", "reason": str(error)}
    except OSError as error:
        answer |= {"result": "retry", "error": str(error)}
    print(json.dumps(answer), flush=True)
