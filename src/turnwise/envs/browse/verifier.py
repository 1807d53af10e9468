"""The functional verifier of ``env=browse``. It accepts an action that brings the policy closer to the evidence.

PivotRL (arXiv:2603.21383, App. A.2) accepts a browsing step if it is a useful next step of collecting evidence. Here,
an action is accepted if it lowers the sum of the distances of all facts (:func:`distance`). An answer is accepted if it
is right and either all facts were shown or the expert's action is also an answer. The expert's action has no other
influence. So the policy may use any pages, any order and any words that lead to the evidence.

Switching between two needed pages has no advantage, because the distances of the facts on a page rise again when the
policy opens another page.
"""

from __future__ import annotations

from turnwise.envs.browse.session import BrowseSession


def distance(session: BrowseSession) -> int:
    """Returns the sum of the distances of all facts of the evidence.

    The distance of a fact is 0 if the policy was shown the fact, else 1 if the fact's page is open, 2 if a search has
    listed this page, and 3 otherwise.
    """
    total = 0
    for title, _ in session.missing():
        here = session.page is not None and session.page.title == title
        total += 1 if here else 2 if title in session.listed else 3
    return total


def accepts(session: BrowseSession, action: str, expert: str) -> bool:
    """Returns whether the verifier accepts ``action``. ``session`` is not changed.

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
