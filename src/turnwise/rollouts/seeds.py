"""Derives seeds from names, so that the random draws of a rollout depend neither on time nor on its batch."""

from __future__ import annotations

from hashlib import blake2b


def seed_of(*parts: object) -> int:
    """Returns a 64-bit seed from the parts of a name, e.g. (run seed, iteration, state id, branch, turn)."""
    return int.from_bytes(blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest(), "little")
