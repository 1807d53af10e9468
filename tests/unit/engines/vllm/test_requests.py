"""Single requests of ``engine.schedule=free``: what they draw, and that a cancelled one ends at the server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from turnwise.engines.engine import Sampling
from turnwise.engines.sampling_schedule import Requests, schedule_of
from turnwise.engines.spool_file import Spool
from turnwise.engines.spooled_engine import Spooled
from turnwise.rollouts.player import run_to_end

SAMPLING = Sampling(max_tokens=6)
Make = Callable[..., Any]


def asked(engine: Any, histories: list[list[int]], seeds: list[int]) -> list[list[int]]:
    async def all_of_them() -> list[Any]:
        schedule = schedule_of(engine, SAMPLING, lambda count: None)
        nodes = [engine.open(history) for history in histories]
        work = [schedule.sample(i, node, seed) for i, (node, seed) in enumerate(zip(nodes, seeds, strict=True))]
        return await asyncio.gather(*work)

    return [action.sample.ids for action in run_to_end(all_of_them())]


def test_single_requests_draw_what_a_batch_draws(served: ModuleType, make_engine: Make, policy: Any) -> None:
    with served.serve() as server:
        engine = make_engine(server.url)
        engine.load_weights(policy, 0)
        assert isinstance(schedule_of(engine, SAMPLING, lambda count: None), Requests)
        histories, seeds = [[4, 5, 6 + i] for i in range(20)], list(range(20))
        nodes = [engine.open(history) for history in histories]
        batch = [sample.ids for sample in engine.sample(nodes, SAMPLING, seeds)]
        assert asked(engine, histories, seeds) == batch


def test_an_action_is_appended_to_its_node(served: ModuleType, make_engine: Make, policy: Any) -> None:
    with served.serve() as server:
        engine = make_engine(server.url)
        engine.load_weights(policy, 0)
        node = engine.open([4, 5])

        async def twice() -> list[list[int]]:
            return [(await engine.request(node, SAMPLING, seed)).ids for seed in (1, 2)]

        first, _ = run_to_end(twice())
        assert server.bodies[-1]["prompt"] == [4, 5, *first]


def test_a_cancelled_request_ends_at_the_server_too(served: ModuleType, make_engine: Make, policy: Any) -> None:
    with served.serve(delay=lambda body: 20.0 if body["prompt"][0] == 9 else 0.0) as server:
        engine = make_engine(server.url)
        engine.load_weights(policy, 0)

        async def one_of_two() -> int:
            schedule = schedule_of(engine, SAMPLING, lambda count: None)
            long = asyncio.create_task(schedule.sample(0, engine.open([9, 9]), 0))
            await schedule.sample(1, engine.open([4, 4]), 1)
            while not any(body["prompt"][0] == 9 for body in server.bodies):
                await asyncio.sleep(0.01)
            long.cancel()
            await asyncio.wait([long])
            return schedule.cancelled

        began = time.monotonic()
        assert run_to_end(one_of_two()) == 1
        while not server.dropped and time.monotonic() - began < 15:
            time.sleep(0.01)
        assert [body["prompt"] for body in server.dropped] == [[9, 9]]


def test_what_an_earlier_start_has_kept_is_not_asked_again(
    served: ModuleType, make_engine: Make, policy: Any, tmp_path: Path
) -> None:
    histories, seeds = [[4, 5, 6 + i] for i in range(6)], list(range(6))
    with served.serve() as server:
        engine = make_engine(server.url)
        said: list[str] = []

        def start() -> Spooled:
            spooled = Spooled(engine, [Spool(tmp_path / "0.bin", "run")], False, said.append)
            spooled.load_weights(policy, 3)
            return spooled

        first = asked(start(), histories[:4], seeds[:4])
        before = len(server.bodies)
        again = start()
        assert asked(again, histories, seeds)[:4] == first
        assert len(server.bodies) - before == 2 and again.tally["restored"] == 4


def test_a_view_goes_on_with_its_adapter(served: ModuleType, make_engine: Make, policy: Any, tmp_path: Path) -> None:
    """Also when the server has lost all adapters; what is kept is kept as its version's."""
    histories, seeds = [[4, 5, 6 + i] for i in range(6)], list(range(6))
    with served.serve() as server:
        engine = make_engine(server.url)
        spools = [Spool(tmp_path / f"{number}.bin", "run") for number in range(2)]
        spooled = Spooled(engine, spools, False, lambda line: None)
        spooled.load_weights(policy, 0)
        (zero,) = server.adapters
        with spooled.held() as view:
            node = view.open([7, 8])
            spooled.load_weights(policy, 1)
            one = next(name for name in server.adapters if name != zero)
            assert (view.version, spooled.version) == (0, 1) and set(server.adapters) == {zero, one}
            for used, name in ((spooled, one), (view, zero)):
                before = len(server.bodies)
                answered = asked(used, histories, seeds)
                assert {body["model"] for body in server.bodies[before:]} == {name}
                expected = [served.written(name, ids, seed, 6)[0] for ids, seed in zip(histories, seeds, strict=True)]
                assert answered == expected
            server.adapters.clear()
            assert asked(view, [[9, 9]], [9]) == [served.written(zero, [9, 9], 9, 6)[0]]
            assert set(server.adapters) == {zero, one}
            view.close([node])
        spooled.load_weights(policy, 2)
        assert zero not in server.adapters
        assert [len(spool.begin(version)) for version, spool in enumerate(spools[:1])] == [0]  # of version 2 by now
        assert len(spools[1].begin(1)) == 6
