"""How much is sampled and trained on, by hand, for every kind of allocator."""

from __future__ import annotations

from dataclasses import replace

import pytest
from omegaconf import open_dict

from turnwise.planning.lengths import Lengths, lengths
from turnwise.planning.tokens import around, iteration, trajectories

KNOWN = Lengths(opening=100, reply=10, observation=20, demonstrated=5, spoken=10, episode=8)


def test_a_group_acts_once_at_expert_turns(composed) -> None:
    """8 states on 4 demonstrations, 16 samples each; of 5 turns the later of two random ones is the 10 / 3-rd."""
    cfg = composed("method=local", "rollout.states=8", "rollout.trajectories=4")
    found = iteration(cfg, KNOWN)
    assert (found.rollouts, found.turns, found.sampled, found.trained) == (128, 128, 1280, 1280)
    spine = 100 + 5 * 2 / 3 * 30
    assert found.prefilled == pytest.approx(4 * spine)
    assert found.stored == pytest.approx(4 * spine + 1280)
    assert found.row == pytest.approx(spine + 320)
    assert found.context == 100 + 2 * 30 + 5  # two turns before a mean expert turn, half of the reply
    assert (found.histories, found.samples) == (4, 32)


def test_whole_episodes(composed) -> None:
    """4 states x 16 rollouts x 8 turns; the last turn of a rollout is not answered."""
    found = iteration(composed("method=grpo", "rollout.states=4", "update.row_tokens=100000"), KNOWN)
    assert (found.rollouts, found.turns, found.sampled) == (64, 512, 5120)
    observed = (512 - 64) * 20
    assert found.prefilled == 4 * 100 + observed
    assert found.stored == 4 * 100 + 5120 + observed
    assert found.context == 100 + 3.5 * 30 + 5
    assert (found.histories, found.samples, found.history) == (64, 1, 100 + 8 * 30)


