from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.data.match_calls import same_value
from turnwise.errors import InputError
from turnwise.methods.awpo import Graded, execution_score
from turnwise.methods.pivotrl import Exact, Functional
from turnwise.methods.reward import Outcome, ToolCalls, rewards_of
from turnwise.types import RolloutTree, State, Task, ToolCall, Turn

# -- rewards -----------------------------------------------------------------------------------------------------------


def tree_of(*turns: Turn) -> RolloutTree:
    return RolloutTree(State(id="trajectory:3", task=Task("toy", "train/0", "train"), ids=(1, 2)), list(turns))


def turn(parent: int = -1, reward: float = 0.0, **info) -> Turn:
    return Turn(parent=parent, action_ids=[1], logprobs=[-1.0], reward=reward, info=info)


def test_outcome_reads_the_leaf() -> None:
    tree = tree_of(turn(won=False), turn(won=False), turn(0, won=True), turn(1, won=False))
    assert Outcome()(tree) == {"outcome": [1.0, 0.0], "total": [1.0, 0.0]}


class Mine:
    def __init__(self, returned: Any) -> None:
        self.returned = returned

    def __call__(self, tree: RolloutTree) -> Any:
        return self.returned


def test_a_reward_of_a_wrong_form_is_refused() -> None:
    tree = tree_of(turn(), turn(), turn(0))
    for wrong in (
        None,
        [0.0, 0.0],
        {"won": [1.0, 0.0]},
        {"total": [1.0]},
        {"total": [1.0, 0.0], "won": [1.0]},
        {"total": 1.0},
    ):
        with pytest.raises(InputError, match=r"Mine.*2 leaves"):
            rewards_of(Mine(wrong), tree)
    right = {"total": [1.0, math.nan], "won": (True, False)}
    assert rewards_of(Mine(right), tree) is right


def test_return_sums_the_path_and_shares_prefixes() -> None:
    tree = tree_of(turn(reward=0.5), turn(0, reward=1.0), turn(0, reward=-0.25))
    assert Outcome(of="return")(tree) == {"outcome": [1.5, 0.25], "total": [1.5, 0.25]}


def test_local_rewards_read_their_own_verdict() -> None:
    tree = tree_of(
        turn(strict=True, functional=True), turn(strict=False, functional=True), turn(strict=False, functional=0.5)
    )
    assert Exact()(tree) == {"strict": [1.0, 0.0, 0.0], "total": [1.0, 0.0, 0.0]}
    assert Functional()(tree) == {"functional": [1.0, 1.0, 0.5], "total": [1.0, 1.0, 0.5]}


@pytest.mark.parametrize("reward", [Outcome(), Outcome(of="return"), Exact(), Functional()])
def test_a_failed_world_pays_nothing_not_zero(reward) -> None:
    tree = tree_of(turn(won=True, strict=True, functional=True, reward=1.0), turn())
    tree.invalid = {1}
    total = reward(tree)["total"]
    assert total[0] == 1
    assert math.isnan(total[1])


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (Outcome(), r"state 'trajectory:3': the info of turn 1 has no key 'won'.*reward.of=return"),
        (Exact(), r"the info of turn 1 has no key 'strict'.*reward=exact needs states with a demonstrated action"),
        (Functional(), r"the info of turn 1 has no key 'functional'.*states=expert_turns or states=pivots"),
    ],
)
def test_a_missing_verdict_is_named(reward, message) -> None:
    with pytest.raises(ValueError, match=message):
        reward(tree_of(turn(won=True, strict=True, functional=True), turn()))


# -- toolcalls ---------------------------------------------------------------------------------------------------------

BOTH = "[f(a=1), g()]"


def replies(*texts: str, expert: str | None = BOTH) -> RolloutTree:
    state = State(id="d0#t1", task=Task("", "d0", "train"), ids=(1,), expert=expert)
    return RolloutTree(state, [Turn(-1, [1], [-1.0], text) for text in texts])


def test_functional_pays_what_strict_misses() -> None:
    tree = replies(BOTH, "[g(), f(a=1.0)]", "f(a=1)", "[f(a=1", "prose")
    assert ToolCalls("bfcl_python")(tree) == {
        "format": [1.0, 1.0, 1.0, 0.0, 1.0],
        "functional": [1.0, 1.0, 0.0, 0.0, 0.0],
        "strict": [1.0, 0.0, 0.0, 0.0, 0.0],
        "total": [1.0, 1.0, 0.0, 0.0, 0.0],
    }
    assert ToolCalls("bfcl_python", exact=True)(tree)["total"] == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_a_cut_off_reply_earns_nothing_and_a_failed_world_no_number() -> None:
    tree = replies(BOTH, BOTH)
    tree.turns[0].truncated = True
    tree.invalid = {1}
    total = ToolCalls("bfcl_python")(tree)["total"]
    assert total[0] == 0 and math.isnan(total[1])


# -- graded ------------------------------------------------------------------------------------------------------------


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments)


WEATHER = call("weather", city="Paris", unit="C")


