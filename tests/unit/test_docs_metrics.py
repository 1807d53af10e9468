"""docs/metrics.md against what the code writes: no key unexplained, none explained that is never written."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from tests.unit import quiet

from turnwise.algo.advantages.awpo import Awpo
from turnwise.algo.advantages.group import GroupAdvantage
from turnwise.algo.advantages.mt_grpo import MTGRPO
from turnwise.algo.gates.divergence import Divergence
from turnwise.algo.losses.clipped import Clipped
from turnwise.algo.losses.correction import Correction
from turnwise.algo.losses.loss import Loss
from turnwise.algo.losses.nll import Nll
from turnwise.algo.rewards.outcome import Outcome
from turnwise.algo.states.pivots import summarise
from turnwise.algo.states.refresh import Refresh
from turnwise.algo.states.state_rule import Profile
from turnwise.config.schema import compose_config
from turnwise.config.settings import RolloutSettings, UpdateSettings
from turnwise.engines.engine import Sampling
from turnwise.engines.lanes import Lanes
from turnwise.evaluation.reply_statistics import Reply
from turnwise.evaluation.suites import Answer, Episode, Evaluation
from turnwise.judges.offline import OfflineJudge
from turnwise.models.attention import backbone, use_tree_attention
from turnwise.rollouts.collect import Collector
from turnwise.rollouts.pack import Update
from turnwise.rollouts.predictors.critic import Critic
from turnwise.rollouts.predictors.online import OnlinePredictor
from turnwise.runs.json_lines import each_line
from turnwise.runs.result_file import write_result
from turnwise.training.collection import Imitation
from turnwise.training.costs import run_costs
from turnwise.training.datamodule import Rollouts
from turnwise.training.earlier_policies import remembered
from turnwise.training.gradients import GradientCosine
from turnwise.training.health import Health
from turnwise.training.iteration_metrics import sampling_metrics
from turnwise.training.main import PHASES
from turnwise.training.mismatch import MismatchAlarm
from turnwise.training.module import PolicyModule
from turnwise.training.profile_states import Profiles
from turnwise.training.read_candidates import Candidates
from turnwise.training.recorder import Gathered, Recorder, tree_record
from turnwise.training.reprofile import Reprofile
from turnwise.training.run_result import result_of, summary
from turnwise.training.stale_mismatch import stale_mismatch
from turnwise.types import Rewards, RolloutTree, State, Task, Turn

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


def documented(section: str) -> set[str]:
    """The keys in the first column of a section's table."""
    body = TEXT.split(f"\n## {section}\n")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in body.splitlines() if line.startswith("| `")]
    return {key for cell in cells for key in re.findall(r"`([^`]+)`", cell)}


def matches(pattern: str, key: str) -> bool:
    """``<x>`` stands for one part of a key, a final ``*`` for all that follows."""
    parts = re.split(r"(<\w+>|\*$)", pattern)
    return re.fullmatch("".join(_regex(part) for part in parts), key) is not None


def _regex(part: str) -> str:
    return ".+" if part == "*" else "[^/.]+" if part.startswith("<") else re.escape(part)


def compare(patterns: Iterable[str], keys: Iterable[str]) -> tuple[set[str], set[str]]:
    """Keys that no pattern explains, and patterns that explain no key."""
    patterns, keys = set(patterns), set(keys)
    return (
        {key for key in keys if not any(matches(pattern, key) for pattern in patterns)},
        {pattern for pattern in patterns if not any(matches(pattern, key) for key in keys)},
    )


def leaves(node: Any, prefix: str = "") -> Iterator[str]:
    """Dotted keys of nested objects."""
    if isinstance(node, Mapping):  # an empty one has no leaf
        for key, value in node.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix


def tree(iteration: int, length: int = 9) -> RolloutTree:
    """A group of four one-turn rollouts, two of them won."""
    rng = random.Random(iteration)
    state = State(
        f"s{iteration}",
        Task(("toy", "town")[iteration % 2], "t", "train"),
        tuple(rng.randrange(6, 97) for _ in range(length)),
    )
    grown = RolloutTree(state)
    for branch in range(4):
        ids = [rng.randrange(6, 97) for _ in range(3)]
        info = {"won": branch < 2, "functional": float(branch < 2), "strict": float(branch < 1)}
        grown.turns.append(Turn(-1, ids, [-4.5] * 3, f"act {branch}", observation="seen", done=True, info=info))
    return grown


