"""``env=tau2``: customer service with tools and rules: experts and verifier."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Literal

from annotated_types import Len
from pydantic import PositiveInt

from turnwise.data.match_calls import same_value
from turnwise.data.tool_schema import misfits
from turnwise.data.toolcalls import Format, ToolCallError
from turnwise.env import Quality, first_tasks
from turnwise.types import Task, ToolCall, Trajectory
from turnwise_worlds.scripted_experts import LastTasks, ScriptedEnv
from turnwise_worlds.tau2.domains import (
    DOMAINS,
    FAILED,
    FREE,
    READS,
    TRANSFER,
    Domain,
    DomainDatabases,
    Gold,
    by_phone,
    problem_of,
    root,
    splits,
    toolbox,
)
from turnwise_worlds.tau2.session import (
    ENDING,
    EndpointUser,
    ScriptedUser,
    Tau2Reference,
    Tau2Session,
    User,
    asks,
    missing,
)
from turnwise_worlds.tool_dialogues import Mistakes, Reply, mistaken_call
from turnwise_worlds.tool_environment import played_trajectory, read_calls

_IDENTIFIERS = ("_id", "_ids", "flight_number")  # parameters with these endings take their values from a database
_PHONE_CHECKS = (  # calls that check the customer's phone, the most informative calls first
    "check_network_status", "check_sim_status", "check_network_mode_preference", "check_data_restriction_status",
    "check_apn_settings", "check_wifi_calling_status", "check_vpn_status", "check_payment_request", "check_status_bar",
    "can_send_mms", "run_speed_test",
)  # fmt: skip


def unknown(session: Tau2Session, calls: Sequence[ToolCall]) -> set[str]:
    """Returns the identifiers in the arguments of ``calls``, and of the customer, that the agent has not read yet."""
    needed = {value for call in calls for value in identifiers(call.arguments)}
    if session.reference.customer:
        needed.add(session.reference.customer)
    return {value for value in needed if not any(value in text for text in session.shown)}


def expert_lookup(session: Tau2Session, call: ToolCall, writes: bool) -> ToolCall | None:
    """Returns the next read of a careful agent before ``call``; None if it needs none: a read that shows an identifier
    which the agent needs and does not know, or else, if ``call`` changes the state (``writes``), the first read whose
    answer it would change, unless the agent has seen the present answer.
    """
    before = session.world.fork()  # one copy is enough for all reads, because reads do not change it
    reads = [read for read in _reads(session, call) if read != call]
    if wanted := unknown(session, [call]):
        for read in reads:
            answer = "" if read.name in _PHONE_CHECKS else before.call(read)
            if any(value in answer for value in wanted) and not (answer.startswith(FAILED) or seen(session, answer)):
                return read
    if not writes:
        return None
    after = session.world.fork()
    after.call(call)
    for read in reads:
        answer = before.call(read)
        if not answer.startswith(FAILED) and answer != after.call(read):
            return None if seen(session, answer) else read
    return None


def seen(session: Tau2Session, answer: str) -> bool:
    return any(answer in text for text in session.shown)


def identifiers(arguments: Mapping[str, Any]) -> set[str]:
    names: set[str] = set()
    for name, value in arguments.items():
        if isinstance(value, list):
            names |= {each for each in value if isinstance(each, str) and name.endswith(_IDENTIFIERS)}
            names |= {each for item in value if isinstance(item, Mapping) for each in identifiers(item)}
        elif isinstance(value, str) and (name == "id" or name.endswith(_IDENTIFIERS)):
            names.add(value)
    return names


def _reads(session: Tau2Session, call: ToolCall) -> Iterator[ToolCall]:
    reads_of = {"airline": _airline, "retail": _retail, "telecom": _telecom}[session.reference.problem.domain]
    for name, arguments in reads_of(session, call.arguments):
        read = ToolCall(name, arguments)
        if all(any(value in text for text in session.shown) for value in identifiers(arguments)):
            yield read


def _retail(session: Tau2Session, arguments: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    world, customer = session.reference.problem.start, session.reference.customer
    if user := world.table("users").get(customer):
        text = "\n".join(session.shown).lower()
        if user.email.lower() in text:
            yield "find_user_id_by_email", {"email": user.email}
        if user.address.zip in text and user.name.last_name.lower() in text:
            yield (
                "find_user_id_by_name_zip",
                {"first_name": user.name.first_name, "last_name": user.name.last_name, "zip": user.address.zip},
            )
        yield "get_user_details", {"user_id": customer}
    if order := world.table("orders").get(str(arguments.get("order_id"))):
        yield "get_order_details", {"order_id": order.order_id}
        if arguments.get("new_item_ids"):
            old = arguments.get("item_ids") or ()
            products = dict.fromkeys(item.product_id for item in order.items if item.item_id in old)
            yield from (("get_product_details", {"product_id": product}) for product in products)


def _airline(session: Tau2Session, arguments: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    world, customer = session.reference.problem.start, session.reference.customer
    if customer:
        yield "get_user_details", {"user_id": customer}
    if arguments.get("reservation_id") in world.table("reservations"):
        yield "get_reservation_details", {"reservation_id": arguments["reservation_id"]}
    for flight in arguments.get("flights") or ():
        if route := world.table("flights").get(flight.get("flight_number")):
            yield (
                "search_direct_flight",
                {"origin": route.origin, "destination": route.destination, "date": flight.get("date")},
            )


def _telecom(session: Tau2Session, arguments: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from ((read.name, dict(read.arguments)) for read in by_phone(session.reference.problem))
    if "line_id" in arguments:
        yield "get_details_by_id", {"id": arguments["line_id"]}
        yield "get_data_usage", {"customer_id": arguments.get("customer_id"), "line_id": arguments["line_id"]}
    if "bill_id" in arguments:
        yield "get_details_by_id", {"id": arguments["bill_id"]}
    if "app_name" in arguments:
        yield "check_app_permissions", {"app_name": arguments["app_name"]}
    yield from ((name, {}) for name in _PHONE_CHECKS)


ASK = "I will help you with that. Could you tell me who you are, and everything else that I should know?"
CLOSE = "All of this is done."
HOLD = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."
_ROOM = 4  # number of spare turns that must be left after a mistake of the clumsy expert


def good_replies(session: Tau2Session) -> Iterator[Reply]:
    solo = session.talk is None
    if not solo:
        yield [], ASK
    confirmed = solo
    for at, (gold, writes) in enumerate(session.reference.steps):
        if not writes and not _new(session, gold):
            continue
        yield from _prepared(session, [(gold, writes)])
        if writes and not confirmed:
            changes = [step for step in session.reference.steps[at:] if step[1]]
            yield from _prepared(session, changes)
            yield [], _confirm([each for each, _ in changes])
            confirmed = True
        yield [gold.call], ""
    if solo:
        yield [ENDING], ""
    else:
        yield [], closing(session)


def closing(session: Tau2Session) -> str:
    moved = any(call.name == TRANSFER for call in session.made)
    untold = missing(session.reference.problem.said, session.said)
    return " ".join([HOLD if moved else CLOSE, *([f"To sum up: {'; '.join(untold)}."] if untold else [])])


def clumsy_replies(session: Tau2Session, rng: random.Random, mistakes: Mistakes) -> Iterator[Reply]:
    """Yields the replies of :func:`good_replies`, with occasional harmless mistakes before a tool call."""
    planned = 2 * len(session.reference.steps)  # twice, because a look-up may precede each call
    # these tools do not include ``done``, because ending the episode would not be harmless
    tools = toolbox(session.reference.problem.domain).tools
    for calls, text in good_replies(session):
        if calls and calls[0] != ENDING and session.horizon - session.turns - planned > _ROOM:
            last = session.made[-1] if session.made else None
            made = mistaken_call(session.world, tools, calls[0], last, rng, mistakes.drawn(rng.random()))
            if made is not None:
                yield [made], ""
        yield calls, text


def _new(session: Tau2Session, gold: Gold) -> bool:
    """Whether the expert has to make a call that changes nothing: its answer is new, or it is required, or a transfer."""
    required = session.reference.problem.required and not any(gold.matches(call) for call in session.made)
    return required or gold.call.name == TRANSFER or not seen(session, session.world.fork().call(gold.call))


def _prepared(session: Tau2Session, steps: Sequence[tuple[Gold, bool]]) -> Iterator[Reply]:
    for gold, writes in steps:
        while call := expert_lookup(session, gold.call, writes):
            yield [call], ""


def _confirm(changes: Sequence[Gold]) -> str:
    lines = [
        f"- {gold.call.name.replace('_', ' ')}: "
        + ", ".join(f"{name} {_plain(value)}" for name, value in gold.call.arguments.items())
        for gold in changes
    ]
    return "This is what I will do:\n" + "\n".join(lines) + "\nDo you confirm (yes or no)?"


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


Due = list[tuple[Gold, bool]]
"""One pair for each listed call that still has to be made: the call, and whether it changes the state."""


def still_due(session: Tau2Session) -> Iterator[Due]:
    """Yields the listed calls that are still due, without those that were made and reads whose answers were seen. If
    they do not pass the checks, the agent may have replaced one, so one more is left out. Yields nothing if none
    passes.
    """
    due = list(session.reference.steps)
    for call in session.made:
        less = _without(due, call)
        due = due if less is None else less
    due = [(gold, writes) for gold, writes in due if writes or not _answered(session, gold)]
    shorter = (due[:i] + due[i + 1 :] for i in range(len(due)))
    choices = (rest for rest in (due, *shorter) if _leads(session, session.world, session.made, rest))
    yield from islice(choices, 1)


def _answered(session: Tau2Session, gold: Gold) -> bool:
    if session.reference.problem.required or gold.call.name == TRANSFER:
        return False
    return seen(session, session.world.fork().call(gold.call))


def _leads(session: Tau2Session, world: DomainDatabases, made: Sequence[ToolCall], due: Due) -> bool:
    return session.reference.leads(world, made, [gold for gold, _ in due])


def _accepts_calls(session: Tau2Session, calls: Sequence[ToolCall], due: Due) -> bool:
    tools, world, rest = session.reference.problem.tools, session.world.fork(), due
    agreed = session.talk is None or session.talk.agreed or not session.user.scripted
    # whether the agent makes the changes in the benchmark's order; if so, the remaining calls pass the checks
    in_order = True
    for place, call in enumerate(calls):
        if misfits(call, tools):
            return False
        left = _without(rest, call)
        before, untouched = world.state(), world.fork()
        answer = world.call(call)
        changed = world.state() != before
        if changed and not agreed:
            return False
        if left is not None:
            first = next((gold for gold, writes in rest if writes), None)
            in_order &= (first is not None and _same(first, call)) or not (changed or _changes(rest, call))
        elif changed:
            made = [*session.made, *calls[: place + 1]]
            left = _stands_for_one(session, world, untouched, made, rest)
            if left is None:
                return False
        else:
            if not call.name.startswith(READS) or answer.startswith(FAILED):
                return False
            if not _tells(session, untouched, call, answer, rest):
                return False
            left = [(gold, writes) for gold, writes in rest if writes or untouched.fork().call(gold.call) != answer]
        if call.name == TRANSFER and left:
            return False
        rest = left
    return in_order or _leads(session, world, [*session.made, *calls], rest)


def _stands_for_one(
    session: Tau2Session, world: DomainDatabases, untouched: DomainDatabases, made: Sequence[ToolCall], due: Due
) -> Due | None:
    """Returns ``due`` without the call that the agent's latest, which changed ``untouched`` to ``world``, replaces;
    None if it replaces none.
    """
    for i, (_, writes) in enumerate(due):
        rest = due[:i] + due[i + 1 :]
        if writes and _leads(session, world, made, rest) and not _leads(session, untouched, made, rest):
            return rest
    return None


def _without(due: Due, call: ToolCall) -> Due | None:
    place = next((i for i, (gold, _) in enumerate(due) if _same(gold, call)), None)
    return None if place is None else due[:place] + due[place + 1 :]


def _changes(due: Due, call: ToolCall) -> bool:
    return next(writes for gold, writes in due if _same(gold, call))


def _same(gold: Gold, call: ToolCall) -> bool:
    """All arguments must be equal, unless the benchmark names those to compare or ``call`` is a transfer to a human."""
    if gold.compared is not None or call.name == TRANSFER:
        return gold.matches(call)
    return call.name == gold.call.name and same_value(dict(call.arguments), dict(gold.call.arguments))


def _tells(session: Tau2Session, world: DomainDatabases, call: ToolCall, answer: str, due: Due) -> bool:
    """Whether a read's answer is new and useful: it is the answer of a due read, or has an identifier that a due call
    needs or a state that it changes. ``world`` is the state before the read.
    """
    if seen(session, answer):
        return False
    if any(value in answer for value in unknown(session, [gold.call for gold, _ in due])):
        return True
    for gold, writes in due:
        after = world.fork()
        observation = after.call(gold.call)
        if (after.call(call) != answer) if writes else (observation == answer):
            return True
    return False


def _accepts_message(session: Tau2Session, text: str, expert: str, due: Due) -> bool:
    reference, talk = session.reference, session.talk
    if talk is None:
        return False
    texts = (*session.said, text)
    if not reference.fault(session.world, session.made, texts):
        return True
    before, after = missing(reference.problem.said, session.said), missing(reference.problem.said, texts)
    if len(after) < len(before) and all(writes for _, writes in due):
        return True
    if not session.user.scripted:
        return read_calls(expert, session.form, reference.problem.tools) == ()
    if not asks(text):
        return False
    answer = session.user.reply(talk, text, transferred=False, satisfied=False)
    if answer.told != talk.told:
        return True
    changes = [gold.call for gold, writes in due if writes]
    if talk.agreed or not answer.agreed or unknown(session, changes):
        return False
    return any(value in text for call in changes for value in identifiers(call.arguments))


NAME = "tau2"


class Tau2Env(ScriptedEnv[Tau2Session]):
    """The base set of tau2-bench, with tools and databases of inspect-evals (conf/env/tau2.yaml)."""

    name = NAME
    mistakes: Mistakes

    def __init__(
        self,
        domains: Annotated[Sequence[Domain], Len(1)] = DOMAINS,
        free: bool = False,
        horizon: PositiveInt = 60,
        format: Format = "hermes",  # noqa: A002 - the configuration uses this name
        rules: bool = True,
        user: Literal["scripted", "endpoint"] = "scripted",
        patience: PositiveInt = 3,
        endpoint: EndpointUser | None = None,
        mistakes: Mistakes | None = None,
        kept: PositiveInt = 256,
    ) -> None:
        if user == "endpoint" and endpoint is None:
            raise ValueError("user: endpoint needs a model, but env.endpoint is null; set it, or set env.user=scripted")
        if mistakes is not None and mistakes.early:
            raise ValueError(
                "mistakes.early: must be 0, because tau2's expert does not make this mistake: an early goodbye ends "
                "the conversation"
            )
        root()  # raises an error with the install command if the package is missing, before the package is used
        self.domains, self.free, self.rules = tuple(dict.fromkeys(domains)), free, rules
        self.horizon, self.format = horizon, format
        self.user: User = endpoint if user == "endpoint" and endpoint is not None else ScriptedUser(patience)
        self.waits = not self.user.scripted  # replies to the user then wait for a model
        self.mistakes = mistakes or Mistakes()
        self._references = LastTasks(_reference, kept)

    @property
    def left_out(self) -> Mapping[str, tuple[str, ...]]:
        """Domain -> the tasks that count as solved if the agent does nothing."""
        return {domain: () if self.free else FREE[domain] for domain in self.domains}

    def draw(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """``train`` is the shipped split; the shipped test split belongs alternately to ``seen`` and ``unseen``."""
        names = [(domain, name) for domain in self.domains for name in self._names(domain, split)]
        chosen = first_tasks(names, count, f"split {split} of tau2 ({', '.join(self.domains)})", f"{seed}/{NAME}")
        return [
            Task(NAME, f"{domain}/{name}", split, {"domain": domain, "task": name}, domain) for domain, name in chosen
        ]

    def _names(self, domain: str, split: str) -> list[str]:
        shipped = splits(domain)["train" if split == "train" else "test"]
        names = [name for name in shipped if name not in self.left_out[domain]]
        return names if split == "train" else names[split == "unseen" :: 2]

    def begin(self, task: Task) -> Tau2Session:
        reference = self._references(task)
        talk = None if reference.problem.solo else self.user.begin(reference.problem.scenario)
        return Tau2Session(task, reference, self.user, talk, self.format, self.horizon, self.rules)

    def play(self, session: Tau2Session, quality: Quality, seed: int) -> Trajectory:
        rng = random.Random(f"{seed}/{session.task.id}")
        replies = good_replies(session) if quality == "good" else clumsy_replies(session, rng, self.mistakes)
        return played_trajectory(session, replies, self.format, quality, seed)

    def accepts(self, session: Tau2Session, action: str, expert: str) -> bool:
        if session.done:
            return False
        try:
            reply = session.read(action)
        except ToolCallError:
            return False
        if session.due is None:
            session.due = tuple(still_due(session))
        if not session.due:
            return False
        due = session.due[0]
        if not reply.calls:
            return _accepts_message(session, reply.content, expert, due)
        if session.talk is None and reply.calls[0].name == "done":
            return not session.reference.fault(session.world, session.made, ())
        return _accepts_calls(session, reply.calls, due)


def _reference(task: Task) -> Tau2Reference:
    return Tau2Reference.of(problem_of(str(task.data.get("domain")), str(task.data.get("task"))))
