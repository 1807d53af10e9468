"""Which searches and answers are as good as an expert's: those that bring needed evidence, or the answer that it supports.

PivotRL (arXiv:2603.21383, App. A.2) asks of a browsing step whether it is a next useful step towards the evidence. Here that
is decided by what the step shows, not by its words:

- a search is accepted where its results show a page of the evidence that no result has shown before, whichever page that is;
- an answer is accepted where it is right *and* all evidence was shown, or the expert answers here too: a lucky guess is none;
- everything else is refused: a search for what was seen, one that finds nothing needed, an answer that is partly right.

Every accepted search leaves less to be found, so no accepted actions can go on for ever. Where nobody has said which pages
hold the answer, a search is accepted that shows the page that the expert's shows first, as long as it is a new one.
"""

from __future__ import annotations

from turnwise.envs.search.scoring import score
from turnwise.envs.search.session import SearchSession


def accepts(session: SearchSession, action: str, expert: str) -> bool:
    """The verdict; ``session`` is not changed.

    Raises:
        EnvironmentFault: the search failed.
    """
    call = session.read(action)
    if session.done or call is None:
        return False
    tool, argument = call
    wanted = session.read(expert)
    missing = session.missing()
    if tool == "answer":
        supported = not missing or (wanted is not None and wanted[0] == "answer")
        return supported and score(argument, session.question.answers).exact
    shown = [page.title for page in session.find(argument) if page.title not in session.seen]
    if session.question.evidence:
        return any(title in missing for title in shown)
    if wanted is None or wanted[0] != "search":
        return False
    first = next((page.title for page in session.find(wanted[1]) if page.title not in session.seen), None)
    return first is not None and first in shown
