"""The generated tasks of ``env=bfcl``: short requests over the real APIs."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from turnwise.data.tool_schema import function_of
from turnwise.data.toolcalls import bfcl_python
from turnwise.files import read_yaml
from turnwise.types import Task
from turnwise_worlds.bfcl.apis import Apis, tools_of_class
from turnwise_worlds.tool_dialogues import (
    DialogueProblem,
    GeneratedTasks,
    Names,
    UserTurn,
    split_of,
    turns_data,
    turns_from,
)

TRAINING, HELD_OUT = read_yaml(Path(__file__).with_name("names.yaml")).values()

Drawn = tuple[dict[str, Any], dict[str, Any]]
"""The initial state of one API, and the values that fill the texts of a request and its calls."""
State = Callable[[random.Random, Names], Drawn]


def _also(state: State, **draws: Callable[[random.Random, Names, Mapping[str, Any]], Any]) -> State:
    def more(rng: random.Random, names: Names) -> Drawn:
        config, values = state(rng, names)
        for name, draw in draws.items():
            values[name] = draw(rng, names, values)
        return config, values

    return more


def _files(rng: random.Random, names: Names) -> Drawn:
    here, there = rng.sample(names["folders"], 2)
    file, other = rng.sample(names["files"], 2)

    def folder(*files: str) -> dict[str, Any]:
        contents = {f: {"type": "file", "content": rng.choice(names["words"])} for f in files}
        return {"type": "directory", "contents": contents}

    contents = {here: folder(file, other), there: folder(*rng.sample(names["files"], rng.randint(0, 1)))}
    if rng.random() < 0.5:
        contents = dict(reversed(contents.items()))
    contents[there]["contents"].pop(file, None)
    config = {"root": {"root": {"type": "directory", "contents": contents}}}
    return config, {"here": here, "there": there, "file": file}


def _tickets(rng: random.Random, names: Names) -> Drawn:
    owner = names["people"][0]
    queue: list[dict[str, Any]] = []
    for number in sorted(rng.sample(range(1, 10), 2)):
        about = {"title": rng.choice(names["titles"]), "status": "Open", "priority": rng.randint(1, 4)}
        queue.append({"id": number, **about, "created_by": owner})
    ticket = rng.choice(queue)
    config = {"ticket_queue": queue, "ticket_counter": 10, "current_user": owner}
    return config, {"id": ticket["id"], "more": ticket["priority"] + 1}


def _car(rng: random.Random, names: Names) -> Drawn:
    fuel = rng.randint(1, 20)
    doors = dict.fromkeys(("driver", "passenger", "rear_left", "rear_right"), "locked")
    return {"fuelLevel": float(fuel), "doorStatus": doors, "remainingUnlockedDoors": 0}, {"fuel": fuel}


def _fill(rng: random.Random, names: Names) -> Drawn:
    amount = rng.randint(1, 20)
    return _car(rng, names)[0], {"amount": amount}


def _lights(rng: random.Random, names: Names) -> Drawn:
    mode = rng.choice(["on", "off"])
    return {**_car(rng, names)[0], "headLightStatus": "off" if mode == "on" else "on"}, {"mode": mode}


def _market(rng: random.Random, names: Names) -> Drawn:
    symbols = rng.sample(names["stocks"], 3)
    config = {
        "stocks": {symbol: {"price": rng.randint(2, 30)} for symbol in symbols},
        "watch_list": symbols[:2],
        "authenticated": True,
        "account_info": {"balance": 1000},
        "orders": {},
        "order_counter": rng.randint(1, 9),
    }
    return config, {"symbols": symbols, "stocks": config["stocks"]}


def _users(rng: random.Random, names: Names) -> Drawn:
    people, numbers = rng.sample(names["people"], 3), rng.sample(range(1, 10), 3)
    users = {person: f"U{number}" for person, number in zip(people, numbers, strict=True)}
    config = {"user_map": users, "user_count": 3, "inbox": [], "message_count": 0, "current_user": users[people[0]]}
    return config, {"person": people[1], "user": users[people[1]]}


def _numbers(rng: random.Random, names: Names) -> Drawn:
    numbers = [rng.randint(1, 20) for _ in range(3)]
    return {}, {"numbers": numbers, "listed": ", ".join(map(str, numbers))}


def _sum(rng: random.Random, names: Names) -> Drawn:
    word, function = rng.choice([("plus", "add"), ("minus", "subtract"), ("times", "multiply"), ("over", "divide")])
    return {}, {"word": word, "function": function, "a": rng.randint(2, 40), "b": rng.randint(2, 9)}


def _word(rng: random.Random, names: Names, values: Mapping[str, Any]) -> str:
    return rng.choice(names["words"])


_resolve, _send = _also(_tickets, word=_word), _also(_users, word=_word)
_create = _also(_tickets, title=lambda r, names, v: r.choice(names["titles"]), priority=lambda r, n, v: r.randint(2, 5))
_fill_up = _also(_car, wanted=lambda r, n, v: r.randint(21, 40), missing=lambda r, n, v: v["wanted"] - v["fuel"])
_buy = _also(
    _market,
    symbol=lambda r, n, v: r.choice(v["symbols"]),
    amount=lambda r, n, v: r.randint(2, 9),
    price=lambda r, n, v: v["stocks"][v["symbol"]]["price"],
)

# fmt: off
FAMILIES: Mapping[str, Sequence[tuple[State, str, str]]] = {
    "GorillaFileSystem": (
        (_files, "remove {file} in {here}", "[cd(folder='{here}'), rm(file_name='{file}')]"),
        (_files, "show {file} in {here}", "[cd(folder='{here}'), cat(file_name='{file}')]"),
        (_files, "find {file} and remove it", "[find(name='{file}'), cd(folder='{here}'), rm(file_name='{file}')]"),
        (_files, "in {here} make {there} and move {file} to it",
         "[cd(folder='{here}'), mkdir(dir_name='{there}'), mv(source='{file}', destination='{there}')]"),
    ),
    "TicketAPI": (
        (_tickets, "close ticket {id}", "[close_ticket(ticket_id={id})]"),
        (_resolve, "resolve ticket {id} with {word}", "[resolve_ticket(ticket_id={id}, resolution='{word}')]"),
        (_tickets, "add one to the priority of ticket {id}",
         "[get_ticket(ticket_id={id}), edit_ticket(ticket_id={id}, updates={{'priority': {more}}})]"),
        (_create, "create ticket {title} of priority {priority}",
         "[create_ticket(title='{title}', priority={priority})]"),
    ),
    "VehicleControlAPI": (
        (_car, "press the brake and start the car",
         "[pressBrakePedal(pedalPosition=1), startEngine(ignitionMode='START')]"),
        (_fill, "fill in {amount} gallons", "[fillFuelTank(fuelAmount={amount})]"),
        (_fill_up, "fill up to {wanted} gallons",
         "[displayCarStatus(option='fuel'), fillFuelTank(fuelAmount={missing})]"),
        (_lights, "turn the lights {mode}", "[setHeadlights(mode='{mode}')]"),
    ),
    "TradingBot": (
        (_market, "watch {symbols[2]}", "[add_to_watchlist(stock='{symbols[2]}')]"),
        (_market, "no longer watch {symbols[0]}", "[remove_stock_from_watchlist(symbol='{symbols[0]}')]"),
        (_buy, "buy {amount} {symbol} at its price", "[get_stock_info(symbol='{symbol}'), "
         "place_order(order_type='Buy', symbol='{symbol}', price={price}, amount={amount})]"),
    ),
    "MessageAPI": ((_send, "send {word} to {person}",
                    "[get_user_id(user='{person}'), send_message(receiver_id='{user}', message='{word}')]"),),
    "MathAPI": (
        (_numbers, "mean of {listed}", "[mean(numbers={numbers})]"),
        (_sum, "{a} {word} {b}", "[{function}(a={a}, b={b})]"),
    ),
}
# fmt: on
"""API -> its kinds of requests: the state, the user's words, and the calls that fulfil the request."""
SHOWN = {api: set(re.findall(r"(\w+)\(", str([calls for _, _, calls in kinds]))) for api, kinds in FAMILIES.items()}
SHOWN["MathAPI"] |= {"add", "divide", "multiply", "subtract"}
UNSEEN_PAIRS = (
    ("GorillaFileSystem", "TicketAPI"),
    ("VehicleControlAPI", "MathAPI"),
    ("TradingBot", "GorillaFileSystem"),
    ("TicketAPI", "TradingBot"),
)


