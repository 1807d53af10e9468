"""Episodes of the scripted policy in a corridor, and their exact values."""

from __future__ import annotations

from turnwise.engines.engine import Sampling
from turnwise.methods.allocate import Uniform
from turnwise.methods.states import task_starts
from turnwise.rollouts.episodes import Openings
from turnwise.rollouts.player import Player
from turnwise.types import RolloutTree
from turnwise_study.credit_audit import in_parts
from turnwise_study.scripted_policy import Characters, ScriptedEngine
from turnwise_worlds.corridor import CorridorEnv, after, skilled, value

SKILL = 0.7


def player_of(env: CorridorEnv) -> Player:
    return Player(ScriptedEngine(skilled(SKILL)), env, Characters(), Sampling())


def paths_of(player: Player, tasks: int) -> list[RolloutTree]:
    opening = Openings(player.environment, player.chat)
    states = task_starts(player.environment.tasks("train", tasks), lambda task: opening(task)[1])
    return in_parts(player, states, Uniform(1), 1, "paths")


def exact(path: RolloutTree, turns: int) -> float:
    begun = CorridorEnv().reset(path.state.task)
    return value(after(begun, *(turn.text for turn in path.turns[:turns])), skilled(SKILL), {})
