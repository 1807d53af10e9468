"""The environment ``env=terminal``: the policy does small file tasks with real bash in the sandbox."""

from turnwise.envs.terminal.environment import TerminalEnv
from turnwise.envs.terminal.experts import Slips
from turnwise.envs.terminal.session import TerminalSession

__all__ = ["Slips", "TerminalEnv", "TerminalSession"]
