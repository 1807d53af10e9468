"""Measures what AWPO's clip cuts with the ratio of a token and with that of the whole response, by the reply's length.

python benchmarks/clip_by_ratio.py --lengths 16 128 512 2048 --rates 1e-5 1e-4 1e-3

The shipped policy samples groups of four replies of a fixed length (it may not end them earlier); two of four get the
advantage 1, and two -1. Four AdamW steps follow, each on a quarter of the groups, as in AWPO's Table 6, from the same start
for both ratios. The share is that of the trained tokens whose gradient the clip (radius 0.2) sets to 0, in steps 2 to 4: in
the first step every ratio is 1. The drift is the mean of abs(log pi - log pi_old) of a token (`train/mismatch_mean` of a
run), by which a run of another policy can be placed beside these rows. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json

import torch
from transformers import AutoModelForCausalLM

from turnwise.methods.loss import Clipped, Counts, LossInputs, Mean
from turnwise.shipped import ASSETS

GROUP, STEPS, PROMPT = 4, 4, 5
LOSSES = {
    "token": Clipped(ratio="token", aggregation="seq_mean_token_mean"),
    "response": Clipped(ratio="action", aggregation="turn_mean_token_mean"),
}


def replies(length: int, number: int) -> torch.Tensor:
    """Random prompts and replies of ``length`` tokens, shape (number, PROMPT + length)."""
    policy = AutoModelForCausalLM.from_pretrained(ASSETS)
    prompts = torch.randint(3, policy.config.vocab_size, (number // GROUP, PROMPT)).repeat_interleave(GROUP, 0)
    settings = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": True, "top_k": 0}
    return policy.generate(prompts, attention_mask=torch.ones_like(prompts), **settings)


def logprobs(policy: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    logits = policy(ids[:, :-1]).logits[:, PROMPT - 1 :].log_softmax(-1)
    return logits.gather(-1, ids[:, PROMPT:, None])[..., 0]


def clipped(ratio: str, ids: torch.Tensor, advantage: torch.Tensor, rate: float) -> tuple[float, float]:
    """Returns the share of tokens that the clip cuts in steps 2 to 4, and their drift."""
    policy = AutoModelForCausalLM.from_pretrained(ASSETS)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=rate, weight_decay=0.0)
    with torch.no_grad():
        old = torch.cat([logprobs(policy, part) for part in ids.split(GROUP)])
    cut = drift = count = 0.0
    size = len(ids) // STEPS
    for step in range(STEPS):
        optimizer.zero_grad()
        number = torch.arange(size).repeat_interleave(old.shape[1])
        counts = Counts.of(torch.ones(len(number)), number, number)
        for first in range(step * size, (step + 1) * size, GROUP):  # a group at a time, for the memory
            part = slice(first, first + GROUP)
            new = logprobs(policy, ids[part])
            turn = torch.arange(GROUP).repeat_interleave(new.shape[1])
            out = LOSSES[ratio](LossInputs(
                logprobs_K=new.flatten(), old_logprobs_K=old[part].flatten(), weight_K=torch.ones(new.numel()),
                turn_K=turn, sequence_K=turn, counts=counts, advantage_K=advantage[part].repeat_interleave(new.shape[1]),
            ))  # fmt: skip
            out.loss.backward()
            if step:
                share, moved = out.metrics["clip_fraction"], out.metrics["mismatch_mean"]
                assert isinstance(share, Mean) and isinstance(moved, Mean)
                cut, drift, count = cut + share.total, drift + moved.total, count + share.count
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    return cut / count, drift / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 128, 512, 2048])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-5, 1e-4, 1e-3])
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = []
    print("tokens  learning rate  | token ratio: drift, % cut | response ratio: drift, % cut")
    for length in args.lengths:
        torch.manual_seed(args.seed)
        ids = replies(length, args.groups * GROUP)
        advantage = torch.tensor([1.0, 1.0, -1.0, -1.0]).repeat(args.groups)
        for rate in args.rates:
            row = {name: clipped(name, ids, advantage, rate) for name in LOSSES}
            found.append({"length": length, "rate": rate, **row})
            cells = " | ".join(f"{drift:.4f} {100 * cut:5.1f}" for cut, drift in row.values())
            print(f"{length:6}  {rate:13.0e}  | {cells}", flush=True)
    print(json.dumps({"benchmark": "clip_by_ratio", "groups": args.groups, "seed": args.seed, "rows": found}))


if __name__ == "__main__":
    main()
