"""Builds a tiny base policy: tokenizer, weights, model card.

    python -m scripts.recipes.tiny                    # tiny, trained on the household; about an hour on two cores
    python -m scripts.recipes.tiny --base tiny_tools  # bfcl, apibank, search, math, terminal, software; half an hour
    python -m scripts.recipes.tiny --base tiny_thinking  # bfcl, apibank, with a thought first; a quarter of an hour
    python -m scripts.recipes.tiny --base tiny_thinking_medium  # a smaller one; tiny_thinking_small is still smaller
    python -m scripts.recipes.tiny --base tiny_llama  # a second model family: bfcl, search, math; a quarter of an hour

After an interruption the same command resumes from the last checkpoint. ``--ship`` writes the result into the package.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scripts.recipes.tiny.mixtures import MIXTURES
from scripts.recipes.tiny.training import Training, make_tokenizer
from transformers import AutoTokenizer, GenerationConfig

from turnwise.config.schema import build, compose_config
from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.env import Environment
from turnwise.evaluation.skills import SKILLS
from turnwise.evaluation.suites import Episode, answer_skills, play_tasks, repeat_rate
from turnwise.rollouts.episodes import Openings
from turnwise.rollouts.player import Player
from turnwise.shipped import ASSETS, BASES

CONF = Path(__file__).resolve().parents[3] / "conf"
ITEMS = 200  # items of each toy skill in the final evaluation
CARD = """# The tiny base policy `{name}`

A {family} causal language model of {parameters:,} parameters with a byte-level BPE vocabulary of {vocabulary}, trained on
nothing but this project's own data: {about}, and eight toy skills. It sees what to do, often does something else, and can
forget: that is what it is for. What it shows is a mechanism, never a benchmark's score.

## How it was made

    python -m scripts.recipes.tiny --base {name} --ship

| | |
|---|---|
| settings | {settings} |
| trained | {tokens:,} tokens in {steps} steps, {minutes:.0f} minutes |
| machine | {machine} |

{stretches}

## What it does

Held-out tasks, {tasks} of each world, half of the split `seen` and half of `unseen`; percentages.

| world | decoding | success | seen | unseen | repeated actions | turns an episode |
|---|---|---|---|---|---|---|
{worlds}

Toy skills, {items} test items each, greedy; percentages. Each is named after nothing but what it is; the benchmark that
its place in the suite mirrors is given for orientation.

| skill | mirrors | score |
|---|---|---|
{skills}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--base", choices=list(MIXTURES), default="tiny", help="name of the base (default: tiny)")
    add("--out", type=Path, help="folder for checkpoints and the finished policy (default: outputs/<base>)")
    add("--ship", action="store_true", help="write the finished policy into the package")
    add("--every", type=int, default=200, help="number of steps between checkpoints (default: %(default)s)")
    add(
        "--tasks",
        type=int,
        default=256,
        help="tasks of each world in the evaluation, half unseen (default: %(default)s)",
    )
    add(
        "--workers",
        type=int,
        default=1,
        help="processes that generate demonstrations in advance (default: %(default)s)",
    )
    args = parser.parse_args()
    mixture = MIXTURES[args.base]()
    recipe = mixture.recipe
    out: Path = args.out or Path("outputs") / args.base
    shelf = out / "tokenizer"
    if shelf.is_dir():
        tokenizer = AutoTokenizer.from_pretrained(shelf)
    else:
        tokenizer = make_tokenizer(mixture, recipe, (ASSETS / "chat_template.jinja").read_text())
        tokenizer.save_pretrained(shelf)
    run = Training(recipe, mixture, tokenizer, out, args.workers)
    run.load()
    run.train(lambda run: print(f"step {run.step}, {run.seconds / 60:.1f} minutes", flush=True), args.every)
    torch.set_num_threads(recipe.threads)
    worlds = {name: build(compose_config([f"env={name}"], CONF), "env") for name in mixture.worlds}
    found = measure(run.model, tokenizer, worlds, args.tasks, ITEMS, mixture.max_tokens)
    print(json.dumps(found))
    folder = BASES[args.base] if args.ship else out / "policy"
    export(run, folder)
    (folder / "README.md").write_text(card(run, found, args.tasks), encoding="utf-8")
    success = ", ".join(f"{name} {modes['sampled']['success']:.1f}" for name, modes in found["worlds"].items())
    print(f"{folder}: success with sampled actions, % of tasks: {success}")


