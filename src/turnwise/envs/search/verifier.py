"""The functional verifier ``oracle`` of ``env=search``.

It accepts searches that show new evidence, and right answers that the evidence supports.

PivotRL (arXiv:2603.21383, App. A.2) accepts a browsing step if it is a useful next step towards the evidence. Here, the
pages that an action shows decide this, not the words of the action:

- A search is accepted if its results show a page of the evidence that no search result has shown before.
- An answer is accepted if it is right *and* either all evidence was shown or the expert's action in this turn is an
  answer too. Otherwise the answer could be a lucky guess and is refused.
- Everything else is refused: a search that shows only pages that were seen before, a search that finds no evidence, and
  an answer that is only partly right.

Every accepted search shows a part of the evidence for the first time, so the policy gains nothing by repeating
searches. If a question file does not name the pages of the evidence, a search is accepted if it shows the first new
page of the expert's search, that is, the first page in its results that was not shown before.
"""

from __future__ import annotations

from turnwise.envs.search.session import SearchSession


def accepts(session: SearchSession, action: str, expert: str) -> bool:
    """Returns whether the verifier ``oracle`` accepts the policy's reply ``action``. ``session`` is not changed.

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
    """Returns the titles of the pages that a search for the query would show for the first time in this episode."""
    return [page.title for page in session.find(query) if page.title not in session.seen]