@pytest.mark.parametrize(
    ("expected", "made", "score"),
    [
        ([], [], 1),  # no tool expected and none called
        ([], [WEATHER], 0),
        ([WEATHER], [], 0),
        ([WEATHER], [WEATHER], 1),
        # one of two values wrong: (1 + 1 + 1) / (1 + 1 + 2)
        ([WEATHER], [call("weather", city="Paris", unit="F")], 3 / 4),
        # a missing parameter: (1 + 1/2 + 1) / 4
        ([WEATHER], [call("weather", city="Paris")], 2.5 / 4),
        # a surplus parameter: (1 + 2/3 + 2) / 4
        ([WEATHER], [call("weather", city="Paris", unit="C", days=3)], (1 + 2 / 3 + 2) / 4),
        # another tool: nothing of its arguments counts
        ([WEATHER], [call("forecast", city="Paris", unit="C")], 0),
        # a surplus tool: (1/2 + 1 + 2) / 4
        ([WEATHER], [WEATHER, call("time")], 3.5 / 4),
        # a surplus call of an expected tool costs nothing, as in the paper
        ([WEATHER], [WEATHER, WEATHER], 1),
        # one of two expected tools: (1/2 + 1 + 2) / (1 + 2 + 2)
        ([WEATHER, call("time")], [WEATHER], 3.5 / 5),
        ([call("time")], [call("time")], 1),  # no parameters on either side are alike
        ([call("time")], [call("time", zone="CET")], 1 / 2),  # (1 + 0 + 0) / 2
        # a repeated tool, made once: (1 + 1 + 1) / (1 + 2 + 2)
        ([call("add", x=1), call("add", x=2)], [call("add", x=2)], 3 / 5),
        # parallel calls in another order
        ([call("add", x=1), call("add", x=2)], [call("add", x=2), call("add", x=1)], 1),
        # greedy matching in order would give the first call away: (1 + 1/2 + 1 + 1 + 1) / (1 + 2 + 3)
        ([call("f", a=1, b=2), call("f", a=1)], [call("f", a=1), call("f", a=9)], (1 + 1.5 + 1) / 6),
    ],
)
def test_execution_by_hand(expected: list[ToolCall], made: list[ToolCall], score: float) -> None:
    assert execution_score(expected, made) == pytest.approx(score)


calls = st.lists(
    st.builds(ToolCall, st.sampled_from("fg"), st.dictionaries(st.sampled_from("abc"), st.integers(0, 1), max_size=3)),
    max_size=4,
)


@given(calls, calls)
@settings(max_examples=60, deadline=None)
def test_the_matching_is_the_best_of_all(expected: list[ToolCall], made: list[ToolCall]) -> None:
    if not expected:
        return
    best = 0.0
    slots = [*range(len(made)), *[None] * len(expected)]
    for choice in set(itertools.permutations(slots, len(expected))):
        total = 0.0
        for true, slot in zip(expected, choice, strict=True):
            if slot is None or made[slot].name != true.name:
                continue
            theirs, ours = set(made[slot].arguments), set(true.arguments)
            total += len(ours & theirs) / len(ours | theirs) if ours | theirs else 1
            total += sum(made[slot].arguments[key] == true.arguments[key] for key in ours & theirs)
        best = max(best, total)
    names, named = {c.name for c in expected}, {c.name for c in made}
    slots_of_values = sum(len(c.arguments) for c in expected)
    by_hand = (len(names & named) / len(names | named) + best) / (1 + len(expected) + slots_of_values)
    assert execution_score(expected, made) == pytest.approx(by_hand)
    assert 0 <= execution_score(expected, made) <= 1
    assert execution_score(expected, expected) == pytest.approx(1)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        (True, True, True),
        ("1", 1, False),
        ("Paris", "paris", False),
        (None, None, True),
        (None, False, False),
        ([1, {"k": 2}], [1.0, {"k": 2}], True),
        ([1, {"k": True}], [1, {"k": 1}], False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ([1, 2], [2, 1], False),
    ],
)
def test_values_are_equal_as_json(a: Any, b: Any, same: bool) -> None:
    assert same_value(a, b) is same
    assert same_value(b, a) is same


def hermes(*made: ToolCall) -> str:
    return "\n".join(f"<tool_call>{json.dumps({'name': c.name, 'arguments': c.arguments})}</tool_call>" for c in made)


def graded_replies(expert: str | None, *texts: str) -> RolloutTree:
    state = State("dialogue#t2", Task("", "dialogue", "train"), (1, 2), expert=expert)
    return RolloutTree(state, [Turn(-1, [1], [-1.0], text) for text in texts])


def test_a_group_by_hand() -> None:
    tree = graded_replies(
        hermes(WEATHER),
        f"I will look. {hermes(WEATHER)}",
        hermes(call("weather", city="Paris")),
        "It is sunny.",
        "<tool_call>{</tool_call>",
        hermes(WEATHER),
        "anything",
    )
    tree.turns[4].truncated = True
    tree.invalid = {5}
    rewards = Graded()(tree)
    assert rewards["format"][:5] == [1, 1, 1, 0, 0]
    assert rewards["exec"][:5] == pytest.approx([1, 2.5 / 4, 0, 0, 1])
    assert rewards["outcome"][:5] == pytest.approx([2, 1 + 2.5 / 4, 1, 0, 1])
    assert rewards["total"] is rewards["outcome"]
    assert all(math.isnan(values[5]) for values in rewards.values())
