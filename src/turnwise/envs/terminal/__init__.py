"""The environment ``env=terminal``: the policy works on files with real bash in the sandbox. A program generates the tasks."""

from turnwise.envs.terminal.environment import TerminalEnv
from turnwise.envs.terminal.experts import Slips
from turnwise.envs.terminal.session import TerminalSession

__all__ = ["Slips", "TerminalEnv", "TerminalSession"]
