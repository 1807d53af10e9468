"""Skills: splits never meet, references pass, near misses do not."""

from __future__ import annotations

import pytest

from turnwise.evaluation.skills import SKILLS, Item, items, stream


@pytest.mark.parametrize("name", SKILLS)
def test_splits_share_no_key_and_no_prompt(name):
    train = [item for _, item in zip(range(3000), stream(SKILLS[name], "train", seed=1), strict=False)]
    test = items(name, "test", 100, seed=2)
    assert not {i.key or i.prompt for i in train} & {i.key or i.prompt for i in test}
    assert not {i.prompt for i in train} & {i.prompt for i in test}


@pytest.mark.parametrize("name", SKILLS)
def test_items_are_different_seeded_and_scored_by_their_reference(name):
    skill, found = SKILLS[name], items(name, "test", 200, seed=3)
    assert len({i.prompt for i in found}) == 200
    assert found == items(name, "test", 200, seed=3) != items(name, "test", 200, seed=4)
    assert all(skill.score(i.reference, i) == 1.0 for i in found)
    assert all(skill.score("", i) == 0.0 for i in found)
    assert all(skill.score(i.reference + " quux", i) < 1.0 for i in found if name != "arithmetic")


def _item(name: str, reference: str, **data) -> Item:
    return Item(name, "?", reference, data=data)


@pytest.mark.parametrize(
    ("name", "item", "right", "wrong"),
    [
        (
            "arithmetic",
            _item("arithmetic", "12, 24, 21"),
            ["21", "7, 21", "the result is 21"],
            ["12, 24", "21, 3", "none"],
        ),
        ("algebra", _item("algebra", "x = 7"), ["x = 7", " x  = 7 "], ["x = 8", "7", "y = 7", "x = 7 = 7"]),
        ("code", _item("code", "2 9 4"), ["2 9 4"], ["4 9 2", "2 9", "294"]),
        ("science", _item("science", "12 N"), ["12 N"], ["12 J", "12", "13 N"]),
        ("choice", _item("choice", "B"), ["B", " B "], ["A", "B C", "b", ""]),
        (
            "instruction",
            _item("instruction", "pear fig", kind="fruit", count=2, barred="plum"),
            ["fig pear", "grape lemon"],
            ["pear", "pear pear", "pear plum", "pear dog", "pear fig lemon"],
        ),
        ("instruction", _item("instruction", "car [ dog ]"), ["car [ dog ]"], ["car dog", "[ car ] dog"]),
    ],
)
def test_scorers_know_right_from_nearly_right(name, item, right, wrong):
    score = SKILLS[name].score
    assert [score(a, item) for a in right] == [1.0] * len(right)
    assert [score(a, item) for a in wrong] == [0.0] * len(wrong)
