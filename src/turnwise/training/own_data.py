"""A user's own dialogues (``data.file``): their format, which of them are held out, and the evaluation on those.

A *dialogue* is a trajectory that belongs to no environment of the run. A hash of the dialogue's beginning (everything
before the first reply) decides whether the dialogue is held out, so that a file always gives the same split. Dialogues
with equal beginnings (for example several trajectories of one task, or the records of a file that has one record for
each turn) are either all held out or all trained on. If too many dialogues have equal beginnings, the hash of the whole
dialogue is used instead.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from turnwise.config.settings import DataSettings
from turnwise.data.chat_tokens import ChatTemplateError, Demonstrations
from turnwise.data.dialect import Dialect, calls_read, check_read_back, dropped, uses_tools
from turnwise.data.read_records import UnusableError
from turnwise.data.steps import TurnInContext
from turnwise.data.toolcalls import PARSERS, Format
from turnwise.engines.engine import Sampling
from turnwise.env import environments_of
from turnwise.errors import InputError
from turnwise.evaluation.stats import Counted, Reply, groups, likelihood, paired_change, pooled, rate
from turnwise.evaluation.suites import Evaluation, at_once
from turnwise.methods.allocate import Uniform
from turnwise.methods.gate import Never
from turnwise.methods.sft import demonstrated_paths, demonstration
from turnwise.models.logprobs import score
from turnwise.rollouts.pack import pack
from turnwise.rollouts.player import Player
from turnwise.types import Credit, State, Trajectory

FALLBACK: Format = "hermes"  # the format of most chat templates with tools
CHECKED = 32  # greatest number of demonstrated actions that are checked before a run begins
FLOOR, PART = 8, 4  # at least FLOOR dialogues are held out, but in a small file only 1 / PART of its dialogues
RULES = {"functional": False, "strict": True}

# -- the format of tool calls ------------------------------------------------------------------------------------------


def call_format(given: Format | None, environment: Any, from_file: bool) -> Format:
    """Returns the format of the run's tool calls, as far as it is known before the policy is loaded.

    Without ``given`` (``reward.format``), the format is the attribute ``format`` or ``calls`` of the environment, in
    which its experts write. If the environment names no format, or the demonstrations come from a file
    (``from_file``), the format is ``hermes``. For a file, ``training.parts`` later replaces ``hermes`` by the format
    that the policy's chat template writes.

    Raises:
        InputError: the environments of a mixture write calls in different formats.
    """
    if given is not None:
        return given
    named = {
        name: getattr(env, "format", None) or getattr(env, "calls", None)
        for name, env in ({} if from_file else environments_of(environment)).items()
    }
    formats = {name: form for name, form in named.items() if isinstance(form, str) and form in PARSERS}
    if len(set(formats.values())) > 1:
        listed = ", ".join(f"{name} {form}" for name, form in sorted(formats.items()))
        raise InputError(
            f"reward.format: the environments write calls in different formats ({listed}), but a reward reads only one; "
            "keep only environments of one format, or choose reward=functional, with which each environment compares "
            "the actions of its own tasks"
        )
    return next(iter(formats.values()), FALLBACK)  # type: ignore[arg-type]


def in_format(reward: Any, form: Format) -> Any:
    """Returns a copy of ``reward`` with its format set to ``form``. A reward that has a format already, or that parses
    no calls, is returned unchanged.
    """
    return replace(reward, format=form) if getattr(reward, "format", form) is None else reward


def check_readable(reward: Any, candidates: Sequence[State]) -> None:
    """Checks that at least one of up to ``CHECKED`` demonstrated actions contains a tool call in the reward's format.

    Raises:
        InputError: none of these actions contains a call in the reward's format. If some of them contain calls in
            another format, the message names the other format.
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
        else "choose an environment whose actions are tool calls (env=apibank, bfcl or tau2), or a file of such dialogues "
        "(data.file); reward=functional and reward=exact need no calls"
    )
    raise InputError(
        f"reward.format={form}: none of {count} demonstrated actions that were checked contains a tool call in this "
        f"format (the first action is {experts[0][:80]!r}), so all replies would earn the same reward; {remedy}"
    )


# -- reading the file, and what is held out ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Draw:
    """Two hashes of a dialogue as numbers in [0, 1): of its beginning, and of the whole dialogue."""

    beginning: float
    whole: float

    @classmethod
    def of(cls, trajectory: Trajectory) -> Draw:
        first = next(i for i, message in enumerate(trajectory.messages) if message["role"] == "assistant")
        return cls(*(_draw([trajectory.messages[:end], trajectory.tools]) for end in (first, None)))


