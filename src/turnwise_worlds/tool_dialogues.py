"""The base of ``env=bfcl`` and ``env=apibank``: dialogues of several turns whose requests need tool calls."""

from __future__ import annotations

import hashlib
import math
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Protocol, TypeVar

from annotated_types import Interval
from pydantic import PositiveInt

from turnwise.data.match_calls import match_calls, unmatched_calls
from turnwise.data.tool_schema import function_of, misfits, signature
from turnwise.data.toolcalls import CLOSE_THINKING, OPEN_THINKING, Format
from turnwise.env import CountedSession, Quality, Step, Verifier
from turnwise.types import Message, Task, ToolCall, Trajectory
from turnwise_worlds.scripted_experts import Chances, LastTasks, ScriptedEnv, first_drawn
from turnwise_worlds.tool_environment import Tools, answer_messages, played_trajectory, read_calls, templated

W = TypeVar("W", bound="World")


class World(Protocol):
    """The state of one episode, for example of simulated APIs. Tool calls read and change this state."""

    def call(self, call: ToolCall) -> str: ...

    def fork(self: W) -> W: ...

    def same_state(self: W, other: W) -> bool: ...

    def same_place(self: W, other: W) -> bool:
        """Returns whether all further calls get equal answers in both states."""
        return self.same_state(other)


@dataclass(frozen=True, slots=True)
class UserTurn:
    """One message of the user and its ground truth: the calls that fulfil the request in the message."""

    user: str
    calls: tuple[ToolCall, ...]
    unable: str = ""  # the expert's reply if no calls can fulfil the request


@dataclass(frozen=True, slots=True)
class DialogueProblem:
    world: Callable[[], World]  # builds the initial state
    turns: tuple[UserTurn, ...]
    tools: Tools  # that the policy is shown at the start
    # index of a user turn -> tools that can be called from this turn on but are not shown at the start
    given: Mapping[int, Tools] = field(default_factory=dict)
    one_reply: bool = False  # whether the first reply with a call ends the user turn

    def tools_at(self, turn: int) -> Tools:
        return self.tools + tuple(tool for at, more in self.given.items() if at <= turn for tool in more)


def turn_of(user: str, *calls: tuple[str, dict[str, Any]]) -> UserTurn:
    """Returns a message of the user with its ground truth, which is given as pairs (tool's name, arguments)."""
    return UserTurn(user, tuple(ToolCall(name, arguments) for name, arguments in calls))


def split_of(turns: Sequence[Mapping[str, Any]]) -> str | None:
    """A hash holds a quarter of all requests out of training. The split is ``seen`` if all requests of a task are held
    out, ``train`` if none is, and otherwise none, so no request of a ``seen`` task occurs in training.
    """
    held = [hashlib.sha256(turn["user"].encode()).digest()[0] < 64 for turn in turns]
    return "seen" if all(held) else None if any(held) else "train"


def turns_data(turns: Sequence[UserTurn]) -> list[dict[str, Any]]:
    return [
        {"user": turn.user, "calls": [{"name": c.name, "arguments": dict(c.arguments)} for c in turn.calls]}
        for turn in turns
    ]


def turns_from(records: Sequence[Mapping[str, Any]]) -> tuple[UserTurn, ...]:
    return tuple(turn_of(one["user"], *((c["name"], dict(c["arguments"])) for c in one["calls"])) for one in records)


class Source(Protocol):
    def tasks(self, split: str, count: int, seed: int) -> Sequence[Task]: ...

    def problem(self, task: Task) -> DialogueProblem: ...


Names = Mapping[str, Sequence[str]]
"""Kind of thing -> the names from which generated tasks draw those of such things."""


@dataclass(frozen=True)
class GeneratedTasks(ABC):
    """Generated tasks. ``train`` and ``seen`` share their names; ``unseen`` has held-out names."""

    env: ClassVar[str]
    training: ClassVar[Names]
    held_out: ClassVar[Names]
    names: Callable[[random.Random], Names] | None = None  # draws the names of train or seen; None: ``training``

    @abstractmethod
    def data(self, rng: random.Random, split: str, index: int, names: Names) -> dict[str, Any]: ...

    @abstractmethod
    def kind(self, data: Mapping[str, Any]) -> tuple[str, str]:
        """Returns the beginning of the task's id, and its subset."""

    @abstractmethod
    def problem(self, task: Task) -> DialogueProblem: ...

    def fits(self, data: Mapping[str, Any], split: str) -> bool:
        return split in ("unseen", split_of(data["turns"]))

    def tasks(self, split: str, count: int, seed: int) -> list[Task]:
        return [self._task(split, seed, index) for index in range(count)]

    def _task(self, split: str, seed: int, index: int) -> Task:
        def draw(rng: random.Random) -> dict[str, Any]:
            names = self.held_out if split == "unseen" else self.names(rng) if self.names else self.training
            return self.data(rng, split, index, names)

        name = f"{self.env}/{split}/{seed}/{index}/"
        data = first_drawn(name, draw, lambda data: self.fits(data, split))  # practically always one of the first ten
        group, subset = self.kind(data)
        return Task(self.env, f"{group}/{split}/{seed}/{index:06d}", split, data, subset)


