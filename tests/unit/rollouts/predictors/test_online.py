"""A critic that is asked, judged, taught and put aside."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from typing import Any

import pytest
import torch
from scipy.stats import spearmanr

from turnwise.models.attention import backbone
from turnwise.rollouts.collect import Experience
from turnwise.rollouts.predictor import (
    Critic,
    OnlinePredictor,
    Prediction,
    Target,
    branchable,
    bucket,
    predictor_captured,
    predictor_quality,
    predictor_targets,
    read_spines,
    success_of,
)
from turnwise.types import RolloutTree

# -- online ------------------------------------------------------------------------------------------------------------

CLOCKS = ("seconds", "cpu")
Build = Callable[..., Critic]
Grown = Callable[..., RolloutTree]


def experience(grown: Grown, count: int = 24, first: int = 0) -> Experience:
    """Trees that a state's first token decides: token 7 wins everywhere, token 8 nowhere; one turn was branched at."""
    collected = Experience()
    for i in range(first, first + count):
        rng = random.Random(i)
        won = i % 2
        state = (7 if won else 8, *(rng.randrange(9, 97) for _ in range(6)))
        collected.trees.append(grown(f"s{i}", -1, -1, 0, 1, 0, state=state))  # leaves 2, 3, 4
        collected.rewards.append({"total": [float(won)] * 3})
    return collected


def test_it_learns_what_decides(critic: Build, grown: Grown) -> None:
    online = OnlinePredictor(critic(head=0.0, learning_rate=3e-3), epochs=4, batch=8)
    for iteration in range(4):
        metrics = online.learn(iteration, experience(grown, first=100 * iteration))
    fresh = experience(grown, 8, first=1000)
    values = [value[0] for value in online.values(fresh.trees)]
    assert all(value > 0.8 for value in values[1::2]) and all(value < 0.2 for value in values[::2])
    assert metrics["predictor/spearman_root"] > 0.8 > 0.01 > metrics["predictor/spearman_root_p"]
    assert metrics["predictor/mse_depth/0"] < 0.1


def test_predictions_are_judged_as_they_were_before_learning(critic: Build, grown: Grown) -> None:
    online = OnlinePredictor(critic(learning_rate=1e-2), epochs=3)
    collected = experience(grown)
    said = online.values(collected.trees)
    metrics = online.learn(0, collected)
    roots = [value[0] for value in said]
    won = [float(i % 2) for i in range(24)]
    rho, p = spearmanr(roots, won)
    assert metrics["predictor/spearman_root"] == pytest.approx(rho)
    assert metrics["predictor/spearman_root_p"] == pytest.approx(p)
    assert metrics["predictor/mse_depth/0"] == pytest.approx(
        sum((v - w) ** 2 for v, w in zip(roots, won, strict=True)) / 24
    )
    assert metrics["predictor/mse_depth/1-2"] == pytest.approx(  # turn 0, which two leaves stand below; not turn 1
        sum((v[1] - w) ** 2 for v, w in zip(said, won, strict=True)) / 24
    )
    assert metrics["seconds/predictor_score"] > 0 and metrics["seconds/predictor_learn"] > 0
    assert online.values(collected.trees) != said  # it did learn
    silent = OnlinePredictor(
        critic(learning_rate=1e-2), epochs=3
    )  # nobody asked: it asks itself, with the same answers
    again = silent.learn(0, collected)
    assert {k: v for k, v in again.items() if not k.startswith(CLOCKS)} == pytest.approx(
        {k: v for k, v in metrics.items() if not k.startswith(CLOCKS)}
    )


def test_a_prediction_follows_its_turn_when_turns_are_renumbered(critic: Build, grown: Grown) -> None:
    def learned(ask: bool) -> dict[str, float]:
        online = OnlinePredictor(critic(learning_rate=1e-2))
        collected = experience(grown)
        for tree in collected.trees:
            tree.state = replace(tree.state, id="one state for all trees")
        if ask:
            online.values(collected.trees)
        for tree in collected.trees:  # the two rollouts that start at the root change places
            first, second = tree.turns[:2]
            tree.turns[:2] = second, first
            for turn in tree.turns[2:]:
                turn.parent = {0: 1, 1: 0}.get(turn.parent, turn.parent)
        return {name: value for name, value in online.learn(0, collected).items() if not name.startswith(CLOCKS)}

    assert learned(True) == pytest.approx(learned(False))


