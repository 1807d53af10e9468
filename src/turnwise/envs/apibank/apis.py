"""The APIs of the generated office: names, parameters, and effects on the office's tables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from turnwise.data.tool_schema import check_call
from turnwise.envs.tool_messages import Tools
from turnwise.types import ToolCall

SEARCHER = "ToolSearcher"
Tables = dict[str, Any]


class Refused(Exception):
    """Raised by an API that refuses a call. The text of this error becomes the answer to the call."""


@dataclass(frozen=True, slots=True)
class Api:
    """One API of the generated office.

    Attributes:
        about: the description of the API.
        parameters: name of a parameter -> JSON type of the parameter. All parameters are required.
        run: the function that implements the API. Its arguments are the office's tables and the arguments of the call.
    """

    name: str
    about: str
    parameters: Mapping[str, str]
    run: Callable[..., Any]

    def tool(self) -> dict[str, Any]:
        properties = {name: {"type": kind} for name, kind in self.parameters.items()}
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        return {"type": "function", "function": {"name": self.name, "description": self.about, "parameters": schema}}


class Office:
    """The state of one episode in the generated office: tables that the APIs read and change.

    As in API-Bank, the answer to a call is a JSON text of the API's output or of its exception.
    """

    __slots__ = ("tables",)

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self.tables: Tables = deepcopy(dict(tables))

    def call(self, call: ToolCall) -> str:
        """Makes a call and returns the answer. If the call fails, the answer is an error message."""
        api = APIS.get(call.name)
        if api is None:
            return _exception(f"no API {call.name}")
        problems = check_call({"name": call.name, "arguments": call.arguments}, [api.tool()])
        unknown = [name for name in call.arguments if name not in api.parameters]
        if problems or unknown:
            return _exception(f"{call.name} needs {', '.join(api.parameters)}")
        try:
            return json.dumps(api.run(self.tables, **call.arguments), ensure_ascii=False)
        except Refused as error:
            return _exception(str(error))

    def fork(self) -> Office:
        return Office(self.tables)

    def same_state(self, other: Office) -> bool:
        return self.tables == other.tables

    def same_place(self, other: Office) -> bool:
        return self.tables == other.tables  # the tables are the whole state


def _exception(text: str) -> str:
    return json.dumps({"exception": text})


def _row(tables: Tables, table: str, key: str) -> Any:
    if key not in tables.get(table, {}):
        raise Refused(f"no {key}")
    return tables[table][key]


def _owner(tables: Tables, token: str) -> str:
    for user, about in tables.get("users", {}).items():
        if about["token"] == token:
            return str(user)
    raise Refused("wrong token")


def _token(tables: Tables, username: str, password: str) -> Any:
    if _row(tables, "users", username)["password"] != password:
        raise Refused("wrong password")
    return {"token": tables["users"][username]["token"]}


def _add(table: str) -> Callable[..., str]:
    """Returns the implementation of an API that adds a row to ``table``.

    The row holds the arguments of the call, and the owner of the call's token in place of the token.
    """

    def run(tables: Tables, token: str, **values: Any) -> str:
        row = {"user": _owner(tables, token), **values}
        if row in tables.setdefault(table, []):
            raise Refused("exists")
        tables[table].append(row)
        return "success"

    return run


def _delete(table: str) -> Callable[..., str]:
    """Returns the implementation of an API that deletes a row of ``table``.

    The row holds the arguments of the call, and the owner of the call's token in place of the token.
    """

    def run(tables: Tables, token: str, **values: Any) -> str:
        row = {"user": _owner(tables, token), **values}
        if row not in tables.get(table, []):
            raise Refused("not found")
        tables[table].remove(row)
        return "success"

    return run


def _query(table: str, column: str) -> Callable[..., Any]:
    """Returns the implementation of an API that lists the values of ``column`` in some rows of ``table``.

    These rows belong to the owner of the call's token.
    """

    def run(tables: Tables, token: str) -> Any:
        user = _owner(tables, token)
        return [row[column] for row in tables.get(table, []) if row["user"] == user]

    return run


def _look_up(table: str, column: str) -> Callable[..., Any]:
    """Returns the implementation of an API that answers with ``{column: value}``.

    The value is that of ``table`` for the only argument of the call.
    """

    def run(tables: Tables, **key: str) -> Any:
        return {column: _row(tables, table, next(iter(key.values())))}

    return run


def _email(tables: Tables, address: str, content: str) -> str:
    tables.setdefault("mail", []).append({"to": address, "content": content})
    return "success"


def _book(tables: Tables, doctor: str, date: str) -> Any:
    if date not in _row(tables, "doctors", doctor):
        raise Refused("not free")
    tables["doctors"][doctor].remove(date)
    return {"appointment_id": f"{doctor[:2].lower()}{date[-2:]}"}


def _search(tables: Tables, keywords: str) -> Any:
    """Returns the description of the API, other than this search, that shares the most words with ``keywords``.

    Of several APIs with equally many shared words, the first API in ``_ALL`` is described.
    """
    wanted = words(keywords)
    shared = {api.name: len(wanted & words(f"{api.name} {api.about}")) for api in _ALL if api.name != SEARCHER}
    best = APIS[max(shared, key=lambda name: shared[name])]
    if not shared[best.name]:
        raise Refused("nothing found")
    return {"name": best.name, "description": best.about, "input_parameters": list(best.parameters)}


def words(text: str) -> set[str]:
    """Returns the lower-case words of a text. A name such as ``AddAlarm`` is split into its words."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", text)}


_ALL: Sequence[Api] = (
    Api(SEARCHER, "search an API by keywords", {"keywords": "string"}, _search),
    Api("GetUserToken", "get the token of a user", {"username": "string", "password": "string"}, _token),
    Api("AddAlarm", "set an alarm", {"token": "string", "time": "string"}, _add("alarms")),
    Api("DeleteAlarm", "delete an alarm", {"token": "string", "time": "string"}, _delete("alarms")),
    Api("QueryAlarm", "list alarms", {"token": "string"}, _query("alarms", "time")),
    Api("AddReminder", "set a reminder", {"token": "string", "content": "string", "time": "string"}, _add("reminders")),
    Api("QueryReminder", "list reminders", {"token": "string"}, _query("reminders", "content")),
    Api("AddMeeting", "book a meeting room", {"token": "string", "room": "string", "time": "string"}, _add("meetings")),
    Api("QueryMeeting", "find the room of a meeting", {"topic": "string"}, _look_up("rooms", "room")),
    Api("QueryStock", "get the price of a stock", {"stock_code": "string"}, _look_up("stocks", "price")),
    Api("QueryBalance", "get the balance of an account", {"account": "string"}, _look_up("accounts", "balance")),
    Api("Dictionary", "translate a word", {"keyword": "string"}, _look_up("words", "meaning")),
    Api("QueryWeather", "get the weather of a city", {"city": "string"}, _look_up("weather", "weather")),
    Api("QueryAddress", "get the email address of a person", {"person": "string"}, _look_up("addresses", "address")),
    Api("SendEmail", "send an email", {"address": "string", "content": "string"}, _email),
    Api("FindDoctor", "find a doctor for a symptom", {"symptom": "string"}, _look_up("symptoms", "doctor")),
    Api("BookDoctor", "book a doctor", {"doctor": "string", "date": "string"}, _book),
)
APIS: Mapping[str, Api] = {api.name: api for api in _ALL}


def tools_named(names: Sequence[str]) -> Tools:
    """Returns the tool definitions of the named APIs, in the order of ``names``."""
    return tuple(APIS[name].tool() for name in names)
