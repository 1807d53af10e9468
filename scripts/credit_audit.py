"""Measures what turns were worth, by continuations from forks, and how well each credit rule estimates it.

python scripts/credit_audit.py env=household
python scripts/credit_audit.py env=search --tasks 12 --se 0.07 --page docs/results/credit_audit.md --section search
python scripts/credit_audit.py env=corridor env.density=0.5 --skill 0.7
python scripts/credit_audit.py env=corridor --skill 0.7 --exact --over env.density=1,0.5,0.25 env.horizon=5,9,17
python scripts/credit_audit.py env=household --trees outputs/grpo/seed0 policy.start=outputs/grpo/seed0/adapter

The policy is that of the configuration (the shipped one by default), with its sampling settings; with --skill, the
scripted policy of env=corridor, which needs no model. For each task, one episode is played (or taken from --trees), a
few of its turns are drawn, and their values are measured. The folder --out gets audit.json (all numbers), turns.jsonl
(each turn, with the credit of every rule), trees.jsonl (for scripts/rescore.py), page.md and figure.svg.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from turnwise.console import Terminal, number, until_stopped
from turnwise.env import SPLITS
from turnwise.errors import InputError
from turnwise.files import atomic_write
from turnwise.programs import options, program
from turnwise_study.sweeps.jobs import seeds_of

ROOT = Path(__file__).resolve().parent.parent
CONF = ROOT / "conf"
FORMS = ("group", "tree", "vine")


@program()
def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 done; 2 an argument cannot be used."""
    args = parser().parse_intermixed_args(arguments)
    if args.section and not args.page:
        raise InputError("--section: give the page with --page")
    if args.exact and args.skill is None:
        raise InputError("--exact: only the values of the scripted policy are known; add --skill")
    command = shlex.join(["python", "scripts/credit_audit.py", *arguments])
    over = of_settings(args.over) if args.over else {}
    results = []
    for values in zip(*over.values(), strict=True) if over else [()]:
        settings = [f"{key}={value}" for key, value in zip(over, values, strict=True)]
        results.append(one(args, [*args.overrides, *settings], args.out.joinpath(*settings[:1]), command))
    from turnwise.runs.figures import standalone
    from turnwise.runs.page import write_page
    from turnwise_study.credit_page import credit_figure, credit_learning_table, leaderboard
    from turnwise_study.tables import to_markdown, write_section

    if over:
        key, numbers = next(iter(over.items()))
        table, drawing = against(dict(zip(map(float, numbers), results, strict=True)), key)
    else:
        table, drawing = leaderboard(results[0]), credit_figure(results[0])
    shown = [table]
    if args.learned:
        shown.append(credit_learning_table(results[0], trained_changes(args.learned), args.learned))
    write_page(args.out / "page.md", to_markdown(shown))
    picture = args.figure or args.out / "figure.svg"
    write_page(picture, standalone(drawing))
    if args.page:
        write_section(args.page, to_markdown(shown), args.section, {picture: drawing.title})
    print(f"{args.out / 'page.md'}\n{picture}")
    return 0


