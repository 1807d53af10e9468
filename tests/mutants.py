"""Applies faulty edits to the package, one at a time, and reports which test notices each (``python -m tests.mutants``).

A test suite is worth what it finds. Each entry names a fault, the text of ``src/`` that the fault replaces, and the
tests that should notice. The text must occur exactly once in ``src/``, in whichever file, so that the list survives
files that move. A test file that moved is found by its name. Not part of `make test`: the list takes minutes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
COPIED = ("src", "tests", "conf", "pyproject.toml")
LIBRARIES = ["hydra", "hypothesis", "lightning.pytorch", "numba", "peft", "scipy.stats", "transformers.modeling_utils"]
FORKS = multiprocessing.get_context("forkserver")
LOSS, ADVANTAGE, GATE, PACK = (
    "unit/methods/losses/",
    "unit/methods/advantages/",
    "unit/methods/gates/",
    "unit/rollouts/",
)
ALLOCATOR, STATE, ENGINE, TRAIN = "unit/methods/allocators/", "unit/methods/states/", "unit/engines/", "unit/training/"
PREDICTOR = "unit/rollouts/predictors/"


class Mutant(NamedTuple):
    """A faulty edit: ``old`` is replaced by ``new``, which makes the code ``wrong``. ``tests`` are paths below tests/,
    and may name a single test (``path::test``).
    """

    name: str
    wrong: str
    old: str
    new: str
    tests: str


# fmt: off
MUTANTS = [
    # -- losses, corrections and KL
    Mutant("kl_sign", "the KL to the reference is rewarded",
           "loss_K = loss_K + self.kl_beta * self._kl(", "loss_K = loss_K - self.kl_beta * self._kl(",
           LOSS + "test_clipped.py"),
    Mutant("kl_policy", "the KL is taken to the sampling policy",
           'batch.ref_logprobs_K, "ref_logprobs_K",', 'batch.old_logprobs_K, "ref_logprobs_K",',
           LOSS + "test_clipped.py"),
    Mutant("kl_direction", "k3 of the inverse ratio",
           "_KL[self.kl_estimator](reference_K - batch.logprobs_K)",
           "_KL[self.kl_estimator](batch.logprobs_K - reference_K)", LOSS + "test_clipped.py"),
    Mutant("clip_swapped", "clip_low above and clip_high below",
           "ratio_K.clamp(1 - low_K, 1 + high_K)", "ratio_K.clamp(1 - high_K, 1 + low_K)", LOSS + "test_clipped.py"),
    Mutant("clip_high_twice", "the clip_high of the credit is used at both ends",
           "low_K = _override(batch.clip_low_K, self.clip_low,", "low_K = _override(batch.clip_high_K, self.clip_low,",
           LOSS + "test_clipped.py"),
    Mutant("weight_0_kept", "tokens of weight 0 are trained and counted",
           "keep_K = self.weight_K > 0", "keep_K = self.weight_K >= 0", LOSS + "test_clipped.py"),
    Mutant("token_denominator", "token_mean divides by the micro-batch's tokens",
           "return batch.weight_K / max(counts.tokens, 1.0)",
           "return batch.weight_K / max(float(len(batch.weight_K)), 1.0)", LOSS + "test_clipped.py"),
    Mutant("stored_length", "a sample is divided by its stored tokens, not by its whole path's (TRACE Eq. 49)",
           "if batch.length_K is None else batch.length_K", "if batch.length_K is not None else batch.length_K",
           PACK + "test_pack.py"),
    Mutant("action_ratio", "the ratio of an action is taken over the whole sample",
           "log_ratio_K = segment_sum(log_ratio_K, batch.turn_K)",
           "log_ratio_K = segment_sum(log_ratio_K, batch.sequence_K)", LOSS + "test_clipped.py"),
    Mutant("near_is_sampler", "the correction clips around the sampling policy",
           "near_K = batch.logprobs_K.detach() if batch.near_logprobs_K is None else batch.near_logprobs_K",
           "near_K = old_K", LOSS + "test_correction.py"),
    Mutant("mask_high", "samples above mask_high are kept",
           "kept_K &= geometric_K <= self.mask_high", "kept_K &= kept_K", LOSS + "test_correction.py"),
    # -- credit
    Mutant("std_ddof", "the std of a sample instead of the population",
           "for value in values) / len(values))", "for value in values) / max(1, len(values) - 1))",
           ADVANTAGE + "test_group.py"),
    Mutant("advantage_sign", "leaves below the mean are rewarded",
           "return [(reward - centre) * factor for", "return [(centre - reward) * factor for",
           ADVANTAGE + "test_group.py"),
    Mutant("igpo_last", "IGPO pays the gain of the last turn in place of the outcome",
           "for before, after in pairwise(seen)), reward]",
           "for before, after in pairwise(seen)), level[tree.path(leaf)[-1] + 1] - seen[-1]]",
           "unit/methods/test_other_rules.py"),
    Mutant("leave_one_out", "the factor of the leave-one-out baseline is inverted",
           "factor = len(rewards) / (len(rewards) - 1) if", "factor = (len(rewards) - 1) / len(rewards) if",
           ADVANTAGE + "test_group.py"),
    Mutant("treerpo_leaves", "values of TreeRPO weigh all leaves equally (Eq. 45)",
           "below = [value[child] for child in children[turn] if child in value]",
           "def leaves(at):\n"
           "            return [total[at]] if at in total else [r for child in children[at] for r in leaves(child)]\n\n"
           "        below = leaves(turn)", ADVANTAGE + "test_trees.py"),
    Mutant("monte_carlo_depth", "a step is compared with the root, not with the node before it",
           "(value[child] - value[parent]) / norm", "(value[child] - value[-1]) / norm",
           ADVANTAGE + "test_trees.py"),
    Mutant("awpo_equality", "rho <= epsilon_mix (Eq. 21 is strict)",
           "group.ratio < self.epsilon_mix", "group.ratio <= self.epsilon_mix", ADVANTAGE + "test_awpo.py"),
    Mutant("awpo_peak", "R_max leaves out this batch",
           "weights = [self._weight(group, peak) if", "weights = [self._weight(group, memory.get(PEAK, peak)) if",
           ADVANTAGE + "test_awpo.py"),
    Mutant("contrast_invalid", "the reward of a failed environment counts below a branch",
           "for turn in () if leaf in tree.invalid else tree.path(leaf)[:-1]:", "for turn in tree.path(leaf)[:-1]:",
           TRAIN + "test_metrics.py"),
    # -- gates, states and allocation
    Mutant("gate_equality", "a group at the threshold is stopped",
           "GateDecision(self.k, {DISTANCE: distance}, distance < self.threshold)",
           "GateDecision(self.k, {DISTANCE: distance}, distance <= self.threshold)", GATE + "test_gates.py"),
    Mutant("gate_pairs", "the distance is averaged over neighbouring rollouts, not over all pairs",
           "return fmean([distance(a, b) for a, b in combinations(items, 2)])",
           "return fmean([distance(a, b) for a, b in pairwise(items)])", GATE + "test_signals.py"),
    Mutant("pivot_equality", "a turn whose mean is lambda_diff is kept",
           "profile.mean < self.lambda_diff", "profile.mean <= self.lambda_diff", STATE + "test_pivots.py"),
    Mutant("pivot_std", "a profile's variance is its std",
           "return sum((reward - mean) ** 2 for reward in self.functional) / len(self.functional)",
           "return (sum((reward - mean) ** 2 for reward in self.functional) / len(self.functional)) ** 0.5",
           STATE + "test_pivots.py"),
    Mutant("q_flipped", "q is the probability of another outcome (Eq. 15)",
           "return r_A * v_A + (1 - r_A) * (1 - v_A)", "return r_A * (1 - v_A) + (1 - r_A) * v_A",
           ALLOCATOR + "test_exact.py"),
    Mutant("budget_off_by_one", "the greedy choice spends one unit too few",
           "np.partition(pool, len(pool) - budget)[len(pool) - budget]",
           "np.sort(pool)[len(pool) - budget + 1]", ALLOCATOR + "test_exact.py"),
    Mutant("gain_off_by_one", "the gain of the next continuation is that of the one after it (Eq. 16)",
           "(1 - q) * q ** np.arange(start, stop)[None]", "(1 - q) * q ** np.arange(start + 1, stop + 1)[None]",
           ALLOCATOR + "test_exact.py"),
    Mutant("expansion_budget", "one rollout too few is expanded",
           "budget = len(rollouts) * self.expansion", "budget = (len(rollouts) - 1) * self.expansion",
           ALLOCATOR + "test_trees.py"),
    # -- collection and packing
    Mutant("refill_again", "a refill may draw a state that is already kept",
           "for s in self.select(number) if s.id not in kept_ids]", "for s in self.select(number)]", PACK + "test_collect.py"),
    Mutant("refill_draws", "a refill repeats the draws of the batch that it fills up",
           "self._extend(experience, chosen, (iteration, attempt), memory)",
           "self._extend(experience, chosen, (iteration, 0), memory)", PACK + "test_collect.py"),
    Mutant("shared_seeds", "groups share the seeds of their draws",
           "seed_of(key, self.tree.state.id, self.anchor, self.branch, self.depth, *attempt)",
           "seed_of(key, self.anchor, self.branch, self.depth, *attempt)", PACK + "test_player.py"),
    Mutant("pack_source", "the log-prob of a token is read one place too early",
           "int(layout.place_N[parent]))", "int(layout.place_N[parent]) - 1)", PACK + "test_pack.py"),
    Mutant("pack_parent", "the first token of an action is predicted from the token before its parent",
           "_Trained(nodes, at, turn.logprobs,", "_Trained(nodes, max(at - 1, 0), turn.logprobs,",
           PACK + "test_pack.py"),
    Mutant("pack_observation", "a turn does not see the observation before it",
           "at = [nodes[-1], *row.trie.add(turn.observation_ids, -1 if turn.anew else nodes[-1])][-1]",
           "at = nodes[-1]", PACK + "test_pack.py"),
    Mutant("pack_twice", "a shared turn is trained once for each leaf below it",
           "if credit.weight[t] and t not in done]", "if credit.weight[t]]", PACK + "test_pack.py"),
    Mutant("pack_old_shifted", "old log-probs are shifted by one token",
           "for turn in turns for logprob in turn.logprobs]",
           "for turn in turns for logprob in [0.0, *turn.logprobs[:-1]]]", PACK + "test_pack.py"),
    Mutant("pack_share", "trees that are not trained count in the mean over trees",
           "share = 1 / (len(trained) * len(samples))", "share = 1 / (len(trees) * len(samples))",
           PACK + "test_pack.py"),
    Mutant("trie_depth", "the position of a token is counted from the token stored before it",
           "depth[node] = depth[parent] + 1", "depth[node] = depth[node - 1] + 1", PACK + "test_pack.py"),
    # -- log-probs
    Mutant("score_temperature", "the trainer's log-probs are those at temperature 1",
           "return Head(model).logprobs(hidden_U, packed.target_U, temperature, entropy)",
           "return Head(model).logprobs(hidden_U, packed.target_U, 1.0, entropy)", PACK + "test_pack.py"),
    Mutant("run_temperature", "a run does not tell its trainer the temperature of its rollouts",
           "temperature = (settings.rollout.sampling.temperature or 1.0) if sampled else 1.0", "temperature = 1.0",
           "integration/test_runs.py::test_batch_k_is_sampled_from_policy_k_at_its_temperature"),
    Mutant("score_shifted", "a token is scored by the hidden state of the token itself",
           "out.last_hidden_state.flatten(0, 1)[packed.source_U]",
           "out.last_hidden_state.flatten(0, 1)[packed.source_U + 1]", PACK + "test_pack.py"),
    Mutant("head_temperature", "heads with own code ignore the temperature",
           "torch.float32)) / temperature).log_softmax(-1)", "torch.float32))).log_softmax(-1)",
           "unit/models/test_token_logprobs.py"),
    Mutant("reference_adapted", "the reference policy has the adapter on",
           "with adapter_off(self.model):", "if adapter_off(self.model):", PACK + "test_pack.py"),
    # -- engine
    Mutant("draw_temperature", "the engine samples at temperature 1",
           "logp_U = (logits_U / sampling.temperature).log_softmax(-1)", "logp_U = logits_U.log_softmax(-1)",
           ENGINE + "test_sampling_schedule.py"),
    Mutant("draw_renormalised", "log-probs are those before top-k, top-p and min-p",
           "logp_U = logp_U.masked_fill(~keep, -torch.inf).log_softmax(-1)\n        probs = logp_U.exp()",
           "probs = logp_U.masked_fill(~keep, -torch.inf).softmax(-1)", ENGINE + "test_sampling_schedule.py"),
    Mutant("stale_copy", "the engine keeps its first copy of the weights",
           "plain_copy(model, into=self.model) if self.copy else model",
           "(self.model or plain_copy(model)) if self.copy else model", ENGINE + "test_tree_engine.py"),
    Mutant("stale_keys", "keys and values of the weights before are kept",
           "self._store.clear()  # so that rows", "return  # so that rows",
           ENGINE + "test_tree_engine.py"),
    Mutant("fork_aliases", "a fork shares the list of its source's pending tokens",
           "list(source.pending)", "source.pending", ENGINE + "test_tree_engine.py"),
    # -- predictor
    Mutant("single_leaf_prefixes", "the predictor learns from histories that one rollout continues",
           "elif target.leaves > 1:", "elif target.leaves > 0:", PREDICTOR + "test_online.py"),
    Mutant("stopped_targets", "the predictor learns from trees that a gate stopped",
           "    if tree.stopped:\n        return {}\n    total: dict[int, float] = {}",
           "    total: dict[int, float] = {}", PREDICTOR + "test_online.py"),
    Mutant("target_depth", "a target leaves out the histories one turn above the leaves",
           "for turn in [-1, *tree.path(leaf)[:-1]]:", "for turn in [-1, *tree.path(leaf)[:-2]]:",
           PREDICTOR + "test_online.py"),
    # -- checkpoint and resume
    Mutant("resume_repeats", "a resumed run begins the epochs of its states anew, and so repeats draws",
           'getattr(self, name) for name in ("profiles", "began", "history", "places")}',
           'getattr(self, name) for name in ("profiles", "history", "places")}', TRAIN + "test_profile.py"),
    Mutant("resume_version", "a checkpoint forgets the policy's version",
           '_KEPT = ("version", "skipped",', '_KEPT = ("skipped",', TRAIN + "test_trouble.py"),
    Mutant("resume_optimizer", "the predictor resumes with an empty optimiser",
           'self.optimizer.load_state_dict(state_dict["optimizer"])', "pass", PREDICTOR + "test_online.py"),
    Mutant("earlier_weights", "the present weights are lost when an earlier policy samples",
           "weight.copy_(now)", "weight.copy_(weight)", TRAIN + "test_trouble.py"),
]
# fmt: on


def place_of(old: str, source: Path) -> Path:
    """Returns the only file of ``source`` that contains the text ``old``, which it contains once."""
    counts = {file: file.read_text().count(old) for file in sorted(source.rglob("*.py"))}
    places = [file for file, count in counts.items() for _ in range(count)]
    if len(places) != 1:
        files = ", ".join(str(file.relative_to(source)) for file in places) or "no file"
        raise LookupError(f"must occur once in src/, but occurs {len(places)} times ({files}): {old}")
    return places[0]


def test_of(named: str, tests: Path) -> str:
    """Returns the test with its file's path, which is searched by file name if the file has moved."""
    path, colons, test = named.partition("::")
    files = [tests / path] if (tests / path).is_file() else sorted(tests.rglob(Path(path).name))
    if len(files) != 1:
        raise LookupError(f"{len(files)} files below tests/ are called {Path(path).name}; give the test's new path")
    return f"{files[0].relative_to(tests.parent)}{colons}{test}"


