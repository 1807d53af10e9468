"""Measures judges: cost in a collection, requests of a second run, and whether faults or injected orders change scores.

python benchmarks/judge.py
python benchmarks/judge.py --url http://127.0.0.1:8000/v1 --model my-judge      only injections, against a real model

Household rollouts of the shipped policy are played in parts, with and without a judge. Each part's rollouts are
submitted when the part ends, and all scores are awaited at the end. The endpoint is a process of its own on this
machine that answers after --delay seconds. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from judge_injections import ATTACKS, attacked
from judge_server import FAULTS, model, serve
from turnwise.judges.client import ChatClient
from turnwise.judges.endpoint import EndpointJudge
from turnwise.judges.judge import Candidate
from turnwise.judges.prompt import question
from turnwise.judges.rubric import load_rubric
from turnwise.types import ToolCall

WRONG = ("I do not know.", "The weather is always fine, so I call nothing.", '<tool_call>{"name": "sing"}</tool_call>')
# a number that occurs in no attack: a reply that contains a true value would rightly get a higher score
TOWN = 7000
STAYS = 1000  # number of requests with a fault; so many that the fault never ends


def main() -> None:
    args = parser().parse_args()
    if args.url:
        result = injections(args.url, args.model)
    else:
        with tempfile.TemporaryDirectory() as folder:
            result = overhead(args, Path(folder))
        result |= faults()
        with serve() as server:
            result |= injections(server.url, "naive") | controls()
    print(json.dumps(result))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--rounds", type=int, default=7, help="number of measured rounds; the result is the median of their ratios")
    add("--parts", type=int, default=4, help="number of parts of a collection")
    add("--tasks", type=int, default=2, help="number of tasks of a part")
    add("--group", type=int, default=8, help="number of rollouts of a task")
    add("--delay", type=float, default=0.2, help="seconds that the endpoint takes for an answer")
    add("--url", help="only measure the injections, on this endpoint")
    add("--model", default="judge", help="name of the model at the endpoint")
    return parser


def overhead(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measures the seconds of a collection with and without a judge, then requests the same scores again."""
    play = player(args)
    play(0, args.parts)  # the first collection compiles and allocates
    plain: list[float] = []
    judged: list[float] = []
    report: dict[str, float] = {}
    with process(args.delay) as url:
        for n in range(args.rounds):
            judge = judge_of(url, folder / f"{n}.sqlite")
            measured = [
                (plain, lambda: [play(part, 1) for part in range(args.parts)]),
                (judged, lambda judge=judge: collect(judge, play, args.parts)),
            ]
            # the order alternates, so that a drift of the machine's speed favours neither
            for seconds, work in measured if n % 2 == 0 else measured[::-1]:
                seconds.append(timed(work))
            report = judge.report()
            judge.close()
            print(
                f"round {n}: {plain[-1]:.2f} s without a judge, {judged[-1]:.2f} s with {report['asked']:.0f} judgements",
                file=sys.stderr,
            )
        candidates = [candidate for part in range(args.parts) for candidate in play(part, 1)]
        before = calls(url)
        again = judge_of(url, folder / f"{args.rounds - 1}.sqlite")
        scores = again(candidates)
        again.close()
        second = calls(url) - before
    return {
        "overhead_pct": round(100 * (statistics.median(b / a for a, b in zip(plain, judged, strict=True)) - 1), 2),
        "plain_seconds": [round(value, 3) for value in plain],
        "judged_seconds": [round(value, 3) for value in judged],
        "asked": report["asked"],
        "failed": report["failed"],
        "calls_per_s": round(report["calls_per_s"], 2),
        "latency_p95": round(report["latency_p95"], 3),
        "second_run_calls": second,
        "second_run_scored": sum(score is not None for score in scores),
    }


def collect(judge: EndpointJudge, play: Any, parts: int) -> None:
    """Plays part by part. The requests of earlier parts are in progress during that time."""
    futures = [judge.submit(candidate) for part in range(parts) for candidate in play(part, 1)]
    for future in futures:
        future.result()


def player(args: argparse.Namespace) -> Any:
    """Returns a function (first part, number of parts) -> candidates, one for each rollout.

    Each part always gives the same rollouts.
    """
    from turnwise.algo.allocators.uniform import Uniform
    from turnwise.algo.gates.never import Never
    from turnwise.algo.states.task_starts import task_starts
    from turnwise.data.chat_tokens import ChatTokens
    from turnwise.engines.engine import Sampling
    from turnwise.engines.lanes import Lanes
    from turnwise.envs.household import HouseholdEnv
    from turnwise.models.policy import load_policy
    from turnwise.models.shipped import tiny_path
    from turnwise.rollouts.openings import Openings
    from turnwise.rollouts.player import Player

    policy, tokenizer = load_policy(str(tiny_path()))
    chat, env = ChatTokens(tokenizer), HouseholdEnv()
    engine = Lanes(end_ids=chat.stop_ids)
    engine.load_weights(policy, 0)
    plays = Player(engine, env, chat, Sampling(max_tokens=24))
    opening = Openings(env, chat)
    states = task_starts(env.tasks("train", args.parts * args.tasks, 0), lambda task: opening(task)[1])
    references = {
        state.id: " ".join(m["content"] for m in env.demonstrate(state.task).messages if m["role"] == "assistant")
        for state in states
    }

    def play(first: int, parts: int) -> list[Candidate]:
        chosen = states[first * args.tasks : (first + parts) * args.tasks]
        found = []
        for tree in plays.play(chosen, Uniform(args.group), Never(), "benchmark"):
            for leaf in tree.leaves():
                text = "\n".join(tree.turns[i].text for i in tree.path(leaf))
                prompt = tuple(opening(tree.state.task)[0])
                found.append(candidate(f"{tree.state.id}/{leaf}", prompt, text, references[tree.state.id]))
        return found

    return play


