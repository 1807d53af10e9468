"""Small environments made with the verifiers library alone; ``verifiers.load_environment("count-on")`` finds this module."""

from __future__ import annotations

import random
from typing import Any

import verifiers as vf
from datasets import Dataset


def load_environment(kind: str = "single", count: int = 200, held_out: bool = True, shared: int = 0) -> Any:
    """``single``: say the next number; ``multi``: guess a number in four turns; ``tool``: add with a tool, then answer.

    Three quarters of the numbers are for training, the others are held out, but for ``shared`` rows of the evaluation set.
    """
    made = {"single": _single, "multi": _multi, "tool": _tool}[kind]
    numbers = random.Random(0).sample(range(10, 90), 80)
    train, other = (numbers[:60], numbers[60:]) if held_out else (numbers, [])
    more = {"eval_dataset": _rows(kind, train[:shared] + other, count)} if held_out else {}
    return made(dataset=_rows(kind, train, count), **more)


def _rows(kind: str, numbers: list[int], count: int) -> Dataset:
    return Dataset.from_list([_row(kind, numbers[place % len(numbers)]) for place in range(count)])


def _row(kind: str, number: int) -> dict[str, Any]:
    question = {"single": f"what comes after {number}", "multi": "guess my number", "tool": f"add 7 to {number}"}[kind]
    answer = {"single": number + 1, "multi": number, "tool": number + 7}[kind]
    prompt = [{"role": "user", "content": question}]
    return {"prompt": prompt, "answer": str(answer), "info": {"start": number}}


def right(completion: Any, answer: str) -> float:
    return float(completion[-1]["content"].strip() == answer)


def _single(**data: Any) -> Any:
    return vf.SingleTurnEnv(rubric=vf.Rubric(funcs=[right]), **data)


class Guess(vf.MultiTurnEnv):
    async def setup_state(self, state: Any) -> Any:
        state["guesses"] = 0
        return state

    async def env_response(self, messages: Any, state: Any, **more: Any) -> Any:
        state["guesses"] += 1
        said = messages[-1]["content"].strip()
        if said == "break":
            raise RuntimeError("broken")
        if said == "fail":
            raise vf.InfraError("the sandbox is gone")
        if not said.isdecimal():
            return [{"role": "user", "content": "say a number"}]
        if said == state["answer"]:
            state["final_env_response"] = [{"role": "user", "content": "yes"}]
            return state["final_env_response"]
        return [{"role": "user", "content": "more" if int(said) < int(state["answer"]) else "less"}]


def guessed(state: Any) -> float:
    return 1.0 / state["guesses"] if state.get("final_env_response") else 0.0


def _multi(**data: Any) -> Any:
    return Guess(max_turns=4, rubric=vf.Rubric(funcs=[guessed]), pass_threshold=0.2, **data)


def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def _tool(**data: Any) -> Any:
    return vf.ToolEnv(tools=[add], max_turns=4, rubric=vf.Rubric(funcs=[right]), **data)
