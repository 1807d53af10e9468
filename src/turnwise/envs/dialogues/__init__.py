"""The shared parts of environments in which a user makes requests and the policy fulfils the requests by tool calls."""

from turnwise.envs.dialogues.experts import Mistakes
from turnwise.envs.dialogues.multi_turn_check import Reference
from turnwise.envs.dialogues.problem import DialogueProblem, UserTurn
from turnwise.envs.dialogues.session import DialogueSession

__all__ = ["DialogueProblem", "DialogueSession", "Mistakes", "Reference", "UserTurn"]
