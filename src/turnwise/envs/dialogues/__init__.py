"""Dialogues over tools: what the worlds share whose users ask for things that calls do."""

from turnwise.envs.dialogues.experts import Mistakes
from turnwise.envs.dialogues.problem import DialogueProblem, UserTurn
from turnwise.envs.dialogues.score import Reference
from turnwise.envs.dialogues.session import DialogueSession

__all__ = ["DialogueProblem", "DialogueSession", "Mistakes", "Reference", "UserTurn"]
