"""Trains the shipped base policies."""
