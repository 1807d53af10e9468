"""What the fault campaign and the soak run: real training at the smallest scale, a scene for each kind of thing to lose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from servers import Judge, Server

EVERYWHERE = [
    "logger.wandb=null",
    "trainer.max_epochs=5",
    "update.allow_empty=true",  # what is hurt is the run, whatever it learns
    "eval.tasks=2",
    "eval.attempts=0",
    "eval.items=1",
    "rollout.trajectories=null",
    "name=faults",
]

PIVOTS = [
    "method=pivotrl",
    "env.horizon=6",
    "data.trajectories=4",
    "states.keep=all",
    "states.k=2",
    "rollout.states=4",
    "allocator.group_size=4",
    "rollout.sampling.max_tokens=8",
    "update.learning_rate=0.01",
]

EPISODES = [
    "method=grpo",
    "gate=divergence",
    "env.horizon=3",
    "rollout.states=2",
    "allocator.group_size=4",
    "rollout.sampling.max_tokens=6",
    "update.learning_rate=0.001",
]


@dataclass(frozen=True, slots=True)
class Scene:
    """``overrides`` of train.py; ``faults``: what is done to it, by name (``injuries.FAULTS``).

    ``server``: whom it asks. ``near``: how far numbers may lie from those of an undisturbed run, relatively.
    """

    name: str
    overrides: tuple[str, ...]
    faults: tuple[str, ...]
    server: type[Server] | None = None
    near: float = 0.0

    def command(self, folder: Path, server: Server | None) -> list[str]:
        """Overrides of a run that lies in ``folder``/run and shares nothing with another."""
        places = [f"paths.out={folder / 'run'}", f"paths.cache={folder / 'cache'}"]
        asked = [server.address] if server is not None else []
        return [*EVERYWHERE, *self.overrides, *places, *asked]


SCENES = {
    scene.name: scene
    for scene in (
        Scene(  # demonstrations, profile, single turns from demonstrated states, sampled in two processes
            "pivots",
            (*PIVOTS, "engine.lanes=2"),
            ("trainer", "job", "term", "worker", "torn", "disk"),
        ),
        Scene(  # the next collection under way in a thread while the weights move
            "ahead",
            (*PIVOTS, "rollout.staleness=1", "engine.lanes=2"),
            ("trainer", "job", "term", "worker", "torn", "disk"),
        ),
        Scene(  # up to three collections under way ahead of the weights
            "further",
            (*PIVOTS, "rollout.staleness=3"),
            ("trainer", "job", "term", "torn"),
        ),
        Scene(  # single turns in slices: what joins a batch depends on what a start had recalled, and with it last digits
            "free",
            (*PIVOTS, "engine.schedule=free"),
            ("trainer", "job", "term", "torn"),
            near=1e-3,
        ),
        Scene(  # episodes in slices, whose groups a gate may stop, and two collections under way ahead of the weights
            "free_ahead",
            (
                *EPISODES,
                "env.horizon=8",
                "rollout.states=4",
                "rollout.sampling.max_tokens=8",
                "gate.k=2",
                "engine.schedule=free",
                "rollout.staleness=2",
            ),
            ("trainer", "job", "term", "torn"),
            near=1e-3,
        ),
        Scene(  # whole episodes, whose commands run in worker processes in the sandbox
            "sandbox",
            (
                "method=grpo",
                "base=tiny_tools",
                "env=terminal",
                "env.horizon=6",
                "rollout.states=6",
                "allocator.group_size=4",
                "rollout.sampling.max_tokens=24",
                "update.learning_rate=0.001",
            ),
            ("trainer", "job", "worker"),
        ),
        Scene(  # replies that a model behind a real HTTP server judges
            "judged",
            (
                "method=mixed",
                "base=tiny_tools",
                "env=apibank",
                "reward.format=bfcl_python",
                "data.trajectories=4",
                "judge=endpoint",
                "judge.client.attempts=100",
                "judge.client.backoff=0.1",
                "judge.client.attempt_limit=2",  # below the longest stall
                "judge.client.time_limit=900",
                "rollout.states=4",
                "allocator.group_size=4",
                "rollout.sampling.max_tokens=24",
                "update.learning_rate=0.001",
            ),
            ("trainer", "job", "server", "stall", "torn"),
            server=Judge,
        ),
    )
}

SOAKED = {
    scene.name: scene
    for scene in (
        SCENES["judged"],
        Scene("episodes", tuple(EPISODES), ()),  # whole ones, which a gate may stop
    )
}
