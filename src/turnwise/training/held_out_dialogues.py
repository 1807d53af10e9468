"""Evaluates a policy on the held-out dialogues of a user's file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from turnwise.algo.allocators.allocator import Uniform
from turnwise.algo.gates.rules import Never
from turnwise.data.steps import TurnInContext
from turnwise.engines.engine import Sampling
from turnwise.evaluation.reply_statistics import Reply
from turnwise.evaluation.suites import at_once
from turnwise.models.packed_logprobs import score
from turnwise.rollouts.demonstrate import demonstrated_paths, demonstration
from turnwise.rollouts.pack import pack
from turnwise.rollouts.player import Player
from turnwise.types import Credit, State


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The held-out dialogues of a run.

    Attributes:
        states: one state for every demonstrated reply of these dialogues.
        tools_of: function that takes a state id and returns the names of the tools that the demonstrated reply calls.
        digest: hash of the dialogues and of the rules for judging replies. It is part of the key under which the base
            policy's evaluation is cached.
    """

    states: Sequence[State]
    tools_of: Callable[[str], tuple[str, ...]]
    digest: str

    def measure(
        self,
        player: Player,
        states: Sequence[State],
        nats: Mapping[str, float],
        attempts: int,
        advance: Callable[[int], None],
    ) -> list[Reply]:
        """Samples the policy's replies at ``states``, judges them, and returns one record for each state.

        The token limit of a reply is the limit of training, or the length of the longest demonstrated reply if that is
        larger. The limit is lower if the player's ``max_length`` leaves less room after the state's history.

        Args:
            player: samples the replies. Its engine holds the policy's weights, and its sampling settings are those of
                training.
            states: the states that this process measures.
            nats: map from state id to the demonstrated reply's negative log-likelihood in nats
                (:func:`negative_log_likelihood`).
            attempts: number of sampled replies for each state. One greedy reply is added.
            advance: is called with the number of replies that have just been sampled.
        """
        served = getattr(player.engine, "served", False)
        sampled = replace(player.sampling, max_tokens=max(player.sampling.max_tokens, self.longest))
        verdicts: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {}
        said: dict[str, dict[str, str]] = {}
        ways = [("sampled", sampled, attempts), ("greedy", Sampling(0, max_tokens=sampled.max_tokens), 1)]
        for mode, how, count in ways:
            verdicts[mode], said[mode] = {}, {}
            for limit, part in by_reply_limit(states, how.max_tokens, player.max_length, served) if count else ():
                acting = player.using(replace(how, max_tokens=limit), max_turns=1)
                for tree in acting.play(part, Uniform(count), Never(), "held-out", on_turns=advance):
                    infos = [turn.info for turn in tree.turns]
                    verdicts[mode][tree.state.id] = tuple((info["functional"], info["strict"]) for info in infos)
                    said[mode][tree.state.id] = tree.turns[0].text
                acting.forget()
        return [
            Reply(
                state.id,
                state.trajectory or state.id,
                state.turn,
                self.tools_of(state.id),
                nats[state.id],
                len(state.expert_ids),
                verdicts["sampled"].get(state.id, ()),
                verdicts["greedy"][state.id],
                state.expert or "",
                said["greedy"][state.id],
            )
            for state in states
        ]

    @property
    def longest(self) -> int:
        """Returns the number of tokens of the longest demonstrated reply."""
        return max(len(state.expert_ids) for state in self.states)


def by_reply_limit(
    states: Sequence[State], most: int, max_length: int, served: bool
) -> Iterator[tuple[int, Sequence[State]]]:
    """Yields the states in parts whose replies are sampled together, each with the token limit of its replies.

    The limit of a state is ``most``, or the room that ``max_length`` leaves after the state's history if that is less,
    because servers refuse longer replies. All states of a part have the same limit. If servers sample (``served``), a
    limit has one part, else parts of 64 states (:func:`turnwise.evaluation.suites.at_once`).
    """
    alike: dict[int, list[State]] = defaultdict(list)
    for state in states:
        alike[min(most, max_length - len(state.ids))].append(state)
    for limit, found in alike.items():
        step = at_once(served, len(found))
        for start in range(0, len(found), step):
            yield limit, found[start : start + step]


def called_tools(step: TurnInContext) -> tuple[str, ...]:
    """Returns the names of the tools that a demonstrated reply calls, without repetitions."""
    return tuple(dict.fromkeys(call.name for call in step.calls))


def negative_log_likelihood(model: Any, states: Sequence[State]) -> dict[str, float]:
    """Returns a map from state id to the negative log-likelihood of the demonstrated reply under ``model``, in nats.

    The value is the sum over the tokens of the reply, including the end-of-turn token, at temperature 1.
    """
    found: dict[str, float] = {}
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    try:
        with torch.no_grad():
            for path in demonstrated_paths(states).values():
                tree = demonstration(path)
                ones = [1.0] * len(path)
                totals = [0.0] * len(path)
                for packed in pack([tree], [Credit(ones, ones)]).batches:
                    packed = packed.to(device)
                    logprobs = score(model, packed)[0][packed.items.unique_K].double()
                    for turn in packed.items.turn_K.unique().tolist():
                        totals[turn] -= float(logprobs[packed.items.turn_K == turn].sum())
                found |= {state.id: total for state, total in zip(path, totals, strict=True)}
    finally:
        model.train(training)
    return found
