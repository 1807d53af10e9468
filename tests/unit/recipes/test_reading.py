"""Reading drills: what has a weight, and that lists, objects and answers belong together."""

from __future__ import annotations

import re

import pytest
from scripts.recipes.tiny.reading import Shown, drill, drill_documents, tour
from transformers import AutoTokenizer

from turnwise.models.shipped import ASSETS
from turnwise_worlds.household import HouseholdEnv


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(ASSETS)


def test_only_the_choices_have_a_weight(tokenizer):
    lists = [
        Shown("shelf 1", "You see a mug 1.", ("mug 1",)),
        Shown("desk 1", "You see a pen 2, and a cup 3.", ("pen 2", "cup 3")),
        Shown("bed 1", "You see a pen 1.", ("pen 1",)),
    ]
    document = drill("put a cup on bed", "cup", lists, tokenizer, weight=2.0)
    weighted = [(tokenizer.decode([i]), w) for i, w in zip(document.ids, document.weights, strict=True) if w]
    # nothing hangs on the first walk, nor on the one after the cup was found; the drill ends before the last choice
    assert weighted == [("go", 2.0), ("take", 2.0), (" cup", 0.6), (" 3", 0.6)]
    said = re.findall(r"assistant\n(.*?)<", tokenizer.decode(document.ids))
    assert said == ["go to shelf 1", "go to desk 1", "take cup 3 from desk 1", "go to bed 1"]


def test_a_tour_shows_what_the_world_shows():
    env = HouseholdEnv()
    task = env.tasks("train", 1, 3)[0]
    seen = list(tour(HouseholdEnv(horizon=100), task))
    assert seen
    for shown in seen:
        assert env.reset(task).step(f"go to {shown.place}").observation == shown.text
        assert all(f"a {name}" in shown.text for name in shown.objects)
    places = {shown.place for shown in seen}
    lying = {name for name, place in task.data["objects"].items() if place in places}
    assert {name for shown in seen for name in shown.objects} >= lying


def test_about_half_of_the_lists_hold_what_is_asked_for(tokenizer):
    texts = [tokenizer.decode(d.ids) for d in drill_documents(HouseholdEnv(), tokenizer, 60, 1, 1.0)]
    taken, walks = (sum(len(re.findall(f"assistant\n{verb}", text)) for text in texts) for verb in ("take", "go"))
    assert 0.4 < taken / walks < 0.75
    for text in texts:
        kinds = set(re.findall(r"assistant\ntake (\w+) ", text))
        assert len(kinds) <= 1 and all(f" {kind}" in text.split("<|im_end|>")[0] for kind in kinds)
