"""Refuses operations of chat templates on too large values. Templates are untrusted programs in Jinja's sandbox.

A single operation could take too much time or memory before the thread of ``data.render_watch`` notices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sized
from functools import wraps
from typing import Any, ClassVar

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils import chat_template_utils

from turnwise.data.render_watch import TemplateLimitError

LONGEST = 2**23  # largest length of a text in characters; a tokenizer takes about 2 s and 500 MB for it
_LONG = 2**20  # largest length in characters of a text that a template may pass to a function
_NUMBER = 10**6  # largest number that a template may pass to a function
_DATE = 200  # largest length of a date format in characters
_BITS = 4096  # largest number of bits of an integer
_GONE = {"urlize", "wordwrap", "pprint", "xmlattr", "random"}  # removed filters: slow on long texts, or random
_REFUSED = {"translate", "maketrans"}  # removed methods: they may replace each character by a text of any length
_QUICK = {  # names of functions that only copy a text, so they may get long texts; "" stands for macros
    *("", "count", "d", "default", "e", "endswith", "escape", "first", "format", "join", "last", "length", "lower"),
    *("lstrip", "raise_exception", "replace", "rstrip", "safe", "startswith", "string", "strip"),
    *("tojson", "trim", "upper"),
}
_AT_ONCE = {"count", "d", "default", "first", "last", "length"}  # filters that do not read the items of a list


def checked_text(text: str) -> str:
    """Returns ``text`` unchanged.

    Raises:
        TemplateLimitError: the text has more than ``LONGEST`` characters.
    """
    if len(text) > LONGEST:
        raise TemplateLimitError(f"the template writes {len(text)} characters, more than {LONGEST}")
    return text


class _Generator(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - Jinja finds it by this name
        """Compiles ``a ~ b`` to a call of ``joined``, which checks the result's size. Jinja has no hook for ``~``."""
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._held(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._held(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "load":
            self._held(super().visit_Tuple, node, frame)
        else:  # assignments to names
            super().visit_Tuple(node, frame)

    def _held(self, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame) -> None:
        self.write("environment.held(")
        visit(node, frame)
        self.write(")")


class _Filters(dict[str, Callable[..., Any]]):
    """A dictionary of Jinja's filters, each of which checks the size of its arguments before it runs."""

    def __setitem__(self, name: str, known: Callable[..., Any]) -> None:
        super().__setitem__(name, _bounded_filter(name, known))


class _Bounded(ImmutableSandboxedEnvironment):
    intercepted_binops: ClassVar[frozenset[str]] = frozenset({"+", "*", "**", "%"})  # type: ignore[misc]
    code_generator_class = _Generator

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        known, self.filters = self.filters, _Filters()
        for name in known.keys() - _GONE:
            self.filters[name] = known[name]

    def held(self, value: Any) -> Any:
        """Returns ``value``, a list or mapping that the template created, after checking its size."""
        _unfolded(value, {})
        return value

    def joined(self, parts: tuple[Any, ...]) -> str:
        return checked_text("".join(map(str, parts)))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sizes = [_size(left), _size(right)]
        if operator == "+" and isinstance(left, Sized) and sum(sizes) > LONGEST:
            raise TemplateLimitError("the result of its + operator is too long")
        if operator == "*" and sizes[0] * sizes[1] > LONGEST:
            raise TemplateLimitError("the result of its * operator is too large")
        if operator == "**" and (abs(right) > 64 or sizes[0] > _NUMBER):
            raise TemplateLimitError("the result of its ** operator is too large")
        if operator == "%" and isinstance(left, str):
            _check_format(left, (right,))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        owner, name = getattr(getattr(obj, "__wrapped__", obj), "__self__", None), getattr(obj, "__name__", "")
        _check(name, *([owner] if isinstance(owner, str) else []), *args, *options.values())
        return super().call(context, obj, *args, **options)


def _bounded_filter(name: str, known: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(known)  # also copies the attributes by which Jinja knows which arguments the filter receives
    def bounded(*args: Any, **options: Any) -> Any:
        _check(name, *args, *options.values())
        return known(*args, **options)

    return bounded


def _check(name: str, *values: Any) -> None:
    """Checks the arguments ``values`` of the function or filter ``name`` that a template calls.

    Raises:
        TemplateLimitError: the result could be too large, or the call too slow.
    """
    if name in _REFUSED:
        raise TemplateLimitError(f"the template calls {name}, whose result may be of any length")
    if any(isinstance(value, int | float) and abs(value) > _NUMBER for value in values):
        raise TemplateLimitError(f"the template calls {name} with a number above {_NUMBER}")
    texts = [value for value in values if isinstance(value, str)]
    if name not in _QUICK and any(len(text) > _LONG for text in texts):
        raise TemplateLimitError(f"the template calls {name} with a text of more than {_LONG} characters")
    if name not in _AT_ONCE:
        for value in values:
            _unfolded(value, {})
    if name == "sum" and any(isinstance(value, list | tuple) for value in values[1:]):
        raise TemplateLimitError("the template calls sum on lists, which takes time quadratic in their number")
    if name == "strftime_now" and any(len(text) > _DATE for text in texts):
        raise TemplateLimitError(f"the template writes a date in more than {_DATE} characters")
    if name in ("format", "format_map"):
        for text in texts:
            _check_format(text, values)
    if name == "replace" and len(texts) == 3:  # the text, the replaced part, and the replacement
        text, old, new = texts
        if len(new) > len(old) and (text.count(old) if old else len(text) + 1) * len(new) > LONGEST:
            raise TemplateLimitError("the template calls replace, whose result would be too long")
    if name == "join" and texts:
        count = max((len(value) for value in values if isinstance(value, list | tuple | str)), default=0)
        longest = max(len(text) for text in texts)
        if count * longest > LONGEST:
            raise TemplateLimitError("the template calls join, whose result would be too long")


def _unfolded(value: Any, known: dict[int, int]) -> int:
    """Returns the number of elements of a value, including those of nested lists and dictionaries.

    A list that occurs several times counts each time. ``known`` is a cache: the ``id`` of a list -> its number of
    elements.

    Raises:
        TemplateLimitError: the number is above ``LONGEST``.
    """
    if not isinstance(value, list | tuple | dict):
        return 1
    if id(value) not in known:
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_unfolded(part, known) for part in parts)
    if known[id(value)] > LONGEST:
        raise TemplateLimitError("the template nests lists with too many elements in total")
    return known[id(value)]


def _check_format(text: str, values: tuple[Any, ...]) -> None:
    if re.search(r"\d{6,}", text) or ("*" in text and any(_large(value) for value in values)):
        raise TemplateLimitError("the template formats a text to a width that is too large")


def _large(value: Any) -> bool:
    parts = value if isinstance(value, list | tuple) else [value]
    return any(isinstance(part, int) and abs(part) > _NUMBER for part in parts)


def _size(value: Any) -> int:
    if isinstance(value, Sized):
        return len(value)
    if isinstance(value, int):
        return abs(value) if value.bit_length() < _BITS else LONGEST + 1
    return 1


chat_template_utils.ImmutableSandboxedEnvironment = _Bounded
