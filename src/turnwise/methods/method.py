"""A method as an object of a notebook. Its fields are the symbols of its paper, each one the value of a key of
``conf/``; ``conf/method/NAME.yaml`` composes the parts, and has the last word about what a method is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar


def key(name: str, default: Any) -> Any:
    """A field of a method, which sets the key ``name`` of the configuration."""
    return field(default=default, metadata={"key": name})


@dataclass(frozen=True, slots=True)
class Method:
    name: ClassVar[str]

    @property
    def overrides(self) -> list[str]:
        """The method as words of the command line. Fields that have their default are left to the configuration, so
        that another environment, policy or scale may set them.
        """
        given = {f.metadata["key"]: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return [
            f"method={self.name}",
            *(f"{path}={'null' if value is None else value}" for path, value in given.items()),
        ]