def export(run: Training, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    run.model.save_pretrained(folder)
    GenerationConfig(
        do_sample=True,
        temperature=1.0,
        max_new_tokens=run.mixture.max_tokens,
        eos_token_id=run.model.config.eos_token_id,
        pad_token_id=run.model.config.pad_token_id,
    ).save_pretrained(folder)
    run.tokenizer.save_pretrained(folder)


def measure(
    model: Any, tokenizer: Any, worlds: Mapping[str, Environment], tasks: int, items: int, max_tokens: int
) -> dict[str, Any]:
    """Measures held-out episodes and skills, as a run is evaluated.

    Under ``worlds``, the result holds environment -> decoding mode -> numbers (:func:`figures`), and under ``skills``
    the mean score of each skill as a share. The tasks and items are the first ones on which a run is evaluated, half of
    the tasks from each held-out split.
    """
    chat = ChatTokens(tokenizer)
    engine = TreeEngine(chat.stop_ids, copy=False)
    engine.load_weights(deepcopy(model).eval(), version=0)
    half = tasks // 2
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, env in worlds.items():
        chosen = [*env.tasks("seen", tasks - half), *env.tasks("unseen", half)]
        opening = Openings(env, chat)
        for mode in ("greedy", "sampled"):
            sampling = Sampling(temperature=float(mode == "sampled"), max_tokens=max_tokens)
            episodes = play_tasks(Player(engine, env, chat, sampling), opening, chosen, 1, mode, "eval")
            found.setdefault(name, {})[mode] = figures(episodes)
    scores: dict[str, list[float]] = {}
    for answer in answer_skills(engine, chat, items, seed=0):
        scores.setdefault(answer.suite, []).append(answer.score)
    return {"worlds": found, "skills": {suite: float(np.mean(values)) for suite, values in scores.items()}}


def figures(episodes: Sequence[Episode]) -> dict[str, float]:
    """Returns success in percent (overall and by split), the share of repeated actions, and turns per episode."""
    turns = sum(episode.turns for episode in episodes)
    said = [[m["content"] for m in episode.messages if m["role"] == "assistant"] for episode in episodes]
    won = {split: [e.success for e in episodes if e.split == split] for split in ("seen", "unseen")}
    return {
        "success": 100 * float(np.mean([episode.success for episode in episodes])),
        **{split: 100 * float(np.mean(values)) for split, values in won.items()},
        "repeated": sum(repeat_rate(texts) * len(texts) for texts in said) / turns,
        "turns": turns / len(episodes),
    }


def card(run: Training, found: dict[str, Any], tasks: int) -> str:
    """Returns the model card with the values of ``found``, which is of :func:`measure`."""
    rows = []
    for world, modes in found["worlds"].items():
        for decoding, r in modes.items():
            shares = f"{r['success']:.1f} | {r['seen']:.1f} | {r['unseen']:.1f} | {100 * r['repeated']:.1f}"
            rows.append(f"| {world} | {decoding} | {shares} | {r['turns']:.1f} |")
    recipe, mixture = run.recipe, run.mixture
    return CARD.format(
        name=mixture.name,
        family=recipe.family.capitalize(),
        about=mixture.about,
        stretches=mixture.stretches,
        parameters=sum(p.numel() for p in run.model.parameters()),
        vocabulary=len(run.tokenizer),
        settings=", ".join(f"{n.replace('_', ' ')} {getattr(recipe, n)}" for n in recipe.__dataclass_fields__),
        tokens=run.tokens,
        steps=run.step,
        minutes=run.seconds / 60,
        machine=run.machine,
        tasks=tasks,
        items=ITEMS,
        worlds="\n".join(rows),
        skills="\n".join(f"| {n} | {SKILLS[n].mirrors} | {100 * s:.1f} |" for n, s in found["skills"].items()),
    )


if __name__ == "__main__":
    main()
