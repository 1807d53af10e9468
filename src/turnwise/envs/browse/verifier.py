"""Which browsing steps bring evidence nearer: the verifier of ``env=browse``.

PivotRL (arXiv:2603.21383, App. A.2) judges a browsing step by whether it is a next useful step of gathering evidence. Every
fact of the evidence is so far from the reader: not listed by any search, listed, on the open page, shown. A step is accepted
where it brings a fact nearer and the sum of all distances falls; an answer, where it is right and every fact was shown (or the
expert answers here too). The expert's own step decides nothing else, so any page, any order and any words will do that get
there.

The sum falls with every accepted step, so none can be repeated for ever: walking between two needed pages gains nothing, since
leaving a page takes its facts away again.
"""

from __future__ import annotations

from turnwise.envs.browse.session import BrowseSession


def distance(session: BrowseSession) -> int:
    """Steps that the evidence is away: 3 for a fact that nothing has led to, 2 where its page is listed, 1 where it is open."""
    total = 0
    for title, _ in session.missing():
        here = session.page is not None and session.page.title == title
        total += 1 if here else 2 if title in session.listed else 3
    return total


def accepts(session: BrowseSession, action: str, expert: str) -> bool:
    """The verdict; ``session`` is not changed.

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
