"""Evaluates a policy on held-out tasks and out-of-domain suites, before, during and after training, and exports it;
computes the run's result from these evaluations, and records how the run was made. Rates are percentages (0 to 100).
"""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf

from turnwise.config.settings import PolicySettings
from turnwise.engines.engine import Sampling
from turnwise.env import EnvironmentFault
from turnwise.evaluation.general import Divergence, General, counted, general_answers
from turnwise.evaluation.skills import SKILLS
from turnwise.evaluation.stats import (
    Estimate,
    paired_change,
    paired_difference,
    paired_mean_difference,
    pass_at_k,
    pooled,
    reply_of,
)
from turnwise.evaluation.suites import (
    Answer,
    Episode,
    Evaluation,
    answer_skills,
    fresh_tasks,
    play_suite,
    play_tasks,
    repeat_rate,
)
from turnwise.files import atomic_write, writing
from turnwise.models.policy import plain_copy, save_adapter, weight_files
from turnwise.rollouts.player import Player
from turnwise.runs.result_file import typed
from turnwise.runs.run_folder import config_hash
from turnwise.training.candidates import Candidates
from turnwise.training.collection import Collection
from turnwise.training.distributed import Whole, is_sharded
from turnwise.training.module import PolicyModule
from turnwise.training.own_data import held_out_headline, held_out_metrics, held_out_result, negative_log_likelihood
from turnwise.training.parts import BasePolicy, Settings
from turnwise.training.progress import Phases
from turnwise.training.recorder import Recorder
from turnwise.types import Task

# -- the result --------------------------------------------------------------------------------------------------------


OF_A_RUN = (":/src", ":/conf", ":/scripts", ":/train.py")  # git pathspecs of the files that a run's result depends on
LIBRARIES = ("turnwise", "torch", "lightning", "transformers", "peft", "hydra-core")

Scores = dict[str, dict[str, list[float]]]
"""Suite -> item -> the scores of its attempts."""


def comparison(base: Evaluation, after: Evaluation, mode: str, split: str | None = None) -> dict[str, Any]:
    """Returns the success rates before and after training on the tasks in both evaluations, and the change with a
    paired 95 % confidence interval.
    """
    return _compared(base.success(mode, split), after.success(mode, split))


def by_subset(base: Evaluation, after: Evaluation, mode: str) -> dict[str, Any]:
    """Returns the comparison of success before and after training for each subset of the benchmark, and for the
    unweighted mean over the subsets. The result is empty if tasks have no subset.
    """
    sides = [
        {name: dict(sorted(tasks.items())) for name, tasks in side.by_subset(mode).items()} for side in (base, after)
    ]
    before, since = _both(*sides)
    if not before:
        return {}
    first, last = (float(np.mean([_mean(tasks) for tasks in side.values()])) for side in (before, since))
    mean = _change(first, last, paired_mean_difference(before, since), sum(map(len, before.values())))
    return {"by_subset": {name: _compared(before[name], since[name]) for name in before}, "subset_mean": mean}


def _compared(before: Mapping[str, list[float]], since: Mapping[str, list[float]]) -> dict[str, Any]:
    tasks = sorted(before.keys() & since.keys())
    if not tasks:
        return {}
    before, since = {t: before[t] for t in tasks}, {t: since[t] for t in tasks}
    return _change(_mean(before), _mean(since), paired_difference(before, since), len(tasks))


def _change(before: float, since: float, change: Estimate, tasks: int) -> dict[str, Any]:
    base, after = _points(before), _points(since)
    delta = round(after - base, 2)
    return {"base": base, "after": after, "delta": delta, "delta_ci95": _interval(change), "tasks": tasks}


