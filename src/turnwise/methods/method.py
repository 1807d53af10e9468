"""A method as an object of a notebook (``tw.PivotRL(k=8)``): its fields are the symbols of its paper.

Each field is the value of a key of ``conf/``; ``conf/method/NAME.yaml`` composes the parts, and has the last word about
what a method is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self


def key(name: str, default: Any) -> Any:
    """A field of a method, which sets the key ``name`` of the configuration. ``default`` only repeats what conf/ says."""
    return field(default=default, metadata={"key": name})


@dataclass(frozen=True, slots=True)
class Method:
    name: ClassVar[str]
    _given: frozenset[str] = field(init=False, repr=False, compare=False)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        made = object.__new__(cls)
        names = [each.name for each in fields(cls) if each.init]
        object.__setattr__(made, "_given", frozenset((*names[: len(args)], *kwargs)))
        return made

    @property
    def overrides(self) -> list[str]:
        """The method as words of the command line. Only fields that were given to the constructor are words; the others
        are left to the configuration, where an environment, a policy or a scale may set them.
        """
        values = {f.metadata["key"]: getattr(self, f.name) for f in fields(self) if f.name in self._given}
        return [
            f"method={self.name}",
            *(f"{path}={'null' if value is None else value}" for path, value in values.items()),
        ]
