"""The evaluations of a run before, during and after training: what each measures, its file, and the base policy's, which
runs share. A finished evaluation is read again and not repeated.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from pydantic import TypeAdapter

from turnwise.engines.engine import Sampling
from turnwise.env import EnvironmentFault
from turnwise.evaluation.base_divergence import Divergence, General, general_answers
from turnwise.evaluation.skills import SKILLS
from turnwise.evaluation.stats import Reply
from turnwise.evaluation.suites import (
    Answer,
    Episode,
    Evaluation,
    answer_skills,
    at_once,
    fresh_tasks,
    play_suite,
    play_tasks,
)
from turnwise.files import atomic_write
from turnwise.methods.allocate import Uniform
from turnwise.methods.gate import Never
from turnwise.methods.sft import demonstrated_paths, demonstration
from turnwise.models.logprobs import score
from turnwise.models.policy import weight_files
from turnwise.rollouts.pack import pack
from turnwise.rollouts.player import Player
from turnwise.training.build_run import BasePolicy, Settings
from turnwise.training.candidates import Candidates, HeldOut
from turnwise.training.iterations import Iterations
from turnwise.training.policy_module import PolicyModule
from turnwise.training.progress import Phases
from turnwise.training.recorder import Recorder
from turnwise.training.result import commit, result_metrics
from turnwise.training.sharding import is_sharded
from turnwise.types import Credit, State, Task, Turn

logger = logging.getLogger(__name__)


@dataclass
class Evaluator:
    """Evaluates the policy of a run: the weights of ``module``. ``policy`` is the base policy. A finished evaluation is stored
    under its name in the folder ``evaluation/`` of the run and is not repeated.
    """

    settings: Settings
    policy: BasePolicy
    player: Player
    module: PolicyModule
    candidates: Candidates
    phases: Phases
    general: General | None = None  # the base policy's answers to general questions, once they are needed

    def __post_init__(self) -> None:
        self.distributed = self.module.distributed

    @cached_property
    def tasks(self) -> list[Task]:
        """The held-out tasks, half of them of the split ``unseen``; empty if the environment is not played."""
        settings, environment = self.settings.eval, self.player.environment
        if not self.candidates.plays:
            return []
        unseen = settings.tasks // 2
        return [
            *fresh_tasks(environment, "seen", settings.tasks - unseen, settings.seed),
            *fresh_tasks(environment, "unseen", unseen, settings.seed),
        ]

    def __call__(self, advance: Callable[..., None] = lambda steps: None) -> Evaluation:
        """Evaluates the policy with its current weights. ``advance`` is called with numbers of newly finished steps."""
        settings, held_out = self.settings.eval, self.candidates.held_out
        if not is_sharded(self.module):
            self.module.to(self.settings.device)
        self.module.sync_weights(self.player.engine)
        sampling = self.player.sampling
        evaluation = Evaluation()
        if held_out is not None:
            mine = self.distributed.share(held_out.states)
            scored = held_out.states if is_sharded(self.module) else mine  # sharded: every process scores all states
            nats = negative_log_likelihood(self.module.model, scored)
            replies = sampled_replies(held_out, self.player, mine, nats, settings.attempts, advance)
            evaluation.replies = self.distributed.gather(replies)
        if self.candidates.plays:
            tasks = self.distributed.share(self.tasks)
            greedy = Sampling(0, max_tokens=sampling.max_tokens)
            for mode, how in (("sampled", sampling), ("greedy", greedy)):
                counts = {id(task): self.attempts(task) if mode == "sampled" else 1 for task in tasks}
                player, played = self.player.using(how, max_turns=None), list[Episode]()
                for attempts in filter(None, dict.fromkeys(counts.values())):
                    some = [task for task in tasks if counts[id(task)] == attempts]
                    played += play_tasks(player, self.candidates.opening, some, attempts, mode, "eval", advance)
                evaluation.episodes += self.distributed.gather(played)
        if settings.items:
            suites = self.distributed.share([] if settings.skills is False else list(SKILLS))
            options: Any = {"seed": settings.seed, "suites": suites, "on_done": advance}
            answers = answer_skills(self.player.engine, self.policy.chat, settings.items, **options)
            for name, other in self.distributed.share(list((settings.suites or {}).items())):
                answers += play_suite(self.player, name, other, settings.items, settings.seed, on_done=advance)
            evaluation.answers = self.distributed.gather(answers)
        if settings.general:
            if self.general is None:
                base = self.policy.source, self.settings.policy.dtype, self.settings.cache, settings.general
                self.general = general_answers(*base)
            evaluation.general = self.general.divergence(self.module.model)
        return evaluation

    def named(self, name: str) -> Evaluation:
        """Returns the evaluation ``name``, of the current weights unless an earlier start has finished it. Raises an
        EnvironmentFault if the environment failed in every episode.
        """
        settings, held_out = self.settings.eval, self.candidates.held_out
        path = self.settings.folder / "evaluation" / f"{name}.jsonl"
        before = self.distributed.broadcast(read_evaluation(path) if self.distributed.first else None)
        if before is not None:
            return before
        replies = (len(held_out.states) if held_out else 0) * (1 + settings.attempts)
        suites = len(SKILLS) * (settings.skills is not False) + len(settings.suites or {})
        total = self.planned + replies + suites * settings.items
        with self.phases.phase(f"evaluate {name}", total) as advance:
            evaluation = self(lambda done: advance(done * (1 if self.distributed.served else self.distributed.world)))
        lost = self.lost(evaluation)
        if lost and not evaluation.episodes:
            raise EnvironmentFault(f"evaluate {name}: all {lost} episodes failed; the first messages above say how")
        if self.distributed.first:
            save_evaluation(path, evaluation)
        if lost:
            self.phases.log(
                f"warning: evaluate {name}: the environment failed in {lost} of {len(evaluation.episodes) + lost} episodes in "
                "every attempt (rollout.retries); these episodes are left out"
            )
        return evaluation

    def attempts(self, task: Task) -> int:
        return (self.settings.eval.attempts_of or {}).get(task.subset, self.settings.eval.attempts)

    @property
    def planned(self) -> int:
        """The number of episodes of an evaluation: of each task, a greedy one and the sampled attempts."""
        return sum(1 + self.attempts(task) for task in self.tasks)

    def lost(self, evaluation: Evaluation) -> int:
        return self.planned - len(evaluation.episodes)

    def base(self, cfg: DictConfig) -> Evaluation:
        """Returns the base policy's evaluation, which runs with equal :func:`base_policy_key` share through a cache on disk."""
        held_out, own = self.candidates.held_out, self.settings.folder / "evaluation" / "base.jsonl"
        key = known = None
        if self.distributed.first and not own.exists():  # otherwise the key, for which all weights are read, has no use
            key = base_policy_key(cfg, self.settings, self.policy.source, held_out.digest if held_out else "")
        shared = self.settings.cache / f"base-{key}.jsonl"
        if key is not None and (known := read_evaluation(shared)) is not None:
            save_evaluation(own, known)
        evaluation = self.named("base")
        if key is not None and known is None:
            save_evaluation(shared, evaluation)
        return evaluation


