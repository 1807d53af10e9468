"""The verifier of ``env=search`` that compares with the demonstrated step (PivotRL, arXiv:2603.21383, App. A.2).

A step is accepted where it has the effect of the demonstrated one:

- a search that shows the same pages in the same order, whichever words found them;
- an answer that is the same after normalisation (``search.scoring``).

Whether the demonstrated step was a good one does not count. One that is no call, or a search that finds no page, has
no effect to compare with: nothing is accepted in its place, itself included.
"""

from __future__ import annotations

from turnwise.envs.search.scoring import normalise
from turnwise.envs.search.session import SearchSession


def accepts(session: SearchSession, action: str, expert: str) -> bool:
    """Whether the step has the effect of the demonstrated one; ``session`` is not changed.

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
