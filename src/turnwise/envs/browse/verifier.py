"""The functional verifier of ``env=browse``: it accepts steps that bring evidence nearer.

PivotRL (arXiv:2603.21383, App. A.2) judges a browsing step by whether it is a next useful step of gathering evidence. Each fact
of the evidence has a distance from the reader: not listed by any search, listed, on the open page, shown. A step is accepted
where the sum of all distances falls. An answer is accepted where it is right and every fact was shown, or the expert answers here
too. The expert's step decides nothing else, so any page, order and words are accepted that lead to the evidence.

The sum falls with every accepted step, so none can be repeated for ever. Walking between two needed pages gains nothing, because
leaving a page adds the distances of its facts again.
"""

from __future__ import annotations

from turnwise.envs.browse.session import BrowseSession


def distance(session: BrowseSession) -> int:
    """Returns the steps to the evidence: 3 for a fact that nothing has led to, 2 if its page is listed, 1 if it is open."""
    total = 0
    for title, _ in session.missing():
        here = session.page is not None and session.page.title == title
        total += 1 if here else 2 if title in session.listed else 3
    return total


def accepts(session: BrowseSession, action: str, expert: str) -> bool:
    """Returns the verdict; ``session`` is not changed.

    Raises:
        EnvironmentFault: the search failed.
    """
    call = session.read(action)
    if session.done or call is None:
        return False
    tool, argument = call
    if tool == "answer":
        return session.accepts_answer(argument, session.read(expert))
    after = session.fork()
    after.use(tool, argument)
    return distance(after) < distance(session)