def evaluate_between(measure: Evaluator, recorder: Recorder, collection: Iterations, iteration: int) -> None:
    """Evaluates the policy after ``iteration`` (``eval.every``), unless the evaluation after training follows."""
    if iteration + 1 < measure.settings.iterations:
        collection.settle()
        with recorder.aside():
            metrics = result_metrics(measure())
        recorder.write(measure.module.version, "eval", metrics)


def base_policy_key(cfg: DictConfig, settings: Settings, source: str, dialogues: str = "") -> str | None:
    """Returns the key under which the base policy's evaluation is cached: a hash of everything on which it depends, such as
    the weights, the settings of environment, engine, evaluation and sampling, the hash of the held-out ``dialogues``,
    and the commit. It is None, and the cache is not used, if the code has uncommitted changes.
    """
    code = commit()
    if not code or code.endswith("+"):
        return None
    models = [path for path in (source, settings.policy.start) if path]
    weights = []
    for file in chain.from_iterable(map(weight_files, models)):
        with file.open("rb") as stream:
            weights.append(hashlib.file_digest(stream, "sha256").hexdigest())
    environment = OmegaConf.to_container(cfg.env, resolve=True)
    acting = {"env": environment, "engine": cfg.engine._target_}  # included because engines sample differently
    if weights_of_engine := cfg.engine.get("weights"):
        acting["weights"] = weights_of_engine
    eval_settings: Any = OmegaConf.to_container(cfg.eval, resolve=True)
    suites = {name: value for name, value in eval_settings.items() if name != "every" and value is not None}
    rollout = settings.rollout
    playing = [asdict(rollout.sampling), rollout.max_length]
    named = [*models, str(settings.policy), weights, acting, suites, *playing, code]
    named += [dialogues] if dialogues else []
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16]


