"""Creates the work of the update benchmarks: trees of random tokens with log-probs near the policy's and random credit.

The cost of an update does not depend on the tokens. Samples of a real policy often coincide, which would let the packer
merge more than the sizes suggest.
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from turnwise.types import Credit, RolloutTree, State, Task, Turn

VOCABULARY = 900  # ids below this number are ordinary tokens of the shipped tokenizer
SPECIAL = 10  # ids below this number are not ordinary


def tokens(random: Random, count: int) -> list[int]:
    return [random.randrange(SPECIAL, VOCABULARY) for _ in range(count)]


def turn(random: Random, parent: int, action: int, observation: int) -> Turn:
    return Turn(parent, tokens(random, action), [-6.8] * action, observation_ids=tokens(random, observation))


def state(random: Random, length: int, name: str) -> State:
    return State(id=name, task=Task("household", f"train/{name}", "train"), ids=tuple(tokens(random, length)))


def flat_tree(seed: int, length: int, actions: int, action: int) -> RolloutTree:
    """Returns a group at one state with ``actions`` single turns. It branches once: all first tokens differ.

    Raises:
        ValueError: there are more actions than ordinary tokens.
    """
    random = Random(seed)
    tree = RolloutTree(state(random, length, "group"), [turn(random, -1, action, 0) for _ in range(actions)])
    for t, first in zip(tree.turns, random.sample(range(SPECIAL, VOCABULARY), actions), strict=True):
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

    spines = [grow(-1, turns) for _ in range(roots)]
    for spine in spines:
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
    samples = len(tree.turns)
    prompt = torch.tensor([tree.state.ids] * samples)
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
