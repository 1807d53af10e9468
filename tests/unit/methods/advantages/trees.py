"""Trees for the tests of credit rules, and what every rule of a tree's leaves owes."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from turnwise.types import RolloutTree, State, Task, Turn


def tree_of(*parents: int, paid: Sequence[float] = (), shown: Sequence[str] = ()) -> RolloutTree:
    """A tree of turns of one token; ``paid`` and ``shown`` are what the world paid and showed after each."""
    turns = [
        Turn(parent=parent, action_ids=[1], logprobs=[-1.0], observation=f"{i}") for i, parent in enumerate(parents)
    ]
    for turn, reward in zip(turns, paid, strict=False):
        turn.reward = reward
    for turn, text in zip(turns, shown, strict=False):
        turn.observation = text
    return RolloutTree(State(id="s", task=Task("toy", "train/0", "train"), ids=(1, 2)), turns)


def flat(*lengths: int, paid: Sequence[Sequence[float]] = (), shown: Sequence[Sequence[str]] = ()) -> RolloutTree:
    """Rollouts that share no turn, one after the other."""
    parents: list[int] = []
    for length in lengths:
        parents += [-1, *range(len(parents), len(parents) + length - 1)]
    return tree_of(*parents, paid=[p for path in paid for p in path], shown=[o for path in shown for o in path])


@st.composite
def trees(draw: st.DrawFn, size: int = 14) -> tuple[RolloutTree, list[float]]:
    """Any tree, its turns paid and shown something, with a total for each leaf."""
    count = draw(st.integers(1, size))
    parents = [draw(st.integers(-1, i - 1)) for i in range(count)]
    few = st.sampled_from([0.0, 0.25, 1.0])
    tree = tree_of(
        *parents,
        paid=draw(st.lists(few, min_size=count, max_size=count)),
        shown=draw(st.lists(st.sampled_from("ab"), min_size=count, max_size=count)),
    )
    leaves = len(tree.leaves())
    return tree, draw(st.lists(few, min_size=leaves, max_size=leaves))


def mirrored(tree: RolloutTree, total: Sequence[float]) -> tuple[RolloutTree, list[float], list[int]]:
    """The same tree with its siblings born in the opposite order, its totals, and the new number of each turn."""
    depth = [len(tree.path(i)) for i in range(len(tree.turns))]
    order = sorted(range(len(tree.turns)), key=lambda i: (depth[i], -i))
    number = {old: new for new, old in enumerate(order)} | {-1: -1}
    turns = [
        Turn(number[t.parent], t.action_ids, t.logprobs, observation=t.observation, reward=t.reward, info=t.info)
        for t in (tree.turns[old] for old in order)
    ]
    twin = RolloutTree(tree.state, turns)
    worth = {number[leaf]: value for leaf, value in zip(tree.leaves(), total, strict=True)}
    return twin, [worth[leaf] for leaf in twin.leaves()], [number[i] for i in range(len(tree.turns))]
