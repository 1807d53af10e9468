"""Runs code that a model wrote in a sandbox, never directly on the host."""
