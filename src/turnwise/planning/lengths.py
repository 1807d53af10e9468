"""Estimates the lengths of a run's histories and replies in tokens, from demonstrations, from values of the user, or
from limits in the configuration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from omegaconf import DictConfig, OmegaConf
from transformers import AutoTokenizer

from turnwise.config.schema import build_node
from turnwise.data.chat_tokens import ChatTokens
from turnwise.data.dialect import dialect_of
from turnwise.data.trajectories import read_trajectories
from turnwise.envs.expert_files import expert_file
from turnwise.errors import InputError
from turnwise.models.shipped import WORLDS, tiny_path
from turnwise.planning.architectures import Architecture
from turnwise.runs.config_hash import flat
from turnwise.types import Trajectory

SAMPLE = 16  # number of demonstrations whose lengths are averaged
AT_MOST = "at most"  # if a text in ``Lengths.source`` starts with these words, the length is only an upper bound


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean lengths of histories, replies and episodes.

    Attributes:
        opening: tokens of the history before the first turn.
        reply: tokens of one reply of the policy.
        observation: tokens of one answer of the environment, including tokens of the chat template.
        demonstrated: number of turns of a demonstration.
        spoken: tokens of a demonstrated action.
        episode: number of turns of an episode that the policy plays.
        source: name of a field -> a text that says where the length comes from.
    """

    opening: float
    reply: float
    observation: float
    demonstrated: float
    spoken: float
    episode: float
    source: Mapping[str, str] = field(default_factory=dict)


def lengths(cfg: DictConfig, policy: Architecture | None, given: Mapping[str, float | None]) -> tuple[Lengths, str]:
    """Returns the estimated lengths, and the reason why demonstrations could not be read (empty if they were read).

    Values of ``given`` replace the estimates. A reply of a shipped policy is assumed to be as long as a demonstrated
    action. A reply of any other model is assumed to have ``rollout.sampling.max_tokens`` tokens. An episode is assumed
    to last for all ``horizon`` turns of the environment, because a policy that fails plays until the horizon.
    ``rollout.max_length`` limits the number of turns of an episode.
    """
    limit, longest = int(cfg.rollout.sampling.max_tokens), int(cfg.rollout.max_length)
    folder = policy.folder if policy is not None else None
    own = folder is not None and (folder / "tokenizer_config.json").is_file()
    seen, why = _demonstrations(cfg, folder if folder is not None and own else tiny_path())
    counted = "demonstrations" if cfg.data.file else "demonstrations of the environment"
    # The shipped vocabulary has only a thousand entries. With a larger vocabulary, the same text has fewer tokens.
    source = dict.fromkeys(seen, counted if own else f"{AT_MOST}, from {counted} counted with the shipped tokenizer")
    shipped = policy is not None and policy.model in WORLDS
    found: dict[str, float] = dict(seen)
    found.setdefault("spoken", float(limit))
    if shipped and seen:
        found["reply"], source["reply"] = min(seen["spoken"], limit), source["spoken"]
    else:
        found["reply"], source["reply"] = float(limit), f"{AT_MOST} rollout.sampling.max_tokens"
    if limits := horizons(cfg):
        found["episode"], where = max(limits)
        source["episode"] = f"{AT_MOST} {where}"
    elif seen:
        found["episode"], source["episode"] = seen["demonstrated"], "as many turns as a demonstration"
    told = {key: value for key, value in given.items() if value is not None}
    found, source = found | told, source | dict.fromkeys(told, "given")
    if not seen:
        _bounded(found, source, longest)
    found.setdefault("episode", found["demonstrated"])
    turn = found["reply"] + found["observation"]
    fits = max(1.0, (longest - found["opening"]) / turn) if turn else 1.0
    if fits < found["episode"]:
        found["episode"], source["episode"] = fits, f"{AT_MOST} rollout.max_length"
    return Lengths(**found, source=source), why


def horizons(cfg: DictConfig) -> list[tuple[float, str]]:
    """Returns pairs (largest number of turns, configuration key) for the run's environment and those that it contains."""
    settings = flat(OmegaConf.to_container(cfg.env, resolve=True), "env")
    return [(float(value), key) for key, value in settings.items() if key.endswith(".horizon")]


def _bounded(found: dict[str, float], source: dict[str, str], longest: int) -> None:
    """Fills in upper bounds of lengths for an environment without demonstrations. All replies of an episode together
    are assumed to take at most half of ``rollout.max_length``. The opening and each observation get equal parts of the
    remaining tokens.
    """
    bound = f"{AT_MOST} rollout.max_length"
    found["spoken"] = found["reply"]
    turns = max(1.0, longest // (2 * found["reply"]))
    if source.get("episode") != "given" and found.get("episode", turns + 1) > turns:
        found["episode"], source["episode"] = turns, bound
    taken = found.get("opening", 0.0) + found["episode"] * (found["reply"] + found.get("observation", 0.0))
    sharing = ("opening" not in found) + ("observation" not in found) * found["episode"]
    share = max(0.0, longest - taken) / sharing if sharing else 0.0
    for key, value in {"opening": share, "observation": share, "demonstrated": found["episode"]}.items():
        if key not in found:
            found[key], source[key] = value, bound


def _demonstrations(cfg: DictConfig, folder: Path) -> tuple[dict[str, float], str]:
    env = json.dumps(OmegaConf.to_container(cfg.env, resolve=True), sort_keys=True)
    return _read(cfg.data.file, env, float(cfg.data.good), str(folder))


@cache
def _read(file: str | None, env: str, good: float, folder: str) -> tuple[dict[str, float], str]:
    try:
        trajectories = _of_file(Path(file)) if file else _played(json.loads(env), good)
    except (InputError, ValueError, OSError, RuntimeError) as error:
        # the environment is not installed, or a file is missing
        return {}, str(error).splitlines()[0]
    chat = ChatTokens(AutoTokenizer.from_pretrained(folder, trust_remote_code=False))
    dialect = dialect_of(chat)
    openings, actions, observations, turns = [], [], [], []
    for trajectory in trajectories:
        shown = trajectory if trajectory.task else dialect(trajectory)
        said = shown.messages, shown.tools
        spines = [chat.reply(*said)] if shown.pivot else chat.spines(*said)
        openings.append(spines[0].turns[0][0])
        turns.append(sum(len(spine.turns) for spine in spines))
        for spine in spines:
            actions += [stop - start for start, stop in spine.turns]
            observations += [after[0] - before[1] for before, after in zip(spine.turns, spine.turns[1:])]
    return {
        "opening": fmean(openings),
        "observation": fmean(observations) if observations else 0.0,
        "demonstrated": fmean(turns),
        "spoken": fmean(actions),
    }, ""


def _played(env: Any, good: float) -> tuple[Trajectory, ...]:
    world = build_node(env, "env")
    with TemporaryDirectory() as folder:
        return read_trajectories(expert_file(world, SAMPLE, folder, good)).trajectories


def _of_file(path: Path) -> tuple[Trajectory, ...]:
    """Returns the first ``SAMPLE`` trajectories of a file."""
    if path.suffix not in (".jsonl", ".ndjson", ".json"):
        return read_trajectories(path).trajectories[:SAMPLE]
    with TemporaryDirectory() as folder, path.open(encoding="utf-8") as stream:
        short = Path(folder) / f"{path.stem}.jsonl"
        short.write_text("".join(islice(stream, SAMPLE)), encoding="utf-8")
        return read_trajectories(short).trajectories
