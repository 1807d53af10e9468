"""Turnwise trains language-model agents with reinforcement learning at the level of turns. It stores all rollouts that
start in the same state as one tree, whose nodes are turns.
"""

__version__ = "0.1.0"
