"""Evaluates gates on recorded rollouts that were sampled without a gate. A gate stops a group of rollouts during
sampling if it expects the group to end with equal rewards, which give no advantage.
"""
