"""Skills: splits never meet, references pass, near misses do not."""

from __future__ import annotations

import pytest

from turnwise.evaluation.skills import SKILLS, Item, items, stream
from turnwise.evaluation.skills.skill import by_words


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


@pytest.mark.parametrize("name", SKILLS)
def test_prompts_and_answers_are_short(name):
    for item in items(name, "test", 200):
        assert len(item.prompt) < 160 and 0 < len(item.reference.split()) <= 8


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


def test_translation_is_scored_by_words():
    item = _item("translation", "a b c d")
    assert by_words("a b c d", item) == 1.0
    assert by_words("a b x d", item) == 0.75
    assert by_words("a b c d e f g h", item) == 0.5
    assert by_words("x", item) == 0.0


def test_code_references_are_what_python_prints(capsys):
    for item in items("code", "test", 60):
        exec(item.prompt.split("\n", 1)[1], {})  # our own generator's text
        assert capsys.readouterr().out.strip() == item.reference


def test_unknown_names_and_too_many_items_are_refused():
    with pytest.raises(ValueError, match="unknown skill 'maths'; the skills are instruction"):
        items("maths", "test", 1)
    with pytest.raises(ValueError, match="split must be train or test"):
        items("code", "dev", 1)
    with pytest.raises(ValueError, match=r"only \d+ different test items of science were found"):
        items("science", "test", 700)
