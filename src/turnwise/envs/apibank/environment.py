"""``env=apibank``: tool calls at API-Bank's three levels of difficulty."""

from __future__ import annotations

from collections.abc import Sequence

from turnwise.data.toolcalls import Format
from turnwise.envs.apibank.generated import OfficeTasks
from turnwise.envs.apibank.public import PublicTasks
from turnwise.envs.dialogues.environment import DialogueEnv
from turnwise.envs.dialogues.experts import Mistakes
from turnwise.envs.environment import Verifier


class ApiBankEnv(DialogueEnv):
    """An environment in which the policy fulfils a user's request with API calls.

    :class:`~turnwise.envs.dialogues.environment.DialogueEnv` describes the arguments that are not listed here.

    Args:
        data: path of API-Bank's folder ``json_test_data``. None means that tasks with the APIs of a small office are
            generated.
        levels: the levels of difficulty to use. At level 1, the policy calls a given API. At level 2, the policy has to
            find the API first. At level 3, the policy plans calls of several APIs.
        format: the format of tool calls. ``bfcl_python`` is API-Bank's own format, ``[Name(key='value')]``.

    Raises:
        InputError: the public files cannot be read.
        ValueError: a number is below 1, or a level, format or verifier is unknown.
    """

    name = "apibank"

    def __init__(
        self,
        data: str | None = None,
        levels: Sequence[int] = (1, 2, 3),
        horizon: int = 14,
        steps: int = 12,
        format: Format = "bfcl_python",  # noqa: A002 - the configuration uses this name
        mistakes: Mistakes | None = None,
        kept: int = 256,
        thinks: bool = False,
        muddle: float = 0.0,
        verifier: Verifier = "oracle",
    ) -> None:
        source = OfficeTasks(tuple(levels)) if data is None else PublicTasks(data, levels)
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
