"""Defines the error of vLLM servers that ends a run."""

from __future__ import annotations

from turnwise.errors import InputError


class ServerError(InputError):
    """Raised when a server does not meet the run's needs and another attempt would not help."""