def _draw(content: object) -> float:
    text = json.dumps(content, sort_keys=True, default=dict)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


@dataclass(slots=True)
class UserFile:
    """Takes the trajectories of a user's file one at a time, and decides which of its dialogues are held out.

    Args:
        dialect: the way in which the chat template renders dialogues.
        environments: names of the run's environments. A trajectory without a task of these environments is a dialogue.
    """

    demonstrations: Demonstrations
    dialect: Dialect
    data: DataSettings
    environments: Collection[str]
    draws: list[Draw | None] = field(default_factory=list)  # of each trajectory; None: it belongs to an environment
    counts: Counter[str] = field(default_factory=Counter)  # dialogues by what the log says about them
    strange: Counter[str] = field(default_factory=Counter)  # environments in the file that the run does not have

    def __call__(self, trajectory: Trajectory) -> None:
        """Adds a trajectory to the demonstrations.

        Raises:
            UnusableError: the chat template cannot render the trajectory, or another trajectory has the same id.
            InputError: the chat template cannot render tools, and ``data.tools_as_text`` is False.
        """
        named = trajectory.task.env if trajectory.task else ""
        played = named in self.environments
        if not played:
            trajectory = replace(trajectory, task=None)
        shown = trajectory if played else self._shown(trajectory)
        try:
            self.demonstrations.add(
                trajectory, shown, lambda actions, replies: self._check(trajectory, actions, replies, played)
            )
        except ChatTemplateError as error:
            remedy = "leave out this trajectory, or show tools as text with data.tools_as_text=true"
            raise UnusableError("refused by the chat template", f"{error}; {remedy}") from error
        self.strange[named] += bool(named) and not played
        self.counts["pivots"] += trajectory.pivot is not None
        self.counts["rated"] += bool(trajectory.pivot and trajectory.pivot.total)
        self.draws.append(None if played else Draw.of(trajectory))

    def _shown(self, trajectory: Trajectory) -> Trajectory:
        tools = uses_tools(trajectory)
        if tools and self.dialect.lost_tools and self.data.tools_as_text is False:
            raise InputError(
                f"{self.demonstrations.chat.name}: {self.dialect.lost_tools}, but the dialogues use tools: choose a model "
                "whose chat template shows tools, or set data.tools_as_text=true to write the tools as text"
            )
        as_text = bool(tools and self.dialect.lost_tools)
        system = (as_text and trajectory.tools) or trajectory.messages[0]["role"] == "system"
        self.counts["as_text"] += as_text
        self.counts["folded"] += bool(self.dialect.lost_system and system)
        return self.dialect(trajectory)

    def _check(self, trajectory: Trajectory, actions: Sequence[str], replies: Sequence[str], played: bool) -> None:
        if played:
            empty = next((turn for turn, action in enumerate(actions) if not action.strip()), None)
            lost = "" if empty is None else f"{trajectory.id}#t{empty} is rendered as an empty reply"
        else:
            lost = check_read_back(self.dialect, trajectory, actions)
            if not lost:
                text, reasoning = dropped(trajectory, actions, replies)
                self.counts["silenced"] += text
                self.counts["unreasoned"] += reasoning
        if lost:
            raise UnusableError(
                "lost by the chat template",
                f"{lost}; use a chat template that shows the reply, set data.format to the format of the calls, or set "
                "data.tools_as_text=true",
            )

    def lines(self) -> list[str]:
        """Returns log lines that tell the user how the dialogues of the file are rendered and judged."""
        if not self.dialogues:
            return []
        counts, dialect = self.counts, self.dialect
        texts = {
            "pivots": f"are pivot rows, in which only the last reply is a candidate; {counts['rated']} have a pass rate",
            "as_text": f"are shown with their tools in the system turn and calls as text, because {dialect.lost_tools}",
            "folded": f"have their system message in the first user message: {dialect.lost_system}",
            "silenced": "lose the text of replies that also have calls (the chat template leaves it out); "
            "data.tools_as_text=true keeps this text",
            "unreasoned": "lose the reasoning of replies (the chat template leaves it out); write it at the start of the "
            "content, as <think>...</think>, or use a chat template that shows it",
        }
        return [
            f"{self.dialogues} dialogues without an environment are judged against their demonstrated replies: calls are "
            f"read as {dialect.format}, data.verifier={self.data.verifier or 'null'} (docs/data.md)",
            *(f"{counts[name]} of these dialogues {text}" for name, text in texts.items() if counts[name]),
            *(
                f"{number} of these dialogues name the environment {name!r}, which this run does not play; set env={name} "
                "to play it"
                for name, number in self.strange.items()
                if number
            ),
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
            InputError: no dialogue would be left to train on, because all dialogues are copies of one dialogue.
        """
        count = self.dialogues
        if not self.data.held_out or not count:
            return []
        dialogues = {number: draw for number, draw in enumerate(self.draws) if draw is not None}
        draws = {number: draw.beginning for number, draw in dialogues.items()}
        if Counter(draws.values()).most_common(1)[0][1] > self._wanted(draws.values()):
            draws = {number: draw.whole for number, draw in dialogues.items()}
        order = sorted(draws, key=lambda number: (draws[number], number))
        most = count - self.only_dialogues
        end = min(self._wanted(draws.values()), most)
        while 0 < end < count and draws[order[end]] == draws[order[end - 1]]:
            end += 1  # copies of a dialogue have equal hashes and stay together
        if end > most:  # nothing would be left to train on, so the copies of the last dialogue are trained on
            end = next(place for place, number in enumerate(order) if draws[number] == draws[order[-1]])
        if not end:
            raise InputError(
                f"{self.data.file}: its dialogues are one dialogue or copies of one, which cannot be both trained on and "
                "held out; add other dialogues, or set data.held_out=0"
            )
        return order[:end]

    def _wanted(self, draws: Collection[float]) -> int:
        drawn = sum(draw < self.data.held_out for draw in draws)
        return max(min(FLOOR, max(1, len(draws) // PART)), min(drawn, len(draws) // 2))

    def measured(self, states: Sequence[State], steps: Mapping[str, TurnInContext]) -> HeldOut:
        """Returns the held-out dialogues with these states. ``steps`` maps state ids to demonstrated turns."""
        content = json.dumps([[state.id, state.ids, state.expert] for state in states])
        digest = hashlib.sha256(f"{content}{self.dialect}{self.data}".encode()).hexdigest()[:16]
        tools = {state.id: tuple(dict.fromkeys(call.name for call in steps[state.id].calls)) for state in states}
        return HeldOut(states, tools, digest)


# -- evaluation --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The held-out dialogues of a run.

    Attributes:
        states: one state for every demonstrated reply of these dialogues.
        tools: map from state id to the names of the tools that the demonstrated reply calls.
        digest: hash of the dialogues and of the rules for judging replies. It is part of the key under which the base
            policy's evaluation is cached.
    """

    states: Sequence[State]
    tools: Mapping[str, tuple[str, ...]]
    digest: str

    @property
    def longest(self) -> int:
        return max(len(state.expert_ids) for state in self.states)

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
            nats: map from state id to the demonstrated reply's negative log-likelihood
                (:func:`negative_log_likelihood`).
            attempts: number of sampled replies for each state. One greedy reply is added.
            advance: is called with the number of replies that have just been sampled.
        """
        served = getattr(player.engine, "served", False)
        sampled = replace(player.sampling, max_tokens=max(player.sampling.max_tokens, self.longest))
        verdicts: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {"sampled": {}, "greedy": {}}
        greedy_texts: dict[str, str] = {}
        ways = [("sampled", sampled, attempts), ("greedy", Sampling(0, max_tokens=sampled.max_tokens), 1)]
        for mode, sampling, count in ways:
            for limit, part in by_reply_limit(states, sampling.max_tokens, player.max_length, served) if count else ():
                acting = player.using(replace(sampling, max_tokens=limit), max_turns=1)
                for tree in acting.play(part, Uniform(count), Never(), "held-out", on_turns=advance):
                    infos = [turn.info for turn in tree.turns]
                    verdicts[mode][tree.state.id] = tuple((info["functional"], info["strict"]) for info in infos)
                    greedy_texts[tree.state.id] = tree.turns[0].text  # greedy replies come last
                acting.forget()
        return [
            Reply(
                state.id,
                state.trajectory or state.id,
                state.turn,
                self.tools[state.id],
                nats[state.id],
                len(state.expert_ids),
                verdicts["sampled"].get(state.id, ()),
                verdicts["greedy"][state.id],
                state.expert or "",
                greedy_texts[state.id],
            )
            for state in states
        ]


def by_reply_limit(
    states: Sequence[State], most: int, max_length: int, served: bool
) -> Iterator[tuple[int, Sequence[State]]]:
    """Yields the states in parts whose replies are sampled together, each with the token limit of its replies: ``most``,
    or the room that ``max_length`` leaves after the state's history if that is less, because servers refuse longer
    replies. If servers sample (``served``), a limit has one part, else parts of 64 states.
    """
    by_limit: dict[int, list[State]] = defaultdict(list)
    for state in states:
        by_limit[min(most, max_length - len(state.ids))].append(state)
    for limit, alike in by_limit.items():
        step = at_once(served, len(alike))
        for start in range(0, len(alike), step):
            yield limit, alike[start : start + step]


def negative_log_likelihood(model: Any, states: Sequence[State]) -> dict[str, float]:
    """Returns a map from state id to the negative log-likelihood of the demonstrated reply under ``model``, in nats.

    The value is the sum over the tokens of the reply, including the end-of-turn token, at temperature 1.
    """
    nats: dict[str, float] = {}
    training = model.training
    model.eval()
    device = next(model.parameters()).device
    try:
        with torch.no_grad():
            for path in demonstrated_paths(states).values():
                ones, totals = [1.0] * len(path), [0.0] * len(path)
                for packed in pack([demonstration(path)], [Credit(ones, ones)]).batches:
                    packed = packed.to(device)
                    logprobs = score(model, packed)[0][packed.items.unique_K].double()
                    for turn in packed.items.turn_K.unique().tolist():
                        totals[turn] -= float(logprobs[packed.items.turn_K == turn].sum())
                nats |= {state.id: total for state, total in zip(path, totals, strict=True)}
    finally:
        model.train(training)
    return nats


# -- result, in percentages (0 to 100) ---------------------------------------------------------------------------------


def held_out_result(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Returns the entry ``held_out`` of ``result.json``, or an empty map if no dialogues were evaluated.

    For all replies, for each tool and for each turn, the entry contains the demonstrated replies' negative
    log-likelihood per token in nats (``nll``), and the percentages of the policy's replies that are ``functional`` and
    ``strict``, before and after training, with the change and its confidence interval.
    """
    if not base.replies:
        return {}
    by_tool, by_turn = (
        {
            name: {"replies": len(before[name]), **_figures(before[name], since[name])}
            for name in before
            if name in since
        }
        for before, since in zip(groups(base.replies), groups(after.replies), strict=True)
    )
    return {
        "dialogues": len({reply.dialogue for reply in base.replies}),
        "replies": len(base.replies),
        **_figures(base.replies, after.replies),
        "by_tool": by_tool,
        "by_turn": by_turn,
    }


def held_out_headline(base: Evaluation, after: Evaluation) -> dict[str, Any]:
    """Returns the entry ``in_domain`` of ``result.json`` for a run on dialogues: the percentages of the replies sampled
    as in training (``sampled``) and of the greedy replies (``greedy``) that the verifier accepts. The headline is the
    percentage of the sampled replies, or without sampled replies, of the greedy replies.
    """
    modes = {
        mode: {**_compared(rate(base.replies, mode), rate(after.replies, mode), 100), "tasks": len(base.replies)}
        for mode in ("sampled", "greedy")
        if rate(base.replies, mode)
    }
    headline = next(iter(modes))
    return {**modes[headline], "decoding": headline, **modes}


def held_out_metrics(evaluation: Evaluation) -> dict[str, float]:
    replies = evaluation.replies
    if not replies:
        return {}
    metrics = {"nll": round(pooled(likelihood(replies)), 4)}
    for name, rule in RULES.items():
        for mode, suffix in (("sampled", ""), ("greedy", "_greedy")):
            if counted := rate(replies, mode, rule):
                metrics[f"{name}{suffix}"] = round(100 * pooled(counted), 2)
    for kind, parts in zip(("tool", "turn"), groups(replies), strict=True):
        keys = metric_keys(parts)
        for name, part in parts.items():
            counted = rate(part, "sampled") or rate(part, "greedy")
            metrics[f"{kind}/{keys[name]}"] = round(100 * pooled(counted), 2)
    return {f"eval/held_out/{name}": value for name, value in metrics.items()}


def metric_keys(names: Iterable[str]) -> dict[str, str]:
    """Returns name -> part of a metric key. Sequences of characters other than letters, digits, ``_`` and ``-`` are
    replaced by ``_``. If several names would get the same key, numbers are appended to all of these keys except one.
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
    """Returns a ratio before and after training, and the change with its confidence interval. ``unit`` is 100 for
    fractions, which become percentages, and 1 for values in nats.
    """
    digits = 2 if unit == 100 else 4
    change = paired_change(before, since, shares=unit == 100)
    base, after = (round(unit * pooled(side), digits) for side in (before, since))
    bounds = None if change.low is None or change.high is None else [change.low, change.high]
    interval = bounds and [round(unit * bound, digits) for bound in bounds]
    return {"base": base, "after": after, "delta": round(after - base, digits), "delta_ci95": interval}
