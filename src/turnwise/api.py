"""The functions of a notebook: a policy, an environment, rollouts, credit, a loss, and whole runs.

    import turnwise as tw

    policy, env = tw.load_policy("tiny"), tw.make_env("household")
    trees = tw.play(policy, env, tw.states(policy, env, 4), group_size=16)
    credits = [tw.credit.group(tree, tw.rewards(tree)) for tree in trees]
    update = tw.pack(trees, credits)
    loss = tw.loss.clipped(policy.logprobs(update), update, ratio="action")
    run = tw.train(tw.PivotRL(k=8), policy, env, iterations=12, out="outputs/first")
    run.show()

A policy, an environment and a method keep the words of the command line that name them (``policy=tiny``,
``env=household``, ``method=pivotrl``), so :func:`train` is ``train.py`` with these words. Any other setting is such a
word too: ``tw.train(method, policy, env, "update.learning_rate=1e-3", iterations=4)``. The functions need ``conf/`` of
the repository.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from turnwise.config.check import check_config
from turnwise.config.overrides import composed
from turnwise.config.schema import build
from turnwise.console import Terminal
from turnwise.env import Environment, check_ready
from turnwise.errors import InputError
from turnwise.methods.allocate import Allocator, Uniform
from turnwise.methods.gate import Gate, Never
from turnwise.methods.method import Method
from turnwise.methods.pivotrl import Functional
from turnwise.methods.reward import Outcome, Reward, rewards_of
from turnwise.models.logprobs import score
from turnwise.rollouts.pack import Update
from turnwise.runs.figures import run_figures
from turnwise.runs.json_lines import checked_lines
from turnwise.runs.page import print_summary
from turnwise.runs.read_run import read_run
from turnwise.runs.result_file import Result, read_result
from turnwise.runs.run_folder import claim
from turnwise.training import loop
from turnwise.training.build_run import BasePolicy, Parts, Settings, base_policy, build_parts, build_player
from turnwise.training.candidates import read_candidates
from turnwise.training.progress import Phases
from turnwise.types import Rewards, RolloutTree, State

CONF = Path(__file__).resolve().parents[2] / "conf"


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy with its adapter. ``words`` name it on the command line; ``base`` has ``model`` (PyTorch), ``tokenizer``
    and ``chat``, which turns messages into tokens and back.
    """

    words: tuple[str, ...]
    base: BasePolicy

    def logprobs(self, update: Update, temperature: float = 1.0) -> list[Tensor]:
        """Returns for each micro-batch of the update the log-probs (K,) of its items, with their gradient.

        Args:
            temperature: the temperature at which the rollouts were sampled.
        """
        device = next(self.base.model.parameters()).device
        return [score(self.base.model, each.to(device), temperature)[0][each.items.unique_K] for each in update.batches]


@dataclass(frozen=True, slots=True)
class World:
    """An environment. ``words`` name it on the command line."""

    words: tuple[str, ...]
    env: Environment


def load_policy(name: str = "tiny", *settings: str) -> Policy:
    """Loads a policy by an option of ``policy=``, a folder, or a Hugging Face id.

    Args:
        settings: words of the command line, such as ``policy.lora.r=32``.
    """
    loop.quiet()
    option = (CONF / "policy" / f"{name}.yaml").exists()
    words = (f"policy={name}" if option else f"policy.model={name}", *settings)
    return Policy(words, base_policy(Settings.of(_config(words))))


def make_env(name: str = "household", *settings: str) -> World:
    """Builds an environment by an option of ``env=``; ``settings`` are words such as ``env.level=full``."""
    if not isinstance(name, str):
        raise InputError(
            f"make_env: needs a name, got {name!r:.80}; docs/extending.md shows how one of your own gets one"
        )
    words = (f"env={name}", *settings)
    env = build(_config(words), "env")
    check_ready(env)
    return World(words, env)


def states(policy: Policy, world: World, count: int, of: Literal["tasks", "expert"] = "tasks") -> Sequence[State]:
    words = (
        ("states=task_starts", f"states.count={count}")
        if of == "tasks"
        else ("states=expert_turns", "reward=functional")
    )
    settings, parts, _ = _parts(policy, world, *words, f"data.trajectories={count}")
    phases = Phases(Terminal(stderr=True, quiet=True))
    return read_candidates(settings, parts, policy.base.chat, phases).fitting(settings, parts, phases)