def test_prefixes_are_a_share_of_what_is_learned(critic: Build, grown: Grown, monkeypatch: pytest.MonkeyPatch) -> None:
    online = OnlinePredictor(critic(), epochs=1, prefix_share=0.2, batch=7)
    sizes: list[int] = []
    turns: list[int] = []
    step = OnlinePredictor._step

    def watched(self: OnlinePredictor, examples: Any) -> float:
        sizes.append(len(examples))
        turns.extend(turn for _, turn, _ in examples)
        return step(self, examples)

    monkeypatch.setattr(OnlinePredictor, "_step", watched)
    online.learn(0, experience(grown))
    assert sorted(turns) == [-1] * 24 + [0] * 6  # 6 of 30; turn 1 has one leaf below it and is no example
    assert sizes == [7, 7, 7, 7, 2]


def test_micro_batches_do_not_change_the_step(critic: Build, grown: Grown) -> None:
    gradients = []
    for bounds in ({}, {"batch_tokens": 40}):
        online = OnlinePredictor(critic(), epochs=1, batch=64, **bounds)
        online.learn(0, experience(grown))  # one step; its gradient stands until the next
        gradients.append(torch.cat([p.grad.flatten() for p in online.critic.parameters() if p.grad is not None]))
    assert gradients[0].norm() > 1e-3
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)


def test_put_aside_and_taken_up_it_goes_on_exactly(critic: Build, grown: Grown) -> None:
    def learned(online: OnlinePredictor, *iterations: int) -> list[dict[str, float]]:
        found = [online.learn(i, experience(grown, first=100 * i)) for i in iterations]
        return [{k: v for k, v in metrics.items() if not k.startswith(CLOCKS)} for metrics in found]

    whole = OnlinePredictor(critic(), seed=5)
    expected = learned(whole, 0, 1, 2)
    cut = OnlinePredictor(critic(), seed=5)
    learned(cut, 0, 1)
    file = BytesIO()
    torch.save(cut.state_dict(), file)
    file.seek(0)
    taken_up = OnlinePredictor(critic(), seed=5)
    taken_up.load_state_dict(torch.load(file, weights_only=True))
    assert learned(taken_up, 2) == expected[2:]
    for a, b in zip(whole.critic.parameters(), taken_up.critic.parameters(), strict=True):
        assert torch.equal(a, b)
    assert learned(OnlinePredictor(critic(), seed=6), 0) != expected[:1]  # the seed is of the order of examples


def test_quality_by_hand() -> None:
    def predictions(depth: int, *pairs: tuple[float, float]) -> list[Prediction]:
        return [Prediction(value, Target(mean, 4, depth)) for value, mean in pairs]

    found = predictor_quality(
        predictions(0, (0.1, 0.0), (0.5, 0.25), (0.9, 1.0)), predictions(4, (0.2, 1.0), (0.8, 0.0))
    )
    assert found["spearman_root"] == pytest.approx(1)
    assert "spearman_prefix" not in found  # two histories have no rank correlation worth the name
    assert found["mse_depth/0"] == pytest.approx((0.01 + 0.0625 + 0.01) / 3)
    assert found["mse_depth/3-5"] == pytest.approx((0.64 + 0.64) / 2)
    assert "spearman_root" not in predictor_quality(predictions(0, (0.5, 0), (0.5, 1), (0.5, 1)), [])
    assert [bucket(depth) for depth in (0, 1, 2, 3, 5, 6, 10, 11, 99)] == [
        "0", "1-2", "1-2", "3-5", "3-5", "6-10", "6-10", "11+", "11+",
    ]  # fmt: skip


# -- targets -----------------------------------------------------------------------------------------------------------


def test_eq_18_by_hand(grown: Grown) -> None:
    # rollouts 0-2-4 and 1-3; turn 0 was branched at (5-6) and turn 2 twice (7, 8). Leaves 3, 4, 6, 7, 8
    tree = grown("a", -1, -1, 0, 1, 2, 0, 5, 2, 2)
    found = predictor_targets(tree, [0.0, 1.0, 0.5, 1.0, 0.0])
    assert found == {
        -1: Target(2.5 / 5, 5, 0),
        0: Target(2.5 / 4, 4, 1),
        1: Target(0.0, 1, 1),
        2: Target(2 / 3, 3, 2),
        5: Target(0.5, 1, 2),
    }


def test_failed_worlds_and_stopped_trees_teach_nothing(grown: Grown) -> None:
    tree = grown("a", -1, -1, 0, 1, 2, 0, 5, 2, 2)
    tree.invalid = {3, 6, 8}
    found = predictor_targets(tree, [math.nan, 1.0, math.nan, 0.0, math.nan])
    assert found == {-1: Target(0.5, 2, 0), 0: Target(0.5, 2, 1), 2: Target(0.5, 2, 2)}
    tree.stopped = True
    assert predictor_targets(tree, [0.0] * 5) == {}
    tree.stopped, tree.invalid = False, {3, 4, 6, 7, 8}
    assert predictor_targets(tree, [math.nan] * 5) == {}