def test_a_full_row_is_closed_and_its_beginning_repeated(composed) -> None:
    cfg = composed("method=grpo", "rollout.states=4", "update.row_tokens=1100")
    whole = iteration(composed("method=grpo", "rollout.states=4", "update.row_tokens=100000"), KNOWN)
    found = iteration(cfg, KNOWN)
    rows = -(-(whole.stored / 4 - 100) // 1000)  # 1,100 hold 1,000 beside the opening
    assert found.stored == pytest.approx(whole.stored + 4 * 100 * (rows - 1))
    assert found.row <= 1100


def test_trees_branch_in_the_middle(composed) -> None:
    """32 rollouts, and 2 continuations each from one of the first 7 turns: from 1 to 7 of the 8 turns are played again."""
    cfg = composed("method=trace", "rollout.states=16", "allocator.budget=32", "predictor=tiny")
    found = iteration(cfg, KNOWN)
    assert found.rollouts == 32 + 64
    assert 32 * 8 + 64 <= found.turns <= 32 * 8 + 64 * 7


class Doubters:
    """The allocator of docs/extending.md: more rollouts where some were won and some were not."""

    def __call__(self, states):
        return [4] * len(states)

    def expand(self, trees):
        return [
            {-1: 3} if len({tree.turns[leaf].info.get("won") for leaf in tree.leaves()}) > 1 else {} for tree in trees
        ]


def test_an_allocator_of_your_own_sees_as_many_rollouts_won_as_lost(composed) -> None:
    cfg = composed("method=grpo", "rollout.states=5")
    with open_dict(cfg):
        cfg.allocator = {"_target_": f"{__name__}.Doubters"}
    assert iteration(cfg, KNOWN).rollouts == 5 * (4 + 3)


def test_an_allocator_that_picks_prompts(composed) -> None:
    cfg = composed("method=grpo", "allocator=pcl", "predictor=tiny", "rollout.states=16", "allocator.prompts=4")
    assert iteration(cfg, KNOWN).rollouts == 4 * 8


def test_demonstrations_are_not_sampled(composed) -> None:
    found = iteration(composed("method=sft", "rollout.states=6"), KNOWN)
    assert (found.rollouts, found.sampled) == (0, 0)
    assert found.trained == 6 * 5 * 10
    assert found.stored == 6 * (100 + 5 * 30 - 20)


def test_a_scale_that_sets_a_group_size_does_not_make_demonstrations_rollouts(composed) -> None:
    assert iteration(composed("method=sft", "scale=tiny_selective"), KNOWN).rollouts == 0


def test_profile_and_evaluations(composed) -> None:
    cfg = composed("method=pivotrl", "trainer.max_epochs=10", "eval.every=4", "eval.tasks=6", "eval.items=3")
    found = around(cfg, KNOWN, trajectories=7)
    assert found.profiled == 8 * 7 * 5 * 10
    more = around(composed("method=pivotrl", "states.refresh=0.5", "states.refresh_most=3"), KNOWN, trajectories=7)
    assert more.profiled == 3 * found.profiled and more.profiled_prefill == 3 * found.profiled_prefill
    # four evaluations: before, after 4 and 8 updates, after
    assert found.evaluated == 4 * (6 * 3 * 8 * 10 + 8 * 3 * 24)


def test_lengths_are_read_from_demonstrations_and_a_person_knows_better(composed) -> None:
    cfg = composed("method=local")
    found, why = lengths(cfg, None, {"reply": 33.0})
    assert why == "" and found.reply == 33.0 and found.source["reply"] == "given"
    assert (
        found.source["opening"] == "at most, from demonstrations of the environment counted with the shipped tokenizer"
        and 50 < found.opening < 200
    )
    assert (found.episode, found.source["episode"]) == (30.0, "at most env.horizon")
    longer, _ = lengths(cfg, None, {"reply": 321.0})  # so many turns of 321 tokens and an answer fit into 4,096
    assert longer.episode == pytest.approx((4096 - longer.opening) / (321 + longer.observation))
    assert longer.source["episode"] == "at most rollout.max_length"


def test_a_file_says_itself_how_many_trajectories_it_has(composed, tmp_path) -> None:
    line = '{"messages": [{"role": "user", "content": "a mug"}, {"role": "assistant", "content": "look"}]}\n'
    (tmp_path / "demos.jsonl").write_text(3 * line)
    cfg = composed("method=sft", f"data.file={tmp_path}/demos.jsonl")
    assert trajectories(cfg) == 3
    found, why = lengths(cfg, None, {})
    assert why == "" and found.demonstrated == 1 and found.source["opening"].startswith("at most, from demonstrations")
    assert trajectories(composed("method=sft", "data.trajectories=7")) == 7


def test_what_nobody_knows_is_at_most_what_fits(composed) -> None:
    cfg = composed("method=grpo", "scale=paper", "data.file=nowhere.jsonl", "env.horizon=30")
    found, why = lengths(cfg, None, {})
    assert "nowhere.jsonl" in why
    assert found.reply == 4096 and found.source["reply"] == "at most rollout.sampling.max_tokens"
    turn = found.reply + found.observation
    assert (
        found.opening == found.observation == pytest.approx((65536 - 8 * 4096) / 9)
    )  # replies take half of it at most
    assert found.opening + found.episode * turn == pytest.approx(65536)
    assert (found.episode, found.source["episode"]) == (8, "at most rollout.max_length")
    assert replace(found, reply=1.0).reply == 1.0


def test_what_a_person_knows_of_an_unknown_world_leaves_the_rest_of_the_room(composed) -> None:
    cfg = composed("method=grpo", "scale=paper", "data.file=nowhere.jsonl", "env.horizon=30")
    found, _ = lengths(cfg, None, {"opening": 5536.0, "reply": 1000.0})
    assert (found.opening, found.reply, found.spoken, found.episode) == (5536, 1000, 1000, 30)
    assert found.observation == pytest.approx((65536 - 5536 - 30 * 1000) / 30)
    told, _ = lengths(cfg, None, {"opening": 5536.0, "reply": 1000.0, "observation": 200.0, "episode": 12.0})
    assert (told.observation, told.episode, told.demonstrated) == (200, 12, 12)
