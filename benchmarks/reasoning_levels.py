"""Measures what share of each data set of reasoning-gym a policy solves, to find data sets between 15 and 85 %.

python benchmarks/reasoning_levels.py tiny tiny_tools --json outputs/benchmarks/reasoning_levels.json
python benchmarks/reasoning_levels.py outputs/sft/seed0/model --level 1 --sets chain_sum gcd

On data sets between 15 and 85 %, changes show. Each data set is used at one level of its own curriculum (its defaults
if it has none), with held-out questions and greedy answers. Beside the score of a policy, the output shows the score of
always giving the most frequent answer, because 50 % is no success on a data set with the answers yes and no.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnwise.data.chat_tokens import ChatTokens
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.envs.environment import EnvironmentFault
from turnwise.envs.reasoning_gym import REFUSED, ReasoningGymEnv, package
from turnwise.errors import InputError
from turnwise.evaluation.suites import play_tasks
from turnwise.models.shipped import weights_of
from turnwise.rollouts.environment_faults import guarded
from turnwise.rollouts.openings import Openings
from turnwise.rollouts.player import Player

LOW, HIGH = 0.15, 0.85


def main() -> None:
    args = options()
    torch.manual_seed(0)
    console = Console()
    players = {policy: loaded(policy) for policy in args.policies}
    found: dict[str, dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    for name in args.sets or sorted(package().DATASETS.keys() - set(REFUSED)):
        try:
            with guarded(args.seconds):
                found[name] = measured(name, args, players)
        except (InputError, EnvironmentFault) as error:
            left_out[name] = str(error)
            console.print(f"{name}: left out: {error}", highlight=False)
        else:
            console.print(name, json.dumps(found[name]), highlight=False)
    drawn = Table(*("data set", "items", "tokens", "commonest answer", *players))
    for name, row in found.items():
        drawn.add_row(name, *(str(row[key]) for key in ("items", "tokens", "commonest", *players)))
    console.print(drawn)
    usable = {
        p: [n for n, row in found.items() if LOW <= row[p] <= HIGH and row[p] > row["commonest"]] for p in players
    }
    line = {
        "level": args.level,
        "sets": found,
        "between_15_and_85": usable,
        "left_out": left_out,
        "machine": f"{os.cpu_count()}-core {platform.machine()} CPU",
    }
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(line, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(line))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("policies", nargs="+", help="names of shipped bases, or folders of models")
    add("--level", type=int, default=0, help="level of the curriculum (0)")
    add("--items", type=int, default=100, help="maximum number of questions of each data set (100)")
    add(
        "--longest",
        type=int,
        default=600,
        help="maximum number of tokens of a question; longer questions are left out (600)",
    )
    add("--max-tokens", type=int, default=40, help="maximum number of tokens of an answer (40)")
    add(
        "--seconds",
        type=float,
        default=300,
        help="seconds after which a data set is left out, because some create items slowly (300)",
    )
    add("--sets", nargs="*", help="measure only these data sets (default: all)")
    add("--json", type=Path, help="also write the last line to this file")
    return parser.parse_args()


def loaded(policy: str) -> tuple[TreeEngine, ChatTokens]:
    source = weights_of(policy)
    chat = ChatTokens(AutoTokenizer.from_pretrained(source))
    engine = TreeEngine(chat.stop_ids, copy=False)
    engine.load_weights(AutoModelForCausalLM.from_pretrained(source).eval(), version=0)
    return engine, chat


def measured(name: str, args: argparse.Namespace, players: dict[str, tuple[TreeEngine, ChatTokens]]) -> dict[str, Any]:
    """Returns the share of questions that each policy answers correctly, and the share for the most frequent answer.

    Raises:
        InputError: no question of the data set is short enough, or the data set cannot be used.
    """
    level = {"level": args.level} if name in package().CURRICULA else {}
    env = ReasoningGymEnv({name: level})
    chat = next(iter(players.values()))[1]
    tasks = [t for t in drawn_from(env, args.items) if len(chat.prompt(env.reset(t).opening())) <= args.longest]
    if not tasks:
        raise InputError(f"{name}: no question has at most {args.longest} tokens")
    sessions = [env.reset(task) for task in tasks]
    common = Counter(str(s.item.answer) for s in sessions).most_common(1)[0][0]
    length = max(len(chat.prompt(session.opening())) for session in sessions)
    guessed = sum(session.score(common) >= 1 for session in sessions) / len(sessions)
    row: dict[str, Any] = {"items": len(tasks), "tokens": length, "commonest": round(guessed, 2)}
    for policy, (engine, own) in players.items():
        player = Player(engine, env, own, Sampling(temperature=0, max_tokens=args.max_tokens))
        episodes = play_tasks(player, Openings(env, own), tasks, 1, "greedy", "levels")
        row[policy] = round(sum(episode.success for episode in episodes) / len(episodes), 2)
    return row


def drawn_from(env: ReasoningGymEnv, count: int) -> Sequence[Any]:
    """Returns at most ``count`` held-out tasks, fewer if there are fewer."""
    while count > 1:
        try:
            return env.tasks("seen", count)
        except InputError:
            count //= 2
    return env.tasks("seen", 1)


if __name__ == "__main__":
    main()
