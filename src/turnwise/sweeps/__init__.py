"""The rows of a sweep file, run: what is done already, what is missing, what failed."""
