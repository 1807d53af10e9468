"""The functional verifiers of the terminal: which commands are as good as an expert's (PivotRL, arXiv:2603.21383, Eq. 6).

``effect``: the command is run on a copy of the folder. It is accepted if fewer files are wrong after it than before, or if it
harms nothing and shows where the file of the next chore lies, which was not known yet. The expert's command does not count, so a
clumsy expert's mistake cannot lower the bar. An accepted command that is repeated gains nothing and is refused.

``similarity``: the call fits its tool, and its normalised text is near the expert's, or a judge calls the two equivalent. For
environments whose commands are too expensive to run; it is the paper's choice for terminals.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Literal

from rapidfuzz.distance import Levenshtein

from turnwise.data.toolcalls.reply import ToolCallError
from turnwise.envs.terminal.session import TerminalSession

Verifier = Literal["effect", "similarity"]
Judge = Callable[[str, str], bool]
"""A command and the expert's -> are they equivalent?"""


def effective(session: TerminalSession, action: str) -> bool:
    """Whether the action brings the task forward; ``session`` is not changed.

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
    """Returns a command as words: quotes, blanks, "./" and the order of neighbouring flags do not count."""
    try:
        lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:  # a quote that is never closed
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
    """Whether an action is a call of the tool whose words are those of the expert's, up to a share of 1 - ``threshold``.

    The similarity is one less the edit distance between the two lists of words by the longer length. Below the threshold
    ``judge`` decides, if there is one.
    """
    try:
        ours, theirs = session.command(action), session.command(expert)
    except ToolCallError:
        return False
    if Levenshtein.normalized_similarity(normalised(ours), normalised(theirs)) >= threshold:
        return True
    return judge is not None and judge(ours, theirs)