PAIRED = 0.4  # fraction of the training tasks that have two requests
_HELD_OUT = tuple(name for names in HELD_OUT.values() for name in names)


@dataclass(frozen=True)
class TinyTasks(GeneratedTasks):
    """The generated tasks. One of ``unseen`` has two requests, whose pair of APIs no training task combines."""

    env, training, held_out = "bfcl", TRAINING, HELD_OUT

    def data(self, rng: random.Random, split: str, index: int, names: Names) -> dict[str, Any]:
        if split == "unseen":
            classes: tuple[str, ...] = rng.choice(UNSEEN_PAIRS)
        else:
            known = sorted(FAMILIES)
            pairs = [(a, b) for a in known for b in known if a != b and {a, b} not in map(set, UNSEEN_PAIRS)]
            classes = rng.choice(pairs) if rng.random() < PAIRED else (rng.choice(known),)
        config, turns = {}, []
        for name in classes:
            state, text, calls = rng.choice(FAMILIES[name])
            config[name], values = state(rng, names)
            turns.append(UserTurn(text.format_map(values), bfcl_python(calls.format_map(values)).calls))
        return {"classes": list(classes), "config": config, "turns": turns_data(turns)}

    def kind(self, data: Mapping[str, Any]) -> tuple[str, str]:
        return "tiny", "one_api" if len(data["classes"]) == 1 else "two_apis"

    def fits(self, data: Mapping[str, Any], split: str) -> bool:
        """A request of ``unseen`` contains a held-out name or, for requests without names, has a held-out hash."""
        turns = data["turns"]
        if split != "unseen":
            return split_of(turns) == split
        return split_of([turn for turn in turns if not any(name in turn["user"] for name in _HELD_OUT)]) == "seen"

    def problem(self, task: Task) -> DialogueProblem:
        classes = tuple(task.data["classes"])
        tools = [t for name in classes for t in tools_of_class(name) if function_of(t)["name"] in SHOWN[name]]
        return DialogueProblem(
            partial(Apis, classes, task.data["config"]), turns_from(task.data["turns"]), tuple(tools)
        )
