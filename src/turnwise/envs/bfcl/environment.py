"""``env=bfcl``: multi-turn function calling with the simulated APIs of the package bfcl-eval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from turnwise.data.toolcalls import Format
from turnwise.envs.bfcl.generated import TinyTasks
from turnwise.envs.bfcl.package import SUBSETS, root
from turnwise.envs.bfcl.public import PublicTasks
from turnwise.envs.dialogues.environment import DialogueEnv
from turnwise.envs.dialogues.experts import Mistakes
from turnwise.envs.environment import Verifier


class BfclEnv(DialogueEnv):
    """An environment in which the policy fulfils a user's requests with calls of simulated APIs.

    :class:`~turnwise.envs.dialogues.environment.DialogueEnv` describes the arguments that are not listed here.

    Args:
        level: ``public`` has the 800 tasks of the benchmark. ``tiny`` has short generated tasks for six of its APIs.
        horizon: maximum number of turns of an episode; None means the level's default (tiny 16, public 60).
        steps: maximum number of replies with tool calls that the policy may give to one user message. BFCL's own
            program stops a model after 20.
        format: the format of tool calls; None means the level's default (tiny ``bfcl_python``, public ``hermes``).
        subsets: the subsets of the public tasks to use.

    Raises:
        MissingBfclError: bfcl-eval is not installed; the message says how to install it.
        ValueError: a number is below 1, or a level, format, subset or verifier is unknown.
    """

    name = "bfcl"

    def __init__(
        self,
        level: Literal["tiny", "public"] = "tiny",
        horizon: int | None = None,
        steps: int = 20,
        format: Format | None = None,  # noqa: A002 - the configuration uses this name
        subsets: Sequence[str] = SUBSETS,
        mistakes: Mistakes | None = None,
        kept: int = 256,
        thinks: bool = False,
        muddle: float = 0.0,
        verifier: Verifier = "oracle",
    ) -> None:
        if level not in ("tiny", "public"):
            raise ValueError(f"level: must be tiny or public, got {level!r}")
        root()  # if the package is missing, this raises an error that contains the install command
        tiny = level == "tiny"
        if not subsets or len(set(subsets)) < len(subsets):
            raise ValueError(f"subsets: name at least one subset, and each only once, got {list(subsets)}")
        source = TinyTasks() if tiny else PublicTasks(tuple(subsets))
        turns = (16 if tiny else 60) if horizon is None else horizon
        form: Format = format or ("bfcl_python" if tiny else "hermes")
        super().__init__(
            source, turns, steps, form, mistakes, brief=tiny, kept=kept, thinks=thinks, muddle=muddle, verifier=verifier
        )
        self.level = level
