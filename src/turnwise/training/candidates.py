"""The candidate states of a run: the first states of train tasks, or the turns of expert trajectories, which an environment's
scripted experts write or a user's file holds (``data.file``).

A *dialogue* is a trajectory of a user's file that belongs to no environment of the run. A hash of its beginning
(everything before the first reply) decides whether it is held out for evaluation, so that a file always gives the same
split, and dialogues that begin alike (such as several trajectories of one task) are all held out or all trained on.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from turnwise.config.settings import DataSettings, RolloutSettings
from turnwise.daemon_threads import DaemonThreads
from turnwise.data.chat_tokens import ChatTemplateError, ChatTokens, Demonstrations
from turnwise.data.read_records import UnusableError
from turnwise.data.template_dialect import Dialect, calls_read, check_read_back, dropped, uses_tools
from turnwise.data.toolcalls import PARSERS
from turnwise.data.trajectories import BadTrajectory, by_kind, each_trajectory, write_trajectories
from turnwise.data.turns_in_context import TurnInContext, steps_of
from turnwise.env import Environment, Quality, demonstrated, environment_of, environments_of, tried, waits
from turnwise.errors import InputError
from turnwise.methods.states import expert_turns, task_starts
from turnwise.rollouts.episodes import Openings, episode_guard
from turnwise.shipped import unknown_to
from turnwise.training.build_run import Parts, Settings
from turnwise.training.progress import Phases
from turnwise.types import Message, State, Task, Trajectory

CHECKED = 32  # greatest number of demonstrated actions that are checked before a run begins
FLOOR, PART = 8, 4  # at least FLOOR dialogues are held out, but in a small file only 1 / PART of its dialogues

# -- demonstrations of scripted experts --------------------------------------------------------------------------------


# Version of the demonstrations. Increase this number when an expert's actions change, so that old files are not used.
_FORMAT = 1


def expert_file(
    environment: Environment,
    count: int,
    folder: str | Path,
    good: float = 0.5,
    seed: int = 0,
    split: str = "train",
    progress: Callable[[int, int], None] | None = None,
    threads: int = 0,
    guard: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Path:
    """Returns the path of a file with ``count`` demonstrations, which the environment's experts write if it is missing.
    Its name has a hash of everything that determines the content: the environment's public settings, the tasks, the
    expert of each task, and the seed.

    Args:
        good: fraction of the trajectories that the good expert makes. The clumsy expert makes the rest, which shows how
            to recover from mistakes.
        progress: called after each demonstration with the number of finished demonstrations and ``count``.
        threads: number of demonstrations that are made at the same time in an environment that waits for other
            processes. With 0, they are made one after the other.
        guard: makes the context in which each demonstration runs; after an ``EnvironmentFault``, it is tried again.
    """
    tasks = environment.tasks(split, count, seed)
    qualities = _qualities(len(tasks), good, seed)
    content = [_FORMAT, _settings(environment), seed, qualities, [asdict(task) for task in tasks]]
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    path = Path(folder) / f"{environment.name}-{split}-{len(tasks)}-{digest[:16]}.jsonl"
    if not path.exists():
        trajectories: list[Trajectory] = []
        for trajectory in _demonstrated(environment, tasks, qualities, seed, threads, guard):
            trajectories.append(trajectory)
            if progress:
                progress(len(trajectories), len(tasks))
        write_trajectories(path, trajectories)
    return path


def _demonstrated(
    environment: Environment,
    tasks: Sequence[Task],
    qualities: Sequence[Quality],
    seed: int,
    threads: int,
    guard: Callable[[], AbstractContextManager[None]],
) -> Iterator[Trajectory]:

    def make(place: int) -> Trajectory:
        with guard():
            return demonstrated(environment, tasks[place], qualities[place], seed)

    pool = DaemonThreads(min(threads, environment.together or threads), "experts")
    begun = {
        place: pool.submit(partial(tried, partial(make, place)))
        for place, task in enumerate(tasks)
        if threads and waits(environment, task)
    }
    try:
        for place in range(len(tasks)):
            yield begun.pop(place).result() if place in begun else tried(partial(make, place))
    finally:
        pool.close()


def _settings(environment: Environment) -> dict[str, Any]:
    """Returns an environment's public attributes as text, if it is the same in every run, and those of its parts."""
    settings: dict[str, Any] = {"name": environment.name, "horizon": environment.horizon}
    if is_dataclass(environment):  # which may have slots
        settings |= {field.name: getattr(environment, field.name) for field in fields(environment)}
    settings |= getattr(environment, "__dict__", {})  # a subclass need not be a dataclass
    shown = {
        name: repr(value)
        for name, value in settings.items()
        if not name.startswith("_") and (isinstance(value, str | int | float | None) or is_dataclass(value))
    }
    parts = {name: world for name, world in environments_of(environment).items() if world is not environment}
    return shown | {name: _settings(world) for name, world in parts.items()}


