"""The functional verifier of ``env=search``.

It accepts searches that show new evidence, and answers that the evidence supports.

PivotRL (arXiv:2603.21383, App. A.2) accepts a browsing step if it is a useful next step towards the evidence. Here, the
pages that an action shows decide this, not the words of the action:

- A search is accepted if its results show any page of the evidence that no result has shown before.
- An answer is accepted if it is right *and* either all evidence was shown or the expert answers here too. Otherwise the
  answer could be a lucky guess and is refused.
- Everything else is refused: a search that shows only pages that were seen before, a search that finds no evidence, and
  an answer that is only partly right.

Every accepted search reduces the evidence that is still to be found, so repeating searches gains nothing. If a question
file does not name the supporting pages, a search is accepted if it shows the first new page that the expert's search
shows.
"""

from __future__ import annotations

from turnwise.envs.search.session import SearchSession


def accepts(session: SearchSession, action: str, expert: str) -> bool:
    """Returns whether the action is accepted. ``session`` is not changed.

    Raises:
        EnvironmentFault: the search failed.
    """
    call = session.read(action)
    if session.done or call is None:
        return False
    tool, argument = call
    wanted = session.read(expert)
    if tool == "answer":
        return session.accepts_answer(argument, wanted)
    shown = new_titles(session, argument)
    if session.question.evidence:
        missing = session.missing()
        return any(title in missing for title in shown)
    if wanted is None or wanted[0] != "search":
        return False
    expected = new_titles(session, wanted[1])
    return bool(expected) and expected[0] in shown


def new_titles(session: SearchSession, query: str) -> list[str]:
    """Returns the titles of the pages that a search would show and that no search result has shown before."""
    return [page.title for page in session.find(query) if page.title not in session.seen]
