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
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from scripts.recipes.tiny.card import write_card
from scripts.recipes.tiny.household import Household
from scripts.recipes.tiny.measure import measure
from scripts.recipes.tiny.mixture import Mixture
from scripts.recipes.tiny.recipe import Recipe, Training, make_tokenizer
from scripts.recipes.tiny.toolworlds import ToolWorlds, llama, thinking
from transformers import AutoTokenizer, GenerationConfig

from turnwise.config.schema import build, compose_config
from turnwise.shipped import ASSETS, BASES

CONF = Path(__file__).resolve().parents[3] / "conf"
MIXTURES: Mapping[str, Callable[[], Mixture]] = {
    "tiny": Household,
    "tiny_tools": ToolWorlds,
    "tiny_thinking": thinking,
    "tiny_thinking_medium": partial(thinking, "medium"),
    "tiny_thinking_small": partial(thinking, "small"),
    "tiny_llama": llama,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", choices=list(MIXTURES), default="tiny", help="name of the base (default: tiny)")
    parser.add_argument(
        "--out", type=Path, help="folder for checkpoints and the finished policy (default: outputs/<base>)"
    )
    parser.add_argument("--ship", action="store_true", help="write the finished policy into the package")
    parser.add_argument("--every", type=int, default=200, help="number of steps between evaluations and checkpoints")
    parser.add_argument(
        "--tasks",
        type=int,
        default=48,
        help="number of tasks of each environment in an evaluation during training; 0: no evaluation",
    )
    parser.add_argument(
        "--final-tasks",
        type=int,
        default=256,
        help="number of tasks of each environment in the final evaluation; half of the tasks are unseen",
    )
    parser.add_argument("--device", default="cpu", help="device for training, such as cuda; evaluations use the CPU")
    parser.add_argument(
        "--workers", type=int, default=1, help="number of processes that generate demonstrations in advance"
    )
    parser.add_argument("--until", type=int, help="stop at this step of the schedule; the next call resumes there")
    for field in dataclasses.fields(Recipe):
        flag = f"--{field.name.replace('_', '-')}"
        defaults = ", ".join(f"{name} {getattr(make().recipe, field.name)}" for name, make in MIXTURES.items())
        parser.add_argument(flag, type=type(field.default), help=f"default: {defaults}")
    return parser.parse_args()


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


def main() -> None:
    args = arguments()
    mixture = MIXTURES[args.base]()
    given = {field.name: getattr(args, field.name) for field in dataclasses.fields(Recipe)}
    recipe = dataclasses.replace(mixture.recipe, **{name: value for name, value in given.items() if value is not None})
    out: Path = args.out or Path("outputs") / args.base
    worlds = {name: build(compose_config([f"env={name}"], CONF), "env") for name in mixture.worlds}
    shelf = out / "tokenizer"
    if shelf.is_dir():
        tokenizer = AutoTokenizer.from_pretrained(shelf)
    else:
        tokenizer = make_tokenizer(mixture, recipe, (ASSETS / "chat_template.jinja").read_text())
        tokenizer.save_pretrained(shelf)
    run = Training(recipe, mixture, tokenizer, out, args.device, args.workers)
    run.load()

    def measured(run: Training, tasks: int, items: int, *modes: str) -> dict[str, Any]:
        torch.set_num_threads(recipe.threads)
        found = measure(run.model, tokenizer, worlds, tasks, items, mixture.max_tokens, modes)
        print(json.dumps({"step": run.step, "tokens": run.tokens, "minutes": round(run.seconds / 60, 1), **found}))
        sys.stdout.flush()
        return found

    def on_the_way(run: Training) -> dict[str, Any]:
        export(run, out / "latest")
        return measured(run, args.tasks, 20, "sampled") if args.tasks else {}

    run.train(on_the_way, args.every, args.until)
    if run.step < recipe.total:
        return
    run.model.cpu()
    final = measured(run, args.final_tasks, 200, "greedy", "sampled")
    folder = BASES[args.base] if args.ship else out / "policy"
    export(run, folder)
    write_card(folder, run, final, worlds, args.final_tasks, 200)
    told = ", ".join(f"{name} {found['sampled']['success']:.1f}" for name, found in final["worlds"].items())
    print(f"{folder}: success with sampled actions, % of tasks: {told}")


if __name__ == "__main__":
    main()
