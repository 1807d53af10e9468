"""The terminal environment: generated tasks in a folder, with real bash in the sandbox."""

from turnwise.envs.terminal.environment import TerminalEnv
from turnwise.envs.terminal.experts import Slips
from turnwise.envs.terminal.session import TerminalSession

__all__ = ["Slips", "TerminalEnv", "TerminalSession"]
