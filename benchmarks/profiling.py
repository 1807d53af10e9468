"""Measures PivotRL's offline profile: K samples at every turn of expert trajectories, in one pass per trajectory.

The peer is the same engine, but it computes the history of every turn again. It profiles turn by turn over all
trajectories and drops its keys and values in between, so that no turn can reuse those of an earlier turn. Samples of
one turn still share a prefill.

python benchmarks/profiling.py
python benchmarks/profiling.py --trajectories 2 --turns 4 --k 2 --rounds 1
"""

from __future__ import annotations

import argparse

from common import (
    Contender,
    alternate,
    chosen,
    contender_details,
    contender_rows,
    finish,
    model_of,
    options,
    positive,
    prepare,
    ratio,
    show,
    timed,
    tokenizer_of,
)
from turnwise.engines.lanes import Lanes
from turnwise.training.profile import profile, profiles_of
from turnwise.types import State
from work import Work, long_trajectories, states_by_turn


def main() -> None:
    args = parser().parse_args()
    device = prepare(args)
    work = Work.of(tokenizer_of(args.shape), 1, 1, max(30, args.turns), args.max_tokens, args.max_length, args.seed)
    trajectories = long_trajectories(work.environment, args.trajectories, args.turns, args.seed)
    states, turns = states_by_turn(trajectories, work.chat)
    model = model_of(args.shape, args.dtype, device)
    prefilled: dict[str, float] = {}

    def contender(name: str, parts: list[list[State]], note: str) -> Contender:
        engine = Lanes(work.chat.stop_ids)

        def play(played: list[list[State]], number: int) -> float:
            before = engine.report()["computed_tokens"]
            player = work.player(engine, max_turns=1)
            samples = 0
            for part in played:
                engine.load_weights(model, number)  # drops all cached keys and values
                profiles = profiles_of(profile(player, part, args.k, (args.seed, number)))
                samples += sum(len(one.functional) for one in profiles.values())
            prefilled[name] = engine.report()["computed_tokens"] - before
            return samples

        few = [part[:2] for part in parts[:2]]
        return Contender(name, lambda n: timed(lambda: play(parts, n), device), lambda: play(few, -1), note)

    contenders = [contender("turnwise", [states], "all turns from one pass over the spine")]
    if chosen(args, "per_turn"):
        contenders.append(contender("per_turn", turns, "the same engine, every turn's history prefilled anew"))
    alternate(contenders, args.rounds)
    history = [len(state.ids) for state in states]
    notes = [f"{c.name}: {c.note}; {prefilled[c.name]:,} tokens prefilled" for c in contenders]
    notes.append(f"histories of {min(history)} to {max(history)} tokens, {sum(history):,} in all")
    title = f"Profiling: {len(trajectories)} trajectories of {args.turns} turns, K = {args.k}, {args.shape}"
    header = ["", "seconds", "samples/s", "slowest to fastest", "ours is"]
    show(title, header, contender_rows(contenders, "turnwise"), notes)
    ratios = {"x_per_turn": ratio(contenders[0].rate, contenders[1].rate) if len(contenders) > 1 else None}
    counts = {"prefilled_tokens": prefilled, "history_tokens": sum(history)}
    finish("profiling", args, ratios, {"absent": {}, "unit": "samples", **counts, **contender_details(contenders)})


def parser() -> argparse.ArgumentParser:
    parser = options(__doc__)
    add = parser.add_argument
    add("--trajectories", type=positive, default=64)
    add("--turns", type=positive, default=20, help="number of turns of each trajectory")
    add("--k", type=positive, default=8, help="number of samples of a turn")
    add("--max-tokens", type=positive, default=24, help="maximum number of tokens of an action")
    add("--max-length", type=positive, default=4096, help="maximum number of tokens of a history")
    return parser


if __name__ == "__main__":
    main()