def in_domain(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Returns the entry ``in_domain`` of ``result.json``: success before and after training, for sampled and for greedy
    attempts. The headline is the comparison of sampled attempts, or without sampled attempts, of greedy attempts.
    """
    modes = {mode: comparison(base, after, mode) for mode in ("sampled", "greedy")}
    modes = {mode: found for mode, found in modes.items() if found}
    headline = next(iter(modes), "sampled")
    splits = sorted({episode.split for episode in base.episodes})
    return {
        **modes.get(headline, {}),
        "decoding": headline,
        "by_split": {split: comparison(base, after, headline, split) for split in splits},
        **by_subset(base, after, headline),
        **modes,
        "pass_at_k": _pass_at_k(base, after),
    }


def out_of_domain(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Returns the entry ``ood`` of ``result.json``: the scores on each out-of-domain suite before and after training,
    the change on each suite, and the mean change over the suites. Changes have confidence intervals.
    """
    before, since = _both(base.skills(), after.skills())
    if not before:
        return {}
    change = paired_mean_difference(before, since)
    per_suite = {suite: paired_difference(before[suite], since[suite]) for suite in before}
    return {
        "base": {suite: _points(_mean(items)) for suite, items in before.items()},
        "after": {suite: _points(_mean(items)) for suite, items in since.items()},
        "mean_change": _points(change.mean),
        "mean_change_ci95": _interval(change),
        "change_ci95": {suite: found for suite, e in per_suite.items() if (found := _interval(e))},
        "items": {suite: len(items) for suite, items in before.items()},
    }


def divergence(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Returns the entry ``general`` of ``result.json``: the divergence from the base model on general questions in nats
    a token, and how often (percent) both find the same token most likely, before and after training.
    """
    entry: dict[str, Any] = {"questions": len(after.general), "tokens": sum(row.tokens for row in after.general)}
    for value, unit in (("kl", 1.0), ("same", 100.0)):
        sides = counted(base.general, value), counted(after.general, value)
        change = paired_change(*sides, shares=False)
        before, since = (round(unit * pooled(side), 4) for side in sides)
        low, high = change.low, change.high
        interval = None if low is None or high is None else [round(unit * low, 4), round(unit * high, 4)]
        entry[value] = {"base": before, "after": since, "delta": round(since - before, 4), "delta_ci95": interval}
    return entry


def _both(before: Scores, since: Scores) -> tuple[Scores, Scores]:
    """Returns ``before`` and ``since`` without items that only one of the two evaluations contains, because the item's
    environment failed in the other evaluation.
    """
    common = {suite: [item for item in items if item in since.get(suite, {})] for suite, items in before.items()}
    sides = [
        {s: {item: side[s][item] for item in items} for s, items in common.items() if items} for side in (before, since)
    ]
    return sides[0], sides[1]


def result_of(
    cfg: DictConfig,
    environment: str,
    candidates: Candidates,
    base: Evaluation,
    after: Evaluation,
    entries: Mapping[str, Any],
) -> dict[str, Any]:
    """Returns the content of ``result.json``.

    Args:
        environment: name of the environment. If the headline is about a user's file, the result contains the name of
            the file instead.
        entries: further entries, such as costs, verdicts and warnings.
    """
    file, held_out = candidates.headline, held_out_result(base, after)
    domains: dict[str, Any] = {"in_domain": in_domain(base, after)}
    if file is not None:  # the headline is about the replies in held-out dialogues
        domains = {"environment": domains["in_domain"]} if base.episodes else {}
        domains["in_domain"] = held_out_headline(base, after) if held_out else {}
    if held_out:
        domains["held_out"] = held_out
    if after.general:
        domains["general"] = divergence(base, after)
    return {
        "method": cfg.method,
        "env": file or environment,
        "scale": cfg.scale,
        "seed": int(cfg.seed),
        "name": cfg.name,
        **domains,
        "ood": out_of_domain(base, after),
        "bad_trajectories": len(candidates.problems),
        **entries,
        "config_hash": config_hash(cfg),
        **provenance(),
    }


def summary(evaluation: Evaluation) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for mode in ("sampled", "greedy"):
        for split in sorted({episode.split for episode in evaluation.episodes}):
            if scores := evaluation.success(mode, split):
                suffix = "" if mode == "sampled" else "_greedy"
                metrics[f"eval/{split}/success{suffix}"] = _points(_mean(scores))
    subsets = evaluation.by_subset("sampled") or evaluation.by_subset("greedy")
    metrics |= {f"eval/success/{name}": _points(_mean(scores)) for name, scores in subsets.items()}
    said = [[m["content"] for m in e.messages if m["role"] == "assistant"] for e in evaluation.episodes]
    if said:
        metrics["eval/repeat_rate"] = round(sum(map(repeat_rate, said)) / len(said), 4)
    for suite, items in evaluation.skills().items():
        metrics[f"eval/ood/{suite}"] = _points(_mean(items))
    if evaluation.general:
        for value, unit in (("kl", 1.0), ("same", 100.0)):
            metrics[f"eval/general/{value}"] = round(unit * pooled(counted(evaluation.general, value)), 4)
    return metrics | held_out_metrics(evaluation)


def _pass_at_k(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    before, since = base.success("sampled"), after.success("sampled")
    if not before or not since:
        return {}
    fewest = min(len(scores) for side in (before, since) for scores in side.values())

    def at(side: Mapping[str, list[float]], k: int) -> float:
        return _points(pass_at_k([len(s) for s in side.values()], [int(sum(s)) for s in side.values()], k))

    ks = [k for k in (1, 2, 4, 8, 16, 32) if k <= fewest]
    return {str(k): {"base": at(before, k), "after": at(since, k)} for k in ks}


def _mean(scores: Mapping[str, list[float]]) -> float:
    return float(np.mean([np.mean(values) for values in scores.values()]))


def _points(share: float) -> float:
    return round(100 * float(share), 2)


def _interval(estimate: Estimate) -> list[float] | None:
    if estimate.low is None or estimate.high is None:
        return None
    return [_points(estimate.low), _points(estimate.high)]


# -- how the run was made ----------------------------------------------------------------------------------------------


def provenance() -> dict[str, Any]:
    return {
        "command": command(),
        "commit": commit(),
        "versions": {name: _version(name) for name in LIBRARIES},
        "machine": machine(),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def command(resumes: bool = False) -> str:
    """Returns this process's command line as typed. With ``resumes``, the argument ``fresh=...`` is left out, so that
    the command resumes the run.
    """
    given = [word for word in typed(sys.argv[1:]) if not (resumes and word.lower().startswith("fresh="))]
    return shlex.join(["python", sys.argv[0], *given])


@cache
def commit() -> str:
    """Returns the commit of the git checkout, followed by ``+`` if code or configuration has uncommitted changes, or an
    empty text outside a checkout. Later calls return the value of the first call.
    """
    here = Path(__file__).resolve().parent
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=here, capture_output=True, text=True, check=True)
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "--", *OF_A_RUN], cwd=here, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+" if dirty.stdout.strip() else "")


def machine() -> str:
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [
            line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        name = f"{models[0]}, {len(models)} cores" if models else name
    return name


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


# -- evaluations -------------------------------------------------------------------------------------------------------


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
        self.general: General | None = None

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
        found = Evaluation()
        if held_out is not None:
            mine = self.distributed.share(held_out.states)
            scored = held_out.states if is_sharded(self.module) else mine  # sharded: every process scores all states
            nats = negative_log_likelihood(self.module.model, scored)
            replies = held_out.measure(self.player, mine, nats, settings.attempts, advance)
            found.replies = self.distributed.gather(replies)
        if self.candidates.plays:
            tasks = self.distributed.share(self.tasks)
            greedy = Sampling(0, max_tokens=sampling.max_tokens)
            for mode, how in (("sampled", sampling), ("greedy", greedy)):
                counts = {id(task): self.attempts(task) if mode == "sampled" else 1 for task in tasks}
                player, played = self.player.using(how, max_turns=None), list[Episode]()
                for attempts in filter(None, dict.fromkeys(counts.values())):
                    some = [task for task in tasks if counts[id(task)] == attempts]
                    played += play_tasks(player, self.candidates.opening, some, attempts, mode, "eval", advance)
                found.episodes += self.distributed.gather(played)
        if settings.items:
            engine, suites = (
                self.player.engine,
                self.distributed.share([] if settings.skills is False else list(SKILLS)),
            )
            answers = answer_skills(
                engine, self.policy.chat, settings.items, seed=settings.seed, suites=suites, on_done=advance
            )
            for name, other in self.distributed.share(list((settings.suites or {}).items())):
                answers += play_suite(self.player, name, other, settings.items, settings.seed, on_done=advance)
            found.answers = self.distributed.gather(answers)
        if settings.general:
            if self.general is None:
                given = self.policy.source, self.settings.policy.dtype, self.settings.cache, settings.general
                self.general = general_answers(*given)
            found.general = self.general.divergence(self.module.model)
        return found

    def named(self, name: str) -> Evaluation:
        """Returns the evaluation ``name``. If no earlier start of the run has finished this evaluation, the policy is
        evaluated with its current weights. Raises an EnvironmentFault if the environment failed in every episode.
        """
        settings, held_out = self.settings.eval, self.candidates.held_out
        path = self.settings.folder / "evaluation" / f"{name}.jsonl"
        before = self.distributed.broadcast(read_evaluation(path) if self.distributed.first else None)
        if before is not None:
            return before
        acted = settings.tasks * self.candidates.plays + (len(held_out.states) if held_out else 0)
        suites = len(SKILLS) * (settings.skills is not False) + len(settings.suites or {})
        total = acted * (1 + settings.attempts) + suites * settings.items
        if name == "base":
            outside = (
                f", and {suites} x {settings.items} questions outside the trained domain" if settings.items else ""
            )
            what = f"{acted} held-out {'replies' if held_out else 'tasks'}, each {settings.attempts} times sampled"
            self.phases.log(f"an evaluation is {total} items: {what} and once greedy{outside}")
        with self.phases.phase(f"evaluate {name}", total) as advance:
            found = self(lambda done: advance(done * (1 if self.distributed.served else self.distributed.world)))
        lost = self.lost(found)
        if lost and not found.episodes:
            raise EnvironmentFault(f"evaluate {name}: all {lost} episodes failed; the first messages above say how")
        if self.distributed.first:
            save_evaluation(path, found)
        if lost:
            self.phases.log(
                f"warning: evaluate {name}: the environment failed in {lost} of {len(found.episodes) + lost} episodes in "
                "every attempt (rollout.retries); these episodes are left out"
            )
        return found

    def attempts(self, task: Task) -> int:
        return (self.settings.eval.attempts_of or {}).get(task.subset, self.settings.eval.attempts)

    def lost(self, found: Evaluation) -> int:
        """Returns the number of episodes that are missing in an evaluation because the environment failed."""
        return sum(1 + self.attempts(task) for task in self.tasks) - len(found.episodes)

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
    sampling settings, the greatest length of a history, the
    held-out dialogues and the commit. If there is no commit or the code has uncommitted changes, the key is None: the
    cache is not used, because the code of a cached evaluation would be unknown.

    Args:
        source: folder, GGUF file or Hugging Face id of the base policy. Weights in files enter the hash.
        dialogues: hash of the held-out dialogues and the rules for judging them; empty if the run has none.
    """
    code = commit()
    if not code or code.endswith("+"):
        return None
    models = [path for path in (source, settings.policy.start) if path]
    weights = hashlib.sha256()
    for model in models:
        for file in weight_files(model):
            weights.update(file.read_bytes())
    environment = OmegaConf.to_container(cfg.env, resolve=True)
    acting = {"env": environment, "engine": cfg.engine._target_}  # included because engines sample differently
    asked: Any = OmegaConf.to_container(cfg.eval, resolve=True)
    suites = {name: value for name, value in asked.items() if name != "every" and value is not None}
    rollout = settings.rollout
    playing = [asdict(rollout.sampling), rollout.max_length]
    named = [*models, str(settings.policy), weights.hexdigest(), acting, suites, *playing, code]
    named += [dialogues] if dialogues else []
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()[:16]


def save_evaluation(path: Path, evaluation: Evaluation) -> None:
    rows: list[Any] = [*evaluation.episodes, *evaluation.answers, *evaluation.replies, *evaluation.general]
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
        elif "question" in row:
            evaluation.general.append(Divergence(**row))
        elif "suite" in row:
            evaluation.answers.append(Answer(**row))
        else:
            evaluation.episodes.append(Episode(**row))
    return evaluation


def export(model: Any, tokenizer: Any, folder: Path, policy: PolicySettings, writes: bool) -> None:
    """Writes the trained policy and its tokenizer to a subfolder of the run's folder.

    The subfolder is ``adapter`` if a LoRA adapter is written, or ``model`` if all weights are. The adapter of a run
    with ``policy.start`` contains that adapter too, so that both belong to ``policy.model``. If the model is sharded,
    all processes must call this function.

    Args:
        folder: the run's folder.
        writes: whether this process writes the files.
    """
    adapter = policy.lora.r > 0
    left = plain_copy(model) if policy.start and not adapter else Whole(model) if is_sharded(model) else model
    if not writes:
        return
    target = folder / ("adapter" if adapter else "model")
    with writing(target):
        if adapter:
            save_adapter(left, target, policy.start)
        else:
            left.save_pretrained(target, safe_serialization=True)
        tokenizer.save_pretrained(target)
