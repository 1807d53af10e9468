"""Pivot rows of NeMo Gym: one place to act a line, in the terms of the Responses API. ``rules`` is their contract, ``read`` and
``write`` convert them from and to chat messages."""
