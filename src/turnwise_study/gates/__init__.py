"""Evaluates gates, which stop groups of rollouts early, on recorded rollouts that were sampled without a gate."""
