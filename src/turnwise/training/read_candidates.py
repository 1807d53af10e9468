"""Reads the candidate states, at which a run may sample or train, and the demonstrations with these states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from turnwise.algo.states.lazy import LazyStates
from turnwise.algo.states.task_starts import task_starts
from turnwise.data.chat_tokens import ChatTokens
from turnwise.data.demonstrations import Demonstrations
from turnwise.data.steps import TurnInContext
from turnwise.data.trajectories import BadTrajectory, each_trajectory
from turnwise.envs.environment import environments_of
from turnwise.envs.expert_files import expert_file
from turnwise.rollouts.environment_faults import guarded
from turnwise.rollouts.openings import Openings
from turnwise.training.build_parts import Parts, Settings
from turnwise.training.call_format import check_readable
from turnwise.training.candidate_states import Steps, Turns, hold_out, playable, trainable
from turnwise.training.held_out_dialogues import HeldOut
from turnwise.training.progress import Phases
from turnwise.training.user_file import UserFile
from turnwise.types import Message, State


@dataclass(frozen=True, slots=True)
class Candidates:
    """The candidate states of a run, and the data that belongs to these states.

    Attributes:
        states: the first states of train tasks, or the states of expert turns.
        opening: function that returns a task's first messages and their token ids.
        demonstrations: the expert trajectories; None if the states are the first states of tasks.
        problems: the trajectories that were left out, with the reasons.
        steps: map from state id to the demonstrated turn.
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
        """Returns the history before a state's action as chat messages."""
        found = self.demonstrations and self.demonstrations.named(state.trajectory or "")
        if not found:
            return self.opening(state.task)[0]
        return found.messages[: found.acts[state.turn]]

    def fitting(self, settings: Settings, parts: Parts, phases: Phases) -> Sequence[State]:
        """Returns the states that fit into ``rollout.max_length`` together with an action of ``sampling.max_tokens``,
        or without sampling, together with the demonstrated turn. Logs the number of states that do not fit.

        Raises:
            InputError: no state fits.
        """
        if parts.allocator is not None:
            return playable(self.states, settings.rollout, phases.log)
        if isinstance(self.states, LazyStates):
            return trainable(self.states, settings.rollout, phases.log)
        return self.states


def read_candidates(settings: Settings, parts: Parts, chat: ChatTokens, phases: Phases) -> Candidates:
    """Reads the candidate states: the first states of train tasks, or all expert turns.

    Expert trajectories are read from ``data.file``. If ``data.file`` is not set, the environment's experts generate a
    file of trajectories, unless the cache folder has this file already. Temporary files with the demonstrations' tokens
    are also in the cache folder; the operating system removes them when the process ends. Some dialogues of a user's
    file are held out for evaluation.

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
    demonstrations, own = Demonstrations(chat, settings.cache), None
    with phases.phase("read", data.trajectories) as advance:
        if data.file is not None and parts.dialect is not None:
            own = UserFile(demonstrations, parts.dialect, data, environments_of(env))
            problems = each_trajectory(own, data.file, strict=data.strict)
        else:
            made = (data.trajectories, settings.cache, data.good, settings.seed)
            path = expert_file(
                env,
                *made,
                progress=lambda done, total: advance(1),
                threads=rollout.environment_threads,
                guard=partial(guarded, passing=(ValueError,)),
            )
            problems = each_trajectory(demonstrations.add, path, strict=data.strict)
    turns = Turns(demonstrations)
    steps = Steps(turns)
    check_readable(parts.reward, turns)
    for problem in problems:
        phases.log(f"left out: {problem}")
    read = (opening, demonstrations, problems, steps)
    if own is None or not own.dialogues:
        return Candidates(turns, *read)
    states, held_out = hold_out(
        own, turns, steps, settings.eval.tasks, settings.rollout, parts.allocator is not None, phases.log
    )
    name = Path(own.data.file or "").name if own.only_dialogues else None
    plays = settings.eval.environment or (settings.eval.environment is None and not name)
    return Candidates(states, *read, name, held_out, plays)
