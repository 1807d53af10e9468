"""The candidate states of a run: the first states of train tasks, or the turns of expert trajectories, which are read
from files or written by an environment's scripted experts.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from turnwise.config.settings import RolloutSettings
from turnwise.daemon_threads import DaemonThreads
from turnwise.data.chat_tokens import ChatTokens, Demonstrations
from turnwise.data.steps import TurnInContext, steps_of
from turnwise.data.trajectories import BadTrajectory, by_kind, each_trajectory, write_trajectories
from turnwise.env import Environment, Quality, demonstrated, environment_of, environments_of, tried, waits
from turnwise.errors import InputError
from turnwise.methods.states import expert_turns, task_starts
from turnwise.rollouts.environment_steps import Openings, guarded
from turnwise.training.own_data import HeldOut, UserFile, check_readable
from turnwise.training.parts import Parts, Settings
from turnwise.training.progress import Phases
from turnwise.types import Message, State, Task, Trajectory

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
    """Returns the path of a file with ``count`` demonstrations.

    If the file is missing, the experts are run and the file is written first. The file name contains a hash
    of everything that determines the content: the environment's public settings, the tasks, the expert of each task,
    and the seed. A call with other settings therefore uses another file.

    Args:
        environment: provides the tasks and the experts.
        count: number of trajectories.
        folder: the folder of trajectory files.
        good: fraction of the trajectories that the good expert makes, from 0 to 1. The clumsy expert makes the rest,
            which shows how to recover from mistakes.
        seed: seed of the tasks, of the choice of experts and of each demonstration.
        progress: called after each demonstration with the number of finished demonstrations and ``count``.
        threads: number of demonstrations that are made at the same time in an environment that waits for other
            processes. With 0, they are made one after the other.
        guard: makes the context in which each demonstration runs; it may turn errors of the environment into an
            ``EnvironmentFault``, after which the demonstration is tried again.
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
    """Returns an environment's public attributes as text, for the hash in the file name.

    Only strings, numbers, None and dataclasses are included, because their text is the same in every run. The settings
    of an environment's parts are listed under the names of the parts.
    """
    settings: dict[str, Any] = {"name": environment.name, "horizon": environment.horizon}
    if is_dataclass(environment):
        settings |= {field.name: getattr(environment, field.name) for field in fields(environment)}
    else:
        settings |= vars(environment)
    told = {
        name: repr(value)
        for name, value in settings.items()
        if not name.startswith("_") and (isinstance(value, str | int | float | None) or is_dataclass(value))
    }
    parts = {name: world for name, world in environments_of(environment).items() if world is not environment}
    return told | {name: _settings(world) for name, world in parts.items()}


def _qualities(count: int, good: float, seed: int) -> list[Quality]:
    """Returns the quality of each of ``count`` demonstrations. The fraction ``good`` of them has the quality "good".

    The list is shuffled, so that both experts demonstrate each type of task: environments often order tasks by type.
    """
    first = round(count * good)
    qualities: list[Quality] = ["good" if place < first else "clumsy" for place in range(count)]
    random.Random(f"{seed}/qualities").shuffle(qualities)
    return qualities


