"""What an advantage remembers travels in the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit import quiet

from turnwise.algo.advantages.awpo import PEAK, Awpo
from turnwise.algo.losses.clipped import Clipped
from turnwise.config.settings import UpdateSettings
from turnwise.models.attention import use_tree_attention
from turnwise.rollouts.collect import Collector
from turnwise.rollouts.pack import Update
from turnwise.training.datamodule import Rollouts
from turnwise.training.module import PolicyModule
from turnwise.types import Rewards, RolloutTree, State, Task, Turn

MEANS = [1.5, 0.5, 0.75]  # of the outcome, by iteration


class Collection:
    """The memory's part of a real one."""

    def __init__(self) -> None:
        self.memory: dict[str, float] = {}
        self.seen: list[dict[str, float]] = []

    def __call__(self, iteration: int) -> list[Update]:
        def reward(tree: RolloutTree) -> Rewards:
            return {"outcome": [MEANS[iteration] - 0.5, MEANS[iteration] + 0.5], "reasoning": [0.0, 0.5]}

        collector = Collector(
            select=lambda number: [State(str(number), Task("toy", "0", "train"), (7, 8, 9))],
            play=lambda states, key: [RolloutTree(s, [Turn(-1, [t], [-4.5]) for t in (10, 11)]) for s in states],
            reward=reward,
            advantage=Awpo(),
        )
        self.seen.append(dict(self.memory))
        experience = collector.collect(iteration, lambda: self.memory)
        self.memory = dict(experience.memory)
        return collector.updates(experience)


def train(model: Any, folder: Path, epochs: int, resume: bool = False) -> Collection:
    collection = Collection()
    trainer = quiet.trainer(folder, epochs)
    checkpoint = folder / "last.ckpt"
    data = Rollouts(collection, collection)
    module = PolicyModule(model, Clipped(), UpdateSettings(1e-4))
    trainer.fit(module, data, ckpt_path=str(checkpoint) if resume else None, weights_only=True)
    trainer.save_checkpoint(checkpoint)
    return collection


def test_a_resumed_run_knows_the_peak(make_model: Any, tmp_path: Path) -> None:
    model = make_model("qwen3", lora=True)
    use_tree_attention(model)
    assert train(model, tmp_path, epochs=1).memory == {PEAK: 1.5}
    resumed = train(model, tmp_path, epochs=3, resume=True)
    assert resumed.seen == [{PEAK: 1.5}, {PEAK: 1.5}]
    assert resumed.memory == {PEAK: 1.5}
