"""Pivot rows of NeMo Gym: each line is one place to act, in the terms of the Responses API. ``rules`` holds the rules
for such rows, ``read`` and ``write`` convert them from and to chat messages.
"""
