"""Reads and writes pivot rows of NeMo Gym. Each row describes one place where a policy acts, in the format of the
Responses API. ``rules`` holds the rules for such rows; ``read`` and ``write`` convert them from and to chat messages.
"""
