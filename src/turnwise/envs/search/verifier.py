"""The functional verifier ``oracle`` of ``env=search`` (PivotRL, arXiv:2603.21383, App. A.2).

- A search is accepted if its results show a page of the evidence that no search result has shown before. If the
  question file does not name the pages of the evidence, a search is accepted if it shows the first new page of the
  expert's search. A page is new if it was not shown before in the episode.
- An answer is accepted if it is right, and either all evidence was shown or the expert's action in this turn is an
  answer too. Otherwise the answer could be a guess.
- All other actions are refused, for example partly right answers.
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