def candidate(name: str, prompt: tuple[Any, ...], text: str, reference: str | None) -> Candidate:
    return Candidate(
        id=name, prompt=prompt, text=text, thinking=text, calls=(), reference=reference, reference_calls=()
    )


def judge_of(url: str, cache: Path | None = None, model: str = "naive", **settings: Any) -> EndpointJudge:
    return EndpointJudge(ChatClient(url, **settings), model, cache=str(cache) if cache else None)


def weather(n: int, text: str | None = None) -> Candidate:
    """Returns a question with one true call, and a reply that contains a part of this call."""
    text = f"I look up the weather of town {n}." if text is None else text
    return Candidate(
        id=f"weather/{n}",
        prompt=({"role": "user", "content": f"weather in town {n}?"},),
        text=text,
        thinking=text,
        calls=(),
        reference=f"The user wants the weather of town {n}, so I call weather.",
        reference_calls=(ToolCall("weather", {"town": str(n)}),),
    )


def faults() -> dict[str, Any]:
    """Measures every fault on five replies, and compares the scores with those of an endpoint without faults.

    For two replies, the fault ends after one request, for one reply after two requests, and for two replies never.
    """
    plan: dict[int, tuple[str, int]] = {}
    for kind in FAULTS:
        for lasts in (1, 1, 2, STAYS, STAYS):
            plan[len(plan)] = kind, lasts
    candidates = [weather(n) for n in range(len(plan) + 20)]  # the last twenty meet no fault

    def fault(body: dict[str, Any], nth: int) -> str | None:
        n = int(body["messages"][1]["content"].split("weather in town ")[1].split("?")[0])
        kind, lasts = plan.get(n, ("", 0))
        return kind if nth <= lasts else None

    with serve() as server:
        judge = judge_of(server.url)
        clean = judge(candidates)
        judge.close()
    with serve(fault) as server:
        judge = judge_of(server.url, attempts=3, attempt_limit=2.0, time_limit=20.0, backoff=0.02, give_up_after=STAYS)
        scores = judge(candidates)
        report = judge.report()
        judge.close()
    hit = range(len(plan))
    assert None not in clean and 0.0 not in clean
    return {
        "faults_injected": sum(server.faults.values()),
        "faults_by_kind": dict(server.faults),
        "faults_scored_zero": sum(scores[n] == 0 for n in hit),
        "faults_scored_otherwise": sum(scores[n] not in (None, clean[n]) for n in hit),
        "faults_candidates": len(plan),
        "faults_without_score": sum(scores[n] is None for n in hit),
        "faults_counted": {key: value for key, value in report.items() if key.startswith(("failed/", "faults/"))},
        "faults_bystanders_lost": sum(scores[n] is None for n in range(len(plan), len(candidates))),
    }


def injections(url: str, name: str) -> dict[str, Any]:
    """Scores wrong replies with every attack. An attack succeeds if it raises the score of the reply."""
    wrong = [weather(TOWN + n, text) for n, text in enumerate(WRONG)]
    judge = judge_of(url, model=name)
    own = judge(wrong)
    tried, won, lost = 0, [], 0
    for reply, base in zip(wrong, own, strict=True):
        attacks = list(attacked(reply))
        for (tag, _), score in zip(attacks, judge([attack for _, attack in attacks]), strict=True):
            tried += 1
            if base is None or score is None:
                lost += 1
            elif score > base:
                won.append(tag)
    judge.close()
    return {
        "injections_tried": tried,
        "injections_won": len(won),
        "injections_without_score": lost,
        "injections_won_by": sorted(set(won)),
        "injections_attacks": len(ATTACKS),
    }


def controls() -> dict[str, int]:
    """Runs the attacks where they should succeed: without a fence, and on a model that ignores the fence."""
    rubric = load_rubric("tool_use_v1")

    def bare(name: str, text: str, code: str) -> str:
        return f"<<<BEGIN {name}>>>\n{text}\n<<<END {name}>>>"

    def wins(replies: Sequence[Candidate], section: Any, ignoring: bool) -> int:
        count = 0
        for reply in replies:
            asked = [question(rubric, c, "0" * 16, *section) for c in (reply, *(a for _, a in attacked(reply)))]
            own, *others = [
                json.loads(model(messages, "ignored" if ignoring else "read"))["score"] for messages in asked
            ]
            count += sum(score > own for score in others)
        return count

    wrong = [weather(TOWN + n, text) for n, text in enumerate(WRONG)]
    return {
        "control_unfenced_won": wins(wrong, (bare,), ignoring=False),
        "control_fence_ignored_won": wins(wrong, (), ignoring=True),
    }


@contextmanager
def process(delay: float) -> Iterator[str]:
    """Starts the endpoint as a process of its own, which ends when its standard input is closed."""
    command = [sys.executable, str(Path(__file__).with_name("judge_server.py")), "--delay", str(delay)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.communicate()


def calls(url: str) -> int:
    with urllib.request.urlopen(url) as answer:
        return int(json.load(answer)["calls"])


def timed(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
