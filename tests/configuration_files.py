"""The contents of the files in ``conf/``, which every test process reads once: composing then takes half the time."""

READ: dict[str, bytes] = {}