def judged(tree: RolloutTree) -> Rewards:
    """The outcome beside scores that neither follow nor oppose it."""
    leaves = len(tree.leaves())
    return {**Outcome()(tree), "reasoning": [0.0, 0.5] * (leaves // 2), "format": [1.0] * leaves}


def branched(number: int) -> RolloutTree:
    """Two rollouts of two turns and a branch after the first turn of one; as many of its leaves won as ``number`` says."""
    grown = tree(number)
    grown.turns = [Turn(parent, [7, 8], [-4.5] * 2, observation_ids=[9]) for parent in (-1, -1, 0, 0, 1)]
    for leaf, won in zip((2, 3, 4), range(number, number - 3, -1), strict=True):
        grown.turns[leaf].info, grown.turns[leaf].observation_ids = {"won": won > 0}, []
    return grown


def train(folder: Path, model: Any, loss: Loss, awpo: bool = False, trees: bool = False) -> list[dict[str, Any]]:
    """Two real iterations, of trees that branch and with a predictor if asked; the rows that the recorder wrote."""
    use_tree_attention(model)
    imitates = isinstance(loss, Nll)
    recorder = Recorder(folder, lambda state: [{"role": "user", "content": state.id}], most=Outcome().most)
    predictor = None
    if trees:
        critic = Critic(copy.deepcopy(backbone(model)))
        torch.nn.init.normal_(critic.head.weight)
        predictor = OnlinePredictor(critic)
    collector = Collector(
        select=lambda iteration: [tree(iteration + i).state for i in range(3 if trees else 1)],
        play=lambda states, key: [(branched if trees else tree)(int(state.id[1:])) for state in states],
        reward=(lambda tree: {}) if imitates else judged if awpo else Outcome(),
        advantage=Imitation() if imitates else Awpo() if awpo else MTGRPO() if trees else GroupAdvantage(),
    )

    states = [tree(number).state for number in range(4)]
    rollout = RolloutSettings(states=1, sampling=Sampling())
    reprofile = Reprofile(Refresh(0.5, window=1), states, states, lambda number: states, rollout, 0, print)
    judge = {**OfflineJudge().report(), "latency_p50": 0.1} if awpo else {}

    module = PolicyModule(model, loss, UpdateSettings(1e-4))

    def collect(iteration: int) -> list[Update]:
        experience = collector.collect(iteration)
        module.staleness = iteration  # as if policy 0 had sampled
        policy = {**remembered(module), "version": 0}
        module.stale_mismatch = stale_mismatch(module, policy, experience.trees, module.settings)
        updates = collector.updates(experience)
        learned = dict(predictor.learn(iteration, experience)) if predictor else {}
        learned |= sampling_metrics(Lanes([2]).report(), 0, 0.0, 0.0)
        learned |= reprofile.collected(experience)
        cost = {"turns": 4, "tokens": 12, "faults": 0, "retries": 0}
        recorder.collected(iteration, Gathered(experience, cost, 0.5, judge), updates, learned)
        return updates

    callbacks = [recorder, MismatchAlarm(), *([GradientCosine(every=1)] if awpo else [])]
    trainer = quiet.trainer(folder, 2, callbacks)
    trainer.fit(module, Rollouts(collect))
    return list(each_line(folder / "metrics.jsonl"))


def measured(score: float) -> Evaluation:
    """Both splits, both modes, two attempts; two items of two suites."""
    episodes = [
        Episode(split, f"{split}/{task}", mode, attempt, bool((task + attempt + score) % 2), 3, [], "easy")
        for split in ("seen", "unseen")
        for task in range(3)
        for mode, attempts in (("greedy", 1), ("sampled", 2))
        for attempt in range(attempts)
    ]
    answers = [Answer(suite, f"{suite}/{i}", score / 2, "p", "a", "r") for suite in ("code", "algebra") for i in (0, 1)]
    good = ((score, score),)
    replies = [Reply(f"d{i}#t0", f"d{i}", 0, ("book",) * i, 3.0, 4, good, good) for i in (0, 1)]
    return Evaluation(episodes, answers, replies)


def test_every_metric_is_explained_and_every_explained_metric_is_logged(
    make_model: Callable[..., Any], tmp_path: Path
) -> None:
    rows = train(tmp_path / "clipped", make_model("qwen3", lora=True), Clipped(kl_beta=0.01))
    rows += train(tmp_path / "nll", make_model("qwen3", lora=False), Nll())
    rows += train(tmp_path / "awpo", make_model("qwen3", lora=True), Clipped(), awpo=True)
    rows += train(tmp_path / "trees", make_model("qwen3", lora=True), Clipped(correction=Correction()), trees=True)
    Recorder(tmp_path / "eval", None).write(2, "eval", summary(measured(0)))
    rows += each_line(tmp_path / "eval" / "metrics.jsonl")
    assert [row["phase"] for row in rows] == ["train"] * 8 + ["eval"]
    assert compare(documented("metrics.jsonl"), {key for row in rows for key in row}) == (set(), set())


def test_the_comparison_can_fail() -> None:
    patterns = ["eval/<split>/success", "in_domain.sampled.*", "train/loss"]
    keys = ["eval/seen/success", "eval/seen/turns", "in_domain.sampled.base", "train/lossy"]
    assert compare(patterns, keys) == ({"eval/seen/turns", "train/lossy"}, {"train/loss"})


def test_every_key_of_a_result_is_explained(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, None)
    recorder.counters |= {"judge/failed/timeout": 1, "gate/unstopped": 1}
    recorder.counters |= {"verifier/toy/judged": 4, "verifier/toy/accepted": 2, "verifier/toy/missed": 1}
    health = Health(recorder, tmp_path, print)
    health.warnings.append("no rollout can be trained on")
    sampled = [{"state_id": "a#t0", "rewards": [1.0, 0.0], "strict": [0.0, 0.0]}]
    Profiles(tmp_path / "profile", []).add(sampled, {"turns": 2, "tokens": 7, "cpu_seconds": 0.1})
    entries = run_costs(recorder.counters, dict.fromkeys(PHASES, 1.0), tmp_path) | {"wall_seconds": 1.0}
    entries |= recorder.result({"toy/judged": 8, "toy/accepted": 4, "toy/exact": 3, "toy/missed": 1})
    entries |= health.closing(Divergence())
    entries |= {"pivots": summarise([Profile((1.0, 0.0), (1.0, 0.0))]).result(kept=1)}
    cfg, keys = compose_config(["method=pivotrl"], ROOT / "conf"), set[str]()
    for own in (None, "dialogues.jsonl"):
        candidates = Candidates([], lambda task: ([], []), own=own, plays=own is None)
        write_result(result_of(cfg, "household", candidates, measured(0), measured(1), entries), tmp_path)
        keys |= set(leaves(json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))))
    assert compare(documented("result.json"), keys) == (set(), set())


def test_every_key_of_a_recorded_rollout_is_explained() -> None:
    experience = Collector(
        select=lambda iteration: [tree(iteration).state],
        play=lambda states, key: [tree(0) for _ in states],
        reward=Outcome(),
        advantage=GroupAdvantage(),
    ).collect(0)
    recorded = tree_record(0, lambda state: [{"role": "user", "content": "go"}], experience, 0)
    assert compare(documented("rollouts/train.jsonl"), leaves(recorded)) == (set(), set())
    explained = next(line for line in TEXT.splitlines() if line.startswith("| `turns` |"))
    assert {key for turn in recorded["turns"] for key in turn if f"`{key}`" not in explained} == set()


def test_every_key_of_a_recorded_evaluation_is_explained() -> None:
    written = {field.name for kind in (Episode, Answer, Reply) for field in dataclasses.fields(kind)}
    assert documented("evaluation") == written
