"""Chooses the states that a run trains on. Some rules (``states``) need a profile: K sampled actions at every expert
turn, with the verdicts on the actions (PivotRL Eq. 4).

A profile is one Parquet file, written when it is complete. The first profile, of the base policy, is
``profile.parquet``. Later profiles, of the policy at that time, are ``profile-<n>.parquet`` with n from 1.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from lightning import Callback

from turnwise.config.settings import RolloutSettings
from turnwise.env import Environment, environment_of
from turnwise.errors import InputError
from turnwise.files import atomic_write
from turnwise.methods.allocate import Uniform
from turnwise.methods.credit import std
from turnwise.methods.gate import Never
from turnwise.methods.states import STD_TOLERANCE, Batches, Profile, Refresh
from turnwise.rollouts.collect import Experience
from turnwise.rollouts.player import Player
from turnwise.training.build_run import Parts, Settings
from turnwise.training.distributed import DistributedContext
from turnwise.training.group_metrics import paid_groups, profile_verdict_counts
from turnwise.training.policy_module import PolicyModule
from turnwise.training.progress import Phases
from turnwise.training.sharding import is_sharded
from turnwise.types import State

TOGETHER = 4096  # number of samples that are drawn together; more are faster, and need more memory
_KEY = b"turnwise"  # key of the costs in the metadata of a profile's Parquet schema
_NUMBERS = pa.list_(pa.float64())
_SCHEMA = pa.schema(
    {
        "state_id": pa.string(),
        "trajectory": pa.string(),
        "turn": pa.int64(),
        "rewards": _NUMBERS,
        "strict": _NUMBERS,
        "actions": pa.list_(pa.string()),
    }
)

# -- profiles ----------------------------------------------------------------------------------------------------------


def profile(
    player: Player,
    states: Sequence[State],
    k: int,
    key: object,
    on_done: Callable[[float], None] = lambda count: None,
    distributed: DistributedContext | None = None,
    afresh: Callable[[], None] | None = None,
    rated: bool = False,
) -> pa.Table:
    """Profiles the states, with ``k`` samples each. Returns one row for each state, and the costs as metadata of the
    table's schema. Each process samples a part of the states, and gets all rows.

    Args:
        player: samples single actions, with the policy that is profiled.
        states: the states, in the order of their trajectories.
        on_done: is called with numbers of states; a sample counts as 1 / k of a state.
        afresh: empties the engine's cache, after each ``TOGETHER`` samples.
        rated: whether the pass rate of a state (:class:`turnwise.types.Pivot`) is used as its profile, without samples.
    """
    distributed = distributed or DistributedContext()
    turns_before, tokens_before, cpu_began = player.tally.turns, player.tally.tokens, time.process_time()
    rows, sampled, cut = [], [], 0
    for state in states:
        if rated and (pivot := state.pivot) and pivot.total:
            rows.append(_row(state, [1.0] * pivot.passed + [0.0] * (pivot.total - pivot.passed), [], []))
        else:
            sampled.append(state)
    on_done(len(rows))
    step, of_sample = max(1, TOGETHER // k), distributed.world / k
    for start in range(0, len(sampled), step):
        if start and afresh is not None:
            afresh()
        part = sampled[start : start + step]
        fresh = []
        mine = distributed.share(part)
        for tree in player.play(mine, Uniform(k), Never(), key, on_reply=lambda *_: on_done(of_sample)):
            if turns := [turn for i, turn in enumerate(tree.turns) if i not in tree.invalid]:
                cut += sum(turn.truncated for turn in turns)
                functional, strict = ([turn.info[name] for turn in turns] for name in ("functional", "strict"))
                fresh.append(_row(tree.state, functional, strict, [turn.text for turn in turns]))
        rows += distributed.gather(fresh)
        player.forget()  # the states of a trajectory are neighbours, so later states do not need the cached episodes
    tally = player.tally
    cost = distributed.add({"turns": tally.turns - turns_before, "tokens": tally.tokens - tokens_before, "cut": cut})
    # The version tells a run that was killed, and profiles again at another iteration, that the file is not its own.
    facts = cost | {
        "cpu_seconds": time.process_time() - cpu_began,
        "version": distributed.broadcast(player.engine.version),
    }
    return pa.Table.from_pylist(rows, _SCHEMA).replace_schema_metadata({_KEY: json.dumps(facts).encode()})


def _row(state: State, rewards: list[float], strict: list[float], actions: list[str]) -> dict[str, Any]:
    of_state = {"state_id": state.id, "trajectory": state.trajectory, "turn": state.turn}
    return {**of_state, "rewards": rewards, "strict": strict, "actions": actions}


def profiles_of(table: pa.Table) -> dict[str, Profile]:
    columns = (table[name].to_pylist() for name in ("state_id", "rewards", "strict"))
    return {name: Profile(tuple(rewards), tuple(strict)) for name, rewards, strict in zip(*columns, strict=True)}


def write_profile(path: Path, table: pa.Table, profiles: Mapping[str, Profile], kept: Sequence[State]) -> None:
    """Writes a profile with the columns ``mean``, ``variance`` and ``kept``, which is true for the states in ``kept``."""
    names = {state.id for state in kept}
    columns = {
        "mean": [one.mean for one in profiles.values()],
        "variance": [one.variance for one in profiles.values()],
        "kept": [name in names for name in profiles],
    }
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    with atomic_write(path) as part:
        pq.write_table(table, part)


def read_profile(path: Path, version: int) -> pa.Table | None:
    """Returns the profile at ``path``, or None if there is no readable profile of policy ``version``."""
    with suppress(pa.ArrowException, OSError, ValueError, KeyError):
        if _facts(path)["version"] == version:
            return pq.read_table(path, columns=_SCHEMA.names)
    return None


def why_profile_leaves_none(table: pa.Table, profiles: Mapping[str, Profile], longest: int, limit: int) -> str:
    """Returns why no state of a first profile is left to train on, and what to do. ``longest`` is the number of tokens of
    the longest demonstrated reply, and ``limit`` that of the longest reply that the policy may write.
    """
    samples = sum(len(profile.functional) for profile in profiles.values())
    cut = json.loads((table.schema.metadata or {}).get(_KEY, b"{}")).get("cut", 0)
    means = [profile.mean for profile in profiles.values()]
    if 2 * cut > samples:
        remedy = f"the longest demonstrated reply has {longest} tokens and the limit is {limit}; "
        remedy += "raise rollout.sampling.max_tokens" if longest > limit else "train longer with method=sft first"
        return f"{cut} of {samples} sampled replies are cut off; {remedy}"
    if max(means, default=0.0) <= 0:
        shown = "; ".join(repr(text[:80]) for actions in table["actions"].to_pylist()[:3] for text in actions[:1])
        return f"none of {samples} sampled replies was accepted, such as {shown}; train longer with method=sft first"
    if min(means) >= 1 - STD_TOLERANCE:
        return f"all {samples} sampled replies were accepted; give harder data, or keep this policy"
    if mixed := sum(profile.mixed for profile in profiles.values()):
        return f"{mixed} turns are mixed, but none is below states.lambda_diff; raise it, or set states.keep=mixed"
    return "at each turn all samples have the same reward; raise states.k, or give more data"


def _facts(path: Path) -> dict[str, float]:
    facts: dict[str, float] = json.loads(pq.read_schema(path).metadata[_KEY])
    return facts


def profile_costs(folder: Path) -> dict[str, float]:
    """Returns ``profile_turns``, ``profile_tokens`` and ``profile_cpu_seconds`` of all profiles in a run's folder."""
    facts = [_facts(path) for path in sorted(folder.glob("profile*.parquet"))]
    if not facts:
        return {}
    costs = {f"profile_{name}": sum(one[name] for one in facts) for name in ("turns", "tokens", "cpu_seconds")}
    return costs | {"profile_cpu_seconds": round(costs["profile_cpu_seconds"], 2)}


