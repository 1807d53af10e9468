"""``env=apibank``: three levels of calling APIs."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.data.toolcalls.formats import Format
from turnwise.envs.apibank.generated import OfficeTasks
from turnwise.envs.apibank.released import ReleasedTasks
from turnwise.envs.dialogues.environment import DialogueEnv
from turnwise.envs.dialogues.experts import Mistakes
from turnwise.envs.environment import Verifier


class ApiBankEnv(DialogueEnv):
    """Level 1 calls a given API, level 2 finds one first, level 3 plans several. See ``turnwise.envs.environment.Environment``.

    Args:
        data: the folder of the public files (``json_test_data``); None is the generated office.
        levels: which of 1, 2 and 3.
        horizon: turns of an episode.
        steps: replies with calls to one user turn.
        format: how calls are written; ``bfcl_python`` is API-Bank's ``[Name(key='value')]``.
        mistakes: probabilities of the clumsy expert's mistakes.
        kept: how many tasks' ground truths are kept in memory.
        thinks: whether the experts state before each reply which calls are left to make.
        muddle: the probability that the clumsy expert then states something else before a right reply.
        verifier: ``oracle`` (``dialogues.verifier``) or ``demonstrated`` (``dialogues.demonstrated``).

    Raises:
        InputError: the public files cannot be read.
        ValueError: a number below 1, or an unknown level, format or verifier.
    """

    name = "apibank"

    def __init__(
        self,
        data: str | None = None,
        levels: Sequence[int] = (1, 2, 3),
        horizon: int = 14,
        steps: int = 12,
        format: Format = "bfcl_python",  # noqa: A002 - the configuration's word
        mistakes: Mistakes | None = None,
        kept: int = 256,
        thinks: bool = False,
        muddle: float = 0.0,
        verifier: Verifier = "oracle",
    ) -> None:
        source = OfficeTasks(tuple(levels)) if data is None else ReleasedTasks(data, levels)
        super().__init__(
            source,
            horizon,
            steps,
            format,
            mistakes,
            brief=data is None,
            kept=kept,
            thinks=thinks,
            muddle=muddle,
            verifier=verifier,
        )
        self.data = data
        self.levels = " ".join(map(str, levels))
        self.closing = "done" if data is None else "Done."
