"""Evaluates a policy on held-out tasks and out-of-domain suites, before, during and after training, and exports it."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from turnwise.config.settings import PolicySettings
from turnwise.engines.engine import Sampling
from turnwise.evaluation.fresh_tasks import fresh_tasks
from turnwise.evaluation.reply_statistics import reply_of
from turnwise.evaluation.skills import SKILLS
from turnwise.evaluation.suites import Answer, Episode, Evaluation, answer_skills, play_suite, play_tasks
from turnwise.files import atomic_write, writing
from turnwise.models.policy import plain_copy
from turnwise.rollouts.player import Player
from turnwise.training.candidates import Candidates
from turnwise.training.collection import Collection
from turnwise.training.module import PolicyModule
from turnwise.training.own_data import negative_log_likelihood
from turnwise.training.parts import BasePolicy, Settings
from turnwise.training.progress import Phases
from turnwise.training.recorder import Recorder
from turnwise.training.result import commit, summary
from turnwise.training.sharding import Whole, is_sharded
from turnwise.types import Task

logger = logging.getLogger(__name__)


class Measure:
    """Evaluates the policy of a run.

    A finished evaluation is stored under its name in the folder ``evaluation/`` of the run and is not repeated.

    Args:
        policy: the base policy.
        player: samples the episodes. Episodes that are not greedy use the player's sampling settings.
        module: the policy that is trained, whose weights are evaluated.
        candidates: the run's candidate states, with the held-out dialogues.
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
        self.wanted = 0  # number of episodes of an evaluation

    def __call__(self, advance: Callable[..., None] = lambda steps: None) -> Evaluation:
        """Evaluates the policy with its current weights. ``advance`` is called with numbers of newly finished steps."""
        settings, environment, held_out = self.settings.eval, self.player.environment, self.candidates.held_out
        if not is_sharded(self.module):
            self.module.to(self.settings.device)
        self.module.sync_weights(self.player.engine)
        sampling = self.player.sampling
        found = Evaluation()
        if held_out is not None:
            mine = self.distributed.share(held_out.states)
            scored = held_out.states if is_sharded(self.module) else mine  # sharded: every process scores all states
            nats = negative_log_likelihood(self.module.model, scored)
            replies = held_out.measure(self.player, mine, nats, settings.attempts, advance)
            found.replies = self.distributed.gather(replies)
        if self.candidates.plays:
            unseen = settings.tasks // 2
            every = [
                *fresh_tasks(environment, "seen", settings.tasks - unseen, settings.seed),
                *fresh_tasks(environment, "unseen", unseen, settings.seed),
            ]
            self.wanted = sum(1 + self.attempts(task) for task in every)
            tasks = self.distributed.share(every)
            greedy = Sampling(0, max_tokens=sampling.max_tokens)
            for mode, how in (("sampled", sampling), ("greedy", greedy)):
                counts = {id(task): self.attempts(task) if mode == "sampled" else 1 for task in tasks}
                player, played = self.player.using(how, max_turns=None), list[Episode]()
                for attempts in filter(None, dict.fromkeys(counts.values())):
                    some = [task for task in tasks if counts[id(task)] == attempts]
                    played += play_tasks(player, self.candidates.opening, some, attempts, mode, "eval", advance)
                found.episodes += self.distributed.gather(played)
        if settings.items:
            engine, suites = self.player.engine, self.distributed.share(list(SKILLS))
            answers = answer_skills(
                engine, self.policy.chat, settings.items, seed=settings.seed, suites=suites, on_done=advance
            )
            for name, other in self.distributed.share(list((settings.suites or {}).items())):
                answers += play_suite(self.player, name, other, settings.items, settings.seed, on_done=advance)
            found.answers = self.distributed.gather(answers)
        return found

    def named(self, name: str) -> Evaluation:
        """Returns the evaluation ``name``. If no earlier start of the run has finished this evaluation, the policy is
        evaluated with its current weights.
        """
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
        if lost := self.lost(found):
            self.phases.log(
                f"warning: evaluate {name}: the environment failed in {lost} of {len(found.episodes) + lost} episodes in "
                "every attempt (rollout.retries); these episodes are left out"
            )
        return found

    def attempts(self, task: Task) -> int:
        return (self.settings.eval.attempts_of or {}).get(task.subset, self.settings.eval.attempts)

    def lost(self, found: Evaluation) -> int:
        """Returns the number of episodes that are missing in an evaluation because the environment failed."""
        return self.wanted - len(found.episodes)

    def base(self, cfg: DictConfig) -> Evaluation:
        """Returns the base policy's evaluation. Runs with equal :func:`base_key` share one evaluation through a cache
        on disk.
        """
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


