"""Sweeps: a table or figure of a paper as a file of ``conf/sweep/``, with its rows, their runs and the paper's claims."""
