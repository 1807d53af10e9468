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
_JUDGED = {"Awpo"}  # advantage rules that read a judge's reward
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
     "name: this cannot be the name of a folder below outputs; to write elsewhere, set paths.out=..."),
    (lambda s: isinstance(s["seed"], int) and not 0 <= s["seed"] < 2**32,
     "seed: the random generators accept only seeds from 0 to 2^32 - 1, got {seed}; set one in this range"),
    (lambda s: isinstance(s["iterations"], int) and not 0 <= s["iterations"] <= 10**7,
     "iterations: must be from 0 to 10^7, got {iterations}"),
    (lambda s: "iterations" in s and s["trainer.max_epochs"] != s["iterations"],
     "trainer.max_epochs: one epoch of the trainer is one iteration; set iterations={trainer.max_epochs}"),
    (lambda s: s["check"] and s["fresh"],
     "check: it starts no run, so it renames none; leave out fresh=true or check=true"),
    # predictors and allocators
    *[(lambda s, part=part, names=names: s[part] in names and not s["predictor"],
       f"{part}={{{part}!}}: it needs a predictor of success, but predictor is null; set predictor=tiny")
      for part, names in (("allocator", _PREDICTED), ("gate", {"Predicted"}))],
    (lambda s: s["advantage"] == "Igpo" and s["rollout.turns"] == 1,
     "advantage={advantage!}: with rollout.turns=1 there are no turns to divide credit among; set rollout.turns=null"),
    (lambda s: s["allocator"] in _PREDICTED and s["advantage.zero_variance"] == "refill",
     "advantage.zero_variance: allocator={allocator!} spends its budget before a refill; set it to drop or keep"),
    *[(lambda s, allocator=allocator, key=key: s["rollout.turns"] == 1 and s["allocator"] == allocator and (s[key] or 0) > 0,
       f"{key}: with rollout.turns=1 no rollout has a later turn to branch at; set {key}=0, or rollout.turns=null")
      for allocator, key in (("Trace", "allocator.expansion"), ("TreePO", "allocator.branches"))],
    (lambda s: s["allocator"] == "Pcl" and s["allocator.prompts"] > s["rollout.states"],
     "allocator.prompts: {allocator.prompts} cannot be chosen from rollout.states={rollout.states}; set twice as many states"),
    (lambda s: s["reward"] == "Graded" and s["predictor.reward_max"] < 2,
     "predictor.reward_max: reward=graded can be up to 2; set predictor.reward_max=2, got {predictor.reward_max}"),
    # states, rewards and turns
    (lambda s: s["reward"] in _LOCAL_REWARDS and s["states"] not in _DEMONSTRATED,
     "reward={reward!}: this reward compares with a demonstrated action, but {states} states have none; set states=pivots"),
    (lambda s: s["reward"] in _LOCAL_REWARDS and s["rollout.turns"] != 1,
     "rollout.turns: reward={reward!} judges a single action; set rollout.turns=1, got {rollout.turns}"),
    (lambda s: s["reward"] == "Outcome" and s["rollout.turns"] is not None,
     "rollout.turns: reward=outcome is paid at the end of an episode; set rollout.turns=null, got {rollout.turns}"),
    (lambda s: s["rollout.turns"] is not None and (first := _first_decision(s)) is not None and first >= s["rollout.turns"],
     "gate: it first decides when all rollouts of rollout.turns={rollout.turns} have ended; set gate=never"),
    (lambda s: s["rollout.trajectories"] > s["rollout.states"] > 0,
     "rollout.trajectories: it must be at most rollout.states={rollout.states}, got {rollout.trajectories}; lower it"),
    (lambda s: s["rollout.max_length"] <= s["rollout.sampling.max_tokens"],
     "rollout.max_length: set it above rollout.sampling.max_tokens={rollout.sampling.max_tokens}, got {rollout.max_length}"),
    (lambda s: s["data.file"] and s["states"] == "TaskStarts" and s["iterations"] != 0,
     "data.file: method={method} plays tasks of env and reads no file; choose method=pivotrl, sft, local, toolrl or awpo"),
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
     "update.steps: each of {update.steps} steps needs a rollout tree; set at most rollout.states={rollout.states}"),
    (lambda s: s["update.offload"] and not s["update.recompute"],
     "update.offload: it moves the layer inputs that recompute stores; set update.recompute=true as well"),
    (lambda s: (s["loss.kl_beta"] or 0) > 0 and s["policy.lora.r"] == 0,
     "loss.kl_beta: the reference policy is the policy without its adapter, but policy.lora.r is 0; set loss.kl_beta=0"),
    (lambda s: s["policy.lora.dropout"],
     "policy.lora.dropout: the trained policy would differ from the one that sampled the rollouts; set it to 0"),
    # judges
    (lambda s: s["judge"] is None and s["advantage"] in _JUDGED,
     "judge: advantage={advantage!} weighs a judge's score, but judge is null; choose judge=offline or judge=endpoint"),
    (lambda s: s["judge"] is not None and s["advantage"] not in _JUDGED,
     "judge: advantage={advantage!} never uses the scores of {judge}; set judge=none, or choose advantage=awpo"),
    (lambda s: s["judge"] is not None and s["advantage"] == "Awpo"
     and (s["states"] not in _DEMONSTRATED or s["rollout.turns"] != 1),
     "judge: it grades one reply against a demonstrated one; choose states=expert_turns or pivots with rollout.turns=1"),
    (lambda s: s["advantage"] == "Awpo" and s["advantage.difficulty"] and _pays_one(s) and s["advantage.tau_high"] > 1,
     "advantage.tau_high: reward={reward!} is at most 1, so no group would be too easy; set 0.8, got {advantage.tau_high}"),
    # engine=vllm
    (lambda s: _serves(s) and s["policy.start"],
     "policy.start: vLLM loads policy.model and would sample from other weights; set engine=tree"),
    (lambda s: _serves(s) and s["allocator"] and s["rollout.sampling.temperature"]
     and not 0.01 <= s["rollout.sampling.temperature"] <= 2,
     "rollout.sampling.temperature: vLLM silently changes values outside 0.01 to 2, got {rollout.sampling.temperature}"),
    # trainer=fsdp
    (lambda s: _sharded(s) and _inside(s) and s["engine.copy"] is False,
     "engine.copy: the trained weights are sharded and cannot be sampled from; set engine.copy=true"),
    (lambda s: _sharded(s) and _inside(s) and s["trainer.strategy.offload"],
     "trainer.strategy.offload: engine=tree would sample on the CPU as well; choose engine=vllm, or set it to false"),
    (lambda s: _sharded(s) and s["callbacks.gradients"],
     "callbacks.gradients: it needs whole weights, but they are sharded; set callbacks=default, or trainer=ddp"),
    # collections ahead of the updates
    (lambda s: s["rollout.staleness"] and _several_processes(s) and not _serves(s),
     f"rollout.staleness: only engine=vllm can sample while several processes exchange gradients; {_FRESH}"),
    (lambda s: s["rollout.staleness"] and s["predictor"],
     f"rollout.staleness: the predictor learns from one iteration before the next is allocated; {_FRESH}"),
    (lambda s: s["rollout.staleness"] and s["advantage"] == "Igpo",
     f"rollout.staleness: advantage=igpo scores answers with the weights, which would be in training meanwhile; {_FRESH}"),
    (lambda s: _sharded(s) and s["advantage"] == "Igpo",
     "advantage=igpo: it scores answers with whole weights, but they are sharded; choose another rule"),
    (lambda s: s["engine.weights"] and s["engine.copy"] is False,
     "engine.weights: they are a copy, and engine.copy=false samples from the trained weights; set engine.weights=null"),
    (lambda s: s["engine.weights"] and s["trainer.accelerator"] in ("gpu", "cuda"),
     "engine.weights: it is for a CPU; set engine.weights=null, or policy.dtype=bfloat16"),
    (lambda s: s["rollout.staleness"] and s["engine.copy"] is False,
     f"rollout.staleness: engine.copy=false samples from the weights that are being trained; {_FRESH}"),
    # states chosen anew
    (lambda s: s["states.refresh"] is not None and s["states.keep"] == "all",
     "states.refresh: states.keep=all keeps every turn, so a new profile changes nothing; set it to null"),
    (lambda s: s["states.refresh"] is not None and not s["allocator"],
     "states.refresh: a new profile needs rewards, and an imitation run samples none; set it to null"),
    (lambda s: s["states.refresh"] is not None and s["rollout.staleness"],
     "states.refresh: the engine would still be sampling the next iteration; set it to null, or rollout.staleness=0"),
    # groups sampled before the first update
    (lambda s: s["rollout.frozen"] is not None and s["allocator"] is None,
     "rollout.frozen: allocator is null, so nothing is sampled; set rollout.frozen=null"),
    (lambda s: s["rollout.frozen"] < s["rollout.states"],
     "rollout.frozen: {rollout.frozen} states are fewer than the rollout.states={rollout.states} of an iteration; set more"),
    (lambda s: s["rollout.frozen"] is not None and s["predictor"],
     "predictor: it learns from each iteration, but rollout.frozen samples before the first update; set rollout.frozen=null"),
    (lambda s: s["rollout.frozen"] is not None and s["rollout.staleness"],
     "rollout.staleness: with rollout.frozen nothing is sampled during an update; set rollout.staleness=0"),
    (lambda s: s["rollout.frozen"] is not None and s["states.refresh"] is not None,
     "states.refresh: the groups of rollout.frozen lack states that are chosen later; set one of the two to null"),
    (lambda s: s["rollout.frozen"] is not None and s["advantage.zero_variance"] == "refill",
     "advantage.zero_variance: refill would use up groups of rollout.frozen; set it to drop or keep"),
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
