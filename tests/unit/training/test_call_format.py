"""Where the format of tool calls comes from, and demonstrations that it cannot read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from turnwise.algo.rewards.actions import Exact, ToolCalls
from turnwise.algo.rewards.graded import Graded
from turnwise.errors import InputError
from turnwise.training.own_data import call_format, check_readable, in_format
from turnwise.types import State, Task
from turnwise_worlds.apibank import ApiBankEnv
from turnwise_worlds.household import HouseholdEnv


@dataclass
class Several:
    """An environment that is made of others."""

    parts: dict[str, Any] = field(default_factory=dict)


def states(*experts: str) -> list[State]:
    return [State(f"d{i}#t0", Task("toy", "t", "train"), (1,), expert=text) for i, text in enumerate(experts)]


def test_the_environments_own_format_counts_where_its_experts_wrote() -> None:
    assert call_format(None, ApiBankEnv(), from_file=False) == "bfcl_python"
    assert call_format(None, ApiBankEnv(format="llama_json"), from_file=False) == "llama_json"
    assert call_format("qwen_xml", ApiBankEnv(), from_file=False) == "qwen_xml"


def test_parts_of_a_mixture_must_agree() -> None:
    pair = {"apibank": ApiBankEnv(), "household": HouseholdEnv()}
    assert call_format(None, Several(pair), from_file=False) == "bfcl_python"
    with pytest.raises(InputError, match=r"reward\.format.*hermes"):
        call_format(None, Several({**pair, "other": ApiBankEnv(format="hermes")}), from_file=False)


def test_only_a_reward_that_was_given_no_format_is_filled_in() -> None:
    assert in_format(Graded(None), "llama_json") == Graded("llama_json")
    assert in_format(ToolCalls(None, exact=True), "hermes") == ToolCalls("hermes", exact=True)
    assert in_format(Graded("qwen_xml"), "hermes") == Graded("qwen_xml")
    assert in_format(Exact(), "hermes") == Exact() and in_format(None, "hermes") is None


def test_demonstrations_of_another_format_are_refused_with_the_one_that_reads_them() -> None:
    python = states("[find(name='a')]", "[book(id=3)]")
    with pytest.raises(InputError, match=r"reward\.format=hermes.*reward\.format=bfcl_python"):
        check_readable(Graded("hermes"), python)
    check_readable(Graded("bfcl_python"), python)


def test_demonstrations_of_no_format_are_refused_with_an_environment_that_has_calls() -> None:
    with pytest.raises(InputError, match=r"env=apibank"):
        check_readable(ToolCalls("hermes"), states("go to desk 1", "take pen 1"))
