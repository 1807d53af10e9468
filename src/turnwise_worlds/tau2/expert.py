"""The scripted experts of tau2: the good one looks up what it needs, asks for consent and makes the listed calls."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnwise.types import ToolCall
from turnwise_worlds.tau2.domains import FAILED, TRANSFER, Gold, by_phone, toolbox
from turnwise_worlds.tau2.session import ENDING, Tau2Session, identifiers, missing, seen, unknown
from turnwise_worlds.tool_dialogues import Mistakes, Reply, mistaken_call

_PHONE_CHECKS = (  # calls that check the customer's phone, the most informative calls first
    "check_network_status", "check_sim_status", "check_network_mode_preference", "check_data_restriction_status",
    "check_apn_settings", "check_wifi_calling_status", "check_vpn_status", "check_payment_request", "check_status_bar",
    "can_send_mms", "run_speed_test",
)  # fmt: skip


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
