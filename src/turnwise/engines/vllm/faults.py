"""Defines the errors of vLLM servers: one that ends a run, and one that sends a request to another server."""

from __future__ import annotations

from turnwise.errors import InputError


class ServerError(InputError):
    """Raised when a server does not meet the run's needs and another attempt would not help."""


class AwayError(Exception):
    """Raised if a server has not answered for so long that the other servers get its requests."""
