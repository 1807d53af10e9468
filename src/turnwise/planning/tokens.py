"""Estimates how many tokens a run samples and trains on.

To count rollouts, this module calls the run's allocator with artificial states and with artificial finished rollouts of
the expected length. Half of the artificial rollouts succeed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import pyarrow.parquet as pq
from omegaconf import DictConfig, OmegaConf

from turnwise.config.schema import build
from turnwise.evaluation.skills import SKILLS
from turnwise.planning.lengths import Lengths
from turnwise.rollouts.pack import row_limit
from turnwise.types import Rewards, RolloutTree, State, Task, Turn

ANSWER = 24  # assumed number of tokens of an answer to an out-of-domain test item (evaluation.suites.answer_skills)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The estimated token counts of one iteration. Every group of rollouts is assumed to be used in the update. A
    history is the token sequence of a rollout so far.

    Attributes:
        states: number of sampled states.
        rollouts: number of rollouts, including rollouts that branch off at a turn of another rollout.
        turns: number of sampled replies.
        sampled: tokens of the sampled replies.
        prefilled: number of tokens that the engine prefills: the tokens before the states, of which a shared prefix
            counts once, and the observations.
        before: mean number of tokens before the first action at a state.
        context: mean number of tokens to which a sampled token attends.
        histories: number of histories for which the engine holds keys and values at the same time.
        history: tokens of one history at its end.
        samples: number of replies sampled at the same time from one history.
        depth: mean number of turns of a rollout.
        trained: number of tokens on which the loss is computed.
        stored: number of tokens in all packed rows of the update. A row stores a shared prefix only once. If a tree
            needs several rows, each row repeats the prefix.
        row: number of tokens in one packed row.
    """

    states: int
    rollouts: int
    turns: float
    sampled: float
    prefilled: float
    before: float
    context: float
    histories: int
    history: float
    samples: float
    depth: float
    trained: float
    stored: float
    row: float


@dataclass(frozen=True, slots=True)
class Around:
    """The estimated token counts of all profiles and evaluations of a run. A profile samples actions at every
    demonstrated turn and records which actions are accepted (states=pivots).

    Attributes:
        profiled: tokens sampled for all profiles together. With ``states.refresh``, the largest possible number of
            profiles is assumed.
        profiled_prefill: tokens that the engine prefills for all profiles together.
        demonstrated: number of turns of a demonstrated trajectory.
        evaluated: tokens sampled in all evaluations together.
        evaluated_prefill: tokens that the engine prefills in all evaluations together.
        context: mean number of tokens to which a sampled token of an evaluated episode attends.
        history: number of tokens of an evaluated episode at its end.
    """

    profiled: float
    profiled_prefill: float
    demonstrated: float
    evaluated: float
    evaluated_prefill: float
    context: float
    history: float


def iteration(cfg: DictConfig, lengths: Lengths) -> Tokens:
    states = int(cfg.rollout.states)
    from_experts = not str(OmegaConf.select(cfg, "states._target_")).endswith("TaskStarts")
    spoken = lengths.spoken + lengths.observation
    # Imitation trains on whole demonstrated trajectories and has no allocator. A file of conf/scale may still set
    # allocator.group_size, so the section allocator may exist.
    if OmegaConf.select(cfg, "allocator._target_") is None:
        spine = lengths.opening + lengths.demonstrated * spoken - lengths.observation
        turns = lengths.demonstrated * states
        return Tokens(states, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, turns * lengths.spoken, states * spine, spine)
    before = lengths.opening + ((lengths.demonstrated - 1) / 2 * spoken if from_experts else 0)
    depth = min(float(cfg.rollout.turns or lengths.episode), lengths.episode)
    roots, continued = _allocated(cfg, states, depth)
    rollouts, turns = roots + len(continued), roots * depth + sum(continued)
    sampled = turns * lengths.reply
    grown = (depth - 1) / 2 * (lengths.reply + lengths.observation)
    answered = max(0.0, turns - rollouts) * lengths.observation  # no observation follows the last turn
    if depth == 1:
        spines = min(states, int(cfg.rollout.trajectories or ceil(states / lengths.demonstrated)))
        spines = spines if from_experts else states
        each = states / spines
        spine = before if each <= 1 else lengths.opening + lengths.demonstrated * each / (each + 1) * spoken
        histories, history, samples = spines, spine, rollouts / spines
        shared, own = spine, sampled / spines
    else:
        histories, history, samples = rollouts, before + depth * (lengths.reply + lengths.observation), 1.0
        spines, spine = states, before
        shared, own = before, (sampled + answered) / states
    stored, row = _packed(spines, shared, own, turns / spines, float(cfg["update"].row_tokens))
    return Tokens(
        states=states,
        rollouts=rollouts,
        turns=turns,
        sampled=sampled,
        prefilled=spines * spine + answered,
        before=before,
        context=before + grown + lengths.reply / 2,
        histories=histories,
        history=history,
        samples=samples,
        depth=depth,
        trained=sampled,
        stored=stored,
        row=row,
    )


