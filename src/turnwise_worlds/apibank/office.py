"""The APIs of API-Bank over a small office, and generated tasks for them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from turnwise.data.tool_schema import misfits, tool_of
from turnwise.files import read_yaml
from turnwise.types import Task, ToolCall
from turnwise_worlds.tool_dialogues import (
    DialogueProblem,
    GeneratedTasks,
    Names,
    UserTurn,
    World,
    turn_of,
    turns_data,
    turns_from,
)

SEARCHER = "ToolSearcher"
Tables = dict[str, Any]


class Refused(Exception):
    """A call is refused. The text of this error becomes the answer."""


@dataclass(frozen=True, slots=True)
class Api:
    name: str
    about: str
    parameters: tuple[str, ...]  # their names; all are texts and required
    run: Callable[..., Any]  # of the office's tables and the arguments of the call

    def tool(self) -> dict[str, Any]:
        properties = {name: {"type": "string"} for name in self.parameters}
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        return tool_of(self.name, self.about, schema)


class Office(World):
    """The tables of an episode. As in API-Bank, an answer is the JSON of an API's output or exception."""

    def __init__(self, tables: Mapping[str, Any]) -> None:
        self.tables: Tables = deepcopy(dict(tables))

    def call(self, call: ToolCall) -> str:
        try:
            api = APIS.get(call.name)
            if api is None:
                raise Refused(f"no API {call.name}")
            if misfits(call, [api.tool()]) or not set(call.arguments) <= set(api.parameters):
                raise Refused(f"{call.name} needs {', '.join(api.parameters)}")
            return json.dumps(api.run(self.tables, **call.arguments), ensure_ascii=False)
        except Refused as error:
            return json.dumps({"exception": str(error)})

    def fork(self) -> Office:
        return Office(self.tables)

    def same_state(self, other: Office) -> bool:
        return self.tables == other.tables


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


def _change(table: str, adds: bool) -> Callable[..., str]:
    def run(tables: Tables, token: str, **values: Any) -> str:
        row = {"user": _owner(tables, token), **values}
        rows = tables.setdefault(table, []) if adds else tables.get(table, [])
        if (row in rows) == adds:
            raise Refused("exists" if adds else "not found")
        (rows.append if adds else rows.remove)(row)
        return "success"

    return run


def _query(table: str, column: str) -> Callable[..., Any]:
    def run(tables: Tables, token: str) -> Any:
        user = _owner(tables, token)
        return [row[column] for row in tables.get(table, []) if row["user"] == user]

    return run


def _look_up(table: str, column: str) -> Callable[..., Any]:
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
    """Describes the API that shares the most words with ``keywords``, of several the first in ``_ALL``."""
    wanted = words(keywords)
    shared = {api.name: len(wanted & words(f"{api.name} {api.about}")) for api in _ALL if api.name != SEARCHER}
    best = APIS[max(shared, key=lambda name: shared[name])]
    if not shared[best.name]:
        raise Refused("nothing found")
    return {"name": best.name, "description": best.about, "input_parameters": list(best.parameters)}


