"""Figures of held-out replies, with numbers worked by hand."""

from __future__ import annotations

import pytest

from turnwise.evaluation.stats import Reply, likelihood, paired_change, pooled, rate


def reply(dialogue: str, turn: int, nats: float, tokens: int, good: tuple[float, ...], *tools: str) -> Reply:
    sampled = tuple((value, 0.0) for value in good)
    return Reply(f"{dialogue}#t{turn}", dialogue, turn, tools, nats, tokens, sampled, ((1.0, 1.0),))


REPLIES = [
    reply("a", 0, 6.0, 2, (1.0, 0.0), "book"),
    reply("a", 1, 2.0, 2, (1.0, 1.0)),
    reply("b", 0, 4.0, 8, (0.0, 0.0), "book", "note"),
]


def test_nats_a_token_are_pooled_over_all_tokens() -> None:
    assert likelihood(REPLIES) == {"a": (8.0, 4.0), "b": (4.0, 8.0)}
    assert pooled(likelihood(REPLIES)) == 12 / 12


def test_several_attempts_at_a_reply_count_as_one_reply() -> None:
    assert rate(REPLIES, "sampled") == {"a": (1.5, 2.0), "b": (0.0, 1.0)}
    assert pooled(rate(REPLIES, "sampled")) == 0.5
    assert pooled(rate(REPLIES, "greedy", strict=True)) == 1.0
    assert rate([Reply("a#t0", "a", 0, (), 1.0, 1, (), ())], "sampled") == {}


def test_a_change_that_all_dialogues_share_has_an_interval_without_width_in_nats_and_not_in_shares() -> None:
    before = dict.fromkeys("abcd", (4.0, 4.0))
    after = dict.fromkeys("abcd", (2.0, 4.0))
    change = paired_change(before, after, shares=False)
    assert (change.mean, change.low, change.high, change.n) == (-0.5, -0.5, -0.5, 4)
    shares = paired_change(before, after, shares=True)
    assert shares.mean == -0.5 and shares.low is not None and shares.low < -0.5 < (shares.high or 0)


def test_the_interval_resamples_dialogues() -> None:
    """Two dialogues of one reply, of which one was won: each of the four draws is as likely, so that the ends are 0 and 1."""
    change = paired_change({"a": (0.0, 1.0), "b": (0.0, 1.0)}, {"a": (1.0, 1.0), "b": (0.0, 1.0)}, shares=True)
    assert (change.mean, change.low, change.high) == (0.5, 0.0, 1.0)
    alone = paired_change({"a": (0.0, 1.0)}, {"a": (1.0, 1.0)}, shares=True)
    assert (alone.mean, alone.low, alone.high) == (1.0, None, None)
    with pytest.raises(ValueError, match="same dialogues"):
        paired_change({"a": (0.0, 1.0)}, {"b": (0.0, 1.0)}, shares=True)
