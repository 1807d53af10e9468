"""Generates tasks at API-Bank's three levels, with the APIs of a small office."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from turnwise.envs.apibank.apis import APIS, SEARCHER, Office, tools_named
from turnwise.envs.dialogues.problem import DialogueProblem, UserTurn, split_of, turn_of, turns_data, turns_from
from turnwise.types import Task, ToolCall

OTHERS = 2  # number of APIs that a task of level 1 shows in addition to those it needs

Names = Mapping[str, Sequence[str]]
TRAINING: Names = {
    "person": ("ann", "bob", "cid", "dan", "eve"),
    "time": ("7:00", "8:00", "9:30", "11:00", "14:00", "18:30"),
    "content": ("hello", "thanks", "call me", "buy milk", "come home", "be on time"),
    "room": ("r1", "r2", "r3", "r4"),
    "topic": ("sales", "plan", "team", "budget"),
    "stock": ("aaa", "bbb", "ccc", "ddd"),
    "word": ("house", "tree", "water", "book"),
    "city": ("rome", "paris", "oslo", "bern"),
    "symptom": ("cough", "fever", "pain"),
    "doctor": ("dr lee", "dr kim", "dr ray"),
    "date": ("may 02", "may 03", "may 04", "may 05"),
}
HELD_OUT: Names = {
    "person": ("fay", "gus", "hal"),
    "time": ("6:15", "12:45", "20:00"),
    "content": ("good night", "stay there", "bring tea"),
    "room": ("r7", "r8", "r9"),
    "topic": ("design", "audit", "trip"),
    "stock": ("xxx", "yyy", "zzz"),
    "word": ("bread", "stone", "light"),
    "city": ("kiev", "lima", "cairo"),
    "symptom": ("cold", "burn", "rash"),
    "doctor": ("dr fox", "dr may", "dr orr"),
    "date": ("june 11", "june 12", "june 13"),
}


Kind = Callable[[random.Random, Names, dict[str, Any]], UserTurn]
"""A function that draws a request of a user and fills the tables of the office, its last argument."""


def _user(rng: random.Random, names: Names, tables: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Adds a user to the office's tables. Returns the user's token and the arguments of a ``GetUserToken`` call."""
    person = rng.choice(names["person"])
    password, token = f"p{rng.randint(10, 99)}", f"t{rng.randint(100, 999)}"
    tables["users"] = {person: {"password": password, "token": token}}
    return token, {"username": person, "password": password}


def _lookup(api: str, table: str, name: str, say: str, value: Callable[[random.Random, Names], Any]) -> Kind:
    """Returns a function that fills a table of the office at random and draws a user's request for one of its values.

    Args:
        api: the name of the API that answers the request.
        name: the key of ``Names`` under which the possible keys of the table are listed.
        say: the text of the request, with ``{}`` in place of a key of the table.
        value: a function that draws a value of the table.
    """

    def kind(rng: random.Random, names: Names, tables: dict[str, Any]) -> UserTurn:
        keys = rng.sample(names[name], 3)
        tables[table] = {key: value(rng, names) for key in keys}
        return turn_of(say.format(keys[0]), (api, {next(iter(APIS[api].parameters)): keys[0]}))

    return kind


def _of(name: str) -> Callable[[random.Random, Names], Any]:
    return lambda rng, names: rng.choice(names[name])


def _number(rng: random.Random, names: Names) -> int:
    return rng.randint(10, 99)


def _address(rng: random.Random, names: Names) -> str:
    return f"m{rng.randint(10, 99)}@x.org"


def _weather(rng: random.Random, names: Names) -> str:
    return rng.choice(("rain", "sun", "wind"))


_SINGLE: tuple[Kind, ...] = (
    _lookup("QueryStock", "stocks", "stock", "what is the price of {}?", _number),
    _lookup("QueryBalance", "accounts", "person", "what is the balance of {}?", _number),
    _lookup("Dictionary", "words", "word", "translate {}", lambda rng, names: f"m{rng.randint(10, 99)}"),
    _lookup("QueryWeather", "weather", "city", "how is the weather in {}?", _weather),
    _lookup("QueryMeeting", "rooms", "topic", "where is the {} meeting?", _of("room")),
    _lookup("FindDoctor", "symptoms", "symptom", "who treats {}?", _of("doctor")),
    _lookup("QueryAddress", "addresses", "person", "what is the email address of {}?", _address),
)


def _alarm(rng: random.Random, names: Names, tables: dict[str, Any]) -> UserTurn:
    token, user = _user(rng, names, tables)
    time = rng.choice(names["time"])
    text = f"i am {user['username']}, password {user['password']}. set an alarm for {time}"
    return turn_of(text, ("GetUserToken", user), ("AddAlarm", {"token": token, "time": time}))


def _alarm_off(rng: random.Random, names: Names, tables: dict[str, Any]) -> UserTurn:
    token, user = _user(rng, names, tables)
    times = rng.sample(names["time"], 2)
    tables["alarms"] = [{"user": user["username"], "time": time} for time in times]
    text = f"i am {user['username']}, password {user['password']}. delete my alarm of {times[0]}"
    return turn_of(text, ("GetUserToken", user), ("DeleteAlarm", {"token": token, "time": times[0]}))