def one(args: Any, overrides: Sequence[str], folder: Path, command: str) -> dict[str, Any]:
    """Audits all seeds with one configuration and writes the files of ``folder``."""
    from turnwise.training.result import commit
    from turnwise_study.credit_audit import RULES, audit
    from turnwise_study.credit_page import audit_result
    from turnwise_study.recorded_trees import record_of_tree
    from turnwise_worlds.corridor import after, skilled, value

    def exact(path: Any, turns: int) -> float:
        begun = player.environment.reset(path.state.task)
        return value(after(begun, *(turn.text for turn in path.turns[:turns])), skilled(args.skill), {})

    console = Terminal(stderr=True)
    player, about = player_of(args, overrides)
    known = RULES | about.pop("own", {})
    wanted = [name.strip() for name in args.rules.split(";")] if args.rules else list(known)
    if strange := [name for name in wanted if name not in known]:
        raise InputError(f"--rules: there is no rule {strange[0]!r}; the rules are {'; '.join(known)}")
    rules = {name: known[name] for name in wanted if known[name][0] in args.forms}
    parts = []
    for seed in args.seeds:
        console.print(f"seed {seed}")
        paths = recorded_paths(args, player, seed) if args.trees else episodes(args, player, seed)
        parts.append(
            audit(player, paths, rules, (seed, "credit audit"), turns=args.turns, error=args.se,
                  replicates=args.replicates, exact=exact if args.exact else None, say=console.print)
        )  # fmt: skip
    player.engine.shutdown()
    if sum(len(part.turns) for part in parts) < 2:
        raise InputError("fewer than two turns could be audited; raise --tasks")
    result = audit_result(
        parts, {**about, "seeds": args.seeds, "split": args.split, "command": command, "commit": commit()}
    )
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / "audit.json") as file:
        file.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")
    with atomic_write(folder / "turns.jsonl") as file, file.open("w") as lines:
        for seed, part in zip(args.seeds, parts, strict=True):
            for at, turn in enumerate(part.turns):
                credits = {rule: credit[at].tolist() for rule, credit in part.credits.items()}
                (low, high), action = turn.interval(), turn.path.turns[turn.place].text
                row = {"seed": seed, "state": turn.path.state.id, "place": turn.place, "action": action}
                row |= {"q": asdict(turn.q), "v": asdict(turn.v), "advantage": turn.advantage, "low": low, "high": high}
                lines.write(json.dumps(row | {"credits": credits}) + "\n")
    with atomic_write(folder / "trees.jsonl") as file, file.open("w") as lines:
        for tree, rewards, place, turn in (row for part in parts for row in part.trees):
            lines.write(json.dumps(record_of_tree(tree, rewards, {place: turn.advantage})) + "\n")
    return result


def trained_changes(sweep: str) -> dict[str, list[float]]:
    """Rule -> change of held-out success of the runs of each seed, from ``outputs/`` or else the kept runs."""
    from turnwise_study.credit_audit import TRAINED
    from turnwise_study.entries import read_entry
    from turnwise_study.sweeps.jobs import read_sweep_request

    request = read_sweep_request([f"sweep={sweep}"], CONF)
    entry = read_entry(request, [ROOT / "outputs", ROOT / "results"])
    labels = {row: made.label for row, made in request.sweep.rows.items()}
    changes = {row: entry.by_seed(row, "in_domain.delta") for row in entry.rows}
    return {
        TRAINED[labels[row]]: [*found.values()] for row, found in changes.items() if found and labels[row] in TRAINED
    }


