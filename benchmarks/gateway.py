"""Measures how much time the gateway of ``env=agent`` adds to a request: the round trip without the time of the policy.

python benchmarks/gateway.py
python benchmarks/gateway.py --sessions 16 --requests 200 --reply-ms 50 --json outputs/gateway.json

Each session is a client with a connection of its own, in another process, which sends chat completions with a growing
history. A thread per session answers each request after some time, as a rollout does. The overhead is the client's time
minus the time that the rollout took for the reply. The last line is one JSON object.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from statistics import median, quantiles
from typing import Any

from common import finish, program
from turnwise.console import number
from turnwise.envs.agent.gateway import Desk, serve, spoken

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
REPLY = 'I look.\n<tool_call>{"name": "f", "arguments": {}}</tool_call>'
ANSWER = "word " * 60
CLIENT = """
import http.client, json, sys, threading, time
port, token, requests, tool, answer = json.loads(sys.stdin.readline())
head = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
messages, seconds = [{"role": "user", "content": answer}], []
connection = http.client.HTTPConnection("127.0.0.1", port)
for _ in range(requests):
    start = time.perf_counter()
    body = json.dumps({"model": "policy", "messages": messages, "tools": [tool]})
    connection.request("POST", "/v1/chat/completions", body, head)
    reply = json.loads(connection.getresponse().read())["choices"][0]["message"]
    seconds.append(time.perf_counter() - start)
    messages += [reply, *({"role": "tool", "tool_call_id": c["id"], "content": answer} for c in reply["tool_calls"])]
print(json.dumps(seconds))
"""


def main() -> None:
    parser = program(__doc__)
    parser.add_argument("--sessions", type=number(1, 1e3, whole=True), default=16)
    parser.add_argument(
        "--requests", type=number(3, 1e5, whole=True), default=40, help="number of requests of a session (default 40)"
    )
    parser.add_argument(
        "--reply-ms",
        type=number(0, 1e5),
        default=100.0,
        help="milliseconds that the policy takes for a reply (default 100)",
    )
    args = parser.parse_args()
    results = {str(n): measure(n, args.requests, args.reply_ms / 1000) for n in sorted({1, args.sessions})}
    for sessions, found in results.items():
        print(
            f"{sessions:>4} sessions: median {found['median_ms']:.2f} ms, 95 % below {found['p95_ms']:.2f} ms a request"
        )
    finish("gateway", args, {}, {"sessions": results})


def measure(sessions: int, requests: int, reply: float) -> dict[str, Any]:
    """Returns the overhead of a request in milliseconds."""
    runs = [Session(requests, reply) for _ in range(sessions)]
    overhead = sorted(ms for run in runs for ms in run.overhead())
    return {"requests": len(overhead), "median_ms": median(overhead), "p95_ms": quantiles(overhead, n=20)[-1]}


class Session:
    """One client, and the thread that answers the client's requests."""

    def __init__(self, requests: int, reply: float) -> None:
        self.desk, self.reply, self.taken = Desk(), reply, list[float]()
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        serve(listener, self.desk)
        self.client = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.thread = threading.Thread(target=self._answer, args=(requests,), daemon=True)
        self.thread.start()
        assert self.client.stdin is not None
        self.client.stdin.write(json.dumps([port, self.desk.token, requests, TOOL, ANSWER]) + "\n")
        self.client.stdin.flush()

    def _answer(self, requests: int) -> None:
        for number_ in range(requests):
            asked = self.desk.next()
            assert asked is not None
            start = time.perf_counter()
            time.sleep(self.reply)
            reply = spoken(REPLY, asked.conversation.tools, "hermes", number_)
            self.taken.append(time.perf_counter() - start)
            asked.answer(reply)

    def overhead(self) -> list[float]:
        """Returns the milliseconds of each request except the first request, which opens the connection."""
        told, _ = self.client.communicate(timeout=600)
        self.thread.join()
        return [1000 * (seen - own) for seen, own in zip(json.loads(told), self.taken, strict=True)][1:]


if __name__ == "__main__":
    main()
