"""Seeds by name: a rollout's randomness is a function of what it is, not of when or beside whom it runs."""

from __future__ import annotations

from hashlib import blake2b


def seed_of(*parts: object) -> int:
    """A 64-bit seed from the names of a thing, e.g. (run seed, iteration, state id, branch, turn)."""
    return int.from_bytes(blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest(), "little")