def _reminder(rng: random.Random, names: Names, tables: dict[str, Any]) -> UserTurn:
    token, user = _user(rng, names, tables)
    content, time = rng.choice(names["content"]), rng.choice(names["time"])
    text = f"i am {user['username']}, password {user['password']}. set a reminder for {time}: {content}"
    return turn_of(text, ("GetUserToken", user), ("AddReminder", {"token": token, "content": content, "time": time}))


def _mail(rng: random.Random, names: Names, tables: dict[str, Any]) -> UserTurn:
    people = rng.sample(names["person"], 2)
    tables["addresses"] = {person: f"m{rng.randint(10, 99)}@x.org" for person in people}
    content = rng.choice(names["content"])
    text = f"send {people[0]} an email: {content}"
    address = tables["addresses"][people[0]]
    return turn_of(
        text, ("QueryAddress", {"person": people[0]}), ("SendEmail", {"address": address, "content": content})
    )


def _doctor(rng: random.Random, names: Names, tables: dict[str, Any]) -> UserTurn:
    symptom, doctor, date = (rng.choice(names[name]) for name in ("symptom", "doctor", "date"))
    tables["symptoms"] = {symptom: doctor}
    tables["doctors"] = {name: list(names["date"]) for name in names["doctor"]}
    text = f"book a doctor for my {symptom} on {date}"
    return turn_of(text, ("FindDoctor", {"symptom": symptom}), ("BookDoctor", {"doctor": doctor, "date": date}))


_PLANS: tuple[Kind, ...] = (_alarm, _alarm_off, _reminder, _mail, _doctor)


@dataclass(frozen=True)
class OfficeTasks:
    """Generates tasks with the APIs of a small office, at API-Bank's three levels.

    ``train`` and ``seen`` use the same names but different requests: a hash of the request's text decides between
    ``train`` and ``seen``. ``unseen`` uses the names in ``HELD_OUT``.

    Args:
        levels: the levels to use, out of 1, 2 and 3.
        names: a function that draws the names (of people, cities and so on) for one task of ``train`` or ``seen``. None
            means that these tasks use the names in ``TRAINING``.

    Raises:
        ValueError: ``levels`` is empty or holds an unknown level.
    """

    levels: tuple[int, ...] = (1, 2, 3)
    names: Callable[[random.Random], Names] | None = None

    def __post_init__(self) -> None:
        if len(set(self.levels)) < max(1, len(self.levels)) or set(self.levels) - {1, 2, 3}:
            raise ValueError(f"levels: name one or more of 1, 2 and 3, each only once, got {list(self.levels)}")

    def tasks(self, split: str, count: int, seed: int) -> list[Task]:
        """Returns ``count`` tasks of a split. The level changes from task to task in the order of ``levels``."""
        return [self._task(split, seed, index, self.levels[index % len(self.levels)]) for index in range(count)]

    def problem(self, task: Task) -> DialogueProblem:
        """Returns the dialogue that a task's data describes: initial state, user messages, ground truth and tools.

        At levels 2 and 3, the policy is shown only the search API, whose answers describe the other APIs.
        """
        data = task.data
        shown = tools_named(data["apis"])
        others = tools_named([name for name in APIS if name not in data["apis"]])
        given = {} if int(data["level"]) == 1 else {0: others}
        return DialogueProblem(partial(Office, data["tables"]), turns_from(data["turns"]), shown, given)

    def _task(self, split: str, seed: int, index: int, level: int) -> Task:
        for attempt in range(1000):
            rng = random.Random(f"apibank/{split}/{seed}/{index}/{attempt}")
            names = HELD_OUT if split == "unseen" else self.names(rng) if self.names else TRAINING
            data = _data(rng, names, level)
            if split in ("unseen", split_of(data["turns"])):
                return Task("apibank", f"level-{level}/{split}/{seed}/{index:06d}", split, data, f"level-{level}")
        # practically impossible: the hash of the request does not reject 1000 attempts in a row
        raise RuntimeError(f"no task of split {split} was found in 1000 attempts")


def _data(rng: random.Random, names: Names, level: int) -> dict[str, Any]:
    """Returns the data of a random task.

    At level 1, a task needs one call or two successive calls, and the policy is shown the APIs of these calls and
    ``OTHERS`` more. At level 2, a task needs one call, after a search for the API. At level 3, a task needs two
    successive calls, each after a search for the API.
    """
    tables: dict[str, Any] = {}
    kinds = _PLANS if level == 3 else _SINGLE if level == 2 else _SINGLE + _PLANS
    turn = rng.choice(kinds)(rng, names, tables)
    if level == 1:
        needed = list(dict.fromkeys(call.name for call in turn.calls))
        others = [name for name in APIS if name not in (*needed, SEARCHER)]
        apis = sorted([*needed, *rng.sample(others, OTHERS)])
    else:
        apis = [SEARCHER]
        searches = [ToolCall(SEARCHER, {"keywords": APIS[call.name].about}) for call in turn.calls]
        turn = replace(turn, calls=tuple(chain.from_iterable(zip(searches, turn.calls, strict=True))))
    return {"level": level, "apis": apis, "tables": tables, "turns": turns_data([turn])}
