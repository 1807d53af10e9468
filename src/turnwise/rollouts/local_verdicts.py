"""Judges single actions without a step of the environment, as in PivotRL's local rollouts (arXiv:2603.21383)."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from turnwise.envs.environment import Session, environment_of
from turnwise.rollouts.demonstrated_reply import Anchored
from turnwise.rollouts.environment_faults import guarded
from turnwise.rollouts.environment_steps import Answers
from turnwise.rollouts.episodes import Episodes
from turnwise.types import State, Turn


class Verdict(NamedTuple):
    """The two verdicts on an action of the policy at a state with a demonstrated action."""

    functional: bool  # the action is as good as the demonstrated action (PivotRL Eq. 6)
    strict: bool  # the action equals the demonstrated action (PivotRL Eq. 2)

    def write(self, turn: Turn) -> None:
        """Writes the verdicts into ``turn.info`` as 0.0 or 1.0."""
        turn.info["functional"], turn.info["strict"] = float(self.functional), float(self.strict)


@dataclass(slots=True)
class Verdicts:
    """Judges actions and caches the verdicts, because many samples at one state are equal.

    An environment judges an action with its methods ``accepts`` (verdict ``functional``) and ``same`` (verdict
    ``strict``). ``dialogues`` judges replies in dialogues without an environment. Both verdicts on a truncated action
    are False.
    """

    episodes: Episodes
    dialogues: Anchored = field(default_factory=Anchored)
    kept: dict[tuple[str, str, bool], Verdict] = field(default_factory=dict)
    _under_way: dict[tuple[str, str, bool], asyncio.Task[Verdict]] = field(default_factory=dict)

    def judge(self, state: State, turn: Turn) -> None:
        """Writes the verdicts ``functional`` and ``strict`` (0.0 or 1.0) into ``turn.info``.

        Raises:
            ValueError: the state has no demonstrated action.
            EnvironmentFault: the environment failed.
        """
        key = _key(state, turn)
        if key not in self.kept:
            if not state.task.env:
                self.kept[key] = Verdict(*self.dialogues(state, turn))
            elif turn.truncated:
                self.kept[key] = Verdict(False, False)
            else:
                self.kept[key] = self._decide(self.episodes.after(state.task, state.actions), state, turn)
        self.kept[key].write(turn)

    async def judge_in_thread(
        self, state: State, turn: Turn, answers: Answers, lock: AbstractContextManager[Any]
    ) -> None:
        """Does the same as :meth:`judge`, for an environment whose verifier waits: the verifier runs in a thread of
        ``answers``. Equal actions at a state share one decision. ``lock`` is held while the session is made.
        """
        key = _key(state, turn)
        if key not in self.kept:
            if key not in self._under_way:
                decision = asyncio.ensure_future(self._decision(state, turn, answers, lock))
                decision.add_done_callback(lambda _: self._under_way.pop(key, None))
                self._under_way[key] = decision
            self.kept[key] = await asyncio.shield(self._under_way[key])
        self.kept[key].write(turn)

    async def _decision(self, state: State, turn: Turn, answers: Answers, lock: AbstractContextManager[Any]) -> Verdict:
        if turn.truncated:
            return Verdict(False, False)
        async with answers.room:  # a session may hold a process, so it is made only when a thread is free
            with lock:
                session = self.episodes.after(state.task, state.actions)
            decision: Verdict = await answers.wait(answers.start(session, partial(self._decide, session, state, turn)))
            return decision

    def _decide(self, session: Session, state: State, turn: Turn) -> Verdict:
        """Returns the environment's verdicts on an action, given a session at its state. Only this call uses the
        session.

        Raises:
            EnvironmentFault: the environment failed.
        """
        assert state.expert is not None
        environment = environment_of(self.episodes.environment, state.task)
        with guarded(self.episodes.seconds):
            accepted = environment.accepts(session, turn.text, state.expert)
            return Verdict(accepted, environment.same(turn.text, state.expert))


def _key(state: State, turn: Turn) -> tuple[str, str, bool]:
    if state.expert is None:
        raise ValueError(
            f"state {state.id!r} has no demonstrated action to compare with: use states=expert_turns or pivots"
        )
    return state.id, turn.text, turn.truncated
