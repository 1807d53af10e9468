"""The user by rule: it tells what it is asked for, agrees when asked to, and ends."""

from __future__ import annotations

import pytest

from turnwise_worlds.tau2.user import STOP, TRANSFERRED, ScriptedUser

SCENARIO = {
    "persona": None,
    "instructions": {
        "domain": "retail",
        "reason_for_call": "You want to return your lamp.",
        "known_info": "You are Ada Poe.\nYour zip code is 19122.",
        "unknown_info": "You do not remember your email address.",
        "task_instructions": "You prefer a refund to your gift card. If the agent offers you an exchange, refuse it. .",
    },
}


@pytest.fixture
def talk():
    return ScriptedUser().begin(SCENARIO)


def answer(talk, message, **known):
    return ScriptedUser().reply(talk, message, **{"transferred": False, "satisfied": False, **known})


def test_it_begins_with_the_reason_and_tells_what_it_is_asked_for(talk):
    assert talk.last == "I want to return my lamp." and not talk.ended
    assert (
        answer(talk, "What is your zip code?").last
        == "I am Ada Poe. My zip code is 19122. I do not remember my email address."
    )
    assert answer(talk, "To a gift card?").last == "I prefer a refund to my gift card."
    assert answer(talk, "Well?").last == "I am Ada Poe."  # no word in common: the next fact
    everything = answer(talk, "Please tell me everything.")
    assert len(everything.told) == 5 and everything.last.endswith("refuse it.")
    again = answer(everything, "What is your name?")
    assert again.last == "I have told you all that I know. Please go on." and again.idle == 1


def test_it_ends_when_all_is_done_and_after_a_transfer(talk):
    assert answer(talk, "Done.", satisfied=True).messages[-1][1] == STOP
    assert answer(talk, "Please hold on.", transferred=True).messages[-1][1] == TRANSFERRED
