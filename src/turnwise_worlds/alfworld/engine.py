"""Runs the ALFWorld engine in a worker process. Any interpreter that has alfworld and textworld can run this script.

The worker reads one JSON object per line from standard input. It writes one JSON object per line to the file that was
standard output when the worker started. The process runs nothing else, because the engine overwrites ``sys.argv``,
replaces ``sys.stdout`` and is not thread-safe.

Requests: ``{"op": "open", "game": path or {"problem", "sentence"}}``, ``{"op": "step", "at": id, "action": text}``,
``{"op": "fork", "at": id}``, ``{"op": "plan", "at": id}``. A request may also contain ``"free": [ids]``; the worker
then forgets these sessions. Replies: ``{"id", "observation", "won", "admissible"}``, ``{"plan": [...]}`` or
``{"error": text}``.
"""

from __future__ import annotations

import copy
import functools
import importlib.resources
import json
import os
import sys
import traceback
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fast_downward
import textworld
from alfworld.agents.utils.misc import Demangler
from textworld.envs import PddlEnv
from textworld.envs.pddl import logic as pddl_logic
from textworld.envs.pddl import textgen
from textworld.logic import Rule

KEPT_GAMES = 64


def speed_up() -> None:
    """Makes the engine about ten times faster without changing its texts: a template is parsed once instead of at every
    step, dictionaries are copied shallowly, and a PDDL problem is translated once instead of twice.
    """
    parse = functools.cache(textgen._parse_and_convert)

    def parse_and_copy(text: str, **settings: Any) -> Any:
        return copy.deepcopy(parse(text, **settings))  # a copy, because derive() attaches a context to each symbol

    def copy_context(context: dict[str, Any]) -> dict[str, Any]:
        return context | {"variables": dict(context["variables"]), "mapping": dict(context["mapping"])}

    textgen._parse_and_convert = parse_and_copy
    textgen.copy_context = copy_context
    Rule.parse_conjunctive_query = functools.cache(Rule.parse_conjunctive_query)
    # load() and reset() both translate the problem into a planning task, and neither changes the planning task.
    pddl_logic.fast_downward.pddl2sas = functools.lru_cache(maxsize=2)(pddl_logic.fast_downward.pddl2sas)


@dataclass
class Position:
    """The state of one episode, from which the engine can be restored."""

    logic: Any
    entities: dict[str, Any]
    world: Any  # PddlState: the facts from which the observations are built
    state: Any  # GameState: the commands that are valid now
    operators: tuple[tuple[int, int], ...] = ()  # (id, number of effects) of each operator applied since the start

    def branch(self) -> Position:
        """Returns an independent copy. Only facts and variables are copied, because nothing else changes in place."""
        world = copy.copy(self.world)
        world._facts = defaultdict(set, {sign: set(facts) for sign, facts in world._facts.items()})
        world._vars_by_name = dict(world._vars_by_name)
        world._vars_by_type = defaultdict(set, {kind: set(found) for kind, found in world._vars_by_type.items()})
        world._var_counts = Counter(world._var_counts)
        return replace(self, world=world)


class Engine(PddlEnv):
    """ALFWorld's PddlEnv, which holds many positions (states of episodes). The planner library holds only one, so
    ``_enter`` brings it to a position by all operators that led there from the start.
    """

    def __init__(self) -> None:
        super().__init__(textworld.EnvInfos(admissible_commands=True))
        self._positions: dict[int, Position] = {}
        # start positions of games, cached because a group of rollouts opens the same game many times
        self._starts: OrderedDict[str, Position] = OrderedDict()
        self._next = 0
        self._here: int | None = None  # id of the position that the planner library holds now

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        for at in request.get("free", ()):
            self._positions.pop(at, None)
        if request["op"] == "open":
            return self._add(self._start(request["game"]))
        at = request["at"]
        if request["op"] == "fork":
            return self._add(self._positions[at].branch())
        self._enter(at)
        if request["op"] == "plan":
            self.downward_lib.load_sas_replan(self._pddl_state.sas_replan.encode("utf-8"))
            return {"plan": self._pddl_state.replan(self._entity_infos)}
        return self._apply(at, request["action"])

    def _start(self, game: str | dict[str, str]) -> Position:
        key = json.dumps(game)
        if key not in self._starts:
            self._here = None
            self.load(_content(game))
            names = Demangler(game_infos=self._entity_infos, shuffle=False)
            for info in self._entity_infos.values():
                info.name = names.demangle_alfred_name(info.id)
            self.reset()
            self._starts[key] = Position(self._logic, self._entity_infos, self._pddl_state, self.state)
        self._starts.move_to_end(key)
        if len(self._starts) > KEPT_GAMES:
            self._starts.popitem(last=False)
        return self._starts[key].branch()

    def _apply(self, at: int, action: str) -> dict[str, Any]:
        position = self._positions[at]
        # a copy, because step() stores the operators of the next state in the same attribute
        operators = dict(position.world._operators)
        self._here = None  # if the engine fails half-way, the state of the library is unknown
        self.step(action)
        if self._last_action is not None:
            done = operators[self._last_action.id]
            position.operators += ((done.id, done.nb_effect_atoms),)
        position.state = self.state
        self._here = at
        return self._reply(at)

    def _add(self, position: Position) -> dict[str, Any]:
        at, self._next = self._next, self._next + 1
        self._positions[at] = position
        return self._reply(at)

    def _reply(self, at: int) -> dict[str, Any]:
        state = self._positions[at].state
        return {
            "id": at,
            "observation": state.feedback,
            "won": bool(state["won"]),
            "admissible": state["admissible_commands"],
        }

    def _enter(self, at: int) -> None:
        position = self._positions[at]
        self._logic, self._entity_infos = position.logic, position.entities
        self._pddl_state, self.state = position.world, position.state
        if self._here == at:
            return
        self._here = None
        self.downward_lib.load_sas(position.world.sas.encode("utf-8"))
        for operator, effects in position.operators:
            self.downward_lib.apply_operator(operator, (fast_downward.Atom * effects)())
        self._here = at


def _content(game: str | dict[str, str]) -> dict[str, Any]:
    """Returns a game's PDDL domain, grammar and PDDL problem. ``game`` is the path of a file with them, or holds a
    problem and the task in words, which is written into the grammar of the alfworld package.
    """
    if isinstance(game, str):
        return json.loads(Path(game).read_text(encoding="utf-8"))
    shipped = importlib.resources.files("alfworld") / "data"
    return {
        "pddl_domain": (shipped / "alfred.pddl").read_text(encoding="utf-8"),
        "grammar": (shipped / "alfred.twl2").read_text(encoding="utf-8").replace("UNKNOWN GOAL", game["sentence"]),
        "pddl_problem": game["problem"],
    }


def main() -> None:
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # redirects everything that the engine prints to the log
    if "--slow" not in sys.argv:
        speed_up()
    engine = Engine()
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        try:
            reply = engine.answer(json.loads(line))
        except Exception as error:  # the parent process handles the error; later requests may still work
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
