"""What the fault campaign runs: real training at the smallest scale, one scene for each kind of thing that can be lost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

EVERYWHERE = [
    "policy.model=tiny",
    "logger.wandb=null",
    "trainer.max_epochs=5",
    "eval.tasks=2",
    "eval.attempts=0",
    "eval.items=1",
    "rollout.trajectories=null",
    "name=faults",
]


@dataclass(frozen=True, slots=True)
class Scene:
    """``overrides`` of train.py; ``faults``: what is done to it, by name (``injuries.FAULTS``)."""

    name: str
    overrides: tuple[str, ...]
    faults: tuple[str, ...]
    judged: bool = False

    def command(self, folder: Path, inputs: Path, judge: str | None) -> list[str]:
        """Overrides of a run that lies in ``folder``/run and shares nothing with another."""
        places = [f"paths.out={folder / 'run'}", f"paths.cache={folder / 'cache'}"]
        data = [f"data.file={inputs / 'dialogues.jsonl'}", f"judge.client.url={judge}"] if self.judged else []
        return [*EVERYWHERE, *self.overrides, *places, *data]


SCENES = {
    scene.name: scene
    for scene in (
        Scene(  # demonstrations, profile, single turns from demonstrated states, sampled in two processes
            "pivots",
            (
                "method=pivotrl",
                "engine.lanes=2",
                "env.horizon=6",
                "data.trajectories=4",
                "states.keep=all",
                "states.k=2",
                "rollout.states=4",
                "allocator.group_size=4",
                "rollout.sampling.max_tokens=8",
                "update.learning_rate=0.01",
            ),
            ("trainer", "job", "worker", "torn", "disk"),
        ),
        Scene(  # whole episodes, whose commands run in worker processes in the sandbox
            "sandbox",
            (
                "method=grpo",
                "env=terminal",
                "env.horizon=3",
                "rollout.states=4",
                "allocator.group_size=4",
                "rollout.sampling.max_tokens=8",
                "update.learning_rate=0.01",
            ),
            ("trainer", "job", "worker"),
        ),
        Scene(  # replies that a model behind a real HTTP server judges
            "judged",
            (
                "method=mixed",
                "judge=endpoint",
                "judge.client.attempts=100",
                "judge.client.backoff=0.1",
                "judge.client.attempt_limit=2",  # below the longest stall
                "judge.client.time_limit=900",
                "judge.client.give_up_after=1000",
                "env.horizon=3",
                "rollout.states=4",
                "allocator.group_size=4",
                "rollout.sampling.max_tokens=8",
                "update.learning_rate=0.001",
            ),
            ("trainer", "job", "judge", "stall", "torn"),
            judged=True,
        ),
    )
}


def write_dialogues(path: Path) -> None:
    """Demonstrations for the judged scene: a call, then an answer."""
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {}}}}}
    rows = []
    for i in range(4):
        call = {"type": "function", "function": {"name": "weather", "arguments": {"city": f"city {i}"}}}
        said = [
            {"role": "user", "content": f"weather in city {i}"},
            {"role": "assistant", "content": "look", "tool_calls": [call]},
            {"role": "tool", "content": "7"},
            {"role": "assistant", "content": "sofa sofa sofa"},
        ]
        rows.append(json.dumps({"id": f"d{i}", "messages": said, "tools": [tool]}))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
