"""Lists the rules that pivot rows of NVIDIA-NeMo/Gym must follow.

The rules come from Gym's documentation (the row contract in ``nemo-gym-pivot-datasets``) and from the code of Gym's
resource server that verifies single steps of tool use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.data.read_records import UnusableError
from turnwise.data.tool_schema import function_of
from turnwise.json_and_yaml import parse_json

PARAMS, ACTION, AGENT = "responses_create_params", "expected_action", "agent_ref"
ACTIONS = ("function_call", "message", "function_call_batch")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule for pivot rows.

    Attributes:
        reason: the mistake in a few words. The text is the same for all rows that break this rule.
        says: the rule in words, for an error message.
        remedy: says how to correct a row that breaks the rule.
        holds: a function that returns whether a row keeps the rule. It is only called for rows that keep all earlier
            rules.
        to_read: whether a row must keep the rule to be read. If False, a row that breaks the rule can still be read.
    """

    reason: str
    says: str
    remedy: str
    holds: Callable[[Mapping[str, Any]], bool]
    to_read: bool = True


def check_row(row: Mapping[str, Any], to_read: bool = False) -> None:
    """Checks that a pivot row keeps all rules in ``RULES``; with ``to_read``, only the rules that reading needs.

    Raises:
        UnusableError: the row breaks a rule; the error describes the first broken rule.
    """
    for rule in RULES:
        if (rule.to_read or not to_read) and not rule.holds(row):
            raise UnusableError(rule.says, rule.remedy, rule.reason)


def calls_of(action: Mapping[str, Any]) -> list[Any]:
    """Returns the tool calls in a pivot row's expected action, or an empty list if the action is a message."""
    if action["type"] == "function_call_batch":
        return list(action["calls"])
    return [action] if action["type"] == "function_call" else []


def _batch(action: Mapping[str, Any]) -> bool:
    calls = action.get("calls")
    if action["type"] != "function_call_batch":
        return True
    return isinstance(calls, list) and bool(calls) and all(isinstance(call, Mapping) for call in calls)


def _arguments(call: Mapping[str, Any]) -> bool:
    try:
        return isinstance(call.get("arguments"), str) and isinstance(parse_json(call["arguments"]), Mapping)
    except ValueError:
        return False


def _named(row: Mapping[str, Any]) -> bool:
    known = {function_of(tool).get("name") for tool in row[PARAMS].get("tools") or () if isinstance(tool, Mapping)}
    return all(call["name"] in known for call in calls_of(row[ACTION]))


def _answered(row: Mapping[str, Any]) -> bool:
    """Returns whether each tool result in a pivot row's input comes after the tool call whose id it contains."""
    called: set[Any] = set()
    for item in row[PARAMS]["input"]:
        if item.get("type") == "function_call":
            called.add(item.get("call_id"))
        if item.get("type") == "function_call_output" and item.get("call_id") not in called:
            return False
    return True


def _by_policy(item: Mapping[str, Any]) -> bool:
    return item.get("type") in ("function_call", "reasoning") or item.get("role") == "assistant"


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _calls(holds: Callable[[Mapping[str, Any]], bool]) -> Callable[[Mapping[str, Any]], bool]:
    return lambda row: all(map(holds, calls_of(row[ACTION])))


RULES: tuple[Rule, ...] = (
    Rule(
        "no request",
        f"{PARAMS} must be an object",
        "write the request to the model under this key",
        lambda row: isinstance(row.get(PARAMS), Mapping),
    ),
    Rule(
        "no input",
        f"{PARAMS}.input must be a non-empty list of objects",
        "list the items that come before the action",
        lambda row: (
            isinstance(items := row[PARAMS].get("input"), list)
            and bool(items)
            and all(isinstance(item, Mapping) for item in items)
        ),
    ),
    Rule(
        "action in the input",
        f"{PARAMS}.input must not end with an item of the policy",
        "remove the policy's own items from the end of the input",
        lambda row: not _by_policy(row[PARAMS]["input"][-1]),
    ),
    Rule(
        "unusable tools",
        f"{PARAMS}.tools must be a list",
        "list all tools that the policy can call",
        lambda row: isinstance(row[PARAMS].get("tools") or [], list),
    ),
    Rule(
        "no expected action",
        f"{ACTION} must be an object",
        "write the demonstrated action under this key",
        lambda row: isinstance(row.get(ACTION), Mapping),
    ),
    Rule(
        "unknown kind of action",
        f"{ACTION}.type must be one of {', '.join(ACTIONS)}",
        "leave out rows with other actions",
        lambda row: row[ACTION].get("type") in ACTIONS,
    ),
    Rule(
        "message without text",
        f"{ACTION}.content of a message must be text",
        "write the demonstrated reply",
        lambda row: row[ACTION]["type"] != "message" or isinstance(row[ACTION].get("content"), str),
    ),
    Rule(
        "no calls",
        f"{ACTION}.calls must be a non-empty list of function calls",
        "list the demonstrated calls",
        lambda row: _batch(row[ACTION]),
    ),
    Rule(
        "call without a name",
        f"{ACTION}.name must be non-empty text",
        "write the name of the tool",
        _calls(lambda call: _text(call.get("name"))),
    ),
    Rule(
        "arguments are no JSON text",
        f"{ACTION}.arguments must be the JSON text of an object",
        "write the arguments as a JSON string",
        _calls(_arguments),
    ),
    Rule(
        "call of an unknown tool",
        f"{ACTION}.name must be the name of a tool in {PARAMS}.tools",
        "list the tool, or drop the row",
        _named,
        to_read=False,
    ),
    Rule(
        "no list of tools",
        f"{PARAMS}.tools must be present",
        "write an empty list if there are no tools",
        lambda row: isinstance(row[PARAMS].get("tools"), list),
        to_read=False,
    ),
    Rule(
        "tool_choice is not auto",
        f"{PARAMS}.tool_choice must be 'auto' or absent",
        "write 'auto'",
        lambda row: row[PARAMS].get("tool_choice", "auto") == "auto",
        to_read=False,
    ),
    Rule(
        "parallel_tool_calls is no boolean",
        f"{PARAMS}.parallel_tool_calls must be true, false or absent",
        "write true or false",
        lambda row: isinstance(row[PARAMS].get("parallel_tool_calls", False), bool),
        to_read=False,
    ),
    Rule(
        "null in the request",
        f"{PARAMS} must not contain null",
        "leave out keys without a value",
        lambda row: all(value is not None for value in row[PARAMS].values()),
        to_read=False,
    ),
    Rule(
        "answer without a call",
        f"a function_call_output in {PARAMS}.input must have the call_id of a function_call before it",
        "restore the call_id",
        _answered,
        to_read=False,
    ),
    Rule(
        "no agent",
        f"{AGENT} must be an object of type responses_api_agents",
        "name the agent that uses the row",
        lambda row: isinstance(row.get(AGENT), Mapping) and row[AGENT].get("type") == "responses_api_agents",
        to_read=False,
    ),
    Rule(
        "agent without a name",
        f"{AGENT}.name must be non-empty text",
        "write the name that the agent has in the configuration that uses the row",
        lambda row: _text(row[AGENT].get("name")),
        to_read=False,
    ),
)
