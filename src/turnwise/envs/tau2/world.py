"""The databases of one episode of ``env=tau2``, which the benchmark's own tools read and change."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import copy_context
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from turnwise.data.tool_schema import check_call
from turnwise.envs.environment import EnvironmentFault
from turnwise.envs.tau2.package import DOMAINS, SOLO, of_package, opener, toolbox
from turnwise.envs.tau2.shared_table import Records, Table
from turnwise.types import ToolCall

if TYPE_CHECKING:
    from inspect_ai.util import Store

T = TypeVar("T")
FAILED = "Error: "
# tools with these prefixes change nothing
READS = ("calculate", "can_", "check_", "find_", "get_", "list_", "run_", "search_")
_SHOWN = 500  # maximum length of an error message in characters
_RANDOM_BILL = re.compile(r"B[0-9a-f]{8}")
# name under which inspect-ai's store holds the phone company's database
_BILLS = "TelecomAgentTools:TelecomAgentTools:db"


class World:
    """The current state of a domain's databases in one episode.

    Args:
        domain: one of ``DOMAINS``.
        store: the store of inspect-ai that holds the databases. The caller must not use the store afterwards.
    """

    __slots__ = ("domain", "store")

    def __init__(self, domain: str, store: Store) -> None:
        self.domain, self.store = domain, store

    @classmethod
    def fresh(cls, domain: str) -> World:
        """Returns the databases in their shipped state."""
        return cls(domain, pristine(domain)).fork()

    def fork(self) -> World:
        """Returns an independent copy of the databases. Records are copied only when they are next accessed by key."""
        from inspect_ai.util import Store

        return World(self.domain, Store(dict(self.store.items())))  # Store makes a deep copy of its argument

    def call(self, call: ToolCall) -> str:
        """Makes a tool call and returns the text of its answer. The error of a tool is an answer too.

        Raises:
            EnvironmentFault: the databases cannot be used.
        """
        box = toolbox(self.domain)
        if problems := check_call({"name": call.name, "arguments": call.arguments}, box.tools):
            return _error("; ".join(problems))
        from inspect_ai.model._call_tools import tool_params

        function, before = box.functions[call.name], self._bills()
        try:
            answer = self.within(lambda: _result(function(**tool_params(dict(call.arguments), function))))
        except EnvironmentFault:
            raise
        except OSError as error:
            raise EnvironmentFault(f"tau2 {self.domain}, {call.name}: {error}") from error
        except Exception as error:  # a tool may raise any exception, and the policy sees its text
            self.opened()  # raises an EnvironmentFault if the databases, and not the call, have failed
            return _error(str(error) or type(error).__name__)
        if self.domain in SOLO and not call.name.startswith(READS):
            self.opened()  # passes the company's changes on to the phone at once
            self._name_bills(before)
        return answer if isinstance(answer, str) else json.dumps(answer)

    def opened(self) -> Any:
        """Returns the benchmark's object that runs the domain's tools on these databases.

        If the domain has two databases (telecom), the benchmark first passes changes on between the two databases.

        Raises:
            EnvironmentFault: the databases cannot be used.
        """
        try:
            return self.within(opener(self.domain))
        except Exception as error:  # no action of the policy should cause this
            raise EnvironmentFault(f"tau2 {self.domain}: the databases cannot be used ({error})") from error

    def within(self, function: Callable[[], T]) -> T:
        """Calls ``function`` and returns its result. During the call, ``self.store`` is inspect-ai's current store."""
        from inspect_ai.util._store import init_subtask_store

        def run() -> T:
            init_subtask_store(self.store)
            return function()

        return copy_context().run(run)

    def state(self) -> Mapping[str, Any]:
        """Returns the content of the databases as comparable values. Of a shared table, only the changed records."""
        found: dict[str, Any] = {}
        for name, value in self.store.items():
            if not isinstance(value, BaseModel):
                continue
            fields = {field: getattr(value, field) for field in type(value).model_fields}
            tables = {field: table.changes() for field, table in fields.items() if isinstance(table, Records)}
            found[name] = tables or value.model_dump(mode="json", warnings=False)
        return found

    def same_state(self, other: World) -> bool:
        return self.state() == other.state()

    same_place = same_state  # there is no hidden state: equal states give equal answers from now on

    def table(self, name: str) -> Mapping[str, Any]:
        """Returns a table of the company's database, such as ``users``, for reading only."""
        tables = (getattr(value, name, None) for value in self.store.values() if isinstance(value, BaseModel))
        return next(table for table in tables if isinstance(table, Records)).look()

    def _bills(self) -> set[str]:
        return {bill.bill_id for bill in self.store.get(_BILLS).bills} if self.domain in SOLO else set()

    def _name_bills(self, before: set[str]) -> None:
        """Replaces the random id of each bill that a call has created by an id that is equal in every replay."""
        database = self.store.get(_BILLS)
        for bill in database.bills:
            if bill.bill_id not in before and _RANDOM_BILL.fullmatch(bill.bill_id):
                name = f"B{hashlib.sha256(f'{bill.customer_id}/{len(before)}'.encode()).hexdigest()[:8]}"
                for customer in database.customers:
                    customer.bill_ids = [name if known == bill.bill_id else known for known in customer.bill_ids]
                bill.bill_id = name


@lru_cache(maxsize=len(DOMAINS))
def pristine(domain: str) -> Store:
    """Returns the store with a domain's databases in the shipped state, whose large tables all episodes share.

    Raises:
        MissingTau2Error: the package cannot be used.
        EnvironmentFault: the package's databases cannot be used.
    """
    open_it = opener(domain)
    from inspect_ai.util import Store

    world = World(domain, Store())
    world.within(open_it)
    base = of_package("environment.db", "DB")
    for name, value in list(world.store.items()):
        fields = {field: getattr(value, field) for field in type(value).model_fields} if isinstance(value, base) else {}
        if fields and all(isinstance(rows, dict) for rows in fields.values()):
            shared = {field: Records(Table(rows)) for field, rows in fields.items()}
            world.store.set(name, type(value).model_construct(**shared))
    return world.store


def _result(work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of a coroutine that never waits, such as the benchmark's tools."""
    try:
        work.send(None)
    except StopIteration as stop:
        found: T = stop.value
        return found
    work.close()
    raise EnvironmentFault(
        "tau2: a tool waits for something, so the installed version of inspect-evals is not supported; install the "
        "required version with `make tau2`"
    )


def _error(message: str) -> str:
    return FAILED + (message if len(message) <= _SHOWN else message[:_SHOWN] + " ...")


def prepare(world: World, actions: Sequence[Mapping[str, Any]]) -> None:
    """Applies the actions that create a task's start state, for example a wrong setting or an unpaid bill.

    Raises:
        EnvironmentFault: an action fails.
    """
    if not actions:
        return
    perform, call = of_package("telecom.solver", "perform_action"), of_package("data_model.tasks", "EnvFunctionCall")
    tools = world.opened()
    try:
        for action in actions:
            world.within(partial(perform, tools, call.model_validate(action)))
    except Exception as error:
        raise EnvironmentFault(f"tau2 {world.domain}: the task's start state cannot be created ({error})") from error
