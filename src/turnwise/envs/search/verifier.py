"""The functional verifier of ``env=search``: it accepts searches that show needed evidence, and answers that this supports.

PivotRL (arXiv:2603.21383, App. A.2) asks of a browsing step whether it is a next useful step towards the evidence. Here what
the step shows decides that, and not its words:

- A search is accepted where its results show a page of the evidence that no result has shown before, whichever page it is.
- An answer is accepted where it is right *and* all evidence was shown, or the expert answers here too. A lucky guess is refused.
- Everything else is refused: a search for what was seen, a search that finds nothing needed, an answer that is partly right.

Every accepted search leaves less to be found, so accepted actions cannot go on for ever. Where a question file does not name the
supporting pages, a search is accepted that shows the new page that the expert's search shows first.
"""

from __future__ import annotations

from turnwise.envs.search.session import SearchSession


def accepts(session: SearchSession, action: str, expert: str) -> bool:
    """Returns the verdict; ``session`` is not changed.

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
    """Returns the titles that a search would show and no result has shown before."""
    return [page.title for page in session.find(query) if page.title not in session.seen]
