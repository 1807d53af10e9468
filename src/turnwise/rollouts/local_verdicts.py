"""Judges single actions without a step of the environment, as in PivotRL's local rollouts (arXiv:2603.21383)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from turnwise.env import Session, environment_of
from turnwise.rollouts.demonstrated_reply import Anchored
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

    async def judge(self, state: State, turn: Turn, answers: Answers, threaded: bool) -> None:
        """Writes the verdicts ``functional`` and ``strict`` (0.0 or 1.0) into ``turn.info``.

        With ``threaded``, the environment's methods run in a thread of ``answers``. Equal actions at a state share one
        decision.

        Raises:
            ValueError: the state has no demonstrated action.
            EnvironmentFault: the environment failed.
        """
        key = _key(state, turn)
        if key not in self.kept and not threaded:  # no other action is judged meanwhile, so that no task is needed
            self.kept[key] = await self._decision(state, turn, answers, threaded)
        elif key not in self.kept:
            if key not in self._under_way:
                decision = asyncio.ensure_future(self._decision(state, turn, answers, threaded))
                decision.add_done_callback(lambda _: self._under_way.pop(key, None))
                self._under_way[key] = decision
            self.kept[key] = await asyncio.shield(self._under_way[key])
        self.kept[key].write(turn)

    async def _decision(self, state: State, turn: Turn, answers: Answers, threaded: bool) -> Verdict:
        if not state.task.env:
            return Verdict(*self.dialogues(state, turn))
        if turn.truncated:
            return Verdict(False, False)
        call = partial(answers.call, threaded)
        async with AsyncExitStack() as held:
            async with answers.making(state.task, self.episodes.shared(state.task, state.actions)):
                if threaded:  # a session may hold a process, so it is made only when a thread is free
                    await held.enter_async_context(answers.room)
                session = await self.episodes.after(state.task, state.actions, call)
            return Verdict(*await call(partial(self._decide, session, state, turn.text), session))

    def _decide(self, session: Session, state: State, action: str) -> tuple[bool, bool]:
        assert state.expert is not None
        environment = environment_of(self.episodes.environment, state.task)
        return environment.accepts(session, action, state.expert), environment.same(action, state.expert)


def _key(state: State, turn: Turn) -> tuple[str, str, bool]:
    if state.expert is None:
        raise ValueError(
            f"state {state.id!r} has no demonstrated action to compare with: use states=expert_turns or pivots"
        )
    return state.id, turn.text, turn.truncated
