"""The functional verifier of ``env=browse``. It accepts an action that brings the policy closer to the evidence.

PivotRL (arXiv:2603.21383, App. A.2) accepts a browsing step if it is a useful next step of collecting evidence. Here,
each fact of the evidence has a distance: 3 if no search has listed the fact's page, 2 if a search has listed it, 1 if
the page is open, 0 if the policy was shown the fact. An action is accepted if it lowers the sum of the distances. An
answer is accepted if it is right and either all facts were shown or the expert's action is also an answer. The expert's
action has no other influence. So the policy may use any pages, any order and any words that lead to the evidence.

Every accepted action lowers the sum, so no action can be accepted again and again. Switching between two needed pages
has no advantage, because the distances of the facts on a page rise again when the policy opens another page.
"""

from __future__ import annotations

from turnwise.envs.browse.session import BrowseSession


def distance(session: BrowseSession) -> int:
    """Returns how far the policy is from having seen all facts of the evidence: the sum of the facts' distances.

    The distance of a fact is 3 if no search has listed its page, 2 if a search has listed it, 1 if the page is open,
    and 0 if the policy was shown the fact.
    """
    total = 0
    for title, _ in session.missing():
        here = session.page is not None and session.page.title == title
        total += 1 if here else 2 if title in session.listed else 3
    return total


def accepts(session: BrowseSession, action: str, expert: str) -> bool:
    """Returns whether the verifier accepts the policy's action. ``session`` is not changed.

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
