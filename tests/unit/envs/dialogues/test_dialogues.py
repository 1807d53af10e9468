"""The clumsy expert of dialogues and the verifier; test_contract.py has the rest."""

from __future__ import annotations

from tests.unit.envs.demonstrations import as_written


def actions(trajectory, env):
    return [as_written(message, env.format) for message in trajectory.messages if message["role"] == "assistant"]


def test_no_mistake_of_the_clumsy_expert_is_accepted(world):
    refused = 0
    for task in world.tasks("train", 30):
        session = world.reset(task)
        good = actions(world.demonstrate(task, "good"), world)
        for action in actions(world.demonstrate(task, "clumsy"), world):
            accepted = world.accepts(session, action, action)
            assert accepted == (action == good[0])
            if accepted:
                good.pop(0)
            refused += not accepted
            session.step(action)
    assert refused
