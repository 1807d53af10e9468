"""Says which settings cannot work together, as a table of conditions and messages. Each message begins with the key to
change and names the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# rewards that compare one action with the demonstrated one
_LOCAL_REWARDS = {"Exact", "Functional", "Graded", "ToolCalls"}
_GROUP_RULES = {"GroupAdvantage", "Awpo", "GiGPO", "MTGRPO", "TurnCredit", "MonteCarlo"}
_PREDICTED = {"Trace", "Pcl"}  # allocators that need a predictor
_JUDGED = {"Awpo", "Gdpo"}  # advantage rules that read a judge's reward
_DEMONSTRATED = {"ExpertTurns", "Pivots"}  # states that have a demonstrated action


class Settings(dict[str, Any]):
    """A resolved configuration by dotted keys. ``s["loss.clip_low"]`` is None if there is no such key, and
    ``s["loss"]`` of a part with a ``_target_`` is the name of its class.
    """

    def __init__(self, tree: Mapping[str, Any]) -> None:
        super().__init__()
        self._add(tree, "")

    def _add(self, node: Mapping[str, Any], above: str) -> None:
        for key, value in node.items():
            if isinstance(value, Mapping):
                self[f"{above}{key}"] = str(value["_target_"]).rpartition(".")[2] if "_target_" in value else value
                self._add(value, f"{above}{key}.")
            else:
                self[f"{above}{key}"] = value

    def __missing__(self, key: str) -> None:
        return None


def _first_decision(s: Settings) -> int | None:
    """The number of turns after which the gate first decides, or None if it makes no decision."""
    steps = s["gate.steps"]
    step = min(steps, default=None) if isinstance(steps, Sequence) else s["gate.k"]
    return step if isinstance(step, int) else None


def _pays_one(s: Settings) -> bool:
    return s["reward"] in ("Exact", "Functional") or (s["reward"] == "Outcome" and s["reward.of"] == "won")


def _trains_on_samples(s: Settings) -> bool:
    return s["loss"] not in (None, "Nll")


def _several_processes(s: Settings) -> bool:
    counts = (s["trainer.devices"], s["trainer.num_nodes"])
    return any(isinstance(count, int) and count > 1 for count in counts)


def _sharded(s: Settings) -> bool:
    return bool(s["trainer.strategy"] == "FullySharded")


def _inside(s: Settings) -> bool:
    return s["engine"] in ("TreeEngine", "Lanes")


def _serves(s: Settings) -> bool:
    return bool(s["engine"] == "VllmEngine")


_FRESH = "set rollout.staleness=0"

# {key} in a message is the value of a key, {key!} the name of a part in lower case
_TABLE: list[tuple[Callable[[Settings], Any], str]] = [
    # names and numbers
    (lambda s: isinstance(s["name"], str) and not _is_folder_name(s["name"]),
     "name: it cannot be the name of a folder below outputs; use letters, digits and punctuation, and no part between "
     "slashes that is empty, . or .. (to write elsewhere, set paths.out=...)"),
    (lambda s: isinstance(s["seed"], int) and not 0 <= s["seed"] < 2**32,
     "seed: the random generators accept only seeds from 0 to 2^32 - 1, got {seed}; set one in this range"),
    (lambda s: isinstance(s["iterations"], int) and not 0 <= s["iterations"] <= 10**7,
     "iterations: must be from 0 to 10^7, got {iterations}"),
    (lambda s: "iterations" in s and s["trainer.max_epochs"] != s["iterations"],
     "trainer.max_epochs: one epoch of the trainer is one iteration; set iterations={trainer.max_epochs}"),
    # predictors and allocators
    *[(lambda s, part=part, names=names: s[part] in names and not s["predictor"],
       f"{part}={{{part}!}}: it needs a predictor of success, but predictor is null; set predictor=tiny, or choose another "
       f"{part}")
      for part, names in (("allocator", _PREDICTED), ("gate", {"Predicted"}), ("advantage", {"TurnGae"}))],
    (lambda s: s["advantage"] in ("TurnGae", "Igpo") and s["rollout.turns"] == 1,
     "advantage={advantage!}: with rollout.turns=1 there are no turns to divide credit among; set rollout.turns=null, or "
     "choose advantage=group"),
    (lambda s: s["allocator"] in _PREDICTED and s["advantage.zero_variance"] == "refill",
     "advantage.zero_variance: allocator={allocator!} has spent its whole budget before a refill; set "
     "advantage.zero_variance to drop or keep"),
    *[(lambda s, allocator=allocator, key=key: s["rollout.turns"] == 1 and s["allocator"] == allocator and (s[key] or 0) > 0,
       f"{key}: with rollout.turns=1 no rollout has a later turn to branch at; set {key}=0, or rollout.turns=null")
      for allocator, key in (("Trace", "allocator.expansion"), ("TreePO", "allocator.branches"),
                             ("Entropy", "allocator.branches"))],
    (lambda s: s["allocator"] == "Pcl" and s["allocator.prompts"] > s["rollout.states"],
     "allocator.prompts: {allocator.prompts} prompts cannot be chosen from rollout.states={rollout.states} candidates; "
     "set rollout.states to twice as many prompts, as in TRACE's experiments"),
    (lambda s: s["reward"] == "Graded" and s["predictor.reward_max"] < 2,
     "predictor.reward_max: reward=graded can be up to 2; set predictor.reward_max=2, got {predictor.reward_max}"),
    # states, rewards and turns
    (lambda s: s["reward"] in _LOCAL_REWARDS and s["states"] not in _DEMONSTRATED,
     "reward={reward!}: this reward compares with a demonstrated action, but {states} states have none; choose "
     "states=expert_turns, states=pivots or reward=outcome"),
    (lambda s: s["reward"] in _LOCAL_REWARDS and s["rollout.turns"] != 1,
     "rollout.turns: reward={reward!} judges a single action; set rollout.turns=1, got {rollout.turns}"),
    (lambda s: s["reward"] == "Outcome" and s["rollout.turns"] is not None,
     "rollout.turns: reward=outcome is paid at the end of an episode, which rollouts of {rollout.turns} turns may not "
     "reach; set rollout.turns=null"),
    (lambda s: s["rollout.turns"] is not None and (first := _first_decision(s)) is not None and first >= s["rollout.turns"],
     "gate: it first decides when all rollouts of rollout.turns={rollout.turns} have ended; set gate=never, or let the gate "
     "decide after an earlier turn"),
    (lambda s: s["rollout.trajectories"] > s["rollout.states"] > 0,
     "rollout.trajectories: {rollout.trajectories} trajectories must be at most rollout.states={rollout.states}, so that "
     "each trajectory has a state; lower rollout.trajectories, or set it to null"),
    (lambda s: s["rollout.max_length"] <= s["rollout.sampling.max_tokens"],
     "rollout.max_length: it must be above rollout.sampling.max_tokens={rollout.sampling.max_tokens}; set a larger one, "
     "got {rollout.max_length}"),
    (lambda s: s["data.file"] and s["states"] == "TaskStarts" and s["iterations"] != 0,
     "data.file: method={method} plays tasks of env from their start and reads no file; choose method=pivotrl, sft, local, "
     "toolrl, awpo or mixed, or leave out data.file"),
    # the loss
    *[(lambda s, part=part: s["loss"] == "Nll" and s[part],
       f"{part}: loss=nll imitates the demonstrated tokens and uses no {part}; set {part}=none, or loss=clipped")
      for part in ("reward", "advantage")],
    (lambda s: s["loss"] == "Nll" and s["states"] == "TaskStarts",
     "states=task_starts: loss=nll needs demonstrated actions; choose states=expert_turns"),
    *[(lambda s, part=part: _trains_on_samples(s) and not s[part],
       f"{part}: loss={{loss!}} needs this part, but {part} is null; choose one, or method=sft to imitate")
      for part in ("allocator", "reward", "advantage")],
    (lambda s: _trains_on_samples(s) and s["rollout.sampling.temperature"] == 0,
     "rollout.sampling.temperature: at temperature 0 all samples of a state are equal; set it above 0"),
    *[(lambda s, key=key, off=off: _trains_on_samples(s) and s[key] is not None and s[key] > 0 and s[key] != off,
       f"{key}: the update scores tokens under the unfiltered distribution, so its ratios would be wrong; set it to {off}")
      for key, off in (("rollout.sampling.top_p", 1), ("rollout.sampling.top_k", 0), ("rollout.sampling.min_p", 0))],
    (lambda s: s["advantage"] in _GROUP_RULES and s["allocator.group_size"] == 1,
     "allocator.group_size: a group of one rollout has no group advantage; set it to at least 2"),
    (lambda s: s["update.steps"] > s["rollout.states"] > 0,
     "update.steps: {update.steps} optimiser steps need as many rollout trees in each iteration, but there are only "
     "rollout.states={rollout.states}; set update.steps to at most that number"),
    (lambda s: (s["loss.kl_beta"] or 0) > 0 and s["policy.lora.r"] == 0,
     "loss.kl_beta: the reference policy is the policy without its adapter, but policy.lora.r is 0; set loss.kl_beta=0, "
     "or train an adapter"),
    (lambda s: s["policy.lora.dropout"],
     "policy.lora.dropout: with dropout the trained policy would differ from the policy that sampled the rollouts, and a "
     "resumed run would use other masks; set it to 0"),
    # judges
    (lambda s: s["judge"] is None and s["advantage"] in _JUDGED,
     "judge: advantage={advantage!} weighs a judge's score of the reasoning, but judge is null; choose judge=offline or "
     "judge=endpoint, or set advantage=group"),
    (lambda s: s["judge"] is not None and s["advantage"] not in _JUDGED,
     "judge: {judge} would score every rollout, but advantage={advantage!} never uses the scores; set judge=none, or choose "
     "advantage=awpo"),
    (lambda s: s["judge"] is not None and s["advantage"] == "Awpo"
     and (s["states"] not in _DEMONSTRATED or s["rollout.turns"] != 1),
     "judge: a judge grades one reply against the demonstrated reply; choose states=expert_turns or states=pivots with "
     "rollout.turns=1, or set judge=none and advantage=group"),
    (lambda s: s["advantage"] == "Awpo" and s["advantage.difficulty"] and _pays_one(s) and s["advantage.tau_high"] > 1,
     "advantage.tau_high: reward={reward!} is at most 1, so no group would count as too easy; set advantage.tau_low=0.2 "
     "and advantage.tau_high=0.8, or advantage.difficulty=false; got {advantage.tau_high}"),
    # engine=vllm
    (lambda s: _serves(s) and s["policy.start"],
     "policy.start: the vLLM server loads only policy.model and would sample from other weights; set engine=tree, or give "
     "a folder with all weights as policy.model"),
    (lambda s: _serves(s) and s["allocator"] and s["rollout.sampling.temperature"]
     and not 0.01 <= s["rollout.sampling.temperature"] <= 2,
     "rollout.sampling.temperature: vLLM accepts 0.01 to 2 and would silently change other values; set it in this range, "
     "got {rollout.sampling.temperature}"),
    # trainer=fsdp
    (lambda s: _sharded(s) and _inside(s) and s["engine.copy"] is False,
     "engine.copy: the trained weights are sharded and cannot be sampled from; set engine.copy=true"),
    (lambda s: _sharded(s) and _inside(s) and s["trainer.strategy.offload"],
     "trainer.strategy.offload: the weight shards are kept on the CPU, and engine=tree would sample there too; choose "
     "engine=vllm, or trainer.strategy.offload=false"),
    (lambda s: _sharded(s) and s["callbacks.gradients"],
     "callbacks.gradients: this callback needs gradients of whole weights, but the weights are sharded; set "
     "callbacks=default, or trainer=ddp"),
    # collections ahead of the updates
    (lambda s: s["rollout.staleness"] and _several_processes(s) and not _serves(s),
     "rollout.staleness: several processes would exchange rollouts and gradients at the same time, unless engine=vllm "
     f"samples for them; {_FRESH}"),
    (lambda s: s["rollout.staleness"] and s["predictor"],
     "rollout.staleness: the predictor must learn from the rollouts of one iteration before those of the next one are "
     f"allocated; {_FRESH}"),
    (lambda s: s["rollout.staleness"] and s["advantage"] == "Igpo",
     f"rollout.staleness: advantage=igpo scores answers with the weights, which would be in training meanwhile; {_FRESH}"),
    (lambda s: _sharded(s) and s["advantage"] == "Igpo",
     "advantage=igpo: it scores answers with whole weights, but the weights are sharded; choose another rule, or another "
     "trainer.strategy"),
    (lambda s: s["rollout.staleness"] and s["engine.copy"] is False,
     f"rollout.staleness: engine.copy=false samples from the weights that are being trained; {_FRESH}"),
    # states chosen anew
    (lambda s: s["states.refresh"] is not None and s["states.keep"] == "all",
     "states.refresh: states.keep=all keeps every turn, so a new profile changes nothing; set states.keep=adv or "
     "states.keep=mixed, or states.refresh=null"),
    (lambda s: s["states.refresh"] is not None and not s["allocator"],
     "states.refresh: re-profiling needs rewards of sampled rollouts, and an imitation run samples none; set "
     "states.refresh=null"),
    (lambda s: s["states.refresh"] is not None and s["rollout.staleness"],
     "states.refresh: the engine would still be sampling the next iteration during re-profiling; set "
     "rollout.staleness=0, or states.refresh=null"),
    # groups sampled before the first update
    (lambda s: s["rollout.frozen"] is not None and s["allocator"] is None,
     "rollout.frozen: allocator is null, so nothing is sampled; set rollout.frozen=null"),
    (lambda s: s["rollout.frozen"] < s["rollout.states"],
     "rollout.frozen: {rollout.frozen} states are fewer than the rollout.states={rollout.states} of an iteration; set more"),
    (lambda s: s["rollout.frozen"] is not None and s["predictor"],
     "predictor: the predictor learns from each iteration's rollouts, but rollout.frozen samples all groups before the "
     "first update; set predictor=none with allocator=uniform, or rollout.frozen=null"),
    (lambda s: s["rollout.frozen"] is not None and s["rollout.staleness"],
     "rollout.staleness: with rollout.frozen nothing is sampled during an update; set rollout.staleness=0"),
    (lambda s: s["rollout.frozen"] is not None and s["states.refresh"] is not None,
     "states.refresh: the groups of rollout.frozen are sampled before training, so they lack states that are chosen "
     "later; set states.refresh=null, or rollout.frozen=null"),
    (lambda s: s["rollout.frozen"] is not None and s["advantage.zero_variance"] == "refill",
     "advantage.zero_variance: with rollout.frozen, refill would use up groups of other iterations; set "
     "advantage.zero_variance to drop or keep, or set rollout.frozen=null"),
    # the trainer
    (lambda s: s["trainer.accelerator"] == "cpu" and s["trainer.devices"] not in (None, "auto")
     and (isinstance(s["trainer.devices"], list) or s["trainer.devices"] < 1),
     "trainer.devices: with accelerator=cpu this is the number of processes; set it to at least 1, got {trainer.devices}"),
    (lambda s: s["trainer"] and "callbacks" in s and not s["callbacks.checkpoint"],
     "callbacks.checkpoint: a killed run resumes from this checkpoint; set it as in conf/callbacks/default.yaml"),
    (lambda s: s["callbacks.checkpoint"] == "ModelCheckpoint"
     and s["callbacks.checkpoint.dirpath"] != f"{s['paths.out']}/checkpoints",
     "callbacks.checkpoint.dirpath: a run looks for checkpoints in ${paths.out}/checkpoints; set it to that folder"),
]  # fmt: skip


def conflicts(tree: Mapping[str, Any]) -> Iterator[str]:
    """Yields a message for each conflict of settings in a resolved configuration."""
    settings = Settings(tree)
    for condition, message in _TABLE:
        try:
            conflict = condition(settings)
        except TypeError:  # a value of a wrong type, which the check of types reports, or a part that the run lacks
            continue
        if conflict:
            yield re.sub(r"(?<!\$)\{([\w.]+)(!?)\}", lambda found: _shown(settings, *found.groups()), message)


def _shown(settings: Settings, key: str, short: str) -> str:
    value = settings[key]
    return str(value or "null").lower() if short else str(value)


def _is_folder_name(name: str) -> bool:
    return bool(name.strip()) and not {"", ".", ".."} & set(name.split("/")) and name.isprintable()
