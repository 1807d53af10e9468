"""The verifier ``demonstrated`` of ``env=search`` (PivotRL, arXiv:2603.21383, App. A.2).

An action is accepted if it has the effect of the expert's action:

- A search must show the pages of the expert's search, in the order of that search.
- An answer must equal the expert's answer after normalisation (``search.answer_scores``).

If the expert's action is not a valid call, or is a search that finds no page, no action is accepted.
"""

from __future__ import annotations

from turnwise.envs.search.answer_scores import normalise
from turnwise.envs.search.session import SearchSession


def accepts(session: SearchSession, action: str, expert: str) -> bool:
    """Returns whether ``action`` has the effect of the expert's action ``expert``. ``session`` is not changed.

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
