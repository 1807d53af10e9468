"""Trees read from records give the credit that the trees themselves give."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.credit.played import paths_of, player_of

from turnwise.errors import InputError
from turnwise.methods.allocate import TreePO
from turnwise.methods.credit import GroupAdvantage
from turnwise.methods.trace import TreeRPO
from turnwise.methods.turn_credit import GiGPO
from turnwise_study.credit_audit import WON, in_parts
from turnwise_study.recorded_trees import beside, beside_audit, by_place, credits_of, read_trees, record_of
from turnwise_worlds.corridor import CorridorEnv


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("rule", [GroupAdvantage(), TreeRPO(), GiGPO()])
def test_a_recorded_tree_gives_the_credit_of_the_tree(rule: object, tmp_path: Path) -> None:
    player = player_of(CorridorEnv(horizon=6))
    states = [path.state for path in paths_of(player, 4)]
    trees = in_parts(player, states, TreePO(3, 1), 6, "k")
    rows = [record_of(tree, WON(tree), {2: 0.25}) for tree in trees]
    recorded = read_trees(written(tmp_path / "trees.jsonl", *rows))
    credits = credits_of(rule, recorded)
    assert credits == [rule(tree, WON(tree)) for tree in trees]
    assert [true for _, _, true in beside_audit(credits, recorded)] == [0.25] * 4


def test_rollouts_of_other_programs(tmp_path: Path) -> None:
    """Three rollouts of 1, 2 and 1 turns; the environment of the last one failed."""
    row = {
        "id": "mine",
        "rollouts": [
            {"reward": 1, "turns": [{"tokens": 3}]},
            {"reward": 0, "turns": [{"tokens": 2}, {"tokens": 4, "advantage": -1.5}]},
            {"reward": None, "turns": [{}]},
        ],
    }
    (one,) = read_trees(written(tmp_path / "rollouts.jsonl", row))
    assert [turn.parent for turn in one.tree.turns] == [-1, -1, 1, -1]
    (credit,) = credits_of(GroupAdvantage(eps=0), [one])
    assert credit.advantage == [1.0, -1.0, -1.0, 0.0] and credit.weight == [1, 1, 1, 0]
    assert beside([credit], [one]) == [(1, -1.0, -1.5)]


@pytest.mark.parametrize(
    "row",
    [
        {"turns": [{"parent": 0}], "rewards": {"total": [1]}},
        {"turns": [{"parent": -1}], "rewards": {"total": [1, 0]}},
        {"turns": [{"parent": -1, "tokens": -3}], "rewards": {"total": [1]}},
        {"rollouts": [{"reward": 1, "turns": []}]},
    ],
)
def test_lines_without_a_tree_are_refused(row: object, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_trees(written(tmp_path / "bad.jsonl", row))


def test_agreement_by_hand() -> None:
    found = by_place([(0, 1.0, 2.0), (3, -1.0, 3.0), (0, 0.0, 1.0), (2, 2.0, 4.0)])
    assert [(name, one["turns"]) for name, one in found.items()] == [
        ("all turns", 4),
        ("turn 1", 2),
        ("turns 3 to 4", 2),
    ]
    whole = found["all turns"]
    # ranks 3 1 2 4 and 2 3 1 4: 1 - 6 (1 + 4 + 1 + 0) / (4 * 15)
    assert [*whole.values()] == [4, pytest.approx(2 / 3), pytest.approx(0.4), 4.0]
    assert by_place([]) == {}
