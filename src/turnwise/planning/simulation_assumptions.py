"""Collects the assumptions of a simulation from a run's configuration, its plan, and values that the user provides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, exp, floor
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from turnwise.planning.decoding_pace import Pace
from turnwise.planning.flops import decode
from turnwise.planning.gpus import Gpu
from turnwise.planning.hours import work
from turnwise.planning.lengths import AT_MOST, Lengths, horizons
from turnwise.planning.memory import at_a_time, served
from turnwise.planning.parameter_counts import Shape
from turnwise.planning.plan import RunPlan
from turnwise.planning.simulated_engine import Site
from turnwise.planning.simulated_rollouts import Tail, Workload
from turnwise.planning.tokens import iteration

SIGMA = 1.0  # sigma of the log-normal distributions of reply lengths and of latencies
TURNS_SIGMA = 0.5
LATENCY = 1.0  # assumed mean seconds until an environment answers
HANDED_GB_S = 1.0  # assumed GB/s at which new weights are written to files and then loaded by the servers
USED = 0.9  # fraction of a GPU's memory that a server uses; vLLM's default
# Smallest number of simulated collections. With staleness 2, the first three collections wait for no update and are not
# timed.
LEAST = 6
DRAWN = 40_000  # approximate number of turns that a simulation draws

Given = Mapping[str, float | tuple[tuple[float, float], ...]]
"""Assumptions that the user provides: name -> value. The value of ``curve`` is ``planning.decoding_pace.Points``."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """All assumptions of the simulation of a run.

    Attributes:
        workload: the distribution of the rollouts.
        site: the simulated machines.
        steps: number of updates of the whole run.
        collections: number of simulated collections (batches of rollouts for one update).
        seed: seed of the random draws.
        values: every assumed value, by the name under which the user can set the value.
        why: for each name in ``values``, a text that says where the value comes from.
    """

    workload: Workload
    site: Site
    steps: int
    collections: int
    seed: int
    values: Mapping[str, Any]
    why: Mapping[str, str]


class _Values:
    """Collects assumed numbers, and where each comes from. A value from the user replaces a derived value."""

    def __init__(self, given: Given) -> None:
        self.given, self.values, self.why = dict(given), dict[str, Any](), dict[str, str]()

    def __call__(self, name: str, derived: float, why: str) -> Any:
        self.values[name], self.why[name] = (self.given.pop(name), "given") if name in self.given else (derived, why)
        return self.values[name]

    def whole(self, name: str, derived: float, why: str) -> int:
        """Returns a number like a call, rounded to a whole number of at least 1."""
        self.values[name] = found = max(1, round(self(name, derived, why)))
        return found


def assumptions(cfg: DictConfig, plan: RunPlan, gpu: Gpu, given: Given) -> Assumptions:
    """Returns the assumptions of the simulation of a run.

    Raises:
        ValueError: the run samples no rollouts, the shape of its policy is unknown, or an assumption in ``given`` has
            an unknown name or an invalid value.
    """
    if plan.shape is None:
        raise ValueError("the shape of its policy is unknown")
    if not plan.tokens.rollouts:
        raise ValueError("the run samples no rollouts")
    tell = _Values(given)
    workload = _workload(cfg, plan, tell)
    drawn = workload.collection(0, 0)
    turns = [turn for group in drawn for rollout in group.rollouts for turn in rollout]
    played = sum(len(group.rollouts) for group in drawn)
    lengths = replace(plan.lengths, reply=sum(tokens for tokens, _ in turns) / len(turns), episode=len(turns) / played)
    site = _site(cfg, plan, gpu, lengths, tell)
    enough = min(16, max(LEAST, DRAWN // len(turns)))
    collections = tell.whole("collections", enough, "simulated iterations, as many as give enough random draws")
    if collections < LEAST:
        raise ValueError(
            f"collections must be at least {LEAST}, got {collections}; the first collections wait for no update and "
            "are therefore not timed"
        )
    seed = int(tell("seed", 0, "seed of the random draws"))
    if tell.given:
        raise ValueError(
            f"there is no assumption {', '.join(sorted(tell.given))}; the assumptions are {', '.join(tell.values)}"
        )
    return Assumptions(workload, site, plan.steps, collections, seed, tell.values, tell.why)


def _workload(cfg: DictConfig, plan: RunPlan, tell: _Values) -> Workload:
    tokens, known = plan.tokens, plan.lengths
    most = tell("max_tokens", float(cfg.rollout.sampling.max_tokens), "rollout.sampling.max_tokens")
    bound = known.source.get("reply", "").startswith(AT_MOST)
    reply = tell(
        "reply",
        most / 4 if bound else known.reply,
        "a quarter of max_tokens, because there is no measurement"
        if bound
        else known.source.get("reply", "from the plan"),
    )
    single = tokens.depth == 1
    limit = float(cfg.rollout.turns or max((most for most, _ in horizons(cfg)), default=known.episode))
    bound = known.source.get("episode", "").startswith(AT_MOST)
    mean, why = (
        (limit / 2, "half of max_turns, because there is no measurement") if bound else (known.episode, "from the plan")
    )
    if single:
        limit, mean, why = 1.0, 1.0, "rollout.turns"
    sigma = "with this spread, the 99th percentile is {:.1f} times the median; not measured"
    return Workload(
        groups=tell.whole("groups", tokens.states, "from the plan"),
        size=tell.whole("group_size", tokens.rollouts / tokens.states, "from the plan, including continuations"),
        turns=Tail(
            tell("turns", mean, why),
            tell("turns_sigma", 0 if single else TURNS_SIGMA, sigma.format(exp(2.326 * TURNS_SIGMA))),
            tell("max_turns", limit, "rollout.turns or the environment's horizon"),
        ),
        tokens=Tail(reply, tell("reply_sigma", SIGMA, sigma.format(exp(2.326 * SIGMA))), most),
        latency=Tail(
            tell(
                "latency",
                0.0 if single else LATENCY,
                "mean seconds that the environment takes for a turn; not measured",
            ),
            tell("latency_sigma", SIGMA, sigma.format(exp(2.326 * SIGMA))),
        ),
        opening=tell("opening", tokens.before, "from the plan"),
        observation=tell("observation", known.observation, "from the plan"),
        max_length=tell("max_length", float(cfg.rollout.max_length), "rollout.max_length"),
        gate_share=tell("gate_share", 0.0, "share of the groups that a gate stops; not measured"),
        gate_step=tell.whole("gate_step", float(OmegaConf.select(cfg, "gate.k") or 10), "gate.k, or 10"),
    )


def _site(cfg: DictConfig, plan: RunPlan, gpu: Gpu, lengths: Lengths, tell: _Values) -> Site:
    """Returns the simulated servers and trainer. ``lengths`` are the mean lengths of the simulated rollouts."""
    assert plan.shape is not None
    tokens = iteration(cfg, lengths)
    by_servers = served(cfg)
    shape = plan.shape
    training = tell.whole("training_gpus", plan.gpus, "trainer.devices x trainer.num_nodes")
    shared = bool(
        tell("shared", float(not by_servers), "1 if engine and trainer use the same GPUs, as with engine=tree; else 0")
    )
    named = OmegaConf.select(cfg, "engine.local.devices")
    devices = sum(len(str(one).split(",")) for one in named) if named else training
    sampling = tell.whole("sampling_gpus", devices, "engine.local.devices, or as many as training_gpus")
    item = getattr(torch, str(OmegaConf.select(cfg, "engine.local.dtype") or cfg.policy.dtype)).itemsize
    shape = replace(shape, weight_bytes=shape.parameters * item, item=item)
    each = 1
    while shape.weight_bytes > 0.6 * gpu.memory_gb * 1e9 * each and each < sampling:
        each *= 2
    why = "GPUs of one server: as few as hold the weights in 60 % of their memory"
    each = min(tell.whole("server_gpus", each, why), sampling)
    servers = sampling // each
    history = tokens.before + lengths.episode * (lengths.reply + lengths.observation)
    free = USED * each * gpu.memory_gb * 1e9 - shape.weight_bytes
    set_rows = OmegaConf.select(cfg, "engine.local.rows")
    if set_rows is None:
        fits = round(at_a_time(cfg, shape, ceil(tokens.histories / sampling), tokens.history) * tokens.samples)
    else:
        fits = min(int(set_rows), floor(free / (shape.kv_bytes * history)))
    why = "requests that a server decodes together: engine.local.rows, or as many as its memory holds"
    rows = tell.whole("rows", fits, why)
    pace = _pace(shape, gpu, each, tokens.context, tell)
    hours = work(cfg, shape, tokens, plan.around, gpu, None, lengths.reply).gpu_hours
    predictor = plan.work.gpu_hours["predictor"] if plan.work else 0.0
    update = 3600 * (hours["forward"] + hours["backward"] + hours["reference"] + predictor) / plan.steps / training
    handed = (shape.adapter_bytes or shape.weight_bytes) / 1e9 / HANDED_GB_S
    return Site(
        pace=pace,
        servers=servers,
        places=rows * servers,
        sampling_gpus=sampling,
        training_gpus=training,
        update=tell(
            "update_s", update, "seconds of an update: the plan's FLOPs divided by the speed of the training GPUs"
        ),
        sync=tell(
            "sync_s", handed, f"seconds to send the trained weights at {HANDED_GB_S:g} GB/s to the engine; not measured"
        ),
        shared=shared,
    )


def _pace(shape: Shape, gpu: Gpu, each: int, context: float, tell: _Values) -> Pace:
    """Returns the decoding speed of one server. Unless the user gives the speed, it is computed from the time of a
    decoding step. A step reads all weights once. For each request, a step also reads the request's keys and values and
    computes one token.
    """
    points = tell.given.pop("curve", None)
    if isinstance(points, tuple):
        tell.values["curve"], tell.why["curve"] = (
            points,
            "given: pairs of requests on a server and tokens per second of each request",
        )
        return Pace(points)
    reading = gpu.seconds(0.0, shape.weight_bytes) / each
    request = (gpu.seconds(0.0, shape.kv_bytes * context) + gpu.seconds(decode(shape, 1.0, context, 0.0))) / each
    return Pace.halving(
        tell(
            "first",
            1 / reading,
            "tokens per second of a request that is alone on a server, from the time to read the weights; or give "
            "curve=1:90,64:40",
        ),
        tell(
            "half",
            reading / request,
            "number of requests on a server at which each gets half of first; from keys, values and FLOPs",
        ),
    )


def parsed(items: list[str]) -> Given:
    """Parses assumptions that have the form ``name=number`` or ``curve=1:90,64:40``.

    Raises:
        ValueError: an assumption has another form.
    """
    found: dict[str, Any] = {}
    for item in items:
        name, equals, value = item.partition("=")
        try:
            if not equals:
                raise ValueError
            if name == "curve":
                found[name] = tuple((float(n), float(rate)) for n, rate in (p.split(":") for p in value.split(",")))
            else:
                found[name] = float(value)
                if not 0 <= found[name] < float("inf"):
                    raise ValueError
        except ValueError:
            raise ValueError(f"{item}: give name=number with a number of at least 0, or curve=1:90,64:40") from None
    return found
