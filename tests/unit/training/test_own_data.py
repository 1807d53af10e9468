"""Own dialogues without an environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integration import bookings
from transformers import AutoModelForCausalLM

from turnwise.config.settings import DataSettings
from turnwise.data.chat_tokens import ChatTokens, Demonstrations
from turnwise.data.template_dialect import dialect_of
from turnwise.data.trajectories import BadTrajectory, each_trajectory
from turnwise.data.turns_in_context import steps_of
from turnwise.engines.engine import Sampling
from turnwise.errors import InputError
from turnwise.methods.awpo import Graded
from turnwise.methods.states import expert_turns
from turnwise.models.policy import load_policy
from turnwise.training.build_run import call_format
from turnwise.training.candidates import CandidateFile, HeldOut, check_readable
from turnwise.training.evaluate import negative_log_likelihood, sampled_replies
from turnwise.types import RolloutTree, State, Task, Turn
from turnwise_worlds.apibank import ApiBankEnv


def states(*experts: str) -> list[State]:
    return [State(f"d{i}#t0", Task("toy", "t", "train"), (1,), expert=text) for i, text in enumerate(experts)]


def test_the_environments_own_format_counts_where_its_experts_wrote() -> None:
    assert call_format(None, ApiBankEnv(), from_file=False) == "bfcl_python"
    assert call_format(None, ApiBankEnv(format="llama_json"), from_file=False) == "llama_json"
    assert call_format("qwen_xml", ApiBankEnv(), from_file=False) == "qwen_xml"


def test_demonstrations_of_another_format_are_refused_with_the_one_that_reads_them() -> None:
    python = states("[find(name='a')]", "[book(id=3)]")
    with pytest.raises(InputError, match=r"reward\.format=hermes.*reward\.format=bfcl_python"):
        check_readable(Graded("hermes"), python)
    check_readable(Graded("bfcl_python"), python)


def read(
    file: Path,
    family: str = "qwen2",
    template: str | None = None,
    worlds: tuple[str, ...] = ("household",),
    **data: Any,
) -> tuple[CandidateFile, tuple[BadTrajectory, ...]]:
    words: Any = bookings.tokenizer(family)
    words.chat_template = template or words.chat_template
    chat = ChatTokens(words)
    own = CandidateFile(Demonstrations(chat), dialect_of(chat), DataSettings(str(file), **data), worlds)
    return own, each_trajectory(own, file)


def trajectories(own: CandidateFile) -> list[Any]:
    return [one.trajectory for one in own.demonstrations]


def states_of(own: CandidateFile) -> list[State]:
    chat = own.demonstrations.chat
    return [state for one in own.demonstrations for state in expert_turns(one.trajectory, one.spines, chat.decode)]


def held_out(own: CandidateFile, dialogues: int) -> HeldOut:
    names = [trajectories(own)[number].id for number in own.held_out()[:dialogues]]
    steps = {step.id: step for trajectory in trajectories(own) for step in steps_of(trajectory)}
    return own.measured([state for state in states_of(own) if state.trajectory in names], steps)


def bookings_file(folder: Path, count: int, **more: Any) -> Path:
    return bookings.write(folder / "own.jsonl", [record | more for record in bookings.dialogues(count)])


def test_the_same_dialogues_are_held_out_wherever_they_stand_and_whatever_they_are_called(tmp_path: Path) -> None:
    records = bookings.dialogues(24)
    first, _ = read(bookings.write(tmp_path / "a.jsonl", records))
    turned = [record | {"id": f"other-{number}"} for number, record in enumerate(reversed(records))]
    second, _ = read(bookings.write(tmp_path / "b.jsonl", turned))
    said = [{str(trajectories(own)[number].messages) for number in own.held_out()} for own in (first, second)]
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
    assert not problems
    held = set(own.held_out())
    names = [trajectories(own)[number].id.partition("-")[0] for number in range(len(own.demonstrations))]
    assert 8 <= len(held) < len(records) / 2
    assert not {names[i] for i in held} & {names[i] for i in range(len(names)) if i not in held}


def test_copies_of_a_dialogue_stand_on_one_side(tmp_path: Path) -> None:
    records = bookings.dialogues(12)
    copies = [record | {"id": f"{record['id']}-{copy}"} for record in records for copy in range(3)]
    own, _ = read(bookings.write(tmp_path / "copies.jsonl", copies))
    said = [str(trajectories(own)[number].messages) for number in range(36)]
    held = own.held_out()
    assert len(held) >= 8
    assert not {said[number] for number in held} & {said[number] for number in set(range(36)).difference(held)}
    two, _ = read(bookings.write(tmp_path / "two.jsonl", [record | {"id": f"{record['id']}-{copy}"}
                                                         for record in records[:2] for copy in range(3)]))  # fmt: skip
    assert len(two.held_out()) == 3
    same, _ = read(bookings.write(tmp_path / "same.jsonl", [records[0] | {"id": str(copy)} for copy in range(9)]))
    with pytest.raises(InputError, match=r"data\.held_out"):
        same.held_out()
    most = [*records[:5], *(records[6] | {"id": str(copy)} for copy in range(95))]
    alike, _ = read(bookings.write(tmp_path / "alike.jsonl", most))
    with pytest.raises(InputError, match=r"alike\.jsonl.* of 100; set data\.held_out=0"):
        alike.held_out()


def test_nothing_is_held_out_where_that_was_asked_for_and_one_dialogue_is_refused(tmp_path: Path) -> None:
    own, _ = read(bookings_file(tmp_path, 4), held_out=0.0)
    assert own.held_out() == []
    alone, _ = read(bookings_file(tmp_path, 1))
    with pytest.raises(InputError, match=r"data\.held_out"):
        alone.held_out()


def test_a_template_without_tools_is_told_or_refused(tmp_path: Path) -> None:
    file = bookings_file(tmp_path, 4)
    own, problems = read(file, "gemma")
    assert not problems and list(own.told.values()) == [4, 4]
    with pytest.raises(InputError, match=r"data\.tools_as_text"):
        read(file, "gemma", tools_as_text=False)
    calls, problems = read(file, "llama")  # parallel calls are refused by its template
    assert [problem.source[-2:] for problem in problems] == [":2"] and len(calls.demonstrations) == 3


def test_the_likelihood_is_that_of_the_model_alone(tmp_path: Path) -> None:
    folder = bookings.model_folder("qwen2", tmp_path / "model")
    own, _ = read(bookings_file(tmp_path, 4))
    states = states_of(own)[:6]
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
    held = held_out(own, 3)
    assert held.longest > 10 and len({state.trajectory for state in held.states}) == 3
    assert {tool for tools in held.tools.values() for tool in tools} <= {"find_table", "add_event", "cancel"}
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
    replies = sampled_replies(held, player, held.states, {state.id: 1.0 for state in held.states}, 1, lambda done: None)
    assert min(limits.values()) == 10 and len(replies) == len(held.states)
    assert limits == {state.id: min(held.longest, longest + 10 - len(state.ids)) for state in held.states}
    player.max_length = 10_000
    sampled_replies(held, player, held.states, {state.id: 1.0 for state in held.states}, 1, lambda done: None)
    assert set(limits.values()) == {held.longest}
