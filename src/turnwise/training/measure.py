"""Measuring a policy: held-out episodes and out-of-domain suites, once before training and once after."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from turnwise.config.settings import EvaluationSettings as Settings
from turnwise.engines.engine import Sampling
from turnwise.evaluation.skills import SKILLS
from turnwise.evaluation.suites import Evaluation, answer_skills, play_tasks
from turnwise.rollouts.play import Player
from turnwise.training.distributed import DistributedContext
from turnwise.training.held_out import HeldOut, negative_log_likelihood
from turnwise.training.module import PolicyModule
from turnwise.training.outcome import commit, read_evaluation, save_evaluation
from turnwise.training.progress import Phases
from turnwise.training.sharding import is_sharded
from turnwise.types import Message, Task


class Measure:
    """Args:
    player: engine, world and tokenizer; ``player.sampling`` is how the headline episodes are sampled.
    module: whose weights are measured.
    opening: a task's first messages and their ids.
    settings: how many tasks, attempts and items.
    folder: the run's; a finished evaluation lies in ``evaluation/`` and is not repeated.
    device: where to measure.
    distributed: who plays a share of it; all of them know the whole.
    """

    def __init__(
        self,
        player: Player,
        module: PolicyModule,
        chat: Any,
        opening: Callable[[Task], tuple[Sequence[Message], list[int]]],
        settings: Settings,
        folder: Path,
        phases: Phases,
        device: torch.device,
        distributed: DistributedContext | None = None,
    ) -> None:
        self.distributed = distributed or DistributedContext()
        self.player, self.module, self.chat, self.opening = player, module, chat, opening
        self.settings, self.folder, self.phases, self.device = settings, folder, phases, device
        self.held_out: HeldOut | None = None  # dialogues of a person's file, where a run has such
        self.plays = True  # tasks of the environment

    def __call__(self, advance: Callable[..., None] = lambda steps: None) -> Evaluation:
        """Measure the policy as it is."""
        settings, world = self.settings, self.player.environment
        if not is_sharded(self.module):
            self.module.to(self.device)
        self.module.sync_weights(self.player.engine)
        half = settings.tasks // 2
        sampling = self.player.sampling
        found = Evaluation()
        if self.held_out is not None:
            mine = self.distributed.share(self.held_out.states)
            scored = self.held_out.states if is_sharded(self.module) else mine  # shards are only whole to all together
            nats = negative_log_likelihood(self.module.model, scored)
            replies = self.held_out.measure(self.player, mine, nats, settings.attempts, advance)
            found.replies = self.distributed.gather(replies)
        tasks = [*world.tasks("seen", settings.tasks - half), *world.tasks("unseen", half)] if self.plays else []
        tasks = self.distributed.share(tasks)
        ways = [("sampled", sampling, settings.attempts), ("greedy", Sampling(0, max_tokens=sampling.max_tokens), 1)]
        for mode, how, attempts in ways:
            if attempts and self.plays:
                player = self.player.using(how, max_turns=None)
                played = play_tasks(player, self.opening, tasks, attempts, mode, "eval", advance)
                found.episodes += self.distributed.gather(played)
        if settings.items:
            engine, suites = self.player.engine, self.distributed.share(list(SKILLS))
            answers = answer_skills(engine, self.chat, settings.items, seed=0, suites=suites, on_done=advance)
            found.answers = self.distributed.gather(answers)
        return found

    def named(self, name: str) -> Evaluation:
        """The evaluation of that name: read back if an earlier start of this run has finished it."""
        path = self.folder / "evaluation" / f"{name}.jsonl"
        before = self.distributed.broadcast(read_evaluation(path) if self.distributed.first else None)
        if before is not None:
            return before
        acted = self.settings.tasks * self.plays + (len(self.held_out.states) if self.held_out else 0)
        total = acted * (1 + self.settings.attempts) + len(SKILLS) * self.settings.items
        with self.phases.phase(f"evaluate {name}", total) as advance:
            found = self(lambda done: advance(done * (1 if self.distributed.served else self.distributed.world)))
        if self.distributed.first:
            save_evaluation(path, found)
        return found

    def base(self, cache: Path, key: str | None) -> Evaluation:
        """The base policy's evaluation, shared through ``cache`` by all runs that start from it; without a key not shared."""
        if key is None:
            return self.named("base")
        own = self.folder / "evaluation" / "base.jsonl"
        shared = cache / f"base-{key}.jsonl"
        known = read_evaluation(shared) if self.distributed.first else None
        if known is not None and not own.exists():
            save_evaluation(own, known)
        found = self.named("base")
        if self.distributed.first and known is None:
            save_evaluation(shared, found)
        return found


def base_key(
    models: Sequence[str],
    policy: object,
    environment: Any,
    settings: Settings,
    sampling: Sampling,
    dialogues: str = "",
) -> str | None:
    """Digest of all that decides the base evaluation: weights, world, suites, sampling and the code's commit.

    None where the code is not that of a commit: nothing then says whether an older evaluation still holds.

    Args:
        models: folder or id of the base policy and of what is merged into it; the weights of a folder are read.
        policy: how it is loaded.
        environment: its configuration, and which engine plays in it.
        dialogues: what decides the held-out dialogues and their verdicts; empty where a run has none.
    """
    code = commit()
    if not code or code.endswith("+"):
        return None
    weights = hashlib.sha256()
    for model in models:
        for file in sorted(Path(model).glob("*.safetensors")):
            weights.update(file.read_bytes())
    suites = {name: value for name, value in asdict(settings).items() if name != "every" and value is not None}
    named = [
        *models,
        str(policy),
        weights.hexdigest(),
        environment,
        suites,
        asdict(sampling),
        code,
        *filter(None, [dialogues]),
    ]
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16]
