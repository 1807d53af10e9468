"""Runs sweeps. A sweep is a file of ``conf/sweep/`` that describes a table or figure of a paper."""
