r"""``env.calls=boxed``: calls as JSON, the final answer as text with ``\boxed{}``; and the score of TRACE."""

from __future__ import annotations

import pytest

from turnwise.data.toolcalls import ToolCallError
from turnwise.env import Environment
from turnwise_worlds.browse import BrowseEnv
from turnwise_worlds.math import MathEnv
from turnwise_worlds.search import SearchEnv
from turnwise_worlds.tool_environment import Boxed

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "Alma Irving"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("It is \\boxed{Clay Dale}.", "Clay Dale"),
        ("First \\boxed{1}, then \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("<think>\\boxed{7}?</think>So \\boxed{8}", "8"),
        ("Clay Dale", "Clay Dale"),
    ],
)
def test_a_reply_without_a_call_is_the_answer(reply: str, answer: str) -> None:
    form = Boxed(SearchEnv.tools)
    assert form.read(reply).arguments == {"text": answer}
    assert form.read(form.write(form.read(reply))) == form.read(reply)
    assert form.read(f"<think>\\boxed{{7}}</think>{CALL}").arguments == {"query": "Alma Irving"}
    with pytest.raises(ToolCallError):
        form.read("<tool_call>{\\boxed{7}")


@pytest.mark.parametrize("env", [SearchEnv("tiny", countries=4, calls="boxed"), BrowseEnv("tiny", countries=4, calls="boxed"),
                                 MathEnv("tiny", python=False, calls="boxed")])  # fmt: skip
def test_episodes_end_with_text_and_no_answering_tool_is_shown(env: Environment) -> None:
    for task in env.tasks("train", 5):
        trajectory = env.demonstrate(task)
        system = str(trajectory.messages[0]["content"])
        assert trajectory.success and "\\boxed{" in system and '"answer"' not in system
        replies = [str(m["content"]) for m in trajectory.messages if m["role"] == "assistant"]
        assert replies[-1].startswith("\\boxed{") and all("<tool_call>" in reply for reply in replies[:-1])


def test_a_partly_right_answer_scores_its_f1() -> None:
    env = SearchEnv("tiny", countries=4, calls="boxed", score="f1")
    task = next(t for t in env.tasks("train", 50) if " " in t.data["answers"][0])
    first = task.data["answers"][0].split()[0]
    scores = [
        env.reset(task).step(f"\\boxed{{{text}}}").info["score"] for text in (task.data["answers"][0], first, "no")
    ]
    assert scores == [1.0, pytest.approx(2 / 3), 0.0]
    assert "score" not in SearchEnv("tiny", countries=4).reset(task).step(f"answer {first}").info
