"""Runs model-written code in a sandbox, never directly on the host."""
