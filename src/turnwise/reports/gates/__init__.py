"""What saved rollouts say about a rule that was not in force: pure functions from groups to tables."""