def play(
    policy: Policy,
    world: World,
    states: Sequence[State],
    *settings: str,
    group_size: int = 8,
    turns: int | None = None,
    temperature: float = 1.0,
    allocator: Allocator | None = None,
    gate: Gate | None = None,
    seed: int = 0,
) -> list[RolloutTree]:
    """Samples rollouts and returns a tree for each state.

    Args:
        settings: words of the command line, such as ``rollout.sampling.max_tokens=64``.
        group_size: number of rollouts at each state, unless an ``allocator`` decides.
        turns: number of turns of a rollout. None: to the end of the episode. 1: the verifier judges each action, which
            the environment does not execute (PivotRL's local rollouts).
        gate: stops groups early. None: no group.
        seed: names the draws. The same call with the same seed samples the same rollouts.
    """
    for word in settings:
        if (name := word.replace("=", ".").partition(".")[0]) in ("allocator", "gate"):
            raise InputError(f"{word}: play gets the {name} as an argument, {name}=..., not as a word")
    words = [f"rollout.sampling.temperature={temperature}", f"rollout.turns={'null' if turns is None else turns}"]
    prepared, parts, cfg = _parts(policy, world, *words, *settings)
    player = build_player(cfg, prepared, parts, policy.base, lambda line: None)
    try:
        player.engine.load_weights(policy.base.model, 0)
        return player.play(states, allocator or Uniform(group_size), gate or Never(), seed)
    finally:
        player.engine.shutdown()


def rewards(tree: RolloutTree, reward: Reward | None = None) -> Rewards:
    """Returns the rewards of a tree's leaves: by ``reward``, or else the verdict on single actions (``play`` with
    ``turns=1``), or whether the episode was won.
    """
    judged = any("functional" in turn.info for turn in tree.turns)
    return rewards_of(reward or (Functional() if judged else Outcome()), tree)


@dataclass(frozen=True)
class Run:
    """A finished run, by its folder (docs/metrics.md describes the files)."""

    folder: Path

    @property
    def result(self) -> Result:
        return read_result(self.folder)

    @property
    def success(self) -> dict[str, Any]:
        """Held-out success in percent: ``base``, ``after``, ``delta``, its interval ``delta_ci95``, and ``tasks``."""
        return self.result.in_domain.model_dump(include={"base", "after", "delta", "delta_ci95", "tasks"})

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl, such as ``{"iteration": 3, "phase": "train", "train/reward_mean": 0.4, ...}``."""
        return [row for _, row in checked_lines(self.folder / "metrics.jsonl")]

    @property
    def trees(self) -> list[dict[str, Any]]:
        """The recorded rollouts, one tree an entry."""
        return [row for _, row in checked_lines(self.folder / "rollouts" / "train.jsonl")]

    def show(self) -> None:
        """Displays what the run reached and its curves; outside of a notebook, prints where its page is."""
        print_summary(self.result, self.folder / "report.html", Terminal())
        try:
            from IPython import get_ipython  # only a notebook has it
            from IPython.display import display
        except ImportError:
            return
        if get_ipython() is not None:
            display(*run_figures(read_run(self.folder)))


def train(
    method: Method,
    policy: Policy,
    world: World,
    *settings: str,
    iterations: int | None = None,
    out: str | Path,
    **parts: Any,
) -> Run:
    """Trains the policy and evaluates it before and after, as ``train.py`` does. ``policy`` itself stays as it is: the
    trained weights lie in the folder ``out``. A run that was interrupted is resumed by the same call, and of a finished
    run the results are returned.

    Args:
        settings: words of the command line, which win over the method, the policy and the environment.
        parts: parts of your own by the name of their group, such as ``advantage=MyRule(gamma=0.9)``: instances of
            dataclasses. Their class and their fields become the configuration's.

    Raises:
        InputError: the configuration cannot be used, or ``out`` has another run.
    """
    many = [] if iterations is None else [f"iterations={iterations}"]
    cfg = _config((*method.overrides, *policy.words, *world.words, *many, f"paths.out={Path(out)}", *settings))
    for group, part in parts.items():
        if group not in cfg or not (CONF / group).is_dir():
            groups = ", ".join(sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name in cfg))
            raise InputError(f"{group}=: there is no such part; the parts are {groups}")
        if isinstance(part, type) or not is_dataclass(part):
            hint = f"write {part.__name__}(...)" if isinstance(part, type) else "make its class a dataclass"
            raise InputError(f"{group}={part!r}: must be an instance of a dataclass; {hint}")
        named = {"_target_": f"{type(part).__module__}.{type(part).__qualname__}"}
        OmegaConf.update(
            cfg, group, named | {each.name: getattr(part, each.name) for each in fields(part)}, merge=False
        )
    check_config(cfg)
    with claim(cfg) as folder:
        if not folder.finished:
            loop.run(cfg)
    return Run(Path(cfg.paths.out))


def _config(words: Sequence[str]) -> DictConfig:
    if not CONF.is_dir():
        raise InputError(f"{CONF}: there is no such folder; install the repository in place (make setup)")
    return composed(words, CONF)


def _parts(policy: Policy, world: World, *words: str) -> tuple[Settings, Parts, DictConfig]:
    cfg = _config(("method=grpo", *policy.words, *world.words, *words))
    settings, parts, _ = build_parts(cfg, policy.base, world.env)
    return settings, parts, cfg
