"""Reads and writes pivot rows of NeMo Gym. A row describes one turn at which a policy acts: the conversation before it,
in the format of the Responses API, and the expected action. The module ``rules`` holds the rules that rows must follow.
The modules ``read`` and ``write`` convert rows to chat messages and chat messages to rows.
"""
