"""Turn-level reinforcement learning for language-model agents. All rollouts from one state are kept as one tree of
turns.
"""

__version__ = "0.1.0"