def _qualities(count: int, good: float, seed: int) -> list[Quality]:
    """Returns who demonstrates each task, shuffled, because environments often order tasks by type."""
    first = round(count * good)
    qualities: list[Quality] = ["good" if place < first else "clumsy" for place in range(count)]
    random.Random(f"{seed}/qualities").shuffle(qualities)
    return qualities


# -- a user's dialogues ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The held-out dialogues of a run."""

    states: Sequence[State]  # one for every demonstrated reply
    tools: Mapping[str, tuple[str, ...]]  # state id -> names of the tools that the demonstrated reply calls
    digest: str  # hash of the dialogues and of the rules for judging replies, for the cache of the base's evaluation

    @property
    def longest(self) -> int:
        return max(len(state.expert_ids) for state in self.states)


@dataclass(slots=True)
class CandidateFile:
    """Takes the trajectories of a user's file one at a time, and decides which of its dialogues are held out."""

    demonstrations: Demonstrations
    dialect: Dialect
    data: DataSettings
    environments: Collection[str]  # names; a trajectory without a task of these environments is a dialogue
    # of each trajectory a number in [0, 1), the hash of its beginning; None if it belongs to an environment
    draws: list[float | None] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)  # what the log says about dialogues -> their number

    def __call__(self, trajectory: Trajectory) -> None:
        """Adds a trajectory to the demonstrations.

        Raises:
            UnusableError: the chat template cannot render the trajectory, or another trajectory has the same id.
            InputError: the chat template cannot render tools, and ``data.tools_as_text`` is False.
        """
        named, dialect = trajectory.task.env if trajectory.task else "", self.dialect
        played = named in self.environments
        if not played:
            trajectory = replace(trajectory, task=None)
        lost = not played and uses_tools(trajectory) and dialect.lost_tools
        if lost and self.data.tools_as_text is False:
            raise InputError(
                f"{self.demonstrations.chat.name}: {lost}, but the dialogues use tools: choose a model whose chat template "
                "shows tools, or set data.tools_as_text=true to write the tools as text"
            )
        notes: list[str] = []
        try:
            self.demonstrations.add(
                trajectory,
                trajectory if played else dialect(trajectory),
                lambda actions, replies: notes.extend(self._check(trajectory, actions, replies, played)),
            )
        except ChatTemplateError as error:
            remedy = "leave out this trajectory, or show tools as text with data.tools_as_text=true"
            raise UnusableError("refused by the chat template", f"{error}; {remedy}") from error
        self.draws.append(None if played else beginning(trajectory))
        if trajectory.pivot is not None:
            notes.append("are pivot rows, in which only the last reply is a candidate")
        if lost:
            notes.append(f"are shown with their tools in the system turn and calls as text, because {lost}")
        if (
            not played
            and dialect.lost_system
            and (trajectory.messages[0]["role"] == "system" or (lost and trajectory.tools))
        ):
            notes.append(f"have their system message in the first user message, because {dialect.lost_system}")
        if named and not played:
            notes.append(f"name the environment {named!r}, which this run does not play; set env={named} to play it")
        self.told.update(notes)

    def _check(
        self, trajectory: Trajectory, actions: Sequence[str], replies: Sequence[str], played: bool
    ) -> Iterator[str]:
        if played:
            empty = next((turn for turn, action in enumerate(actions) if not action.strip()), None)
            lost = "" if empty is None else f"{trajectory.id}#t{empty} is rendered as an empty reply"
        else:
            lost = check_read_back(self.dialect, trajectory, actions)
        if lost:
            raise UnusableError(
                "lost by the chat template",
                f"{lost}; use a chat template that shows the reply, set data.format to the format of the calls, or set "
                "data.tools_as_text=true",
            )
        text, reasoning = (False, False) if played else dropped(trajectory, actions, replies)
        if text:
            yield (
                "lose the text of replies that also have calls (the chat template leaves it out); "
                "data.tools_as_text=true keeps this text"
            )
        if reasoning:
            yield (
                "lose the reasoning of replies (the chat template leaves it out); write it at the start of the content, as "
                "<think>...</think>, or use a chat template that shows it"
            )

    def lines(self) -> list[str]:
        verifier = f"data.verifier={self.data.verifier or 'null'} (docs/data.md)"
        return [
            f"dialogues without an environment: {self.dialogues}, judged by their demonstrated replies, whose calls are read "
            f"as {self.dialect.format}, {verifier}",
            *(f"of these dialogues, {count} {text}" for text, count in self.told.items()),
        ]

    @property
    def dialogues(self) -> int:
        return sum(draw is not None for draw in self.draws)

    @property
    def only_dialogues(self) -> bool:
        return None not in self.draws

    def held_out(self) -> list[int]:
        """Returns the numbers of the held-out dialogues in the order of their hashes. The number of a dialogue is its
        position among all trajectories of the file, from 0.

        Raises:
            InputError: too many dialogues begin alike, so that none or only a minority would be left to train on.
        """
        draws = {number: draw for number, draw in enumerate(self.draws) if draw is not None}
        if not self.data.held_out or not draws:
            return []
        wanted = sum(draw < self.data.held_out for draw in draws.values())
        wanted = max(min(FLOOR, max(1, len(draws) // PART)), min(wanted, len(draws) // 2))
        alike: dict[float, list[int]] = {}  # dialogues that begin alike stay together
        for number in sorted(draws, key=lambda number: (draws[number], number)):
            alike.setdefault(draws[number], []).append(number)
        held: list[int] = []
        for numbers in [*alike.values()][: len(alike) - self.only_dialogues]:  # something must be left to train on
            held += numbers if len(held) < wanted else []
        if not held:
            raise InputError(
                f"{self.data.file}: its dialogues all begin alike and cannot be both trained on and held out; add other "
                "dialogues, or set data.held_out=0"
            )
        if len(held) > max(wanted, len(draws) // 2):
            raise InputError(
                f"{self.data.file}: so many dialogues begin alike that data.held_out={self.data.held_out} would hold out "
                f"{len(held)} of {len(draws)}; set data.held_out=0, or add other dialogues"
            )
        return held

    def measured(self, states: Sequence[State], steps: Mapping[str, TurnInContext]) -> HeldOut:
        """Returns the held-out dialogues with these states. ``steps`` maps state ids to demonstrated turns."""
        content = json.dumps([[state.id, state.ids, state.expert] for state in states])
        digest = hashlib.sha256(f"{content}{self.dialect}{self.data}".encode()).hexdigest()[:16]
        tools = {state.id: tuple(dict.fromkeys(call.name for call in steps[state.id].calls)) for state in states}
        return HeldOut(states, tools, digest)


def beginning(trajectory: Trajectory) -> float:
    """Returns a number in [0, 1), the hash of the messages before the first reply and of the tools."""
    first = next(i for i, message in enumerate(trajectory.messages) if message["role"] == "assistant")
    text = json.dumps([trajectory.messages[:first], trajectory.tools], sort_keys=True, default=dict)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


# -- candidate states --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidate states of a run, and the data that belongs to these states."""

    states: Sequence[State]  # the first states of train tasks, or the states of expert turns that are not held out
    opening: Openings  # returns a task's first messages and their token ids
    demonstrations: Demonstrations | None = None  # None if the states are the first states of tasks
    problems: Sequence[BadTrajectory] = ()  # the trajectories that were left out, with the reasons
    steps: Mapping[str, TurnInContext] = field(
        default_factory=dict
    )  # by state id, if a judge or an evaluation reads them
    headline: str | None = None  # name of the user's file if the main result is about its dialogues
    held_out: HeldOut | None = None
    plays: bool = True  # whether the evaluation includes tasks of the environment

    def messages(self, state: State) -> Sequence[Message]:
        trajectory = self.demonstrations and self.demonstrations.named(state.trajectory or "")
        if not trajectory:
            return self.opening(state.task)[0]
        return trajectory.messages[: trajectory.acts[state.turn]]

    def fitting(self, settings: Settings, parts: Parts, phases: Phases) -> Sequence[State]:
        """Returns the states that fit into ``rollout.max_length`` together with an action of ``sampling.max_tokens``,
        or without sampling, together with the demonstrated turn. Raises an InputError if there is none.
        """
        rollout = settings.rollout
        if parts.allocator is not None:
            return _playable(self.states, rollout, phases)
        ends = [len(state.ids) + len(state.expert_ids) for state in self.states]
        what = f"demonstrated turns end after more than {rollout.max_length} tokens (rollout.max_length"
        return _candidates_within(rollout.max_length, "rollout.max_length", self.states, ends, what, phases)


def read_candidates(settings: Settings, parts: Parts, chat: ChatTokens, phases: Phases) -> Candidates:
    """Reads the candidate states: the first states of train tasks, or all expert turns, from ``data.file`` or from the
    environment's experts. An InputError says if there is no usable state, or if the reward cannot use the
    demonstrations.
    """
    rule, data, env, rollout = parts.states, settings.data, parts.env, settings.rollout
    opening = Openings(env, chat, rollout.environment_threads, rollout.environment_seconds)
    if rule.source == "tasks":
        count: int = rule.count  # type: ignore[attr-defined]  # only a rule of this source has a count
        tasks = env.tasks("train", count, settings.seed)
        if env.waits or count > 1000:  # some milliseconds each
            with phases.phase("read", count) as advance:
                opening.read(tasks, advance)
        else:
            opening.read(tasks)  # all in one event loop
        return Candidates(task_starts(tasks, lambda task: opening(task)[1]), opening)
    demonstrations, own = Demonstrations(chat), None
    with phases.phase("read", 0 if data.file else data.trajectories) as advance:
        if data.file is not None and parts.dialect is not None:
            own = CandidateFile(demonstrations, parts.dialect, data, environments_of(env))
            problems = each_trajectory(own, data.file, strict=data.strict)
        else:
            path = expert_file(
                env,
                data.trajectories,
                settings.cache,
                data.good,
                settings.seed,
                progress=lambda done, total: advance(1),
                threads=rollout.environment_threads,
                guard=partial(episode_guard, passing=(ValueError,)),
            )
            problems = each_trajectory(demonstrations.add, path, strict=data.strict)
    by_trajectory = [
        [state for state in expert_turns(trajectory, spines, chat.decode) if is_candidate(env, trajectory, state)]
        for trajectory, spines in demonstrations
    ]
    turns = [state for states in by_trajectory for state in states]
    needed = demonstrations if parts.judge is not None or own is not None else ()
    steps = {step.id: step for trajectory, _ in needed for step in steps_of(trajectory)}
    check_readable(parts.reward, turns)
    for line in by_kind(problems):
        phases.log(f"left out: {line}")
    read = (opening, demonstrations, problems, steps)
    if own is None or not own.dialogues:
        return Candidates(short_prompts(turns, data.prompt_tokens, phases), *read)
    sampled = parts.allocator is not None
    if sampled and rollout.turns != 1:
        raise InputError(
            f"rollout.turns: no environment answers the policy in {own.dialogues} dialogues of {data.file}; set "
            "rollout.turns=1"
        )
    numbers = own.held_out()
    for line in filter(None, [*own.lines(), unknown_to(settings.policy.model, Path(data.file or "").name, None)]):
        phases.log(line)
    held_out = None
    if numbers:
        most = settings.eval.tasks  # further held-out dialogues are not used at all
        fitting = [state for number in sorted(numbers[:most]) for state in by_trajectory[number]]
        held_out = own.measured(list(_playable(fitting, rollout, phases)), steps)
        dialogues = len({state.trajectory for state in held_out.states})
        phases.log(f"dialogues held out: {len(numbers)}; evaluated: {dialogues} (replies: {len(held_out.states)})")
        if sampled and held_out.longest > rollout.sampling.max_tokens:
            phases.log(
                f"some of these demonstrated replies are longer than the {rollout.sampling.max_tokens} tokens that the policy "
                f"may write; raise rollout.sampling.max_tokens to {held_out.longest}"
            )
    left_out = set(numbers)
    trained = [state for number, states in enumerate(by_trajectory) if number not in left_out for state in states]
    name = Path(data.file or "").name if own.only_dialogues else None
    plays = settings.eval.environment or (settings.eval.environment is None and not name)
    headline = name if held_out or not plays else None
    return Candidates(short_prompts(trained, data.prompt_tokens, phases), *read, headline, held_out, plays)


def is_candidate(env: Environment, trajectory: Trajectory, state: State) -> bool:
    answers = trajectory.messages[trajectory.acts[state.turn] + 1 :]
    observation = answers[0].get("content") if answers else ""
    return environment_of(env, state.task).is_candidate(str(observation or ""))


def short_prompts(states: Sequence[State], most: int | None, phases: Phases) -> Sequence[State]:
    if most is None:
        return states
    what = f"prompts have more than {most} tokens (data.prompt_tokens"
    return _candidates_within(most, "data.prompt_tokens", states, [len(state.ids) for state in states], what, phases)


def _playable(states: Sequence[State], rollout: RolloutSettings, phases: Phases) -> Sequence[State]:
    limit = rollout.max_length - rollout.sampling.max_tokens
    what = f"states have a history of more than {limit} tokens (rollout.max_length minus rollout.sampling.max_tokens"
    return _candidates_within(limit, "rollout.max_length", states, [len(state.ids) for state in states], what, phases)


def _candidates_within(
    limit: int, key: str, states: Sequence[State], lengths: Sequence[int], what: str, phases: Phases
) -> Sequence[State]:
    fitting = [state for state, length in zip(states, lengths, strict=True) if length <= limit]
    if len(fitting) == len(states):
        return states
    why = f"{len(states) - len(fitting)} of {len(states)} {what}; the longest has {max(lengths)})"
    if not fitting:
        raise InputError(f"{key}: no state is left, because {why}; raise {key}, or give shorter data")
    phases.log(f"left out: {why}")
    return fitting


def check_readable(reward: Any, candidates: Sequence[State]) -> None:
    """Raises an InputError if none of up to ``CHECKED`` demonstrated actions has a tool call in the reward's format. The
    message names the format that reads them, if there is one.
    """
    form = getattr(reward, "format", None)
    if form is None or not candidates:
        return
    count = min(CHECKED, len(candidates))
    experts = [candidates[i * len(candidates) // count].expert or "" for i in range(count)]
    if calls_read(form, experts):
        return
    better = [name for name in PARSERS if calls_read(name, experts)]
    remedy = (
        f"set reward.format={better[0]}, which reads these actions"
        if better
        else "it grades only calls: choose an environment with tools (env=apibank, bfcl or tau2), or method=pivotrl"
    )
    raise InputError(
        f"reward.format={form}: none of {count} demonstrated actions has a call in this format, such as "
        f"{experts[0][:80]!r}; {remedy}"
    )
