"""``env.verifier=demonstrated``: a reply is accepted where its calls are the demonstrated ones."""

from __future__ import annotations

import pytest

from turnwise_worlds.apibank import ApiBankEnv

EMAIL = "SendEmail(address='ann@x', content='hello')"


@pytest.fixture(scope="module")
def office():
    return ApiBankEnv(verifier="demonstrated")


@pytest.fixture(scope="module")
def session(office):
    """``translate water``, with Dictionary(keyword), QueryStock(stock_code) and SendEmail(address, content)."""
    return office.reset(office.tasks("train", 1)[0])


@pytest.mark.parametrize(
    ("action", "expert"),
    [
        ("Dictionary(keyword='water')", "Dictionary(keyword='water')"),
        ('[Dictionary( keyword = "water" )]', "Dictionary(keyword='water')"),
        ("Dictionary(keyword=' water')", "Dictionary(keyword='water')"),
        (EMAIL, EMAIL),
        ("SendEmail(content='hello', address='ann@x')", EMAIL),
        (f"[{EMAIL}, Dictionary(keyword='water')]", f"[Dictionary(keyword='water'), {EMAIL}]"),
        ("I am done.", "done"),
        # a mistake of the demonstration is compared with like any other call
        ("Dictionary(keyword='waterx')", "Dictionary(keyword='waterx')"),
    ],
)
def test_the_demonstrated_calls_are_accepted_in_any_spelling(office, session, action, expert):
    assert office.accepts(session, action, expert)


@pytest.mark.parametrize(
    ("action", "expert"),
    [
        ("Dictionary(keyword='fire')", "Dictionary(keyword='water')"),  # another value
        ("Dictionary(keyword='Water')", "Dictionary(keyword='water')"),
        ("QueryStock(stock_code='water')", "Dictionary(keyword='water')"),  # another name
        ("Dictionary()", "Dictionary(keyword='water')"),  # misses an argument
        (f"[Dictionary(keyword='water'), {EMAIL}]", "Dictionary(keyword='water')"),  # one call too many
        ("[Dictionary(keyword='water'), Dictionary(keyword='water')]", "Dictionary(keyword='water')"),
        ("done", "Dictionary(keyword='water')"),
        ("", "Dictionary(keyword='water')"),
        ("", "done"),
        ("Dictionary(keyword='water')", "done"),
        # the right call, where the demonstration made another one
        ("Dictionary(keyword='water')", "Dictionary(keyword='waterx')"),
        ("Dictionary(keyword='water')", "QueryStock(stock_code='CCC')"),
    ],
)
def test_other_calls_are_refused(office, session, action, expert):
    assert not office.accepts(session, action, expert)
