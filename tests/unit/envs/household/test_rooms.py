"""Tasks from seeds: deterministic, disjoint, well-formed, solvable."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from turnwise.env import SPLITS
from turnwise.types import Task
from turnwise_worlds.household import HouseholdEnv, Mistakes
from turnwise_worlds.household.rooms import CONTAINS, TYPES, fingerprint, layout, rooms
from turnwise_worlds.household.state import distance, full_aim

COUNT = 150


@pytest.fixture(scope="module")
def drawn():
    env = HouseholdEnv()
    return {split: env.tasks(split, COUNT) for split in SPLITS}


def content(task: Task) -> str:
    return json.dumps(task.data, sort_keys=True)


def test_unseen_rooms_and_layouts_are_in_no_training_room():
    train, unseen = (sum(rooms(split).values(), ()) for split in ("train", "unseen"))
    assert (len(train), len(unseen)) == (160, 40)
    assert not set(train) & set(unseen)
    assert not {layout(seed) for seed in train} & {layout(seed) for seed in unseen}


def test_seen_shares_the_rooms_of_train_and_none_of_its_tasks(drawn):
    assert rooms("seen") == rooms("train")
    assert {t.data["room"] for t in drawn["seen"]} & {t.data["room"] for t in drawn["train"]}
    # By construction, for any seeds: the parts are told apart by a hash of the content.
    assert all(fingerprint(t.data) % 8 == 0 for t in drawn["seen"])
    assert all(fingerprint(t.data) % 8 != 0 for t in drawn["train"])


@pytest.mark.parametrize("split", SPLITS)
def test_every_task_is_well_formed_and_solvable(env, drawn, split):
    kinds = Counter()
    for task in drawn[split]:
        data, goal = task.data, task.data["goal"]
        kinds[goal["type"]] += 1
        assert 8 <= len(data["receptacles"]) <= 14
        assert 8 <= len(data["objects"]) <= 17
        for names in (data["receptacles"], data["objects"]):
            numbers = {}
            for name in names:
                numbers.setdefault(name.split()[0], []).append(int(name.split()[1]))
            assert all(
                sorted(found) == list(range(1, len(found) + 1)) and len(found) <= 9 for found in numbers.values()
            )
        for name, place in data["objects"].items():
            kind = name.split()[0]
            assert kind == "desklamp" or kind in CONTAINS[place.split()[0]]
        session = env.reset(task)
        assert not session.done
        assert 2 <= distance(session.world, session.state, full_aim(session.world)) <= 14
    assert set(kinds) == set(TYPES)
    assert min(kinds.values()) > COUNT / 20


NAME = re.compile(r"[a-z]+ \d+")
HEAVY = Mistakes(revisit=0.12, idle=0.12, leave=0.12, wrong=0.12, premature=0.15, inadmissible=0.12)


def actions(trajectory):
    return [m["content"] for m in trajectory.messages if m["role"] == "assistant"]


def test_each_kind_of_mistake_happens():
    tasks = HouseholdEnv().tasks("train", 25, seed=9)

    def played(**only):
        env = HouseholdEnv(
            horizon=90, mistakes=Mistakes(**{**dict.fromkeys(Mistakes.__dataclass_fields__, 0.0), **only})
        )
        return [env.demonstrate(task, "clumsy", seed=1) for task in tasks]

    plain = played()
    assert [actions(t) for t in plain] == [
        actions(t) for t in (HouseholdEnv().demonstrate(k, "good", 1) for k in tasks)
    ]
    assert any("Nothing happens." in [m["content"] for m in t.messages] for t in played(inadmissible=0.3))
    assert any(a.split()[0] in ("look", "inventory", "examine") for t in played(idle=0.3) for a in actions(t))
    for name in ("revisit", "leave", "wrong", "premature"):
        assert sum(map(len, map(actions, played(**{name: 0.3})))) > sum(map(len, map(actions, plain))), name


def test_experts_mention_only_what_they_have_seen():
    env = HouseholdEnv(mistakes=HEAVY)
    for task in env.tasks("train", 50, seed=11):
        read = ""
        for message in env.demonstrate(task, "clumsy", seed=2).messages:
            if message["role"] == "assistant":
                assert set(NAME.findall(message["content"])) <= set(NAME.findall(read)), message
            read += message["content"] + "\n"
