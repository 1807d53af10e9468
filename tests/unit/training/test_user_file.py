"""A person's dialogues on their way into a run: what is held out, how they are shown, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from tests.integration import bookings
from transformers import AutoModelForCausalLM

from turnwise.config.schema import compose_config
from turnwise.config.settings import DataSettings, RolloutSettings
from turnwise.data.chat_tokens import ChatTokens
from turnwise.data.demonstrations import Demonstrations
from turnwise.data.dialect import dialect_of
from turnwise.data.trajectories import BadTrajectory, DataError, each_trajectory
from turnwise.engines.engine import Sampling
from turnwise.errors import InputError
from turnwise.models.policy import load_policy
from turnwise.runs.config_hash import config_hash
from turnwise.training.candidate_states import Steps, Turns, hold_out
from turnwise.training.held_out_dialogues import negative_log_likelihood
from turnwise.training.user_file import UserFile
from turnwise.types import RolloutTree, Task, Turn

ROOT = Path(__file__).parents[3]
ROLLOUT = RolloutSettings(4, Sampling(max_tokens=8), turns=1)


def read(
    file: Path,
    family: str = "qwen2",
    template: str | None = None,
    worlds: tuple[str, ...] = ("household",),
    **data: Any,
) -> tuple[UserFile, tuple[BadTrajectory, ...]]:
    words: Any = bookings.tokenizer(family)
    words.chat_template = template or words.chat_template
    chat = ChatTokens(words)
    own = UserFile(Demonstrations(chat), dialect_of(chat), DataSettings(str(file), **data), worlds)
    return own, each_trajectory(own, file)


def bookings_file(folder: Path, count: int, **more: Any) -> Path:
    return bookings.write(folder / "own.jsonl", [record | more for record in bookings.dialogues(count)])


def test_the_same_dialogues_are_held_out_wherever_they_stand_and_whatever_they_are_called(tmp_path: Path) -> None:
    records = bookings.dialogues(24)
    first, _ = read(bookings.write(tmp_path / "a.jsonl", records))
    turned = [record | {"id": f"other-{number}"} for number, record in enumerate(reversed(records))]
    second, _ = read(bookings.write(tmp_path / "b.jsonl", turned))
    said = [
        {str(own.demonstrations[number].trajectory.messages) for number in own.held_out()} for own in (first, second)
    ]
    assert len(first.held_out()) == 6  # a quarter of 24, where a tenth would be too few
    assert said[0] == said[1]


def test_dialogues_that_begin_alike_stand_on_one_side(tmp_path: Path) -> None:
    """One record for each reply of a dialogue, as public data has them."""
    records = []
    for number, record in enumerate(bookings.dialogues(40)):
        acts = [i for i, message in enumerate(record["messages"]) if message["role"] == "assistant"]
        opening = {**record["messages"][acts[0] - 1], "content": f"request {number}"}
        messages = [*record["messages"][: acts[0] - 1], opening, *record["messages"][acts[0] :]]
        records += [record | {"id": f"{number}-{at}", "messages": messages[: at + 1]} for at in acts[:2]]
    own, problems = read(bookings.write(tmp_path / "steps.jsonl", records))
    assert not problems and not own.alike
    held = set(own.held_out())
    names = [own.demonstrations[number].trajectory.id.partition("-")[0] for number in range(len(own.demonstrations))]
    assert 8 <= len(held) < len(records) / 2
    assert not {names[i] for i in held} & {names[i] for i in range(len(names)) if i not in held}


def test_where_all_begin_alike_dialogues_are_told_apart_by_all_that_is_said(tmp_path: Path) -> None:
    records = bookings.dialogues(40)
    for record in records:
        acts = next(i for i, message in enumerate(record["messages"]) if message["role"] == "assistant")
        record["messages"][:acts] = [{"role": "user", "content": "Hello."}]
        record["tools"] = records[0]["tools"]
    own, _ = read(bookings.write(tmp_path / "hello.jsonl", records))
    assert 8 <= len(own.held_out()) <= 20 and own.alike
    assert len(own.lines()) == 2


def test_held_out_dialogues_are_never_trained_on(tmp_path: Path) -> None:
    own, _ = read(bookings_file(tmp_path, 24))
    turns, lines = Turns(own.demonstrations), []
    kept, held = hold_out(own, turns, Steps(turns), 3, ROLLOUT, True, lines.append)
    assert held is not None
    trained = {state.trajectory for state in kept}
    measured = {state.trajectory for state in held.states}
    assert len(trained) == 24 - 6 and len(measured) == 3 and not trained & measured
    assert any("rollout.sampling.max_tokens" in line for line in lines)  # no call fits into 8 tokens
    assert {tool for state in held.states for tool in held.tools_of(state.id)} <= {"find_table", "add_event", "cancel"}


def test_copies_of_a_dialogue_stand_on_one_side(tmp_path: Path) -> None:
    records = bookings.dialogues(12)
    copies = [record | {"id": f"{record['id']}-{copy}"} for record in records for copy in range(3)]
    own, _ = read(bookings.write(tmp_path / "copies.jsonl", copies))
    said = [str(own.demonstrations[number].trajectory.messages) for number in range(36)]
    held = own.held_out()
    assert len(held) >= 8
    assert not {said[number] for number in held} & {said[number] for number in set(range(36)).difference(held)}
    two, _ = read(bookings.write(tmp_path / "two.jsonl", [record | {"id": f"{record['id']}-{copy}"}
                                                         for record in records[:2] for copy in range(3)]))  # fmt: skip
    assert len(two.held_out()) == 3
    same, _ = read(bookings.write(tmp_path / "same.jsonl", [records[0] | {"id": str(copy)} for copy in range(9)]))
    with pytest.raises(InputError, match=r"data\.held_out"):
        same.held_out()


def test_nothing_is_held_out_where_that_was_asked_for_and_one_dialogue_is_refused(tmp_path: Path) -> None:
    own, _ = read(bookings_file(tmp_path, 4), held_out=0.0)
    turns = Turns(own.demonstrations)
    lines: list[str] = []
    assert hold_out(own, turns, Steps(turns), 3, ROLLOUT, True, lines.append) == (turns, None)
    assert "data.held_out=0" in lines[-1]
    alone, _ = read(bookings_file(tmp_path, 1))
    with pytest.raises(InputError, match=r"data\.held_out"):
        alone.held_out()


def test_rollouts_of_several_turns_are_refused_before_anything_is_computed(tmp_path: Path) -> None:
    own, _ = read(bookings_file(tmp_path, 8))
    turns = Turns(own.demonstrations)
    with pytest.raises(InputError, match=r"rollout\.turns=null"):
        hold_out(own, turns, Steps(turns), 3, replace(ROLLOUT, turns=None), True, lambda line: None)
    hold_out(own, turns, Steps(turns), 3, replace(ROLLOUT, turns=None), False, lambda line: None)  # SFT samples nothing


def test_trajectories_of_the_runs_environment_are_played_and_never_held_out(tmp_path: Path) -> None:
    task = {"env": "household", "id": "x", "split": "train"}
    played, _ = read(bookings_file(tmp_path, 6, task=task))
    assert (played.dialogues, played.held_out(), played.only_dialogues) == (0, [], False)
    assert played.demonstrations[0].trajectory.task == Task("household", "x", "train")
    strange, _ = read(bookings_file(tmp_path, 6, task={**task, "env": "elsewhere"}))
    assert strange.only_dialogues and strange.demonstrations[0].trajectory.task is None
    assert any("elsewhere" in line for line in strange.lines())


def test_a_template_without_tools_is_told_or_refused(tmp_path: Path) -> None:
    file = bookings_file(tmp_path, 4)
    own, problems = read(file, "gemma")
    assert not problems and own.as_text == 4 and own.folded == 4
    with pytest.raises(InputError, match=r"data\.tools_as_text"):
        read(file, "gemma", tools_as_text=False)
    calls, problems = read(file, "llama")  # parallel calls are refused by its template
    assert [problem.source[-2:] for problem in problems] == [":2"] and len(calls.demonstrations) == 3


def test_reasoning_that_the_template_leaves_out_is_told(tmp_path: Path) -> None:
    """A template that reads no key of reasoning drops it without a trace; the content is always shown."""

    def reasoned(keyed: bool) -> list[dict[str, Any]]:
        records = bookings.dialogues(4)
        for message in (m for record in records for m in record["messages"] if m["role"] == "assistant"):
            if keyed:
                message["reasoning_content"] = "I look first."
            else:
                message["content"] = f"<think>\nI look first.\n</think>\n\n{message['content']}"
        return records

    lost, _ = read(bookings.write(tmp_path / "keyed.jsonl", reasoned(True)))
    kept, _ = read(bookings.write(tmp_path / "written.jsonl", reasoned(False)))
    assert [line for line in lost.lines() if line.startswith("in 4 dialogues, the chat template leaves out the reason")]
    assert not any("reasoning" in line for line in kept.lines())


def test_a_reply_that_the_template_leaves_empty_is_not_trained_on(tmp_path: Path) -> None:
    """A template that shows tools and reads calls back, and yet loses what a text reply says."""
    lossy = bookings.QWEN.replace(
        "+ message.content + '<|im_end|>",
        "+ (message.content if message.role != 'assistant' "
        "or message.content == 'a' or 'turnwise' in message.content else '') + '<|im_end|>",
    )
    with pytest.raises(DataError, match="booking-0#t1"):
        read(bookings_file(tmp_path, 1), template=lossy)


def test_the_likelihood_is_that_of_the_model_alone(tmp_path: Path) -> None:
    folder = bookings.model_folder("qwen2", tmp_path / "model")
    own, _ = read(bookings_file(tmp_path, 4))
    states = list(Turns(own.demonstrations))[:6]
    policy, _ = load_policy(str(folder), "float32", 0, 1, 0.0, 0, None)
    found = negative_log_likelihood(policy, states)
    plain: Any = AutoModelForCausalLM.from_pretrained(folder)
    for state in states:
        ids = torch.tensor([[*state.ids, *state.expert_ids]])
        with torch.no_grad():
            logprobs = plain(ids).logits.log_softmax(-1)[0]
        begin = len(state.ids)
        wanted = -sum(float(logprobs[place - 1, ids[0, place]]) for place in range(begin, ids.shape[1]))
        assert found[state.id] == pytest.approx(wanted, rel=1e-4)


def test_a_held_out_reply_ends_within_the_longest_history(tmp_path: Path) -> None:
    own, _ = read(bookings_file(tmp_path, 12))
    turns = Turns(own.demonstrations)
    _, held = hold_out(own, turns, Steps(turns), 3, ROLLOUT, False, lambda line: None)
    assert held is not None and held.longest > 10
    longest = max(len(state.ids) for state in held.states)
    limits: dict[str, int] = {}

    class Recorded:
        engine, sampling, max_length = None, Sampling(max_tokens=8), longest + 10

        def using(self, sampling: Sampling, max_turns: int) -> Recorded:
            self.limit = sampling.max_tokens
            return self

        def play(self, states: Any, *more: Any, **callbacks: Any) -> list[RolloutTree]:
            limits.update({state.id: self.limit for state in states})
            judged = {"functional": 1.0, "strict": 0.0}
            return [RolloutTree(state, turns=[Turn(-1, [1], [0.0], "said", info=judged)]) for state in states]

        def forget(self) -> None:
            pass

    player: Any = Recorded()
    replies = held.measure(player, held.states, {state.id: 1.0 for state in held.states}, 1, lambda done: None)
    assert min(limits.values()) == 10 and len(replies) == len(held.states)
    assert limits == {state.id: min(held.longest, longest + 10 - len(state.ids)) for state in held.states}
    player.max_length = 10_000
    held.measure(player, held.states, {state.id: 1.0 for state in held.states}, 1, lambda done: None)
    assert set(limits.values()) == {held.longest}


def test_the_new_keys_leave_the_hashes_of_kept_runs_alone() -> None:
    cfg = compose_config(["method=pivotrl"], ROOT / "conf")
    before = config_hash(cfg)
    OmegaConf.set_struct(cfg, False)
    for key in (
        "held_out",
        "verifier",
        "similarity",
        "tools_as_text",
        "format",
        "word_overlap",
        "pass_rates",
        "thinking",
    ):
        del cfg.data[key]
    del cfg.eval["environment"]
    assert config_hash(cfg) == before
    cfg.data.held_out = 0.2
    assert config_hash(cfg) != before


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="held_out"):
        DataSettings(held_out=0.9)
    with pytest.raises(ValueError, match="similarity"):
        replace(DataSettings(), similarity=0.0)
    with pytest.raises(ValueError, match="word_overlap"):
        replace(DataSettings(), word_overlap=0.6)