def collections(cfg: DictConfig) -> float:
    """Returns the number of iterations for which a run samples rollouts: the number of training iterations, or
    ``rollout.frozen / rollout.states`` if the base policy samples all rollouts before training.
    """
    frozen = cfg.rollout.frozen
    return int(cfg.trainer.max_epochs) if frozen is None else int(frozen) / int(cfg.rollout.states)


def _packed(trees: int, shared: float, own: float, pieces: float, longest: float) -> tuple[float, float]:
    """Returns the number of tokens in all packed rows, and the number of tokens in one packed row.

    Args:
        trees: number of rollout trees.
        shared: tokens of the prefix that all rollouts of a tree share. Each row of the tree repeats this prefix.
        own: tokens of a tree without the prefix.
        pieces: number of turns of a tree.
        longest: the configured greatest number of tokens of a row (``update.row_tokens``).
    """
    rows = max(1, ceil(own / max(row_limit(shared, longest) - shared, own / max(pieces, 1))))
    return trees * (rows * shared + own), shared + own / rows


def _allocated(cfg: DictConfig, states: int, depth: float) -> tuple[int, list[float]]:
    """Returns the number of rollouts that the run's allocator starts at the states, and the number of turns of each
    further rollout that the allocator starts at a turn of a finished rollout.
    """
    allocator = build(cfg, "allocator", value=_even, reward=_alternating)
    shown = [State(f"planned/{i}", Task("", str(i), "train"), (0,)) for i in range(states)]
    counts = allocator(shown)
    whole = max(1, round(depth))
    continued: list[float] = []
    trees = []
    for state, count in zip(shown, counts, strict=True):
        tree = RolloutTree(state)
        for rollout in range(count):
            parent = -1
            for _ in range(whole):
                tree.turns.append(Turn(parent, [0], [0.0]))
                parent = len(tree.turns) - 1
            won = bool(rollout % 2)  # as in _alternating, for allocators that read what the environment reported
            leaf = tree.turns[-1]
            leaf.done, leaf.reward, leaf.info = True, float(won), {"won": won}
        trees.append(tree)
    for tree, branches in zip(trees, allocator.expand(trees), strict=True):
        for turn, count in branches.items():
            continued += [depth - len(tree.path(turn)) / whole * depth] * count
    return sum(counts), continued


def _even(trees: Sequence[RolloutTree]) -> list[list[float]]:
    return [[0.5] * (1 + len(tree.turns)) for tree in trees]


def _alternating(tree: RolloutTree) -> Rewards:
    return {"total": [float(i % 2) for i, _ in enumerate(tree.leaves())]}


def trajectories(cfg: DictConfig) -> int:
    """Returns the number of demonstrations in ``data.file``, or ``data.trajectories`` if this file does not exist."""
    path = Path(cfg.data.file) if cfg.data.file else None
    if path is None or not path.is_file():
        return int(cfg.data.trajectories)
    if path.suffix == ".parquet":
        return int(pq.ParquetFile(path).metadata.num_rows)
    with path.open("rb") as stream:
        return sum(1 for line in stream if line.strip())


def around(cfg: DictConfig, lengths: Lengths, trajectories: int) -> Around:
    """Returns the estimated token counts of all profiles and evaluations of a run with ``trajectories`` demonstrations.
    Evaluations take place before, during and after training.
    """
    k = int(OmegaConf.select(cfg, "states.k", default=0) or 0)
    again = OmegaConf.select(cfg, "states.refresh", default=None) is not None
    profiles = int(cfg.states.refresh_most) if again else 1
    spine = lengths.opening + lengths.demonstrated * (lengths.spoken + lengths.observation)
    epochs, every = int(cfg.trainer.max_epochs), int(cfg.eval.every)
    # an evaluation that is due after the last iteration is the same as the evaluation after training
    times = 2 + (max(epochs - 1, 0) // every if every else 0)
    episodes = int(cfg.eval.tasks) * (int(cfg.eval.attempts) + 1)
    # an item of a suite that is an environment counts as a single answer
    items = (len(SKILLS) + len(cfg.eval.suites or {})) * int(cfg.eval["items"])
    turn = lengths.reply + lengths.observation
    history = lengths.opening + lengths.episode * turn
    return Around(
        profiled=profiles * k * trajectories * lengths.demonstrated * lengths.reply,
        profiled_prefill=profiles * trajectories * spine if k else 0.0,
        demonstrated=lengths.demonstrated,
        evaluated=times * (episodes * lengths.episode * lengths.reply + items * ANSWER),
        evaluated_prefill=times * episodes * (lengths.opening + lengths.episode * lengths.observation),
        context=(lengths.opening + history) / 2,
        history=history,
    )
