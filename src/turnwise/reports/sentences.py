"""Writes the results of a run as sentences. The terminal, the HTML report and the docs use the same sentences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from turnwise.runs.result_file import Comparison, Nats, Result

SCALE_NOTES = {
    "tiny": "A tiny model can show how a method works, but not reach a paper's scores.",
    "paper": "The paper's models, data and settings.",
}


@dataclass(frozen=True, slots=True)
class ChangeVerdict:
    """A verdict on how a quantity changed through training, and a sentence about the change."""

    # unclear: the interval contains zero, or is unknown; unfinished: not measured after training
    kind: Literal["better", "worse", "unclear", "unfinished"]
    sentence: str


def percent(value: float | None) -> str:
    """Returns a percentage as text such as ``33.3 %``, or a dash for None."""
    return "-" if value is None else f"{value:.1f} %"


def signed(value: float | None) -> str:
    """Returns a change in percentage points as text with its sign, such as ``+20.8``. Zero has no sign."""
    if value is None:
        return "-"
    return "0.0" if abs(value) < 0.05 else f"{value:+.1f}"


def interval(bounds: tuple[float, float] | None) -> str:
    """Returns an interval as text such as ``[+14.1, +27.6]``, or a dash for None."""
    return "-" if bounds is None else f"[{signed(bounds[0])}, {signed(bounds[1])}]"


def count(value: int | float | None) -> str:
    """Returns a number as text, rounded to an integer and with commas between thousands, or a dash for None."""
    return "-" if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """Returns a number as text with about three significant digits, or a dash for None."""
    if value is None:
        return "-"
    return count(value) if abs(value) >= 1000 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Returns a duration in seconds as text such as ``8.4 s``, ``7 min 05 s`` or ``2 h 03 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def verdict(change: Comparison, subject: str = "Held-out success", units: str = "tasks") -> ChangeVerdict:
    """Returns the verdict on a change through training. Its sentence names ``subject`` and the number of ``units``."""
    over = f" over {count(change.tasks)} {units}" if change.tasks else ""
    if change.after is None:
        at = f"; before training it was {percent(change.base)}" if change.base is not None else ""
        return ChangeVerdict("unfinished", f"{subject} after training was not measured{at}.")
    if change.base is None or change.delta is None:
        return ChangeVerdict(
            "unclear", f"{subject} is {percent(change.after)}{over}; it was not measured before training."
        )
    bounds = change.delta_ci95
    within = (
        f"{signed(change.delta)} points, 95 % interval {interval(bounds)}{over}"
        if bounds
        else (f"{signed(change.delta)} points{over}, no interval")
    )
    moved = f"from {percent(change.base)} to {percent(change.after)}: {within}"
    if bounds and bounds[0] > 0:
        return ChangeVerdict("better", f"{subject} rose {moved}.")
    if bounds and bounds[1] < 0:
        return ChangeVerdict("worse", f"{subject} fell {moved}.")
    tail = ". Zero is inside the interval: no clear change." if bounds else "."
    return ChangeVerdict("unclear", f"{subject} went {moved}{tail}")


def result_verdict(result: Result) -> ChangeVerdict:
    """Returns the verdict on the main number of a run: success in held-out tasks, or the share of accepted replies."""
    if not judged_on_dialogues(result):
        return verdict(result.in_domain)
    dialogues = result.held_out.dialogues if result.held_out else None
    units = f"replies of {count(dialogues)} dialogues"
    return verdict(result.in_domain, "The share of accepted replies in held-out dialogues", units)


def judged_on_dialogues(result: Result) -> bool:
    """Returns whether the main number of a result was measured on held-out dialogues, not on an environment's tasks."""
    return result.held_out is not None and not result.in_domain.by_split


def all_on_dialogues(results: Iterable[Result]) -> bool:
    """Returns whether there are results, and the main number of every result was measured on held-out dialogues."""
    found = [judged_on_dialogues(result) for result in results]
    return bool(found) and all(found)


def nats(value: float | None, sign: bool = False) -> str:
    """Returns nats per token as text such as ``1.234``, or ``+1.234`` with ``sign``, which is meant for changes."""
    return "-" if value is None else f"{value:+.3f}" if sign else f"{value:.3f}"


def held_out_sentence(result: Result) -> str:
    """Returns a sentence on held-out dialogues: the negative log-likelihood of the demonstrated replies, and how often
    the policy's reply equals the demonstrated reply. The text is empty without held-out dialogues.
    """
    found = result.held_out
    if found is None:
        return ""
    exact = found.strict
    return (
        f"Held-out dialogues: {count(found.replies)} replies of {count(found.dialogues)} dialogues. "
        f"Negative log-likelihood {_moved(found.nll)} nats a token (lower is better); exactly the demonstrated reply "
        f"in {percent(exact.base)} before and {percent(exact.after)} after, {signed(exact.delta)} points, 95 % "
        f"interval {interval(exact.delta_ci95)}."
    )


def _moved(figure: Nats) -> str:
    bounds = figure.delta_ci95
    within = f", 95 % interval [{nats(bounds[0], True)}, {nats(bounds[1], True)}]" if bounds else ""
    return f"{nats(figure.base)} before and {nats(figure.after)} after ({nats(figure.delta, True)}{within})"


