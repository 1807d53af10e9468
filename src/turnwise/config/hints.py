"""Suggests an existing configuration key for an unknown key, also for the names that other libraries use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

# key of Turnwise -> names of the same setting in TRL, verl, transformers and other libraries
_ELSEWHERE = {
    "update.learning_rate": "lr actor_lr",
    "update.warmup": "warmup_steps num_warmup_steps lr_warmup_steps warmup_ratio",
    "update.clip_norm": "max_grad_norm grad_clip gradient_clip_val",
    "update.batch_tokens": "per_device_train_batch_size micro_batch_size gradient_accumulation_steps accumulate_grad_batches",
    "update.recompute": "gradient_checkpointing",
    "trainer.max_epochs": "epochs num_epochs num_train_epochs total_epochs steps max_steps total_steps iterations num_iterations",
    "trainer.devices": "gpus n_gpus num_gpus n_gpus_per_node num_processes nproc_per_node",
    "trainer.num_nodes": "nodes nnodes",
    "trainer.precision": "bf16 fp16",
    "rollout.states": "batch_size train_batch_size global_batch_size prompts num_prompts",
    "rollout.max_length": "max_seq_length max_seq_len max_model_len max_prompt_length max_context_length",
    "rollout.turns": "max_turns num_turns",
    "rollout.sampling.max_tokens": "max_new_tokens max_completion_length response_length max_response_length",
    "allocator.group_size": "num_generations num_return_sequences num_rollouts rollouts n_samples num_samples n g",
    "loss.kl_beta": "beta kl_coef kl_loss_coef kl_penalty",
    "loss.clip_high": "epsilon eps clip_range cliprange clip_ratio clip_eps epsilon_high",
    "loss.clip_low": "epsilon_low",
    "loss.aggregation": "loss_type loss_agg_mode",
    "policy.model": "model model_name model_path model_name_or_path model_id pretrained checkpoint",
    "policy.dtype": "torch_dtype",
    "policy.lora.r": "lora_r lora_rank rank",
    "policy.lora.alpha": "lora_alpha",
    "policy.lora.dropout": "lora_dropout",
    "data.file": "dataset dataset_name dataset_path data_path train_file train_files data_files",
    "eval.every": "eval_steps eval_every eval_interval test_freq val_check_interval",
    "paths.out": "output_dir out_dir save_dir default_local_dir",
    "logger.wandb.project": "project project_name wandb_project",
    "name": "run_name experiment_name exp_name",
    "method": "algorithm algo trainer_type adv_estimator",
    "env": "environment env_name world task",
    "fresh": "overwrite overwrite_output_dir force",
}
_HERE = {word: key for key, words in _ELSEWHERE.items() for word in words.split()}
_MOST = 3  # largest number of keys in a suggestion


def meant(word: str, tree: Mapping[str, Any], holder: str = "") -> str:
    """Returns the text that follows "there is no key ``word``" in an error message. The text suggests the key that was
    probably meant. If no key is similar, it lists all keys of the group.

    ``tree`` is the configuration without the unknown key. ``holder`` is the dotted key of the group in which ``word``
    was looked for; it is empty for the top level.
    """
    plain = word.lower().replace("-", "_")
    known = _HERE.get(plain, "")
    if known and (not holder or known.startswith(f"{holder}.")):
        if _lies_in(tree, known):
            return f"; did you mean '{known}'?"
        return f"; this setting is called '{known}' here and belongs to a part that this run does not use"
    names = [str(name) for name in _at(tree, holder) if not str(name).startswith("_")]
    if near := get_close_matches(word, names, n=1, cutoff=0.6):
        return f"; did you mean '{near[0]}'?"
    leaves = [key for key in keys_of(tree) if "." in key]
    last = {key: key.rpartition(".")[2] for key in leaves}
    same = [key for key in leaves if last[key] == plain]
    close = get_close_matches(plain, sorted(set(last.values())), n=1, cutoff=0.8)
    found = same or [key for key in leaves if close and last[key] == close[0]]
    if found:
        return f"; did you mean {' or '.join(repr(key) for key in sorted(found, key=len)[:_MOST])}?"
    return f"; choose one of {', '.join(sorted(names))}" if names else "; leave out this key"


def keys_of(tree: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    """Yields the dotted key of every group and every value of a configuration, without Hydra's own keys."""
    for key, value in tree.items():
        if not str(key).startswith("_"):
            yield f"{prefix}{key}"
            if isinstance(value, Mapping):
                yield from keys_of(value, f"{prefix}{key}.")


def _at(tree: Mapping[str, Any], dotted: str) -> Mapping[str, Any]:
    node: Any = tree
    for key in dotted.split(".") if dotted else ():
        node = node.get(key) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else {}


def _lies_in(tree: Mapping[str, Any], dotted: str) -> bool:
    holder, _, last = dotted.rpartition(".")
    return last in _at(tree, holder)


def suggest(name: str, known: Iterable[str]) -> str:
    """Returns ``; did you mean 'x'?`` for the known name closest to ``name``, or a list of all if none is similar."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; choose one of {', '.join(names)}" if names else "; leave out this key"