# -- the choice of states ----------------------------------------------------------------------------------------------


class Chosen(NamedTuple):
    """The states that were chosen before training, with facts about the profile."""

    states: Sequence[State]
    verdicts: Mapping[str, float] = {}  # counts of the verifiers' verdicts in the profile, by domain
    reprofile: Reprofile | None = None  # chooses new states during training
    pivots: Mapping[str, float] = {}  # the entries ``pivots.*`` of the run's result


@dataclass(frozen=True, slots=True)
class ProfileChoice:
    """Profiles the candidate states under the current policy, with a player of one turn, and chooses among them."""

    settings: Settings
    parts: Parts
    candidates: Sequence[State]
    player: Player
    module: PolicyModule
    phases: Phases

    def first(self) -> Chosen:
        """Returns the states chosen before training. If the rule needs a profile, the base policy is profiled first."""
        rule, settings = self.parts.states, self.settings
        if not rule.k:
            return Chosen(rule.select(self.candidates, {}))
        profiles, kept, entries = self.profiled()
        reprofile = None
        if rule.reprofile is not None:
            of_run = (lambda number: self.profiled(number)[1], settings.rollout, settings.seed, self.phases.log)
            reprofile = Reprofile(rule.reprofile, self.candidates, kept, *of_run)
        return Chosen(kept, profile_verdict_counts(profiles, self.candidates), reprofile, entries)

    def profiled(self, number: int = 0) -> tuple[Mapping[str, Profile], Sequence[State], Mapping[str, float]]:
        """Makes profile ``number`` (0: the profile before training) of the candidates under the current policy, unless an
        earlier start of the run has done so. Returns the profiles, the states that the rule keeps, and the entries
        ``pivots.*`` of the result.
        """
        settings, distributed, engine = self.settings, self.module.distributed, self.player.engine
        name = f"profile-{number}" if number else "profile"
        key = (settings.seed, "profile", number) if number else (settings.seed, "profile")
        path = settings.folder / f"{name}.parquet"
        with self.phases.phase("profile", len(self.candidates)) as advance:
            if not is_sharded(self.module):
                self.module.to(settings.device)
            sync_weights = partial(self.module.sync_weights, engine)
            sync_weights()
            written = distributed.broadcast(read_profile(path, engine.version) if distributed.first else None)
            if written is not None:
                table = written
                advance(len(self.candidates), already=True)
            else:
                # For the first profile, the engine keeps its cache, as in the runs of the shipped results. Emptying the
                # cache of a server is useless, because servers never repeat a sample bit for bit.
                afresh = sync_weights if number and not distributed.served else None
                # the pass rates in a file do not describe later policies
                rated = settings.data.pass_rates and settings.data.file is not None and not number
                rule = self.parts.states
                table = profile(self.player, self.candidates, rule.k, key, advance, distributed, afresh, rated)
        profiles = profiles_of(table)
        chosen = self.parts.states.select([state for state in self.candidates if state.id in profiles], profiles)
        kept = distinct(self.parts.env, chosen)
        if distributed.first and written is None:
            write_profile(path, table, profiles, kept)
        entries, miss_rate = summarise(profiles.values())
        missed = "-" if miss_rate is None else f"{miss_rate:.0%}"
        self.phases.log(
            f"{len(profiles)} expert turns profiled: at {entries['without_signal']:.0%} of these turns all sampled actions have "
            f"the same reward; {len(kept)} turns are kept; an exact match would miss {missed} of the acceptable actions"
        )
        if not kept and not number:
            longest = max((len(state.expert_ids) for state in self.candidates), default=0)
            why = why_profile_leaves_none(table, profiles, longest, settings.rollout.sampling.max_tokens)
            raise InputError(f"no state is left to train on: {why}")
        return profiles, kept, entries | {"kept": len(kept)}