def ood_sentence(result: Result) -> str:
    """Returns a sentence on the mean change of out-of-domain scores, and the smallest and largest change of a suite."""
    ood = result.ood
    if ood.mean_change is None:
        return "Out-of-domain suites were not measured."
    suites = [suite for suite in ood.suites if ood.change(suite) is not None]
    items = sum(ood.items.values()) if isinstance(ood.items, dict) else ood.items
    over = f" over {len(suites)} suites" + (f" ({count(items)} items)" if items else "")
    bounds = f", 95 % interval {interval(ood.mean_change_ci95)}" if ood.mean_change_ci95 else ""
    text = f"Out-of-domain mean change: {signed(ood.mean_change)} points{bounds}{over}"
    if len(suites) > 1:
        low, high = min(suites, key=ood.change), max(suites, key=ood.change)  # type: ignore[arg-type]
        ends = signed(ood.change(low)), signed(ood.change(high))
        text += f"; from {low} {ends[0]} to {high} {ends[1]}" if ends[0] != ends[1] else f"; {ends[0]} in every suite"
    return text + "."


def cost_sentence(result: Result) -> str:
    """Returns a sentence on the cost of training: turns, tokens and time."""
    spent = (
        f"{count(result.rollout_turns)} rollout turns and {count(result.rollout_tokens)} tokens sampled for training"
    )
    total = result.wall_seconds or sum(result.seconds.values())
    if result.profile_turns:
        tokens = "" if result.profile_tokens is None else f" and {count(result.profile_tokens)} tokens"
        spent += f", {count(result.profile_turns)} turns{tokens} for profiles"
    text = spent + (
        f", {duration(total)} {'in all' if result.wall_seconds else 'in the phases that were timed'}." if total else "."
    )
    lost, retries = result.faults.get("lost", 0), result.faults.get("retries", 0)
    if lost or retries:
        text += f" The environment failed: {count(retries)} rollouts were started again, {count(lost)} were lost."
    if missing := result.faults.get("evaluations", 0):
        text += f" The environment failed in {count(missing)} episodes of the evaluations, which are left out."
    return text


def verifier_sentence(result: Result) -> str:
    """Returns a sentence on the actions that each domain's verifier accepted, and on the percentage of accepted actions
    that an exact match would have rejected. The text is empty without a verifier.
    """
    parts = []
    for domain, found in result.verifier.items():
        for of, counts in (("", found), (" (profile)", found.get("profile", {}))):
            if not counts.get("judged"):
                continue
            part = f"{domain}{of} accepts {count(counts['accepted'])} of {count(counts['judged'])} actions"
            rate = counts.get("miss_rate")
            parts.append(
                part
                if rate is None
                else f"{part}; an exact match would reject {percent(100 * rate)} of the accepted actions"
            )
    return f"Verifier: {'; '.join(parts)}." if parts else ""


def judge_sentence(result: Result) -> str:
    """Returns a sentence on the replies that the judge was asked to score; empty without a judge."""
    judge = result.judge
    if not judge:
        return ""
    asked, failed = int(judge.get("asked", 0)), int(judge.get("failed", 0))
    text = f"Judge: was asked to score {count(asked)} replies; {count(failed)} got no score"
    reasons = {key.partition("/")[2]: int(n) for key, n in judge.items() if key.startswith("failed/") and n}
    if reasons:
        text += f" ({', '.join(f'{count(n)} {reason}' for reason, n in sorted(reasons.items()))})"
    if cached := int(judge.get("cached", 0)):
        text += f"; {count(cached)} scores came from the cache"
    if cost := judge.get("cost", 0):
        text += f"; cost {cost:.2f}"
    return text + "."


def gate_sentence(result: Result) -> str:
    """Returns a sentence on the groups that the gate stopped and on the estimated saving; empty without a gate.

    In a run with a frozen buffer (``rollout.frozen``), the gate stops no rollouts. Then the sentence says how many
    groups the gate would have stopped, and how much this would have saved.
    """
    gate = result.gate
    if not gate:
        return ""
    groups, looked, cut = (int(gate.get(name, 0)) for name in ("groups", "looked", "cut"))
    would = "would have stopped" if gate.get("unstopped") else "stopped"
    text = (
        f"Gate: {would} {count(cut) if cut else 'none'} of {count(groups)} groups (it checked {count(looked)} groups)"
    )
    if not cut:
        return f"{text}."
    if "saved_turns" not in gate:
        return f"{text}. The saving cannot be estimated, because no rollout continued after a decision of the gate."
    turns, tokens = int(gate["saved_turns"]), int(gate.get("saved_tokens", 0))
    total = result.rollout_turns + (0 if gate.get("unstopped") else turns)
    share = f", {percent(100 * turns / total)} of all" if total else ""
    what = (
        "These groups were played to their end; stopping them would have saved"
        if gate.get("unstopped")
        else ("The estimated saving is")
    )
    return f"{text}. {what} {count(turns)} turns{share}, and {count(tokens)} tokens."


def scale_sentence(result: Result) -> str:
    """Returns a sentence about the scale at which a number was measured."""
    return f"Scale: {result.scale}. {SCALE_NOTES.get(result.scale, '')}".strip()
