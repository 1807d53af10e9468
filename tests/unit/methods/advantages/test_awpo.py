"""AWPO's advantage against numbers worked by hand (arXiv:2512.19126, Eqs. 18-24)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnwise.methods.awpo import PEAK, Awpo
from turnwise.methods.credit import Credited, GroupAdvantage
from turnwise.types import Rewards, RolloutTree, State, Task, Turn

EXACT: dict[str, Any] = {"eps": 0.0}
NAN = math.nan


def tree_of(leaves: int, name: str = "a") -> RolloutTree:
    return RolloutTree(State(name, Task("toy", "0", "train"), (1, 2)), [Turn(-1, [1], [-1.0]) for _ in range(leaves)])


def over(rule: Awpo, *rewards: Rewards, memory: dict[str, float] | None = None) -> Credited:
    trees = [tree_of(len(rewarded["outcome"]), f"state{i}") for i, rewarded in enumerate(rewards)]
    return rule.over(trees, rewards, memory or {})


# s_out = 1/2; s_mix = 3/4 (mixed rewards 0, 0, 1.5, 1.5); rho = 0.75 / 1.25 = 0.6
AGREES = {"outcome": [0, 0, 1, 1], "reasoning": [0, 0, 0.5, 0.5]}
# s_out = 1/2; mixed 0, 1, 1, 2 have s_mix = sqrt(1/2); rho = 0.7071 / 1.2071 = 0.5858
NOISY = {"outcome": [0, 0, 1, 1], "reasoning": [0, 1, 0, 1]}
TOP = {"outcome": [2, 2, 2, 1.9], "reasoning": [1, 0, 1, 0]}
LEAF = st.tuples(st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0]), st.sampled_from([0.0, 0.25, 1.0]))


@given(st.lists(st.lists(LEAF, min_size=2, max_size=6), min_size=1, max_size=4))
def test_behind_a_solved_group_the_saturation_indicator_changes_nothing(
    groups: list[list[tuple[float, float]]],
) -> None:
    """At the greatest possible outcome a group at the peak does not vary, so its rho of 1 shuts the gate by itself (Eq. 21)."""
    rewards: list[Rewards] = [
        {"outcome": [outcome for outcome, _ in group], "reasoning": [judged for _, judged in group]} for group in groups
    ]
    with_it, without = (over(Awpo(saturation=saturation), *rewards, memory={PEAK: 2.0}) for saturation in (True, False))
    assert [credit.advantage for credit in with_it.credits] == [credit.advantage for credit in without.credits]
    assert with_it.metrics["mix_weight"] == without.metrics["mix_weight"]


def test_the_gate_is_shut_where_rho_equals_its_threshold() -> None:
    """Eq. 21 wants rho < epsilon_mix. Mixed rewards 0 and 3 have s_mix = 3/2: rho = (3/2) / (1/2 + 3/2) = 3/4 exactly."""
    equal = {"outcome": [0, 1], "reasoning": [0, 2]}
    at, above = (over(Awpo(epsilon_mix=e, **EXACT), equal, memory={PEAK: 1.0}).metrics for e in (0.75, 0.7500001))
    assert (at["mix_weight"], at["gate_open"], at["gate_shut"]) == (0, 0, 1)
    assert (above["mix_weight"], above["gate_open"], above["gate_shut"]) == (0.75, 1, 0)
    inverse = over(Awpo(gate="inverse", **EXACT), equal, memory={PEAK: 1.0})
    assert inverse.metrics["mix_weight"] == 0.75


def test_a_group_below_the_peak_by_hand() -> None:
    found = over(Awpo(**EXACT), NOISY, memory={PEAK: 2.0})
    rho = math.sqrt(0.5) / (0.5 + math.sqrt(0.5))
    mixed = [-math.sqrt(2), 0, 0, math.sqrt(2)]
    by_hand = [1.5 * ((1 - rho) * a + rho * b) for a, b in zip([-1, -1, 1, 1], mixed, strict=True)]
    assert found.credits[0].advantage == pytest.approx(by_hand)
    assert found.credits[0].weight == [1] * 4
    radius = 0.18 + (1 - rho) * 0.02
    assert found.credits[0].clip_low == pytest.approx([radius] * 4)
    assert found.credits[0].clip_high == pytest.approx([radius] * 4)
    assert found.credits[0].views is not None
    assert found.credits[0].views["outcome"] == pytest.approx([-1, -1, 1, 1])
    assert found.credits[0].views["mixed"] == pytest.approx(mixed)
    assert found.memory == {PEAK: 2.0}
    assert found.metrics == pytest.approx(
        {
            "gate_open": 1,
            "mix_weight": rho,
            "rho": rho,
            "gate_shut": 0,
            "judge_agreement": 0,
            "difficulty": 1.5,
            "outcome_peak": 2,
            "unjudged_groups": 0,
            "clip_radius": radius,
        }
    )


def test_the_peak_group_has_weight_zero_by_the_strict_inequality() -> None:
    found = over(Awpo(**EXACT), NOISY)  # the only group of the run is its own peak
    assert found.credits[0].advantage == pytest.approx([-1.5, -1.5, 1.5, 1.5])
    assert found.metrics["mix_weight"] == 0 and found.metrics["clip_radius"] == pytest.approx(0.2)
    assert found.memory == {PEAK: 0.5}
    assert over(Awpo(**EXACT, saturation=False), NOISY).metrics["mix_weight"] > 0


def test_the_peak_knows_this_batch_before_it_is_used_and_never_falls() -> None:
    rule = Awpo(**EXACT)
    first = over(rule, NOISY, TOP)
    assert first.memory == {PEAK: pytest.approx(1.975)}
    assert first.credits[0].advantage != pytest.approx([-1.5, -1.5, 1.5, 1.5])  # below the peak of its own batch
    assert first.credits[1].advantage[3] == pytest.approx(0.5 * -math.sqrt(3))  # at it: 0.5 A_out
    second = over(rule, NOISY, memory=dict(first.memory))
    assert second.memory == first.memory
    assert second.credits[0].advantage == pytest.approx(first.credits[0].advantage)


def test_a_mean_that_only_rounds_below_the_peak_is_at_it() -> None:
    found = over(Awpo(**EXACT), NOISY, memory={PEAK: 0.5 + 1e-12})
    assert found.metrics["mix_weight"] == 0


def test_the_gate_shuts_where_the_judge_spreads_a_group_that_the_outcome_does_not() -> None:
    # s_out = 0.05, s_mix = 0.5 or so: rho is above 0.75
    group = {"outcome": [1, 1.1, 1, 1.1], "reasoning": [1, 0, 0, 1]}
    s_mix = math.sqrt(((2 - 1.55) ** 2 + (1.1 - 1.55) ** 2 + (1 - 1.55) ** 2 + (2.1 - 1.55) ** 2) / 4)
    rho = s_mix / (0.05 + s_mix)
    assert rho > 0.75
    shut = over(Awpo(**EXACT, difficulty=False), group, memory={PEAK: 2.0})
    assert shut.metrics["mix_weight"] == 0 and shut.metrics["rho"] == pytest.approx(rho)
    assert shut.credits[0].advantage == pytest.approx([-1, 1, -1, 1])
    opened = over(Awpo(**EXACT, difficulty=False, gate="inverse"), group, memory={PEAK: 2.0})
    assert opened.metrics["mix_weight"] == pytest.approx(rho)
    by_hand = (1 - rho) * -1 + rho * (2 - 1.55) / s_mix
    assert opened.credits[0].advantage[0] == pytest.approx(by_hand)


def test_the_shut_gate_is_counted_among_the_groups_that_it_can_decide() -> None:
    shut = {"outcome": [1, 1.1, 1, 1.1], "reasoning": [1, 0, 0, 1]}
    alike = {"outcome": [1, 1], "reasoning": [0, 1]}  # rho is 1, and there is nothing to protect
    failed = {"outcome": [0, 1], "reasoning": [NAN, 1]}
    found = over(Awpo(**EXACT), shut, NOISY, AGREES, alike, failed, memory={PEAK: 2.0}).metrics
    assert found["gate_shut"] == pytest.approx(1 / 3)
    assert found["judge_agreement"] == pytest.approx(1 / 3)  # 0, 0 and 1
    assert not {"gate_shut", "judge_agreement"} & over(Awpo(**EXACT), alike, failed).metrics.keys()


def test_the_two_readings_of_the_gate_are_never_both_open_nor_both_shut() -> None:
    for group in (AGREES, NOISY, TOP, {"outcome": [1, 1], "reasoning": [0, 1]}):
        weights = [
            over(Awpo(**EXACT, gate=gate, zero_variance="keep"), group, memory={PEAK: 9.0}).metrics["mix_weight"]
            for gate in ("ratio", "inverse")
        ]
        assert sorted(weights)[0] == 0 < sorted(weights)[1]


@pytest.mark.parametrize(
    ("low", "high", "scale"), [(0.4, 1.6, 1.5), (0.5, 1.6, 0.5), (0.1, 0.5, 0.5), (0.49, 0.51, 1.5)]
)
def test_difficulty_is_strict_at_both_ends(low: float, high: float, scale: float) -> None:
    found = over(Awpo(**EXACT, tau_low=low, tau_high=high), NOISY)
    assert found.credits[0].advantage == pytest.approx([-scale, -scale, scale, scale])
    assert found.metrics["difficulty"] == scale


def test_a_group_without_outcome_variance_teaches_nothing_through_the_gate_of_the_paper() -> None:
    group = {"outcome": [1, 1, 1, 1], "reasoning": [0, 1, 0, 1]}  # rho = 1
    for policy, weight in (("keep", 1), ("drop", 0), ("refill", 0)):
        rule = Awpo(**EXACT, zero_variance=policy)
        found = over(rule, group, memory={PEAK: 2.0})
        assert found.credits[0].advantage == [0] * 4
        assert found.credits[0].weight == [weight] * 4
    found = over(Awpo(**EXACT, gate="inverse", zero_variance="drop"), group, memory={PEAK: 2.0})
    assert found.credits[0].advantage == pytest.approx([-1.5, 1.5, -1.5, 1.5])


def test_a_judge_that_fails_for_part_of_a_group_leaves_the_outcome_and_is_counted() -> None:
    failed = {"outcome": [0, 0, 1, 1], "reasoning": [0, NAN, 0, 1]}
    found = over(Awpo(**EXACT), failed, NOISY, {"outcome": [0, 1]}, memory={PEAK: 2.0})
    assert found.credits[0].advantage == pytest.approx([-1.5, -1.5, 1.5, 1.5])
    assert found.credits[2].advantage == pytest.approx([-1.5, 1.5])
    assert found.metrics["unjudged_groups"] == 2
    rho = math.sqrt(0.5) / (0.5 + math.sqrt(0.5))
    assert found.metrics["rho"] == pytest.approx(rho)  # of the one group that was judged
    assert found.metrics["mix_weight"] == pytest.approx(rho / 3)
    assert found.credits[2].clip_low == pytest.approx([0.18 + (1 - rho / 3) * 0.02] * 2)


@pytest.mark.parametrize(
    ("options", "mixing"),
    [
        ({"zero_variance": "drop"}, 0.6 / 3),  # Algorithm 1: w of all G groups
        ({"zero_variance": "keep"}, 0.6 / 3),
        ({"zero_variance": "drop", "mean_over": "trained"}, 0.6 / 2),
        ({"zero_variance": "keep", "mean_over": "trained"}, 0.6 / 3),
    ],
)
def test_the_clip_radius_is_that_of_the_mean_weight_over_all_groups(options: dict[str, Any], mixing: float) -> None:
    same = {"outcome": [1, 1], "reasoning": [1, 1]}  # teaches nothing, w = 0
    unjudged = {"outcome": [0, 1]}  # is trained on, w = 0
    found = over(Awpo(**EXACT, **options), AGREES, same, unjudged, memory={PEAK: 2.0})
    assert found.metrics["mix_weight"] == pytest.approx(mixing)
    assert found.metrics["clip_radius"] == pytest.approx(0.18 + (1 - mixing) * 0.02)
    assert found.credits[0].clip_high == pytest.approx([found.metrics["clip_radius"]] * 4)
    assert found.metrics["gate_open"] == pytest.approx(1 / 3)  # of all groups, whatever is trained on


def test_leaves_of_a_failed_world_are_in_no_statistic() -> None:
    tree = tree_of(5)
    tree.invalid = {1}
    rewards = {"outcome": [0, NAN, 0, 1, 1], "reasoning": [0, NAN, 1, 0, 1]}
    found = Awpo(**EXACT).over([tree], [rewards], {PEAK: 2.0}).credits[0]
    whole = over(Awpo(**EXACT), NOISY, memory={PEAK: 2.0}).credits[0]
    assert found.advantage == pytest.approx([whole.advantage[0], 0, *whole.advantage[1:]])
    assert found.weight == [1, 0, 1, 1, 1]


def test_trees_that_are_no_groups() -> None:
    stopped, alone = tree_of(2), tree_of(2)
    stopped.stopped, alone.invalid = True, {0}
    found = Awpo().over([stopped, alone], [NOISY, {"outcome": [NAN, 2.0]}], {})
    assert [credit.weight for credit in found.credits] == [[0, 0], [0, 1]]
    assert [credit.advantage for credit in found.credits] == [[0, 0], [0, 0]]
    assert found.memory == {} and found.metrics == {}  # nothing was compared, so nothing is at a peak
    later = Awpo().over([alone], [{"outcome": [NAN, 1.0]}], {PEAK: 2.0})
    assert "gate_open" not in later.metrics and "mix_weight" not in later.metrics


def test_the_plain_sum_is_the_group_advantage_of_both_rewards() -> None:
    mixed = Awpo(gate="open", saturation=False, difficulty=False, dynamic_clip=False)
    for group in (NOISY, AGREES, TOP):
        total = [a + b for a, b in zip(group["outcome"], group["reasoning"], strict=True)]
        plain = GroupAdvantage()(tree_of(4), {"total": total})
        found = over(mixed, group)
        assert found.credits[0].advantage == pytest.approx(plain.advantage)
        assert found.credits[0].clip_low is None and found.credits[0].clip_high is None
        assert "clip_radius" not in found.metrics and "difficulty" not in found.metrics


@given(
    st.lists(
        st.lists(st.tuples(st.floats(0, 2), st.one_of(st.floats(0, 1), st.just(NAN))), min_size=2, max_size=5),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["ratio", "inverse", "open"]),
)
@settings(max_examples=60, deadline=None)
def test_whatever_the_rewards(groups: list[list[tuple[float, float]]], gate: Any) -> None:
    rewards = [{"outcome": [a for a, _ in group], "reasoning": [b for _, b in group]} for group in groups]
    rule = Awpo(gate=gate)
    found = over(rule, *rewards)
    assert 0.18 <= found.metrics["clip_radius"] <= 0.2
    for credit, group in zip(found.credits, groups, strict=True):
        assert all(map(math.isfinite, credit.advantage))
        assert sum(credit.advantage) == pytest.approx(0, abs=1e-6)
        # (85) with |A| <= sqrt(K - 1): a bound of every normalised advantage of K samples
        assert max(map(abs, credit.advantage)) <= 1.5 * math.sqrt(len(group) - 1) + 1e-6
    again = over(rule, *rewards, memory=dict(found.memory))
    assert again.memory == found.memory
    assert [c.advantage for c in again.credits] == [c.advantage for c in found.credits]


def test_the_peak_counts_this_batch_before_any_group_is_weighed() -> None:
    """Means 1/2 and 3/2 after a peak of 1/4: the first is above the old peak and below the new one."""
    better = {name: [value + 1 for value in values] for name, values in AGREES.items()}
    found = over(Awpo(difficulty=False, **EXACT), AGREES, better, memory={PEAK: 0.25})
    assert found.memory == {PEAK: 1.5}
    assert found.metrics["gate_open"] == 1 / 2  # rho is 0.6 in both, and the second group is the peak
    assert found.metrics["mix_weight"] == pytest.approx(0.6 / 2)
