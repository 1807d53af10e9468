"""The update's work and how its memory is measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from samples import branching_tree, by_turn, credit, flat_tree, trl_inputs
from updates import difference

FOLDER = Path(__file__).resolve().parents[3] / "benchmarks"


def test_the_branching_tree_has_its_shape() -> None:
    tree = branching_tree(0, length=6, roots=2, branches=2, turns=6, action=3, observation=4)
    leaves = tree.leaves()
    assert len(leaves) == 2 * (1 + 2)
    assert {len(tree.path(leaf)) for leaf in leaves} == {6}
    assert len(tree.turns) == 2 * (6 + 4 + 2)  # branches part after turns 2 and 4
    assert all(len(t.action_ids) == 3 and len(t.observation_ids) == 4 for t in tree.turns)


def test_trl_reads_the_same_samples() -> None:
    tree = flat_tree(0, length=5, actions=3, action=2)
    given = credit(tree, 0)
    inputs = trl_inputs(tree, given, torch.device("cpu"))
    assert inputs["prompt_ids"].tolist() == [list(tree.state.ids)] * 3
    assert inputs["completion_ids"].tolist() == [t.action_ids for t in tree.turns]
    assert inputs["advantages"].tolist() == pytest.approx(given.advantage)
    assert int(inputs["num_items_in_batch"]) == 6


def test_difference_is_relative_to_the_largest_entry() -> None:
    a, b = {"x": torch.tensor([1.0, 2.0])}, {"x": torch.tensor([1.0, 4.0])}
    assert difference(a, b) == 0.5
    with pytest.raises(ValueError, match="the same parameters"):
        difference(a, {"y": torch.ones(2)})


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_peak_memory_is_what_the_step_holds_at_once() -> None:
    program = (
        "import torch, sys; sys.path.insert(0, sys.argv[1])\n"
        "from memory import say_peak\n"
        "kept = torch.ones(8 << 20)\n"  # 32 MiB that stand before
        "def step():\n"
        "    for _ in range(3): torch.ones(16 << 20).add_(1)\n"  # 64 MiB at once, three times
        "say_peak(lambda: None, step, torch.device('cpu'))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(FOLDER)], capture_output=True, text=True, check=True)
    said = int(done.stdout.rpartition(":")[2])
    assert 63 << 20 < said < 72 << 20


def test_by_turn_shares_nothing_and_keeps_every_credit() -> None:
    tree = branching_tree(0, length=6, roots=2, branches=1, turns=4, action=3, observation=4)
    given = credit(tree, 0)
    trees, credits = by_turn(tree, given)
    assert [c.advantage for c in credits] == [[a] for a in given.advantage]
    for number, single in enumerate(trees):
        history = list(tree.state.ids)
        for t in tree.path(number)[:-1]:
            history += tree.turns[t].action_ids + tree.turns[t].observation_ids
        assert list(single.state.ids) == history
        assert single.turns[0].action_ids == tree.turns[number].action_ids
