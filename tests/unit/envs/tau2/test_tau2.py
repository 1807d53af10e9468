"""The benchmark's tasks as episodes: splits, what is paid for nothing, the experts, what ends an episode and how it is scored."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.unit.envs.demonstrations import as_written

from turnwise_worlds.tau2 import domains as package

ASK = "Could you tell me who you are, and everything else that I should know?"
CANCEL = "cancel_pending_order(order_id='#W8268610', reason='no longer needed')"
FIND = "find_user_id_by_name_zip(first_name='Yusuf', last_name='Taylor', zip='95154')"
MOVE = (
    "modify_pending_order_address(order_id='#W2702727', address1='1234 Elm St', address2='', city='Springfield', "
    "state='IL', country='USA', zip='62701')"
)
HOME = (
    "modify_user_address(user_id='yusuf_taylor_7149', address1='1234 Elm St', address2='', city='Springfield', state='IL', "
    "country='USA', zip='62701')"
)
TOLD = "The refund is $164.28, the other order stays at $625.60."
TICKET = "[service_issue]airplane_mode_on|lock_sim_card_pin[PERSONA:Easy]"  # a locked SIM card: only a person can help
needs_it = pytest.mark.extra("tau2")


@needs_it
def test_the_splits_are_the_shipped_ones_without_what_is_paid_for_nothing(world):
    assert {domain: len(names) for domain, names in world.left_out.items()} == {
        "airline": 19,
        "retail": 7,
        "telecom": 0,
    }
    counts = {"train": 160, "seen": 46, "unseen": 46}
    names = {split: [task.id for task in world.tasks(split, count)] for split, count in counts.items()}
    shipped = {s: {f"{d}/{n}" for d in package.DOMAINS for n in package.splits(d)[s]} for s in ("train", "test")}
    free = {f"{domain}/{name}" for domain, found in world.left_out.items() for name in found}
    assert set(names["train"]) == shipped["train"] - free
    assert {*names["seen"], *names["unseen"]} == shipped["test"] - free and not set(names["seen"]) & set(
        names["unseen"]
    )
    assert Counter(name.partition("/")[0] for name in shipped["train"] | shipped["test"]) == {
        "airline": 50,
        "retail": 114,
        "telecom": 114,
    }


@needs_it
@pytest.mark.slow
def test_the_experts_win_every_task_and_the_verifier_accepts_all_that_the_good_one_does(world):
    for split, count in (("train", 160), ("seen", 46), ("unseen", 46)):
        for each in world.tasks(split, count):
            assert world.demonstrate(each, "clumsy").success, each.id
            session = world.reset(each)
            for message in world.demonstrate(each).messages:
                if message["role"] == "assistant":
                    action = as_written(message, world.format)
                    assert world.accepts(session, action, action), (each.id, action)
                    session.step(action)
            assert session.won, each.id


def play(session, *actions):
    """The last step."""
    steps = [session.step(action) for action in actions]
    return steps[-1]


@needs_it
def test_an_order_is_cancelled_and_what_had_to_be_told_is_told(world, task):
    session = world.reset(task("retail", "59"))
    assert "Yusuf Taylor" in play(session, ASK).observation
    assert play(session, FIND, CANCEL, MOVE).reward == 0 and not session.done
    step = play(session, TOLD)
    assert (step.observation, step.reward, step.done, step.won) == ("", 1.0, True, True)
    with pytest.raises(RuntimeError, match="the episode is over"):
        session.step(TOLD)


@needs_it
@pytest.mark.parametrize(
    ("actions", "fault"),
    [
        ([CANCEL, MOVE], "not_said"),
        ([CANCEL], "database"),
        ([CANCEL, MOVE.replace("1234", "12"), TOLD], "database"),
        ([CANCEL, MOVE, HOME, TOLD], "database"),
    ],
)
def test_what_is_missing_or_too_much_is_named(world, task, actions, fault):
    session = world.reset(task("retail", "59"))
    play(session, *actions)
    while not session.done:  # the user's patience ends
        step = session.step("Thank you for calling.")
    assert step.done and not step.won and step.reward == 0 and step.info["fault"] == fault


@needs_it
def test_a_ticket_is_worked_on_alone_and_ended_by_a_call(world, task):
    session = world.reset(task("telecom", TICKET))
    system, ticket = session.opening()
    assert "<ticket>" in ticket["content"] and "555-123-2002" in ticket["content"]
    assert "Telecom Agent Policy" in system["content"] and "toggle_airplane_mode()" in system["content"]
    assert "nobody reads this" in play(session, "Hello, how can I help you?").observation
    assert "call done alone" in play(session, "[done(), check_sim_status()]").observation
    twin = session.fork()
    assert "locked" in play(session, "check_sim_status()").observation
    step = play(session, "transfer_to_human_agents(summary='locked SIM')", "done()")
    assert step.won and step.reward == 1
    assert play(twin, "done()").info["fault"] == "action_missing"
