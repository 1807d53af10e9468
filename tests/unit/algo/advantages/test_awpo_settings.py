"""Settings of AWPO's advantage that are refused."""

from __future__ import annotations