EMPTY, STATE, ANSWERS, STOPPED = "no_call", "other_state", "answer_missing", "stopped"


@dataclass(frozen=True, slots=True)
class DialogueReference:
    """The result of running the calls of the ground truth: the state and the answers of each user turn."""

    start: World
    states: tuple[World, ...]
    answers: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, problem: DialogueProblem) -> DialogueReference:
        start = problem.world()
        truth = start.fork()
        states, answers = [], []
        for turn in problem.turns:
            answers.append(tuple(truth.call(call) for call in turn.calls))
            states.append(truth.fork())
        return cls(start, tuple(states), tuple(answers))

    def fault(self, turn: int, world: World, seen: Sequence[str], called: bool) -> str:
        """Returns the policy's fault at the end of a user turn (a constant of this module); empty for none."""
        if not self.answers[turn]:
            return ""  # no call can fulfil this request; if the policy has changed the state, a later check fails
        if not called:
            return EMPTY
        if not world.same_state(self.states[turn]):
            return STATE
        return "" if holds(seen, self.answers[turn]) else ANSWERS


def holds(seen: Iterable[str], wanted: Iterable[str]) -> bool:
    """Returns whether ``seen`` contains each text of ``wanted`` at least as often as ``wanted`` does, in any order."""
    return not Counter(wanted) - Counter(seen)


HOW = (
    "Call a function as name(parameter=value), several as [f(a=1), g()]. Reply without a call when the request is "
    "served."
)


class DialogueSession(CountedSession):
    """A running dialogue. A reply without a call, or that cannot be parsed, ends the user turn, as in BFCL. The episode
    is lost if a turn fails its check, has more than ``steps`` replies with calls, or the horizon is reached.
    """

    def __init__(self, task: Task, problem: DialogueProblem, reference: DialogueReference, env: DialogueEnv) -> None:
        self.task, self.problem, self.reference = task, problem, reference
        self.form, self.horizon, self.steps, self.brief = env.format, env.horizon, env.steps, env.brief
        self.world: World = reference.start.fork()
        self.seen: tuple[str, ...] = ()  # all answers to calls so far
        self.made: tuple[ToolCall, ...] = ()  # calls in this user turn
        self.steps_made = 0  # number of replies with calls in this user turn
        self.turn = 0  # index of the user turn
        self.fault = ""

    @property
    def tools(self) -> Tools:
        return self.problem.tools if templated(self.form) else ()

    def opening(self) -> list[Message]:
        user: Message = {"role": "user", "content": self.problem.turns[0].user}
        if templated(self.form):
            return [user]
        listed = "\n".join(map(signature, self.problem.tools))
        return [{"role": "system", "content": listed if self.brief else f"{listed}\n{HOW}"}, user]

    def answer(self, action: str) -> Step:
        calls = read_calls(action, self.form, self.problem.tools_at(self.turn)) or ()
        results: list[str] = []
        observation = ""
        if calls:
            results = [self.world.call(call) for call in calls]
            self.seen += tuple(results)
            self.made += calls
            self.steps_made += 1
            observation = "\n".join(results)
            if self.problem.one_reply:
                self._next()
            elif self.steps_made > self.steps:
                self.fault, self.done = STOPPED, True
        else:
            observation = self._next()
        if self.turns + 1 >= self.horizon and not self.done:
            self.fault, self.done = STOPPED, True
        info = {"user_turn": self.turn, "fault": self.fault}
        return Step(observation, float(self.won), self.done, self.won, info, answer_messages(results, self.form))

    def _next(self) -> str:
        self.fault = self.reference.fault(self.turn, self.world, self.seen, bool(self.made))
        last = self.turn == len(self.problem.turns) - 1
        self.won = last and not self.fault
        self.done = last or bool(self.fault)
        if self.done:
            return ""
        self.turn += 1
        self.made, self.steps_made = (), 0
        return self.problem.turns[self.turn].user


