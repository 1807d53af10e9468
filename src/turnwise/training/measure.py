"""Evaluates a policy on held-out episodes and out-of-domain suites: before, during and after training."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from turnwise.engines.engine import Sampling
from turnwise.evaluation.fresh import fresh_tasks
from turnwise.evaluation.skills import SKILLS
from turnwise.evaluation.suites import Evaluation, answer_skills, play_suite, play_tasks
from turnwise.rollouts.play import Player
from turnwise.training.candidates import Candidates
from turnwise.training.collection import Collection
from turnwise.training.held_out import negative_log_likelihood
from turnwise.training.module import PolicyModule
from turnwise.training.outcome import commit, read_evaluation, save_evaluation, summary
from turnwise.training.parts import BasePolicy, Settings
from turnwise.training.progress import Phases
from turnwise.training.recorder import Recorder
from turnwise.training.sharding import is_sharded
from turnwise.types import Task


class Measure:
    """Evaluates the policy of a run.

    A finished evaluation is stored under its name in ``evaluation/`` of the run's folder and is not repeated.

    Args:
        settings: of the run.
        policy: the base policy.
        player: its engine samples, with ``player.sampling`` for the headline episodes.
        module: the policy that is trained.
        candidates: the held-out dialogues, and whether tasks of the environment are evaluated.
        phases: shows progress.
    """

    def __init__(
        self,
        settings: Settings,
        policy: BasePolicy,
        player: Player,
        module: PolicyModule,
        candidates: Candidates,
        phases: Phases,
    ) -> None:
        self.settings, self.policy, self.player, self.module = settings, policy, player, module
        self.candidates, self.phases, self.distributed = candidates, phases, module.distributed

    def __call__(self, advance: Callable[..., None] = lambda steps: None) -> Evaluation:
        """Evaluates the policy with its current weights."""
        settings, environment, held_out = self.settings.eval, self.player.environment, self.candidates.held_out
        if not is_sharded(self.module):
            self.module.to(self.settings.device)
        self.module.sync_weights(self.player.engine)
        half = settings.tasks // 2
        sampling = self.player.sampling
        found = Evaluation()
        if held_out is not None:
            mine = self.distributed.share(held_out.states)
            scored = held_out.states if is_sharded(self.module) else mine  # sharded processes must compute together
            nats = negative_log_likelihood(self.module.model, scored)
            replies = held_out.measure(self.player, mine, nats, settings.attempts, advance)
            found.replies = self.distributed.gather(replies)
        tasks: list[Task] = []
        if self.candidates.plays:
            split = {"seen": settings.tasks - half, "unseen": half}
            tasks = [
                task for name, count in split.items() for task in fresh_tasks(environment, name, count, settings.seed)
            ]
        tasks = self.distributed.share(tasks)
        ways = [("sampled", sampling, settings.attempts), ("greedy", Sampling(0, max_tokens=sampling.max_tokens), 1)]
        for mode, how, attempts in ways:
            if attempts and self.candidates.plays:
                player = self.player.using(how, max_turns=None)
                played = play_tasks(player, self.candidates.opening, tasks, attempts, mode, "eval", advance)
                found.episodes += self.distributed.gather(played)
        if settings.items:
            engine, suites = self.player.engine, self.distributed.share(list(SKILLS))
            answers = answer_skills(
                engine, self.policy.chat, settings.items, seed=settings.seed, suites=suites, on_done=advance
            )
            for name in self.distributed.share(list(settings.suites or {})):
                other = (settings.suites or {})[name]
                answers += play_suite(
                    self.player, self.policy.chat, name, other, settings.items, settings.seed, on_done=advance
                )
            found.answers = self.distributed.gather(answers)
        return found

    def named(self, name: str) -> Evaluation:
        """Returns the evaluation of that name, which is read back if an earlier start has finished it."""
        settings, held_out = self.settings.eval, self.candidates.held_out
        path = self.settings.folder / "evaluation" / f"{name}.jsonl"
        before = self.distributed.broadcast(read_evaluation(path) if self.distributed.first else None)
        if before is not None:
            return before
        acted = settings.tasks * self.candidates.plays + (len(held_out.states) if held_out else 0)
        total = acted * (1 + settings.attempts) + (len(SKILLS) + len(settings.suites or {})) * settings.items
        with self.phases.phase(f"evaluate {name}", total) as advance:
            found = self(lambda done: advance(done * (1 if self.distributed.served else self.distributed.world)))
        if self.distributed.first:
            save_evaluation(path, found)
        return found

    def base(self, cfg: DictConfig) -> Evaluation:
        """Returns the base policy's evaluation, which runs with the same base share through the cache."""
        held_out = self.candidates.held_out
        key = base_key(cfg, self.settings, self.policy.source, held_out.digest if held_out else "")
        if key is None:
            return self.named("base")
        own = self.settings.folder / "evaluation" / "base.jsonl"
        shared = self.settings.cache / f"base-{key}.jsonl"
        known = read_evaluation(shared) if self.distributed.first else None
        if known is not None and not own.exists():
            save_evaluation(own, known)
        found = self.named("base")
        if self.distributed.first and known is None:
            save_evaluation(shared, found)
        return found


@dataclass(frozen=True, slots=True)
class EvaluateBetween:
    """Evaluates the policy during training, as Lightning's validation, every ``eval.every`` iterations."""

    measure: Measure
    recorder: Recorder
    collection: Collection

    def __call__(self, iteration: int) -> None:
        """Writes one line of metrics, except after the last iteration, when the evaluation after training follows."""
        if iteration + 1 == self.measure.settings.iterations:
            return
        self.collection.settle()
        with self.recorder.aside():
            metrics = summary(self.measure())
        self.recorder.write(self.measure.module.version, "eval", metrics)


def base_key(cfg: DictConfig, settings: Settings, source: str, dialogues: str = "") -> str | None:
    """Returns a digest of what decides the base evaluation: weights, environment, engine, suites, sampling and commit.

    The digest is None if the code is not exactly that of a commit, because then nothing shows whether an older
    evaluation is still valid.

    Args:
        cfg: the configuration.
        settings: of the run.
        source: folder or id of the base policy; the weights in a folder are read.
        dialogues: digest of the held-out dialogues and their rules; empty if the run has none.
    """
    code = commit()
    if not code or code.endswith("+"):
        return None
    models = [path for path in (source, settings.policy.start) if path]
    weights = hashlib.sha256()
    for model in models:
        for file in sorted(Path(model).glob("*.safetensors")):
            weights.update(file.read_bytes())
    environment = OmegaConf.to_container(cfg.env, resolve=True)
    acting = {"env": environment, "engine": cfg.engine._target_}  # engines sample differently
    asked: Any = OmegaConf.to_container(cfg.eval, resolve=True)
    suites = {name: value for name, value in asked.items() if name != "every" and value is not None}
    sampling = asdict(settings.rollout.sampling)
    named = [*models, str(settings.policy), weights.hexdigest(), acting, suites, sampling, code]
    named += [dialogues] if dialogues else []
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16]