def evaluate_between(measure: Measure, recorder: Recorder, collection: Collection, iteration: int) -> None:
    """Evaluates the policy after ``iteration`` (``eval.every``) and writes one line of metrics. The last iteration is
    skipped, because the evaluation after training follows.
    """
    if iteration + 1 < measure.settings.iterations:
        collection.settle()
        with recorder.aside():
            metrics = summary(measure())
        recorder.write(measure.module.version, "eval", metrics)


def base_key(cfg: DictConfig, settings: Settings, source: str, dialogues: str = "") -> str | None:
    """Returns the key under which the base policy's evaluation is cached.

    The key is a hash of the policy's weights and settings, the environment, the engine, the evaluation settings, the
    sampling settings, the greatest length of a history, whether histories keep the thinking of earlier turns, the
    held-out dialogues and the commit. If there is no commit or the code has uncommitted changes, the key is None: the
    cache is not used, because the code of a cached evaluation would be unknown.

    Args:
        source: folder or Hugging Face id of the base policy. The weights in a folder enter the hash.
        dialogues: hash of the held-out dialogues and the rules for judging them; empty if the run has none.
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
    acting = {"env": environment, "engine": cfg.engine._target_}  # included because engines sample differently
    asked: Any = OmegaConf.to_container(cfg.eval, resolve=True)
    suites = {name: value for name, value in asked.items() if name != "every" and value is not None}
    rollout = settings.rollout
    playing = [asdict(rollout.sampling), rollout.max_length, settings.data.thinking]
    named = [*models, str(settings.policy), weights.hexdigest(), acting, suites, *playing, code]
    named += [dialogues] if dialogues else []
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16]


def save_evaluation(path: Path, evaluation: Evaluation) -> None:
    rows: list[Any] = [*evaluation.episodes, *evaluation.answers, *evaluation.replies]
    with atomic_write(path) as part:
        part.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), encoding="utf-8")


def read_evaluation(path: Path) -> Evaluation | None:
    """Reads the evaluation at ``path``. Returns None if the file is missing or, after a warning, if it is damaged."""
    try:
        return load_evaluation(path)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, RecursionError):  # the file is not JSON, or it has other keys
        logger.warning("%s is damaged; the evaluation is repeated", path)
        return None


def load_evaluation(path: Path) -> Evaluation:
    evaluation = Evaluation()
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "reply" in row:
            evaluation.replies.append(reply_of(row))
        elif "suite" in row:
            evaluation.answers.append(Answer(**row))
        else:
            evaluation.episodes.append(Episode(**row))
    return evaluation


def export(model: Any, tokenizer: Any, folder: Path, policy: PolicySettings, writes: bool) -> None:
    """Writes the trained policy and its tokenizer to a subfolder of the run's folder.

    The subfolder is ``adapter`` if only a LoRA adapter is written, or ``model`` if all weights are written. A run with
    ``policy.start`` writes all weights, because another adapter was merged into the base model before training. If the
    model is sharded, all processes must call this function.

    Args:
        folder: the run's folder.
        writes: whether this process writes the files.
    """
    if policy.start:
        left = plain_copy(model)
    else:
        left = Whole(model) if is_sharded(model) else model
    if not writes:
        return
    target = folder / ("adapter" if policy.lora.r and not policy.start else "model")
    with writing(target):
        left.save_pretrained(target, safe_serialization=True)
        tokenizer.save_pretrained(target)