def distinct(environment: Environment, states: Sequence[State]) -> Sequence[State]:
    """Returns the states without those whose demonstrated action is of the kind of an earlier one (``kind_of``)."""
    kinds = [environment_of(environment, state.task).kind_of(state.expert or "") for state in states]
    first = {kind: place for place, kind in reversed(list(enumerate(kinds)))}
    return [state for place, state in enumerate(states) if not kinds[place] or first[kinds[place]] == place]


class Reprofile(Callback):
    """Returns the states of each iteration, from the states that were chosen by the last profile. The candidate states
    are profiled again when the fraction of groups whose rewards differ has fallen since the last profile (``refresh``).

    The class is a callback, so that the checkpoint stores the places of the chosen states among the candidates, and the
    fractions since the last profile. Every process of a run chooses the same states. ``choose`` takes the number of a
    profile, profiles the candidates under the current policy, and returns the chosen states.
    """

    def __init__(
        self,
        refresh: Refresh,
        candidates: Sequence[State],
        states: Sequence[State],
        choose: Callable[[int], Sequence[State]],
        rollout: RolloutSettings,
        seed: int,
        log: Callable[[str], None],
    ) -> None:
        self.refresh, self.candidates, self.choose, self.log_line = refresh, candidates, choose, log
        self.rollout, self.seed = rollout, seed
        self.profiles, self.began = 1, 0  # number of profiles so far; first iteration after the last profile
        self.history: list[float] = []
        self.seconds = 0.0  # duration of the profile just before the current iteration, or 0
        self.places: list[int] | None = None  # None: the states chosen before training
        self.batches = self._batches(states)

    def __call__(self, iteration: int) -> list[State]:
        return self.batches(iteration)

    def prepare(self, iteration: int) -> None:
        """Chooses new states, if ``refresh`` decides to profile before this iteration."""
        self.seconds = 0.0
        if not self.refresh.due(self.history, self.profiles):
            return
        began, states = time.monotonic(), self.choose(self.profiles)
        if not states:
            self.log_line("the new profile leaves no state to train on: training continues with the previous states")
            states = self.batches.states
        self.profiles, self.began, self.history = self.profiles + 1, iteration, []
        names = {state.id for state in states}
        self.places = [place for place, state in enumerate(self.candidates) if state.id in names]
        self.batches = self._batches(states)
        self.seconds = time.monotonic() - began

    def collected(self, experience: Experience) -> dict[str, float]:
        """Stores the fraction of the groups of an iteration whose rewards differ, and returns metrics of the states."""
        share = mixed_share(experience)
        if share is not None:
            self.history.append(share)
        left = self.refresh.decay(self.history)
        return {
            "states/kept": len(self.batches.states),
            "states/profiles": self.profiles,
            **({} if left is None else {"states/decay": left}),
            "seconds/profile": self.seconds,
        }

    def _batches(self, states: Sequence[State]) -> Batches:
        """Returns the batches of ``states``, in random order. Each profile gives another order."""
        number = self.profiles - 1
        seed = f"{self.seed}/profile-{number}" if number else self.seed
        return Batches(states, seed, self.rollout.states, self.rollout.trajectories, self.began)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("profiles", "began", "history", "places")}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, value in state_dict.items():
            setattr(self, name, value)
        if self.places is not None:
            self.batches = self._batches([self.candidates[place] for place in self.places])


