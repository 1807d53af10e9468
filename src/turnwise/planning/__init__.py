"""What a run will take, before it is started: memory, tokens, FLOPs, GPU-hours, and what is missing."""
