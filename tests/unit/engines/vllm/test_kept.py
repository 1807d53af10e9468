"""A collection from servers that a kill breaks off: what was answered is not asked again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from turnwise.engines.engine import Sample, Sampling
from turnwise.engines.spool_file import Spool
from turnwise.engines.spooled_engine import Spooled

Make = Callable[..., Any]
SAMPLING = Sampling(max_tokens=8)
ROLLOUTS, TURNS = 6, 3


class Killed(Exception):
    """The trainer ends here."""


def collection(engine: Spooled, answered: list[int], left: int | None = None) -> list[list[Sample]]:
    """Turns of rollouts of one state; the trainer dies when so many of its seeds have been answered."""

    def told(place: int, sample: Sample) -> None:
        answered.append(100 * turn + place)
        if len(answered) == left:
            raise Killed

    root = engine.open([4, 5, 6])
    nodes = [engine.fork(root) for _ in range(ROLLOUTS)]
    turns = []
    for turn in range(TURNS):
        turns.append(engine.sample(nodes, SAMPLING, [100 * turn + i for i in range(ROLLOUTS)], told))
        for node in nodes:
            engine.extend(node, [7, 8 + turn])
    return turns


def asked(server: Any) -> list[int]:
    return [body["seed"] for body in server.bodies if "seed" in body]


@pytest.mark.parametrize("left", [1, 4, 6, 9, 18])
def test_answers_that_came_are_not_asked_for_again(
    served: ModuleType, make_engine: Make, policy: Any, tmp_path: Path, left: int
) -> None:
    def start(server: Any) -> Spooled:
        engine = Spooled(make_engine(server.url), [Spool(tmp_path / "0.bin", "c")], exact=False, tell=print)
        engine.load_weights(policy, 5)
        return engine

    with served.serve() as server:
        seeds: list[int] = []
        whole = collection(start(server), seeds)
        assert sorted(asked(server)) == sorted(seeds) and len(seeds) == ROLLOUTS * TURNS
        (tmp_path / "0.bin").unlink()
        broken, answered = start(server), list[int]()
        with pytest.raises(Killed):
            collection(broken, answered, left)
        broken.spools[0].close()
        before = len(asked(server))
        taken_up = start(server)
        assert collection(taken_up, []) == whole
        assert taken_up.report()["restored"] == len(answered) == left
        assert not {*asked(server)[before:]} & {*answered}  # what was cancelled may still arrive
