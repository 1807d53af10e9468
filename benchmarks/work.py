"""Creates the work of the benchmarks: household tasks with their player, and trees of random tokens for updates.

The cost of an update does not depend on its tokens. Samples of a real policy often coincide, which would let the packer
merge more than the sizes suggest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from turnwise.data.chat_tokens import ChatTokens, Demonstrations
from turnwise.engines.engine import Engine, Sampling
from turnwise.methods.states import expert_turns, task_starts
from turnwise.rollouts.episodes import Openings
from turnwise.rollouts.player import Player
from turnwise.types import Credit, RolloutTree, State, Task, Trajectory, Turn
from turnwise_worlds.household.environment import HouseholdEnv

ORDINARY = range(10, 900)  # ids of ordinary tokens of the shipped tokenizer


@dataclass(frozen=True, slots=True)
class Work:
    """The rollouts of every contender: the same tasks, group size, horizon and sampling settings."""

    environment: HouseholdEnv
    chat: ChatTokens
    states: list[State]
    group: int
    sampling: Sampling
    max_length: int

    @classmethod
    def of(
        cls, tokenizer: Any, tasks: int, group: int, horizon: int, max_tokens: int, max_length: int, seed: int
    ) -> Work:
        environment, chat = HouseholdEnv(horizon=horizon), ChatTokens(tokenizer)
        opening = Openings(environment, chat)
        states = task_starts(environment.tasks("train", tasks, seed), lambda task: opening(task)[1])
        return cls(environment, chat, states, group, Sampling(max_tokens=max_tokens), max_length)

    def player(self, engine: Engine, max_turns: int | None = None) -> Player:
        return Player(
            engine, self.environment, self.chat, self.sampling, max_turns=max_turns, max_length=self.max_length
        )


def long_trajectories(environment: HouseholdEnv, count: int, turns: int, seed: int) -> list[Trajectory]:
    """Returns the clumsy expert's demonstrations, which are often long enough, cut after ``turns`` assistant turns."""
    found: list[Trajectory] = []
    size = count
    while len(found) < count:
        found = []
        for task in environment.tasks("train", size, seed):
            whole = environment.demonstrate(task, "clumsy", seed)
            acts = [i for i, message in enumerate(whole.messages) if message["role"] == "assistant"]
            if len(acts) >= turns:
                cut = whole.messages[: acts[turns - 1] + 1]
                found.append(Trajectory(whole.id, cut, task=task, source=whole.source))
        size *= 2
    return found[:count]


def states_by_turn(trajectories: Sequence[Trajectory], chat: ChatTokens) -> tuple[list[State], list[list[State]]]:
    """Returns every assistant turn as a state, once in the order of trajectories and once grouped by turn number."""
    demonstrations = Demonstrations(chat)
    for trajectory in trajectories:
        demonstrations.add(trajectory)
    states = [state for one in demonstrations for state in expert_turns(one.trajectory, one.spines, chat.decode)]
    rows: dict[int, list[State]] = {}
    for state in states:
        rows.setdefault(state.turn, []).append(state)
    return states, [rows[turn] for turn in sorted(rows)]


# -- trees of random tokens --------------------------------------------------------------------------------------------


def tokens(random: Random, count: int) -> list[int]:
    return [random.choice(ORDINARY) for _ in range(count)]


def turn(random: Random, parent: int, action: int, observation: int) -> Turn:
    return Turn(parent, tokens(random, action), [-6.8] * action, observation_ids=tokens(random, observation))


def state(random: Random, length: int, name: str) -> State:
    return State(id=name, task=Task("household", f"train/{name}", "train"), ids=tuple(tokens(random, length)))


def flat_tree(seed: int, length: int, actions: int, action: int) -> RolloutTree:
    """Returns a group at one state with ``actions`` single turns. It branches once: all first tokens differ."""
    random = Random(seed)
    tree = RolloutTree(state(random, length, "group"), [turn(random, -1, action, 0) for _ in range(actions)])
    for t, first in zip(tree.turns, random.sample(ORDINARY, actions), strict=True):
        t.action_ids[0] = first
    return tree


def branching_tree(
    seed: int, length: int, roots: int, branches: int, turns: int, action: int, observation: int
) -> RolloutTree:
    """Returns a TRACE tree: ``roots`` rollouts of ``turns`` turns, each continued ``branches`` times.

    The branching turns divide a rollout into equal parts. A continuation is played to the depth of its root rollout.
    """
    random = Random(seed)
    tree = RolloutTree(state(random, length, "tree"))

    def grow(parent: int, count: int) -> list[int]:
        grown = []
        for _ in range(count):
            tree.turns.append(turn(random, parent, action, observation))
            parent = len(tree.turns) - 1
            grown.append(parent)
        return grown

    for spine in [grow(-1, turns) for _ in range(roots)]:
        for branch in range(1, branches + 1):
            depth = max(1, turns * branch // (branches + 1))
            grow(spine[depth - 1], turns - depth)
    return tree


def credit(tree: RolloutTree, seed: int) -> Credit:
    """Returns random advantages; every turn is trained on."""
    random = Random(seed)
    return Credit([random.gauss(0, 1) for _ in tree.turns], [1.0] * len(tree.turns))


def by_turn(tree: RolloutTree, given: Credit) -> tuple[list[RolloutTree], list[Credit]]:
    """Returns every turn as a sample of its own after its whole history, as in training without shared prefixes."""
    singles: list[RolloutTree] = []
    for number, t in enumerate(tree.turns):
        before = [tree.turns[i] for i in tree.path(t.parent)] if t.parent >= 0 else []
        ids = (*tree.state.ids, *(token for b in before for token in (*b.action_ids, *b.observation_ids)))
        alone = Turn(-1, t.action_ids, t.logprobs)
        singles.append(RolloutTree(State(f"{tree.state.id}/{number}", tree.state.task, ids), [alone]))
    return singles, [Credit([a], [w]) for a, w in zip(given.advantage, given.weight, strict=True)]


def remember(tree: RolloutTree, logprobs_K: Tensor, seed: int) -> None:
    """Writes log-probs of a sampler into the turns: the policy's, changed by up to 0.4, so that some ratios are clipped.

    ``logprobs_K`` are the policy's log-probs of the turns' tokens, in the order of ``tree.turns``.
    """
    generator = torch.Generator().manual_seed(seed)
    moved = logprobs_K.float().cpu() + 0.8 * (torch.rand(len(logprobs_K), generator=generator) - 0.5)
    place = 0
    for t in tree.turns:
        t.logprobs = moved[place : place + len(t.action_ids)].tolist()
        place += len(t.action_ids)


def trl_inputs(tree: RolloutTree, given: Credit, device: torch.device) -> dict[str, Tensor]:
    """Returns a flat tree as the tensors that TRL's loss reads: one row per sample, all of the same length."""
    prompt = torch.tensor([tree.state.ids] * len(tree.turns))
    completion = torch.tensor([t.action_ids for t in tree.turns])
    inputs = {
        "prompt_ids": prompt,
        "prompt_mask": torch.ones_like(prompt),
        "completion_ids": completion,
        "completion_mask": torch.ones_like(completion),
        "advantages": torch.tensor(given.advantage),
        "old_per_token_logps": torch.tensor([t.logprobs for t in tree.turns]),
        "num_items_in_batch": torch.tensor(completion.numel()),
    }
    return {name: value.to(device) for name, value in inputs.items()}