def test_rewards_that_no_probability_can_reach_are_named(grown: Grown) -> None:
    tree = grown("a", -1, -1)
    with pytest.raises(ValueError, match=r"state 'a': the total reward of leaf 1 is 2.0.*predictor.reward_max=1.0"):
        success_of(tree, {"total": [0.0, 2.0]})
    assert success_of(tree, {"total": [0.5, 2.0]}, reward_max=2.0) == [0.25, 1.0]
    with pytest.raises(ValueError, match=r"leaf 0 is -0\.5"):
        success_of(tree, {"total": [-0.5, 1.0]})
    tree.invalid = {1}
    assert math.isnan(success_of(tree, {"total": [1.0, math.nan]})[1])


# -- quality -----------------------------------------------------------------------------------------------------------


def test_the_first_half_by_hand() -> None:
    # 3 anchors, so 1.5 to serve: all of the first, and half of the second
    ranked = [(0.1, 0.0), (0.25, 0.24), (0.2, 0.16)]
    assert predictor_captured(ranked) == pytest.approx((0.24 + 0.16 / 2) / 0.4)
    assert predictor_captured(ranked, 1.0) == pytest.approx(1)
    assert predictor_captured([(0.1, 0.0)]) is None and predictor_captured([]) is None


# -- pack histories ----------------------------------------------------------------------------------------------------


def history(tree: RolloutTree, turn: int) -> list[int]:
    ids = list(tree.state.ids)
    for each in map(tree.turns.__getitem__, tree.path(turn)):
        ids = ([] if each.anew else ids + each.action_ids) + each.observation_ids
    return ids


@pytest.fixture
def forest(grown: Grown) -> list[RolloutTree]:
    """Two trees whose states share a beginning, one that branched, and a state that nothing grew from."""
    rng = random.Random(0)
    shared = tuple(rng.randrange(6, 97) for _ in range(7))
    return [
        grown("a", -1, -1, 0, 1, 2, 3, state=(*shared, 8, 9)),
        grown("b", -1, -1, 0, 1, 2, 0, 5, 2, state=(*shared, 10)),
        grown("c", -1),
        grown("d"),
    ]


@pytest.mark.parametrize("anew", [(), (1, 2)], ids=["one conversation", "begun anew"])
@pytest.mark.parametrize("batch_tokens", [8192, 90, 1])
def test_values_are_those_of_each_history_alone(
    make_model: Callable[..., Any],
    critic: Callable[..., Critic],
    kind: str,
    forest: list[RolloutTree],
    batch_tokens: int,
    anew: tuple[int, ...],
) -> None:
    for tree in forest[:2]:
        for turn in anew:
            tree.turns[turn].anew = True
    judge = critic(kind)
    plain = backbone(make_model(kind, False))  # the same weights under the library's own attention
    wanted = [branchable(tree) for tree in forest]
    assert wanted == [[-1, 0, 1, 2, 3], [-1, 0, 1, 2, 5], [-1], [-1]]
    found = {}
    for histories in read_spines(forest, wanted, batch_tokens):
        found |= dict(zip(histories.places, judge.values(histories).tolist(), strict=True))
    assert found.keys() == {(n, turn) for n, turns in enumerate(wanted) for turn in turns}
    for (n, turn), value in found.items():
        with torch.no_grad():
            hidden = plain(input_ids=torch.tensor([history(forest[n], turn)])).last_hidden_state[0, -1]
        assert value == pytest.approx(torch.sigmoid(judge.head(hidden)).item(), abs=1e-5)
    assert len({round(value, 4) for value in found.values()}) > 8


def test_each_token_is_read_once_and_only_as_far_as_it_is_asked_about(forest: list[RolloutTree]) -> None:
    (one,) = read_spines(forest, [branchable(tree) for tree in forest], 8192)
    assert sorted(one.places) == [(0, t) for t in (-1, 0, 1, 2, 3)] + [(1, t) for t in (-1, 0, 1, 2, 5)] + [
        (2, -1),
        (3, -1),
    ]
    # a turn is 3 + 4 tokens. a: four turns; b: four; their states of 9 and 8 tokens share 7; c and d share nothing
    assert one.ids_BS.shape == (1, 9 + 4 * 7 + 1 + 4 * 7 + 9 + 9)
    (one,) = read_spines(forest, [[-1], [2], [], []], 8192)
    assert sorted(one.places) == [(0, -1), (1, 2)]
    assert one.ids_BS.shape == (1, 9 + 1 + 2 * 7)
    with pytest.raises(ValueError, match=r"state 'd' has no turns \[3\]"):
        read_spines(forest, [[], [], [], [3]], 8192)
