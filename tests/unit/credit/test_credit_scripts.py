"""scripts/credit_audit.py and scripts/rescore.py, from the command line to the files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scripts.credit_audit import main as audit
from scripts.rescore import main as rescore
from tests.unit.credit.played import paths_of, player_of

from turnwise.errors import InputError
from turnwise.methods.allocate import TreePO
from turnwise.methods.credit import GroupAdvantage
from turnwise.methods.trace import TreeRPO
from turnwise.methods.turn_rewards import GiGPO
from turnwise_study.credit_audit import RULES, WON, in_parts
from turnwise_study.recorded_trees import (
    agreement_by_place,
    audited_credit_pairs,
    credits_of_recorded,
    read_trees,
    record_of_tree,
    recorded_credit_pairs,
)
from turnwise_worlds.corridor import CorridorEnv

SMALL = ["--tasks", "3", "--turns", "2", "--replicates", "2", "--se", "0.25", "--seeds", "0,1"]


def test_an_audit_of_the_corridor_and_the_score_of_its_trees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Mine\n<!-- table:a -->\nearlier text\n<!-- /table:a -->\n")
    told = ["env=corridor", "env.horizon=6", "env.density=0.6", "--skill", "0.7", *SMALL]
    assert audit([*told, "--out", str(tmp_path / "out"), "--page", str(page), "--section", "a"]) == 0
    result = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert (result["turns"], result["episodes"], result["continuations"]) == (12, 6, 4)
    assert set(result["rules"]) == set(RULES)
    assert "earlier text" not in page.read_text() and page.read_text().count("\n| ") == len(RULES) + 2
    rows = [json.loads(line) for line in (tmp_path / "out" / "turns.jsonl").read_text().splitlines()]
    assert len(rows) == 12 and all(row["low"] <= row["advantage"] <= row["high"] for row in rows)
    capsys.readouterr()
    assert rescore([str(tmp_path / "out" / "trees.jsonl"), "advantage=gigpo"]) == 0
    scored = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert scored["audit"]["all turns"]["turns"] == 12 * 2 and scored["used"] == {}  # a group and a tree


def test_known_values_over_a_setting(tmp_path: Path) -> None:
    rules = "group; Monte Carlo"
    told = ["env=corridor", "env.horizon=5", "env.noise=0", "--skill", "0.7", "--exact", "--rules", rules]
    assert audit([*told, "--over", "env.density=0,1", *SMALL, "--out", str(tmp_path)]) == 0
    shares = [json.loads((tmp_path / f"env.density={d}" / "audit.json").read_text())["matter"] for d in (0, 1)]
    assert shares[0] == 0 and shares[1] > 0.5
    assert (tmp_path / "figure.svg").exists() and "| group |" in (tmp_path / "page.md").read_text()


@pytest.mark.slow
def test_an_audit_of_the_shipped_policy_and_of_recorded_episodes(tmp_path: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    small = ["env=search", "--tasks", "2", "--turns", "1", "--replicates", "2", "--se", "0.25", "--seeds", "0"]
    assert audit([*small, "--rules", "group;TreeRPO", "--out", str(first)]) == 0
    assert audit([*small, "--rules", "group", "--trees", str(first / "trees.jsonl"), "--out", str(again)]) == 0
    assert json.loads((again / "audit.json").read_text())["episodes"] == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["env=household", "--skill", "0.5"],
        ["env=corridor", "--exact"],
        ["env=corridor", "--skill", "0.5", "--rules", "nothing"],
        ["env=corridor", "--skill", "0.5", "--over", "env.density"],
        ["env=corridor", "--skill", "0.5", "--section", "a"],
    ],
)
def test_what_cannot_be_audited_is_refused(arguments: list[str], tmp_path: Path) -> None:
    assert audit([*arguments, "--out", str(tmp_path)]) == 2


def test_what_cannot_be_scored_is_refused(tmp_path: Path) -> None:
    assert rescore([str(tmp_path), "advantage=group"]) == 2
    (tmp_path / "trees.jsonl").write_text('{"rollouts": [{"reward": 1, "turns": [{}, {}]}]}\n')
    assert rescore([str(tmp_path / "trees.jsonl")]) == 2
    told = [str(tmp_path / "trees.jsonl"), "advantage=mt_grpo", "advantage.turn_reward=admissible"]
    assert rescore(told) == 2  # no turn says whether it was admissible
    assert rescore([str(tmp_path / "trees.jsonl"), "advantage=group", "--out", str(tmp_path / "credit.jsonl")]) == 0
    assert json.loads((tmp_path / "credit.jsonl").read_text()) == {
        "state": "tree", "advantage": [0.0, 0.0], "weight": [0.0, 0.0],
    }  # fmt: skip


# -- recorded trees ----------------------------------------------------------------------------------------------------


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("rule", [GroupAdvantage(), TreeRPO(), GiGPO()])
def test_a_recorded_tree_gives_the_credit_of_the_tree(rule: object, tmp_path: Path) -> None:
    player = player_of(CorridorEnv(horizon=6))
    states = [path.state for path in paths_of(player, 4)]
    trees = in_parts(player, states, TreePO(3, 1), 6, "k")
    rows = [record_of_tree(tree, WON(tree), {2: 0.25}) for tree in trees]
    recorded = read_trees(written(tmp_path / "trees.jsonl", *rows))
    credits = credits_of_recorded(rule, recorded)
    assert credits == [rule(tree, WON(tree)) for tree in trees]
    assert [true for _, _, true in audited_credit_pairs(credits, recorded)] == [0.25] * 4


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
    (credit,) = credits_of_recorded(GroupAdvantage(eps=0), [one])
    assert credit.advantage == [1.0, -1.0, -1.0, 0.0] and credit.weight == [1, 1, 1, 0]
    assert recorded_credit_pairs([credit], [one]) == [(1, -1.0, -1.5)]


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
    found = agreement_by_place([(0, 1.0, 2.0), (3, -1.0, 3.0), (0, 0.0, 1.0), (2, 2.0, 4.0)])
    assert [(name, one["turns"]) for name, one in found.items()] == [
        ("all turns", 4),
        ("turn 1", 2),
        ("turns 3 to 4", 2),
    ]
    whole = found["all turns"]
    # ranks 3 1 2 4 and 2 3 1 4: 1 - 6 (1 + 4 + 1 + 0) / (4 * 15)
    assert [*whole.values()] == [4, pytest.approx(2 / 3), pytest.approx(0.4), 4.0]
    assert agreement_by_place([]) == {}
