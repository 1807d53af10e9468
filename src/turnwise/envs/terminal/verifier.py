"""The functional verifiers of ``env=terminal`` (PivotRL, arXiv:2603.21383, Eq. 6).

- ``effect`` runs the policy's command on a copy of the folder and counts the files that do not have the required state.
  It accepts the command if this number falls. It also accepts the command if this number does not change and the output
  identifies the file of the next chore for the first time. The expert's command has no influence.
- ``similarity`` accepts a valid call if the normalised text of its command is similar to the text of the expert's
  command, or if a judge says that the two commands are equivalent. It is the paper's choice for terminals.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Literal

from rapidfuzz.distance import Levenshtein

from turnwise.data.toolcalls import ToolCallError
from turnwise.envs.terminal.session import TerminalSession

Verifier = Literal["effect", "similarity"]
Judge = Callable[[str, str], bool]
"""A function: (a command, the expert's command) -> whether the two commands are equivalent."""


def effective(session: TerminalSession, action: str) -> bool:
    """Returns whether the verifier ``effect`` accepts the policy's action. ``session`` is not changed.

    Raises:
        EnvironmentFault: the sandbox failed.
    """
    if session.done:
        return False
    chore = session.goal.unmet(session.tree)
    before = session.goal.missing(session.tree)
    twin = session.fork()
    twin.step(action)
    left = session.goal.missing(twin.tree)
    if left == before and chore is not None and session.hidden(chore):
        return not twin.hidden(chore)
    return left < before


def normalised(command: str) -> list[str]:
    """Returns the words of a command without quotes, blanks and a leading ``./``.

    Consecutive short flags are split into single letters and sorted.
    """
    try:
        lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:  # a quote is not closed
        words = command.split()
    words = [word.removeprefix("./") if len(word) > 2 else word for word in words]
    ordered: list[str] = []
    flags: list[str] = []
    for word in [*words, ""]:
        if word.startswith("-") and not word.startswith("--") and word[1:].isalpha():
            flags += [f"-{letter}" for letter in word[1:]]
            continue
        ordered += sorted(flags)
        flags = []
        ordered += [word] if word else []
    return ordered


def similar(session: TerminalSession, action: str, expert: str, threshold: float, judge: Judge | None = None) -> bool:
    """Returns whether an action is a call whose similarity to the expert's call is at least ``threshold``.

    The similarity is 1 - d / n, where d is the edit distance between the two commands as lists of words, and n is the
    length of the longer list. If the similarity is below the threshold, ``judge`` decides if it is given.
    """
    try:
        ours, theirs = session.command(action), session.command(expert)
    except ToolCallError:
        return False
    if Levenshtein.normalized_similarity(normalised(ours), normalised(theirs)) >= threshold:
        return True
    return judge is not None and judge(ours, theirs)
