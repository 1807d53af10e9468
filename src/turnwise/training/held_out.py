"""Evaluates a policy on the held-out dialogues of a user's file, and compares it before and after training.

Rates are percentages (0 to 100).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from turnwise.algo.allocators.uniform import Uniform
from turnwise.algo.gates.never import Never
from turnwise.data.steps import TurnInContext
from turnwise.engines.engine import Sampling
from turnwise.evaluation.held_out import Counted, Reply, groups, likelihood, paired_change, pooled, rate
from turnwise.evaluation.suites import Evaluation
from turnwise.models.score import score
from turnwise.rollouts.demonstrate import demonstration, paths
from turnwise.rollouts.pack import pack
from turnwise.rollouts.play import Player
from turnwise.types import Credit, State

CHUNK = 64  # number of states whose replies are sampled together
RULES = {"functional": False, "strict": True}


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
        larger. The limit is lower if the player's ``max_length`` leaves less room after the longest history of a batch.

        Args:
            player: samples the replies. Its engine holds the policy's weights, and its sampling settings are those of
                training.
            states: the states that this process measures.
            nats: map from state id to the demonstrated reply's negative log-likelihood in nats
                (:func:`negative_log_likelihood`).
            attempts: number of sampled replies for each state. One greedy reply is added.
            advance: is called with the number of replies that have just been sampled.
        """
        sampled = replace(player.sampling, max_tokens=max(player.sampling.max_tokens, self.longest))
        verdicts: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {}
        said: dict[str, dict[str, str]] = {}
        ways = [("sampled", sampled, attempts), ("greedy", Sampling(0, max_tokens=sampled.max_tokens), 1)]
        for mode, how, count in ways:
            verdicts[mode], said[mode] = {}, {}
            for start in range(0, len(states), CHUNK) if count else ():
                part = states[start : start + CHUNK]
                room = player.max_length - max(len(state.ids) for state in part)  # servers refuse longer replies
                acting = player.using(replace(how, max_tokens=min(how.max_tokens, room)), max_turns=1)
                for tree in acting.play(part, Uniform(count), Never(), "held-out"):
                    infos = [turn.info for turn in tree.turns]
                    verdicts[mode][tree.state.id] = tuple((info["functional"], info["strict"]) for info in infos)
                    said[mode][tree.state.id] = tree.turns[0].text
                acting.forget()
                advance(len(part) * count)
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
            for path in paths(states).values():
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


# -- comparison before and after training ------------------------------------------------------------------------------


def held_out_result(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Returns the entry ``held_out`` of ``result.json``, or an empty map if no dialogues were evaluated.

    The entry contains the numbers of dialogues and replies. For all replies, for each tool and for each turn, it
    contains each measure before and after training, and the change with its confidence interval.
    """
    if not base.replies:
        return {}
    both = zip(groups(base.replies), groups(after.replies), strict=True)
    parts = [
        {
            name: {"replies": len(before[name]), **_figures(before[name], since[name])}
            for name in before
            if name in since
        }
        for before, since in both
    ]
    return {
        "dialogues": len({reply.dialogue for reply in base.replies}),
        "replies": len(base.replies),
        **_figures(base.replies, after.replies),
        "by_tool": parts[0],
        "by_turn": parts[1],
    }


def held_out_headline(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Returns the entry ``in_domain`` of ``result.json`` for a run on dialogues.

    It contains the percentage of replies that the verifier accepts, for replies that were sampled as in training
    (``sampled``) and for greedy ones (``greedy``). The headline is the percentage for sampled replies if there are any.
    """
    modes = {
        mode: {**_compared(rate(base.replies, mode), rate(after.replies, mode), 100), "tasks": len(base.replies)}
        for mode in ("sampled", "greedy")
        if rate(base.replies, mode)
    }
    headline = next(iter(modes))
    return {**modes[headline], "decoding": headline, **modes}


def held_out_metrics(evaluation: Evaluation) -> dict[str, float]:
    """Returns the metrics ``eval/held_out/...`` of one evaluation on held-out dialogues."""
    replies = evaluation.replies
    if not replies:
        return {}
    metrics = {"eval/held_out/nll": round(pooled(likelihood(replies)), 4)}
    for name, rule in RULES.items():
        for mode, suffix in (("sampled", ""), ("greedy", "_greedy")):
            if counted := rate(replies, mode, rule):
                metrics[f"eval/held_out/{name}{suffix}"] = round(100 * pooled(counted), 2)
    by_tool, by_turn = groups(replies)
    for kind, parts in (("tool", by_tool), ("turn", by_turn)):
        keys = metric_keys(parts)
        for name, part in parts.items():
            counted = rate(part, "sampled") or rate(part, "greedy")
            metrics[f"eval/held_out/{kind}/{keys[name]}"] = round(100 * pooled(counted), 2)
    return metrics


def metric_keys(names: Iterable[str]) -> dict[str, str]:
    """Converts names to parts of metric keys and returns a map from name to key.

    Characters other than letters, digits, ``_`` and ``-`` are replaced by ``_``. If several names would get the same
    key, a number is appended to all but one. A name that needs no replacement keeps its form.
    """
    plain = {name: re.sub(r"[^\w-]+", "_", name) for name in names}
    keys: dict[str, str] = {}
    for name in sorted(plain, key=lambda name: plain[name] != name):
        number, key = 1, plain[name]
        while key in keys.values():
            number += 1
            key = f"{plain[name]}_{number}"
        keys[name] = key
    return keys


def _figures(before: Sequence[Reply], since: Sequence[Reply]) -> dict[str, Any]:
    mode = "sampled" if rate(before, "sampled") else "greedy"
    return {
        "nll": _compared(likelihood(before), likelihood(since), 1),
        **{name: _compared(rate(before, mode, rule), rate(since, mode, rule), 100) for name, rule in RULES.items()},
    }


def _compared(before: Counted, since: Counted, unit: float) -> dict[str, Any]:
    """Returns the values before and after training, their difference, and its confidence interval.

    ``unit`` is 100 for fractions, which become percentages, and 1 for values in nats.
    """
    digits = 2 if unit == 100 else 4
    change = paired_change(before, since, shares=unit == 100)
    sides = [round(unit * pooled(side), digits) for side in (before, since)]
    bounds = None if change.low is None or change.high is None else [change.low, change.high]
    return {
        "base": sides[0],
        "after": sides[1],
        "delta": round(sides[1] - sides[0], digits),
        "delta_ci95": bounds and [round(unit * bound, digits) for bound in bounds],
    }