def player_of(args: Any, overrides: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """The player with the policy to be audited, and what the result says about it."""
    from turnwise.config.overrides import build_alone
    from turnwise.engines.engine import Sampling
    from turnwise.rollouts.player import Player

    panel = " ".join(overrides)
    if args.skill is not None:
        from turnwise_study.scripted_policy import Characters, ScriptedEngine
        from turnwise_worlds.corridor import skilled

        environment = build_alone("env", ["method=grpo", *overrides], CONF)
        if environment.name != "corridor":
            raise InputError("--skill: the scripted policy only plays env=corridor; leave it out to use a model")
        policy = f"scripted, follows a sign with probability {args.skill:g}"
        player = Player(ScriptedEngine(skilled(args.skill)), environment, Characters(), Sampling())  # type: ignore[arg-type]
        return player, {"panel": panel, "policy": policy, "temperature": 1.0}
    from turnwise.config.check import check_config
    from turnwise.config.overrides import composed
    from turnwise.methods.turn_rewards import Igpo
    from turnwise.rollouts.predictor import AnswerProbability
    from turnwise.training.build_run import build_parts
    from turnwise.training.build_run import build_player as run_player
    from turnwise.training.loop import prepare

    whole = ["method=grpo", "engine.lanes=1", "engine.schedule=rounds", "rollout.turns=null", *overrides]
    whole += [f"paths.out={args.out}", "paths.cache=outputs/cache"]
    cfg = composed(whole, CONF)
    check_config(cfg)
    prepare(0)
    settings, parts, policy_ = build_parts(cfg)
    player = run_player(cfg, settings, parts, policy_, print)
    player.engine.load_weights(policy_.model.eval(), 0)
    name = str(settings.policy.start or settings.policy.model)
    own = {}
    if parts.env.solution(parts.env.tasks("train", 1)[0]) is not None:
        own = {"IGPO": ("group", Igpo(AnswerProbability(policy_.model, policy_.chat, parts.env)))}
    temperature = settings.rollout.sampling.temperature
    return player, {"panel": panel, "policy": name, "temperature": temperature, "own": own}


def episodes(args: Any, player: Any, seed: int) -> list[Any]:
    """One episode of each task of a seed, sampled from the policy."""
    from turnwise.methods.allocate import Uniform
    from turnwise_study.credit_audit import in_parts

    states = starts(player, player.environment.tasks(args.split, args.tasks, seed))
    return in_parts(player, states, Uniform(1), 1, (seed, "credit audit", "episodes"))


def starts(player: Any, tasks: Sequence[Any]) -> list[Any]:
    from turnwise.methods.states import task_starts
    from turnwise.rollouts.episodes import Openings

    opening = Openings(player.environment, player.chat, player.environment_threads)
    opening.read(tasks)
    return task_starts(tasks, lambda task: opening(task)[1])


def recorded_paths(args: Any, player: Any, seed: int) -> list[Any]:
    """The first rollout of each recorded tree that begins at the start of a task of this seed, by repeating its actions.

    Raises:
        InputError: no tree has a task of this seed, or the environment answers otherwise than it did.
    """
    from turnwise.types import RolloutTree, Turn
    from turnwise_study.recorded_trees import read_trees

    tasks = {task.id: task for task in player.environment.tasks(args.split, args.known, seed)}
    recorded = [one.tree for one in read_trees(args.trees) if "#t0" in one.tree.state.id and not one.tree.stopped]
    trees = {tree.state.task.id: tree for tree in recorded if tree.state.task.id in tasks}
    if not trees:
        raise InputError(
            f"--trees {args.trees}: none of its tasks is among the first {args.known} of seed {seed} ({args.split}); "
            "give --seeds of the run, or a larger --known"
        )
    paths = []
    for state in starts(player, [tasks[name] for name in list(trees)[: args.tasks]]):
        tree, session, path = trees[state.task.id], player.environment.reset(state.task), RolloutTree(state)
        for place, index in enumerate(tree.path(tree.first_leaves()[0])):
            turn = tree.turns[index]
            step = session.step(turn.text)
            if step.observation != turn.observation:
                raise InputError(
                    f"{state.id}: turn {place} got {step.observation[:80]!r} instead of the recorded "
                    f"{turn.observation[:80]!r}; give the overrides of env with which the trees were recorded"
                )
            ids = player.chat.action(turn.text)
            info = {**step.info, "won": step.won}
            path.turns.append(
                Turn(
                    place - 1, ids, [0.0] * len(ids), turn.text, observation=step.observation, done=step.done, info=info
                )
            )
            if step.done:
                break
            path.turns[-1].observation_ids = player.chat.bridge(step.shown)
        paths.append(path)
    return paths


def against(results: Mapping[float, Mapping[str, Any]], key: str) -> tuple[Any, Any]:
    """A table and a figure of the signal to noise of every rule, over the values of the setting ``key``."""
    from turnwise.runs.figures import SERIES, STROKES, canvas, drawn_figure, label
    from turnwise_study.credit_page import HOW, SHOWN, ordered, score_cell
    from turnwise_study.tables import Table

    metric = "snr"
    values = sorted(results)
    rules = ordered(results[values[0]]["rules"])
    rows = [[rule, *(score_cell(metric, results[v]["rules"][rule][metric], True) for v in values)] for rule in rules]
    rows.append(["turns that matter, %", *(f"{100 * results[v]['matter']:.0f}" for v in values)])
    title = f"{SHOWN[metric].capitalize()} against {key}"
    first = results[values[0]]
    table = Table(title, ["rule", *(f"{v:g}" for v in values)], rows, [HOW, f"    {first['command']}"])
    with canvas(9.4, 4.2) as drawing:
        axes = drawing.add_subplot(xlabel=key, ylabel=SHOWN[metric])
        for number, rule in enumerate(rules):
            points = [(v, results[v]["rules"][rule][metric]["value"]) for v in values]
            known = [(x, y) for x, y in points if y is not None]
            if known:
                x, y = zip(*known, strict=True)
                style = STROKES[number // len(SERIES) % len(STROKES)]
                axes.plot(x, y, style, marker="o", ms=3, color=SERIES[number % len(SERIES)], label=label(rule, 40))
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8)
        return table, drawn_figure(drawing, title, "against", title)


def of_settings(texts: Sequence[str]) -> dict[str, list[str]]:
    """Key -> its values. Several keys have as many values and change together."""
    over = {key: values.split(",") for key, _, values in (text.partition("=") for text in texts)}
    try:
        [float(value) for value in next(iter(over.values()))]
    except ValueError:
        raise InputError(f"--over {texts[0]}: write KEY=NUMBER,NUMBER,..., such as env.density=0.1,0.5") from None
    if len({len(values) for values in over.values()}) > 1:
        raise InputError(f"--over {' '.join(texts)}: all keys need the same number of values")
    return over


def parser() -> Any:
    parser = options(__doc__)
    add = parser.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help="overrides as for train.py")
    add("--tasks", type=number(1, 10_000, whole=True), default=16, help="tasks of each seed (16)")
    add("--turns", type=number(1, 1000, whole=True), default=4, help="audited turns of each episode (4)")
    add("--se", type=number(0.005, 0.25), default=0.1, help="wanted standard error of a value (0.1)")
    add("--replicates", type=number(2, 1000, whole=True), default=3, help="trees in which a turn is repeated (3)")
    add("--seeds", type=seeds_of, default=(0, 1, 2), help="seeds of tasks and draws (0,1,2)")
    add("--split", choices=SPLITS, default="train", help="whose tasks are played (train)")
    add("--skill", type=number(0, 1), help="the scripted policy of env=corridor follows a sign with this probability")
    add("--exact", action="store_true", help="with --skill: values by dynamic programming in place of continuations")
    add("--rules", help="names of rules, with ; between them (all)")
    add(
        "--forms", nargs="+", choices=FORMS, default=FORMS, help="forms of tree (all; vine costs most in long episodes)"
    )
    told = "repeat the audit for values of a setting, and draw signal to noise over it; further settings change along"
    add("--over", nargs="+", metavar="KEY=A,B", help=told)
    add("--trees", type=Path, help="audit recorded trees: a run's folder or a file, with the run's overrides")
    add("--known", type=number(1, 10**6, whole=True), default=300, help="tasks among which those of --trees are found")
    add("--out", type=Path, default=Path("outputs/credit_audit"), help="folder of the results (outputs/credit_audit)")
    add(
        "--learned", metavar="SWEEP", help="set the quality beside training: turnwise_credit, turnwise_credit_household"
    )
    add("--page", type=Path, help="also write the leaderboard to this Markdown file")
    add("--section", help="only replace this section of the page")
    add("--figure", type=Path, help="the figure's file (figure.svg in --out)")
    return parser


if __name__ == "__main__":
    sys.exit(until_stopped(main))