def mistakes(mutants: Sequence[Mutant]) -> Iterator[str]:
    """Yields a line for each entry whose text or test is missing, or is there several times."""
    for mutant in mutants:
        try:
            place_of(mutant.old, REPOSITORY / "src")
            test_of(mutant.tests, REPOSITORY / "tests")
        except LookupError as error:
            yield f"{mutant.name}: {error}"


def copied(folder: Path) -> Path:
    for name in COPIED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, folder / name)
    return folder


def tested(root: str, arguments: Sequence[str], output: Path) -> None:
    """Runs pytest over the copy ``root``, writes what it prints to the file ``output``, and exits with its code. The
    process was forked from one that has loaded the large libraries, but none of our modules.
    """
    with output.open("wb", buffering=0) as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    os.chdir(root)
    os.environ |= {
        "PYTHONPATH": f"{root}/src",  # for the programs that tests start
        "PYTHONDONTWRITEBYTECODE": "1",  # an edit of equal length within a second would be read from the cache
        "WANDB_MODE": "offline",
    }
    sys.dont_write_bytecode = True
    others = [path for path in sys.path if not Path(path).is_relative_to(REPOSITORY / "src")]
    sys.path[:] = [root, f"{root}/src", *others]
    sys.modules.pop("tests", None)  # of the repository
    code = pytest.main([*arguments, "-n0", "-p", "no:cacheprovider", "-rfE"])
    sys.stdout.flush()
    os._exit(code)  # at once, because threads of a faulty edit may still wait


