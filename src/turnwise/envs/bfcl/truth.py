"""Reads the ground truths of bfcl-eval: calls written as Python, which are parsed and never evaluated."""

from __future__ import annotations

import ast

from turnwise.envs.bfcl.apis import owners, parameters
from turnwise.types import ToolCall


def read_truth(source: str, classes: tuple[str, ...]) -> ToolCall:
    """Returns the call that ``source`` describes. A positional argument gets the name of its parameter.

    Raises:
        ValueError: ``source`` is not a call of a function of the APIs ``classes`` with literal arguments.
    """
    node = ast.parse(source, mode="eval").body
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError(f"{source!r}: the text is not a function call")
    owner = owners(classes).get(node.func.id)
    if owner is None:
        raise ValueError(f"{source!r}: the APIs {', '.join(classes)} have no such function")
    names = [parameter.name for parameter in parameters(owner, node.func.id)]
    if len(node.args) > len(names) or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError(f"{source!r}: the call has more arguments than the function has parameters, or uses **")
    arguments = {name: ast.literal_eval(value) for name, value in zip(names, node.args)}
    arguments |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    return ToolCall(node.func.id, arguments)