def words(text: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+|\d+", text)}


_ALL: Sequence[Api] = (
    Api(SEARCHER, "search an API by keywords", ("keywords",), _search),
    Api("GetUserToken", "get the token of a user", ("username", "password"), _token),
    Api("AddAlarm", "set an alarm", ("token", "time"), _change("alarms", True)),
    Api("DeleteAlarm", "delete an alarm", ("token", "time"), _change("alarms", False)),
    Api("QueryAlarm", "list alarms", ("token",), _query("alarms", "time")),
    Api("AddReminder", "set a reminder", ("token", "content", "time"), _change("reminders", True)),
    Api("QueryReminder", "list reminders", ("token",), _query("reminders", "content")),
    Api("AddMeeting", "book a meeting room", ("token", "room", "time"), _change("meetings", True)),
    Api("QueryMeeting", "find the room of a meeting", ("topic",), _look_up("rooms", "room")),
    Api("QueryStock", "get the price of a stock", ("stock_code",), _look_up("stocks", "price")),
    Api("QueryBalance", "get the balance of an account", ("account",), _look_up("accounts", "balance")),
    Api("Dictionary", "translate a word", ("keyword",), _look_up("words", "meaning")),
    Api("QueryWeather", "get the weather of a city", ("city",), _look_up("weather", "weather")),
    Api("QueryAddress", "get the email address of a person", ("person",), _look_up("addresses", "address")),
    Api("SendEmail", "send an email", ("address", "content"), _email),
    Api("FindDoctor", "find a doctor for a symptom", ("symptom",), _look_up("symptoms", "doctor")),
    Api("BookDoctor", "book a doctor", ("doctor", "date"), _book),
)
APIS: Mapping[str, Api] = {api.name: api for api in _ALL}

OTHERS = 2  # number of APIs that a task of level 1 shows in addition to those it needs
WEATHER = ("rain", "sun", "wind")

TRAINING, HELD_OUT = read_yaml(Path(__file__).with_name("names.yaml")).values()

Kind = Callable[[random.Random, Names, dict[str, Any]], UserTurn]
"""A function that draws a request of a user and fills the tables of the office, its last argument."""


def _lookup(api: str, table: str, name: str, say: str, value: Callable[[random.Random, Names], Any]) -> Kind:
    def kind(rng: random.Random, names: Names, tables: dict[str, Any]) -> UserTurn:
        keys = rng.sample(names[name], 3)
        tables[table] = {key: value(rng, names) for key in keys}
        return turn_of(say.format(keys[0]), (api, {APIS[api].parameters[0]: keys[0]}))

    return kind


_SINGLE: tuple[Kind, ...] = (
    _lookup("QueryStock", "stocks", "stock", "what is the price of {}?", lambda rng, _: rng.randint(10, 99)),
    _lookup("QueryBalance", "accounts", "person", "what is the balance of {}?", lambda rng, _: rng.randint(10, 99)),
    _lookup("Dictionary", "words", "word", "translate {}", lambda rng, _: f"m{rng.randint(10, 99)}"),
    _lookup("QueryWeather", "weather", "city", "how is the weather in {}?", lambda rng, _: rng.choice(WEATHER)),
    _lookup("QueryMeeting", "rooms", "topic", "where is the {} meeting?", lambda rng, names: rng.choice(names["room"])),
    _lookup("FindDoctor", "symptoms", "symptom", "who treats {}?", lambda rng, names: rng.choice(names["doctor"])),
    _lookup("QueryAddress", "addresses", "person", "what is the email address of {}?", lambda rng, _: _address(rng)),
)


def _address(rng: random.Random) -> str:
    return f"m{rng.randint(10, 99)}@x.org"


def _signed(text: str, api: str, *values: str) -> Kind:
    """A request of a user that needs a token. ``values`` are kinds of names, which are drawn for ``text`` and the call."""

    def kind(rng: random.Random, names: Names, tables: dict[str, Any]) -> UserTurn:
        user = {"username": rng.choice(names["person"]), "password": f"p{rng.randint(10, 99)}"}
        token = f"t{rng.randint(100, 999)}"
        tables["users"] = {user["username"]: {"password": user["password"], "token": token}}
        if api == "DeleteAlarm":
            times = rng.sample(names["time"], 2)
            tables["alarms"] = [{"user": user["username"], "time": time} for time in times]
            arguments = {"time": times[0]}
        else:
            arguments = {value: rng.choice(names[value]) for value in values}
        request = "i am {username}, password {password}. " + text
        return turn_of(
            request.format(**user, **arguments), ("GetUserToken", user), (api, {"token": token, **arguments})
        )

    return kind


def _mail(rng: random.Random, names: Names, tables: dict[str, Any]) -> UserTurn:
    people = rng.sample(names["person"], 2)
    tables["addresses"] = {person: _address(rng) for person in people}
    mail = {"address": tables["addresses"][people[0]], "content": rng.choice(names["content"])}
    text = f"send {people[0]} an email: {mail['content']}"
    return turn_of(text, ("QueryAddress", {"person": people[0]}), ("SendEmail", mail))


def _doctor(rng: random.Random, names: Names, tables: dict[str, Any]) -> UserTurn:
    symptom, doctor, date = (rng.choice(names[name]) for name in ("symptom", "doctor", "date"))
    tables["symptoms"] = {symptom: doctor}
    tables["doctors"] = {name: list(names["date"]) for name in names["doctor"]}
    text = f"book a doctor for my {symptom} on {date}"
    return turn_of(text, ("FindDoctor", {"symptom": symptom}), ("BookDoctor", {"doctor": doctor, "date": date}))


_PLANS: tuple[Kind, ...] = (
    _signed("set an alarm for {time}", "AddAlarm", "time"),
    _signed("delete my alarm of {time}", "DeleteAlarm"),
    _signed("set a reminder for {time}: {content}", "AddReminder", "content", "time"),
    _mail,
    _doctor,
)


@dataclass(frozen=True)
class OfficeTasks(GeneratedTasks):
    """Generated tasks at API-Bank's three levels."""

    env, training, held_out = "apibank", TRAINING, HELD_OUT
    levels: tuple[int, ...] = (1, 2, 3)

    def data(self, rng: random.Random, split: str, index: int, names: Names) -> dict[str, Any]:
        """Level 1 has one call or two successive ones, and shows their APIs and ``OTHERS`` more. Level 2 has one call and
        level 3 two, each after a search for the API.
        """
        level = self.levels[index % len(self.levels)]
        tables: dict[str, Any] = {}
        kinds = _PLANS if level == 3 else _SINGLE if level == 2 else _SINGLE + _PLANS
        turn = rng.choice(kinds)(rng, names, tables)
        apis = [SEARCHER]
        if level == 1:
            needed = list(dict.fromkeys(call.name for call in turn.calls))
            others = [name for name in APIS if name not in (*needed, SEARCHER)]
            apis = sorted([*needed, *rng.sample(others, OTHERS)])
        else:
            searches = [ToolCall(SEARCHER, {"keywords": APIS[call.name].about}) for call in turn.calls]
            turn = replace(turn, calls=tuple(chain.from_iterable(zip(searches, turn.calls, strict=True))))
        return {"level": level, "apis": apis, "tables": tables, "turns": turns_data([turn])}

    def kind(self, data: Mapping[str, Any]) -> tuple[str, str]:
        return f"level-{data['level']}", f"level-{data['level']}"

    def problem(self, task: Task) -> DialogueProblem:
        """At levels 2 and 3, the policy is shown only the search API, whose answers describe the other APIs."""
        data = task.data
        shown = tuple(APIS[name].tool() for name in data["apis"])
        others = tuple(api.tool() for api in _ALL if api.name not in data["apis"])
        offered = {} if int(data["level"]) == 1 else {0: others}
        return DialogueProblem(partial(Office, data["tables"]), turns_from(data["turns"]), shown, offered)
