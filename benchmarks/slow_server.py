"""Serves the part of vLLM's interface that ``engine=vllm`` uses, on this machine, with tokens that take time.

The server has no model. The seed of a request determines the tokens of the reply and their number, which is log-normal
and at most ``max_tokens`` of the request. With n requests, a token of each takes (1 + n / half) / first seconds. Beyond
``rows`` requests, further requests wait. A request whose connection is closed is cancelled. ``/tokens`` returns how
many tokens were decoded, discarded and saved.

python benchmarks/slow_server.py --first 200 --half 16        prints its URL, and ends when its standard input is closed
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from math import log
from typing import Any

from aiohttp import web

from turnwise.planning.decoding_pace import Pace
from turnwise.planning.simulated_engine import Decoding, Request

END = 2
ALIKE = 21  # first token of a history whose rollouts all take the same actions
CALLS, LUCK = range(10, 60), range(100, 356)  # tokens that name an action, and tokens that stand for thoughts


def reply(body: dict[str, Any], mean: float, sigma: float) -> list[int]:
    """Returns the tokens of a reply: an action, two thoughts that decide how the environment continues, and padding.

    Args:
        body: body of the request.
        mean: mean number of tokens before the upper limit.
        sigma: standard deviation of the logarithm of the number of tokens.
    """
    draw = random.Random(body["seed"])
    length = length_of(draw, mean, sigma)
    call = CALLS[0] if body["prompt"][0] == ALIKE else draw.choice(CALLS)
    ids = [call, draw.choice(LUCK), draw.choice(LUCK), *[LUCK[0]] * (length - 4), END]
    return ids[: body["max_tokens"]]


def length_of(draw: random.Random, mean: float, sigma: float) -> int:
    """Draws the number of tokens of a reply: log-normal, but at least 4."""
    return max(4, round(draw.lognormvariate(log(mean) - sigma**2 / 2, sigma)))


class Slow:
    """A simulated server. The arguments are the options of :func:`main`."""

    def __init__(self, first: float, half: float, rows: int, mean: float, sigma: float) -> None:
        self.mean, self.sigma = mean, sigma
        self.decoding: Decoding[asyncio.Future[None]] = Decoding(Pace.halving(first, half), 1, rows)
        self.adapters: dict[str, str] = {}
        self._under_way: set[Request[asyncio.Future[None]]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def tick(self) -> None:
        """Advances the simulated decoding to the current time, and answers all requests that are complete by then."""
        loop, decoding = asyncio.get_running_loop(), self.decoding
        now = loop.time()
        while (end := decoding.next_end(1.0)) <= now:
            decoding.advance(end, 1.0)
            request = decoding.take()
            self._under_way.remove(request)
            if not request.owner.done():
                request.owner.set_result(None)
        decoding.advance(now, 1.0)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(end, self.tick) if end < float("inf") else None

    async def write(self, tokens: int) -> None:
        """Returns when ``tokens`` tokens are decoded. Cancelling the call cancels the request."""
        self.tick()
        request = Request(tokens, asyncio.get_running_loop().create_future())
        self.decoding.put(request)
        self._under_way.add(request)
        self.tick()
        try:
            await request.owner
        except asyncio.CancelledError:
            self.tick()
            if request in self._under_way:
                self._under_way.remove(request)
                self.decoding.cancel(request)
                self.tick()
            raise

    async def complete(self, http: web.Request) -> web.Response:
        body = await http.json()
        if "allowed_token_ids" in body:  # the client's check of log-probs
            ids = body["allowed_token_ids"]
        else:
            ids = reply(body, self.mean, self.sigma)
            await self.write(len(ids))
        choice = {
            "token_ids": ids,
            "prompt_token_ids": body["prompt"],
            "finish_reason": "stop" if ids[-1] == END else "length",
            "logprobs": {"token_logprobs": [0.0] * len(ids), "tokens": [f"token_id:{token}" for token in ids]},
        }
        return web.json_response({"model": body["model"], "choices": [choice]})

    async def load(self, http: web.Request) -> web.Response:
        body = await http.json()
        self.adapters[body["lora_name"]] = body["lora_path"]
        return web.Response(text="Success")

    async def unload(self, http: web.Request) -> web.Response:
        known = self.adapters.pop((await http.json())["lora_name"], None)
        return web.Response(status=200 if known else 404)

    async def models(self, http: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name, "root": "policy"} for name in ("policy", *self.adapters)]})

    async def health(self, http: web.Request) -> web.Response:
        return web.Response()

    async def tokens(self, http: web.Request) -> web.Response:
        self.tick()
        decoding = self.decoding
        return web.json_response({"decoded": decoding.decoded, "thrown": decoding.thrown, "saved": decoding.saved})

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        app.add_routes([
            web.get("/health", self.health),
            web.get("/v1/models", self.models),
            web.get("/tokens", self.tokens),
            web.post("/v1/load_lora_adapter", self.load),
            web.post("/v1/unload_lora_adapter", self.unload),
            web.post("/v1/completions", self.complete),
        ])  # fmt: skip
        return app


async def serve(slow: Slow) -> None:
    """Serves on a free port of the loopback interface until standard input is closed."""
    runner = web.AppRunner(slow.app(), handler_cancellation=True, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--first", type=float, default=300.0, help="tokens per second of a single request (%(default)s)")
    add(
        "--half",
        type=float,
        default=64.0,
        help="number of requests at which each request has half of this rate (%(default)s)",
    )
    add("--rows", type=int, default=64, help="maximum number of requests decoded together (%(default)s)")
    add("--reply", type=float, default=40.0, help="mean number of tokens of a reply (%(default)s)")
    add("--sigma", type=float, default=1.0, help="sigma of the logarithm of a reply's number of tokens (%(default)s)")
    args = parser.parse_args()
    asyncio.run(serve(Slow(args.first, args.half, args.rows, args.reply, args.sigma)))


if __name__ == "__main__":
    main()
