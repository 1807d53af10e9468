"""A table or figure of a paper as a file: its rows, their runs, what is done already, and what the paper says of them."""