KINDS: Mapping[str, type] = {"episodes": Episode, "answers": Answer, "replies": Reply, "general": Divergence}
_ROWS = TypeAdapter(list[Episode | Answer | Reply | Divergence])


def save_evaluation(path: Path, evaluation: Evaluation) -> None:
    rows = [row for name in KINDS for row in getattr(evaluation, name)]
    with atomic_write(path) as part:
        part.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), encoding="utf-8")


def read_evaluation(path: Path) -> Evaluation | None:
    try:
        text = path.read_text(encoding="utf-8")
        rows: list[Any] = _ROWS.validate_python([json.loads(line) for line in text.splitlines()])
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):  # the file is not JSON, or a row is of no kind
        logger.warning("%s is damaged; the evaluation is repeated", path)
        return None
    of_kind: dict[str, list[Any]] = {name: [row for row in rows if isinstance(row, KINDS[name])] for name in KINDS}
    return Evaluation(**of_kind)


# -- replies in held-out dialogues -------------------------------------------------------------------------------------


def sampled_replies(
    held_out: HeldOut,
    player: Player,
    states: Sequence[State],
    nats: Mapping[str, float],
    attempts: int,
    advance: Callable[[int], None],
) -> list[Reply]:
    """Samples ``attempts`` replies and a greedy one at each state of this process, judges them, and returns one record for
    each state. ``nats`` holds :func:`negative_log_likelihood`.

    The token limit of a reply is the limit of training, or the length of the longest demonstrated reply if that is
    larger. The limit is lower if the player's ``max_length`` leaves less room after the state's history.
    """
    served, most = getattr(player.engine, "served", False), max(player.sampling.max_tokens, held_out.longest)
    turns: dict[str, dict[str, list[Turn]]] = {"sampled": {}, "greedy": {}}
    for mode, sampling, count in (("sampled", player.sampling, attempts), ("greedy", Sampling(0), 1)):
        for limit, part in by_reply_limit(states, most, player.max_length, served) if count else ():
            acting = player.using(replace(sampling, max_tokens=limit), max_turns=1)
            for tree in acting.play(part, Uniform(count), Never(), "held-out", on_reply=lambda *_: advance(1)):
                turns[mode][tree.state.id] = tree.turns
            acting.forget()

    def verdicts(mode: str, state: State) -> tuple[tuple[float, float], ...]:
        return tuple((turn.info["functional"], turn.info["strict"]) for turn in turns[mode].get(state.id, ()))

    return [
        Reply(
            reply=state.id,
            dialogue=state.trajectory or state.id,
            turn=state.turn,
            tools=held_out.tools[state.id],
            nats=nats[state.id],
            tokens=len(state.expert_ids),
            sampled=verdicts("sampled", state),
            greedy=verdicts("greedy", state),
            expert=state.expert or "",
            said=turns["greedy"][state.id][0].text,
        )
        for state in states
    ]


def by_reply_limit(
    states: Sequence[State], most: int, max_length: int, served: bool
) -> Iterator[tuple[int, Sequence[State]]]:
    """Yields the states in parts whose replies are sampled together, each with the token limit of its replies: ``most``,
    or the room that ``max_length`` leaves after the state's history, because servers refuse longer replies.
    """
    by_limit: dict[int, list[State]] = defaultdict(list)
    for state in states:
        by_limit[min(most, max_length - len(state.ids))].append(state)
    for limit, alike in by_limit.items():
        step = at_once(served, len(alike))
        for start in range(0, len(alike), step):
            yield limit, alike[start : start + step]


def negative_log_likelihood(model: Any, states: Sequence[State]) -> dict[str, float]:
    """Returns, by state id, the negative log-likelihood in nats of the demonstrated reply under ``model``, summed over its
    tokens with the end-of-turn token, at temperature 1.
    """
    nats: dict[str, float] = {}
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    try:
        with torch.no_grad():
            for path in demonstrated_paths(states).values():
                ones, totals = [1.0] * len(path), [0.0] * len(path)
                for packed in pack([demonstration(path)], [Credit(ones, ones)]).batches:
                    packed = packed.to(device)
                    logprobs = score(model, packed)[0][packed.items.unique_K].double()
                    for turn in packed.items.turn_K.unique().tolist():
                        totals[turn] -= float(logprobs[packed.items.turn_K == turn].sum())
                nats |= {state.id: total for state, total in zip(path, totals, strict=True)}
    finally:
        model.train(training)
    return nats
