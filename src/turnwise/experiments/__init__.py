"""A table or figure of a paper as a file of ``conf/sweep/``: its rows, the names of their runs, and what the paper claims."""
