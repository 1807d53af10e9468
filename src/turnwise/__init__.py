"""Turn-level reinforcement learning for language-model agents, built on one idea: everything is a rollout tree."""

__version__ = "0.1.0"