def thought(names: Sequence[str]) -> str:
    return f"{OPEN_THINKING}left: {', '.join(names) or 'nothing'}{CLOSE_THINKING}"


def muddled(names: Sequence[str], tools: Tools, rng: random.Random) -> str:
    """Returns a thought in which one function is left out or replaced, or, if none is left, one tool is named."""
    others = [name for name in (str(function_of(tool)["name"]) for tool in tools) if name not in names]
    place = rng.randrange(len(names)) if names else 0
    instead = [rng.choice(others)] if others and (len(names) < 2 or rng.random() < 0.5) else []
    return thought([*names[:place], *instead, *names[place + 1 :]])


# To one user message, the experts plan at most ``steps`` minus this number of correct replies with calls. The rest of
# the limit ``steps`` is for the clumsy expert's mistakes.
_ROOM = 4


@dataclass(frozen=True, slots=True)
class Mistakes(Chances):
    """The probabilities with which the clumsy expert makes each kind of mistake before a call."""

    wrong: float = 0.08  # the call with a wrong value of one argument
    unknown: float = 0.05  # the call with a function name that does not exist
    missing: float = 0.06  # the call without one of its arguments
    repeat: float = 0.06  # its previous correct call
    look: float = 0.08  # a call that needs no arguments and only reads the state
    early: float = 0.0  # the closing word instead of the call, which loses the episode


Reply = tuple[Sequence[ToolCall], str]
"""One reply of an expert as a pair (calls, text). The text is the thought before the calls; in a reply without calls,
the text is the whole reply.
"""


def planned_dialogue(
    session: DialogueSession, closing: str
) -> Iterator[tuple[tuple[ToolCall, ...], tuple[str, ...], str]]:
    """Yields the correct replies of a dialogue: the calls of the ground truth one by one, or several if a message needs
    more than ``session.steps - _ROOM``, or all if there is one reply; then a reply without calls. A reply is its calls,
    the names of the functions that the request still needs, and the text if it has no calls.
    """
    for turn in session.problem.turns:
        many = 1 if session.problem.one_reply else max(1, session.steps - _ROOM)
        at_once = math.ceil(len(turn.calls) / many)
        names = tuple(call.name for call in turn.calls)
        for start in range(0, len(turn.calls), at_once or 1):
            yield turn.calls[start : start + at_once], names[start:], ""
        yield (), (), turn.unable or closing


def dialogue_replies(
    session: DialogueSession,
    closing: str,
    thinks: bool,
    rng: random.Random,
    mistakes: Mistakes | None = None,
    muddle: float = 0.0,
) -> Iterator[Reply]:
    """Yields the correct replies, with ``mistakes`` sometimes an error before a call. With ``thinks``, the thought before
    an error names it, and the thought before a correct reply is wrong with probability ``muddle``.
    """
    last: ToolCall | None = None
    whole = list(planned_dialogue(session, closing))
    for place, (calls, left, text) in enumerate(whole):
        before = thought(left) if thinks else ""
        spare = session.horizon - session.turns - (len(whole) - place)
        room = spare > 0 and session.steps_made < session.steps - _ROOM and not session.problem.one_reply
        if mistakes and calls and room:
            drawn = mistakes.drawn(rng.random())
            made = mistaken_call(session.world, session.problem.tools_at(session.turn), calls[0], last, rng, drawn)
            if made is not None:
                yield [made], thought([made.name, *left[1:]]) if thinks else ""
            elif drawn == "early":
                yield [], (thought([]) if thinks else "") + closing
        if mistakes and thinks and rng.random() < muddle:
            before = muddled(left, session.problem.tools_at(session.turn), rng)
        yield calls, before + text
        last = calls[-1] if calls else None


