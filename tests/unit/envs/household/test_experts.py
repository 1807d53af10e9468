"""The two experts: what they achieve, what they know, how they err."""

from __future__ import annotations

import re

from turnwise_worlds.household import HouseholdEnv, Mistakes

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
