"""The verifier of ``env=search`` that compares an action with the demonstrated one (PivotRL, arXiv:2603.21383, App.

A.2).

An action is accepted if it has the effect of the demonstrated one:

- A search must show the same pages as the demonstrated search, in the same order; the words of the query do not matter.
- An answer must equal the demonstrated answer after normalisation (``search.scoring``).

The verifier does not ask whether the demonstrated action was good. If the demonstrated action is not a valid call, or
is a search that finds no page, there is no effect to compare with. Then no action is accepted, not even the
demonstrated action itself.
"""

from __future__ import annotations

from turnwise.envs.search.scoring import normalise
from turnwise.envs.search.session import SearchSession


def accepts(session: SearchSession, action: str, expert: str) -> bool:
    """Returns whether the action has the effect of the demonstrated one. ``session`` is not changed.

    Raises:
        EnvironmentFault: the search failed.
    """
    made, wanted = session.read(action), session.read(expert)
    if session.done or made is None or wanted is None or made[0] != wanted[0]:
        return False
    if wanted[0] == "answer":
        return normalise(made[1]) == normalise(wanted[1])
    shown = _titles(session, wanted[1])
    return bool(shown) and _titles(session, made[1]) == shown


def _titles(session: SearchSession, query: str) -> list[str]:
    return [page.title for page in session.find(query)]
