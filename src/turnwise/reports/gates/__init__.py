"""Evaluates gates on saved rollouts that were sampled without them: pure functions from groups to tables."""