def pytest_over(root: Path, *arguments: str) -> tuple[int | None, str]:
    """Returns the exit code of pytest over the copy ``root``, and what it printed."""
    output = root.with_suffix(".txt")
    process = FORKS.Process(target=tested, args=(str(root), arguments, output))
    process.start()
    process.join()  # a test that hangs is ended by pytest-timeout
    return process.exitcode, output.read_text(errors="replace")


def verdict(mutant: Mutant, root: Path) -> tuple[bool, str]:
    """Applies one edit to the copy ``root``, runs its tests and takes the edit back."""
    file = place_of(mutant.old, root / "src")
    whole = file.read_text()
    file.write_text(whole.replace(mutant.old, mutant.new))
    try:
        code, output = pytest_over(root, "-x", test_of(mutant.tests, root / "tests"))
    finally:
        file.write_text(whole)
    failed = re.search(r"^FAILED (.+?)(?: - .*)?$", output, re.MULTILINE)
    if code == 1 and failed:
        return True, failed[1].rpartition("/")[2]
    if code == 0:
        return False, f"SURVIVED {mutant.tests}: {mutant.wrong}"
    return False, f"the edit breaks more than it says (pytest's exit code {code}): {output.strip()[-800:]}"


def run(mutants: Sequence[Mutant], jobs: int, folder: Path) -> Iterator[tuple[Mutant, bool, str, float]]:
    """Yields for each entry whether its fault was found, by which test, and the seconds that this took."""
    trees: SimpleQueue[Path] = SimpleQueue()
    for number in range(jobs):
        trees.put(copied(folder / str(number)))

    def one(mutant: Mutant) -> tuple[bool, str, float]:
        root, began = trees.get(), time.monotonic()
        try:
            return *verdict(mutant, root), time.monotonic() - began
        finally:
            trees.put(root)

    with ThreadPoolExecutor(jobs) as pool:
        for mutant, (found, by, seconds) in zip(mutants, pool.map(one, mutants), strict=True):
            yield mutant, found, by, seconds


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="entries to try; none: all of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="entries tried side by side")
    parser.add_argument("--list", action="store_true", help="check that every edit and test is there, and try nothing")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - {mutant.name for mutant in MUTANTS}:
        parser.error(f"no entry is called {', '.join(sorted(unknown))}")
    mutants = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    began = time.monotonic()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    FORKS.set_forkserver_preload(LIBRARIES)
    if lines := list(mistakes(mutants)):
        print("\n".join(lines), file=sys.stderr)
        return 1
    if options.list:
        print("\n".join(f"{mutant.name:22} {mutant.wrong}" for mutant in mutants))
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        root = copied(Path(temporary) / "unchanged")
        code, output = pytest_over(root, *sorted({test_of(mutant.tests, root / "tests") for mutant in mutants}))
        if code != 0:
            print(f"{output}\nthe tests fail without any edit, so nothing can be found", file=sys.stderr)
            return 1
        print(f"without an edit all tests pass ({time.monotonic() - began:.0f} s)", flush=True)
        caught = 0
        for mutant, found, by, seconds in run(mutants, max(1, options.jobs), Path(temporary)):
            caught += found
            print(f"{mutant.name:22} {seconds:4.0f} s  {by}", flush=True)
    print(f"{caught} of {len(mutants)} found, {time.monotonic() - began:.0f} s")
    return 0 if caught == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