def mixed_share(experience: Experience) -> float | None:
    """Returns the fraction of groups whose rewards differ, or None without groups. Groups that a refill replaced count
    as groups with equal rewards; groups that a gate stopped are left out.
    """
    totals = [total for _, total in paid_groups(zip(experience.trees, experience.rewards, strict=True))]
    groups = len(totals) + len(experience.replaced)
    return sum(std(total) > STD_TOLERANCE for total in totals) / groups if groups else None


# -- a summary of the first profile -----------------------------------------------------------------------------------


def summarise(profiles: Collection[Profile]) -> tuple[dict[str, float], float | None]:
    """Returns the entries ``pivots.*`` of a result without ``kept``, and the share of functionally correct samples that
    the strict rule refuses (None if no sample is functionally correct).
    """
    states = len(profiles)
    same = [profile for profile in profiles if not profile.mixed]
    solved = sum(profile.mean >= 1 - STD_TOLERANCE for profile in same)
    strict = [s for one in profiles for paid, s in zip(one.functional, one.strict, strict=False) if paid >= 1]
    shares = {"without_signal": len(same) / states, "solved": solved / states}
    shares["failed"] = shares["without_signal"] - shares["solved"]
    entries = {"candidates": states, **{name: round(value, 4) for name, value in shares.items()}}
    return entries, sum(value <= 0 for value in strict) / len(strict) if strict else None