# -- candidate states --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidate states of a run, and the data that belongs to these states.

    Attributes:
        states: the first states of train tasks, or the states of expert turns that are not held out.
        opening: function that returns a task's first messages and their token ids.
        demonstrations: the expert trajectories; None if the states are the first states of tasks.
        problems: the trajectories that were left out, with the reasons.
        steps: map from state id to the demonstrated turn with its context, if a judge or an evaluation reads it.
        own: name of the user's file if none of its trajectories belongs to the environment, else None.
        held_out: dialogues of the user's file for evaluation. The run does not train on these dialogues.
        plays: whether the evaluation includes tasks of the environment.
    """

    states: Sequence[State]
    opening: Openings
    demonstrations: Demonstrations | None = None
    problems: Sequence[BadTrajectory] = ()
    steps: Mapping[str, TurnInContext] = field(default_factory=dict)
    own: str | None = None
    held_out: HeldOut | None = None
    plays: bool = True

    @property
    def headline(self) -> str | None:
        """The name of the user's file if the headline result is about its dialogues, or None if the headline result is
        about tasks of the environment.
        """
        return self.own if self.held_out or not self.plays else None

    def messages(self, state: State) -> Sequence[Message]:
        trajectory = self.demonstrations and self.demonstrations.named(state.trajectory or "")
        if not trajectory:
            return self.opening(state.task)[0]
        return trajectory.messages[: trajectory.acts[state.turn]]

    def fitting(self, settings: Settings, parts: Parts, phases: Phases) -> Sequence[State]:
        """Returns the states that fit into ``rollout.max_length`` together with an action of ``sampling.max_tokens``,
        or without sampling, together with the demonstrated turn. Logs the number of states that do not fit.

        Raises:
            InputError: no state fits.
        """
        rollout = settings.rollout
        if parts.allocator is not None:
            return _playable(self.states, rollout, phases)
        ends = [len(state.ids) + len(state.expert_ids) for state in self.states]
        what = f"demonstrated turns end after more than {rollout.max_length} tokens (rollout.max_length"
        return _within(rollout.max_length, self.states, ends, what, phases)


def read_candidates(settings: Settings, parts: Parts, chat: ChatTokens, phases: Phases) -> Candidates:
    """Reads the candidate states: the first states of train tasks, or all expert turns.

    Expert trajectories are read from ``data.file``. If ``data.file`` is not set, the environment's experts generate a
    file of trajectories, unless the cache folder has this file already. Some dialogues of a user's file are held out
    for evaluation.

    Raises:
        InputError: there is no usable state, ``data.strict`` is set and a trajectory is unusable, or the reward or the
            evaluation cannot use the demonstrations.
    """
    rule, data, env, rollout = parts.states, settings.data, parts.env, settings.rollout
    opening = Openings(env, chat, rollout.environment_threads, rollout.environment_seconds)
    if rule.source == "tasks":
        tasks = env.tasks("train", rule.count, settings.seed)
        if env.waits or rule.count > 1000:  # some milliseconds each
            with phases.phase("read", rule.count) as advance:
                opening.read(tasks, advance)
        else:
            opening.read(tasks)  # all in one event loop
        return Candidates(task_starts(tasks, lambda task: opening(task)[1]), opening)
    demonstrations, own = Demonstrations(chat), None
    with phases.phase("read", data.trajectories) as advance:
        if data.file is not None and parts.dialect is not None:
            own = UserFile(demonstrations, parts.dialect, data, environments_of(env))
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
                guard=partial(guarded, passing=(ValueError,)),
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
            f"rollout.turns={'null' if rollout.turns is None else rollout.turns}: {own.dialogues} trajectories of "
            f"{data.file} are dialogues without an environment. No environment answers the policy's reply, so a rollout "
            "has one turn: set rollout.turns=1"
        )
    numbers = own.held_out()
    for line in own.lines():
        phases.log(line)
    held_out = None
    if numbers:
        most = settings.eval.tasks  # further held-out dialogues are not used at all
        fitting = [state for number in sorted(numbers[:most]) for state in by_trajectory[number]]
        held_out = own.measured(list(_playable(fitting, rollout, phases)), steps)
        dialogues = len({state.trajectory for state in held_out.states})
        phases.log(
            f"{len(numbers)} dialogues are held out; the run is evaluated on {len(held_out.states)} replies of "
            f"{dialogues} of them"
        )
        limit = rollout.sampling.max_tokens
        if sampled and held_out.longest > limit:
            phases.log(
                f"some of these demonstrated replies are longer than the {limit} tokens that the policy may write: raise "
                f"rollout.sampling.max_tokens to {held_out.longest} or more"
            )
    else:
        phases.log(f"no dialogue is held out (data.held_out={data.held_out:g})")
    left_out = set(numbers)
    trained = [state for number, states in enumerate(by_trajectory) if number not in left_out for state in states]
    name = Path(data.file or "").name if own.only_dialogues else None
    plays = settings.eval.environment or (settings.eval.environment is None and not name)
    return Candidates(short_prompts(trained, data.prompt_tokens, phases), *read, name, held_out, plays)


def is_candidate(env: Environment, trajectory: Trajectory, state: State) -> bool:
    answers = trajectory.messages[trajectory.acts[state.turn] + 1 :]
    observation = answers[0].get("content") if answers else ""
    return environment_of(env, state.task).is_candidate(str(observation or ""))


def short_prompts(states: Sequence[State], most: int | None, phases: Phases) -> Sequence[State]:
    if most is None:
        return states
    what = f"prompts have more than {most} tokens (data.prompt_tokens"
    return _within(most, states, [len(state.ids) for state in states], what, phases)


def _playable(states: Sequence[State], rollout: RolloutSettings, phases: Phases) -> Sequence[State]:
    limit = rollout.max_length - rollout.sampling.max_tokens
    what = f"states have a history of more than {limit} tokens (rollout.max_length minus rollout.sampling.max_tokens"
    return _within(limit, states, [len(state.ids) for state in states], what, phases)


def _within(limit: int, states: Sequence[State], lengths: Sequence[int], what: str, phases: Phases) -> Sequence[State]:
    fitting = [state for state, length in zip(states, lengths, strict=True) if length <= limit]
    if len(fitting) == len(states):
        return states
    why = f"{len(states) - len(fitting)} of {len(states)} {what}; the longest has {max(lengths)})"
    if not fitting:
        key = what.rpartition("(")[2].split()[0]
        raise InputError(f"{key}: no state is left, because {why}; raise {key}")
    phases.log(f"left out: {why}")
    return fitting
