"""Dialogues over tools: what the worlds share whose users ask for things that calls do."""

from turnwise.envs.dialogues.experts import Mistakes
from turnwise.envs.dialogues.problem import Problem, UserTurn
from turnwise.envs.dialogues.score import Reference
from turnwise.envs.dialogues.session import DialogueSession

__all__ = ["DialogueSession", "Mistakes", "Problem", "Reference", "UserTurn"]
