"""Build the embedded base policy: tokenizer, weights, model card. Within an hour on two cores.

    python scripts/make_tiny.py --out outputs/tiny

Interrupted, the same command goes on from the last checkpoint. ``--ship`` writes the result into the package.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, GenerationConfig

from turnwise.envs.household.environment import HouseholdEnv
from turnwise.tiny.card import write_card
from turnwise.tiny.load import ASSETS
from turnwise.tiny.measure import measure, reads
from turnwise.tiny.recipe import Recipe, Run, make_tokenizer


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("outputs/tiny"), help="checkpoints and the finished policy")
    parser.add_argument("--ship", action="store_true", help="write the finished policy into the package")
    parser.add_argument("--every", type=int, default=200, help="steps between evaluations and checkpoints")
    parser.add_argument("--tasks", type=int, default=48, help="household tasks of an evaluation on the way")
    parser.add_argument(
        "--final-tasks", type=int, default=256, help="household tasks of the final figures, half of them unseen"
    )
    parser.add_argument("--until", type=int, help="stop at this step of the schedule; the next call goes on")
    for field in dataclasses.fields(Recipe):
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=type(field.default), default=field.default, help=f"default {field.default}")
    return parser.parse_args()


def measured(run: Run, tasks: int, items: int) -> dict[str, dict[str, float]]:
    """Success, greedy and sampled, and skills, printed and returned."""
    torch.set_num_threads(run.recipe.threads)
    found = measure(run.model, run.tokenizer, run.env, tasks, items)
    print(json.dumps({"step": run.step, "tokens": run.tokens, "minutes": round(run.seconds / 60, 1), **found}))
    sys.stdout.flush()
    return found


def export(run: Run, folder: Path) -> None:
    """The policy as a folder that transformers loads."""
    folder.mkdir(parents=True, exist_ok=True)
    run.model.save_pretrained(folder)
    GenerationConfig(
        do_sample=True,
        temperature=1.0,
        max_new_tokens=24,
        eos_token_id=run.model.config.eos_token_id,
        pad_token_id=run.model.config.pad_token_id,
    ).save_pretrained(folder)
    run.tokenizer.save_pretrained(folder)


def main() -> None:
    args = arguments()
    recipe = Recipe(**{field.name: getattr(args, field.name) for field in dataclasses.fields(Recipe)})
    env = HouseholdEnv()
    shelf = args.out / "tokenizer"
    if shelf.is_dir():
        tokenizer = AutoTokenizer.from_pretrained(shelf)
    else:
        tokenizer = make_tokenizer(env, recipe, (ASSETS / "chat_template.jinja").read_text())
        tokenizer.save_pretrained(shelf)
    run = Run(recipe, env, tokenizer, args.out)
    run.load()

    def on_the_way(run: Run) -> dict[str, dict[str, float]]:
        export(run, args.out / "latest")
        return measured(run, args.tasks, 50)

    run.train(on_the_way, args.every, args.until)
    if run.step < recipe.total:
        return
    final = measured(run, args.final_tasks, 200)
    reading = reads(run.model.eval(), run.tokenizer, env, args.final_tasks)
    folder = ASSETS if args.ship else args.out / "policy"
    export(run, folder)
    write_card(folder, run, final | {"reads": reading}, args.final_tasks, 200)
    print(f"{folder}: greedy {final['greedy']['success']:.1f} %, sampled {final['sampled']['success']:.1f} % of tasks")


if __name__ == "__main__":
    main()
