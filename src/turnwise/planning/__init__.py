"""Estimates what a run needs before it is started: memory, tokens, FLOPs, GPU-hours, and what is missing."""
