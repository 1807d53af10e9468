"""Reads and writes pivot rows of NeMo Gym. A row describes one turn at which a policy acts: the conversation before it,
in the format of the Responses API, and the expected action.
"""