def mistaken_call(
    world: W, tools: Tools, due: ToolCall, last: ToolCall | None, rng: random.Random, drawn: str | None
) -> ToolCall | None:
    """Returns a wrong call of the kind ``drawn`` (a field of :class:`Mistakes`) in place of the correct call ``due`` after
    ``last``. It does not change the state. None if there is no such call, as for ``early``.
    """
    made: ToolCall | None = None
    if drawn in ("wrong", "missing") and due.arguments:
        key = rng.choice(sorted(due.arguments))
        values = {name: value for name, value in due.arguments.items() if drawn == "wrong" or name != key}
        made = ToolCall(due.name, values | ({key: _other(values[key])} if drawn == "wrong" else {}))
    elif drawn == "unknown":
        made = ToolCall(f"{due.name}_all", due.arguments)
    elif drawn == "repeat":
        made = last
    elif drawn == "look":
        looks = [f["name"] for f in map(function_of, tools) if not (f.get("parameters") or {}).get("required")]
        made = ToolCall(rng.choice(looks), {}) if looks else None
    if made is None or made == due:
        return None
    twin = world.fork()
    answer = twin.call(made)
    harmless = twin.same_place(world)
    # a call is not a mistake if the correct call would get the same answer
    return made if harmless and answer != twin.call(due) else None


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}x" if isinstance(value, str) else []


def dialogue_oracle_accepts(session: DialogueSession, calls: Sequence[ToolCall], tools: Tools) -> bool:
    due = still_due(session)
    if not calls:
        return not due or (bool(session.made) and serves(session, []))
    rest = unmatched_calls(due, calls)
    if len(rest) == len(due) - len(calls):
        return serves(session, [*calls, *rest])
    if len(calls) > len(due) or any(misfits(call, tools) for call in calls):
        return False
    # Some calls of the reply are not calls of the ground truth. The reply is accepted only if its calls and the rest of
    # the ground truth fulfil the request, and the rest alone would not.
    rests = _shorter(due) if len(calls) == 1 else [due[len(calls) :]]
    return any(serves(session, [*calls, *rest]) and not serves(session, rest) for rest in rests)


def still_due(session: DialogueSession) -> list[ToolCall]:
    """Returns the calls of the ground truth that are still missing in this user turn. If the policy has replaced one of
    them by another call, so that the rest fails, one is left out with which the others serve.
    """
    due = unmatched_calls(session.problem.turns[session.turn].calls, session.made)
    if not due or not session.made or serves(session, due):
        return due
    return next((rest for rest in _shorter(due) if serves(session, rest)), due)


def serves(session: DialogueSession, calls: Sequence[ToolCall]) -> bool:
    world, truth = session.world.fork(), session.reference
    seen = [*session.seen, *(world.call(call) for call in calls)]
    return world.same_state(truth.states[session.turn]) and holds(seen, truth.answers[session.turn])


def _shorter(due: Sequence[ToolCall]) -> list[list[ToolCall]]:
    return [[*due[:i], *due[i + 1 :]] for i in range(len(due))]


@dataclass(eq=False)
class DialogueEnv(ScriptedEnv[DialogueSession]):
    """Base class of environments with dialogues. ``conf/env/bfcl.yaml`` explains the arguments. A subclass sets the name,
    the source of tasks, and whether the policy reads and writes short texts, as the tiny policies do (``brief``).
    """

    source: Source = field(init=False)
    brief: bool = field(init=False)
    horizon: PositiveInt = 14
    steps: PositiveInt = 20
    format: Format = "bfcl_python"
    mistakes: Mistakes = Mistakes()
    kept: PositiveInt = 256
    thinks: bool = False
    muddle: Annotated[float, Interval(ge=0, le=1)] = 0.0
    verifier: Verifier = "oracle"

    def __post_init__(self) -> None:
        self.closing = "done" if self.brief else "Done."
        self._problems = LastTasks(self._problem, self.kept)

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        return self.source.tasks(split, count, seed)

    def begin(self, task: Task) -> DialogueSession:
        problem, reference = self._problems(task)
        return DialogueSession(task, problem, reference, self)

    def _problem(self, task: Task) -> tuple[DialogueProblem, DialogueReference]:
        problem = self.source.problem(task)
        return problem, DialogueReference.of(problem)

    def play(self, session: DialogueSession, quality: Quality, seed: int) -> Trajectory:
        rng = random.Random(f"{seed}/{session.task.id}")
        errs = (self.mistakes, self.muddle) if quality == "clumsy" else ()
        return played_trajectory(
            session, dialogue_replies(session, self.closing, self.thinks, rng, *errs), session.form, quality, seed
        )

    def accepts(self, session: DialogueSession, action: str, expert: str) -> bool:
        if session.done:
            return False
        tools = session.problem.tools_at(session.turn)
        calls = read_calls(action, session.form, tools)
        if calls is None or not (calls or action.strip()):
            return False
        if self.verifier == "oracle":
            return dialogue_oracle_accepts(session, calls, tools)
        wanted = read_calls(expert, session.form, tools)
        return wanted is not None and match_calls(calls, wanted, tools)
