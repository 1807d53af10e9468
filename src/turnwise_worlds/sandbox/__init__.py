"""Runs model-written code in a sandbox, and never directly on the host."""
