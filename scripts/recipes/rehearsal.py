"""Writes the conversations of a gentle warm start: demonstrations of API-Bank's generated world, and the instruct model's own
answers to general questions.

    python -m scripts.recipes.rehearsal    # part of `make real`; a second
    python -m scripts.recipes.rehearsal --policy MODEL --answers FILE --out FILE    # another model's; minutes

SFT on demonstrations alone makes a small model forget what it knew before it solves a task: it answers every question with a
call. Its own answers, rehearsed beside the demonstrations, prevent that. The questions are of other kinds than the questions by
which forgetting is measured (turnwise/evaluation/base_divergence.py, turnwise_worlds/facts.py). Sampled answers depend on the
rounding of the machine, so SmolLM2's are kept in answers.jsonl: one sample, on one thread, less the answers that did not end.
"""

from __future__ import annotations

from pathlib import Path

from turnwise.data.chat_tokens import ChatTokens
from turnwise.data.trajectories import read_trajectories, write_trajectories
from turnwise.engines.engine import Sampling
from turnwise.engines.tree_engine import TreeEngine
from turnwise.models.policy import load_policy
from turnwise.programs import options, program
from turnwise.shipped import PRETRAINED, weights_of
from turnwise.types import Trajectory
from turnwise_worlds.apibank import ApiBankEnv

ANSWERS = Path(__file__).with_name("answers.jsonl")
TOGETHER = 16  # answers that are sampled in one batch
SAMPLING = Sampling(temperature=1.0, max_tokens=96)
TOPICS = [
    "volcanoes", "bridges", "bicycles", "libraries", "penguins", "gardens", "trains", "violins", "glaciers",
    "markets", "horses", "lighthouses", "mushrooms", "telescopes", "rivers", "kites", "clocks", "deserts", "owls",
    "castles", "candles", "tomatoes", "dolphins", "museums", "canals",
]  # fmt: skip
ASKS = (
    "What are {} good for?",
    "Write one sentence about {}.",
    "Where do people find {}?",
    "What do children like about {}?",
    "Name a word that describes {}.",
    "Why are there {}?",
    "In one sentence, what are {}?",
    "What is important to know about {}?",
)


@program()
def main(arguments: list[str]) -> int:
    parser = options(__doc__)
    parser.add_argument(
        "--policy", default="smollm2", help="a name, a Hugging Face id or a folder (default: %(default)s)"
    )
    parser.add_argument(
        "--answers",
        type=Path,
        default=ANSWERS,
        help="the model's own answers, sampled and kept there if the file is missing",
    )
    parser.add_argument("--demonstrations", type=int, default=300, help="their number (default: %(default)s)")
    parser.add_argument("--thinks", action="store_true", help="demonstrations that think before each reply")
    out = PRETRAINED["smollm2"].parent / "warm_start.jsonl"
    parser.add_argument("--out", type=Path, default=out, help="file to write (default: %(default)s)")
    given = parser.parse_args(arguments)
    if given.answers == ANSWERS and given.policy != "smollm2":
        parser.error(f"--policy {given.policy}: {ANSWERS.name} has SmolLM2's answers; name another file with --answers")
    if given.out.is_file():
        print(f"{given.out} is complete; remove it to write it again")
        return 0
    if not given.answers.is_file():
        write_trajectories(given.answers, rehearsed(given.policy))
    answers = read_trajectories(given.answers).trajectories
    world = ApiBankEnv(thinks=given.thinks)
    tasks = world.tasks("train", given.demonstrations, seed=0)
    demonstrations = [world.demonstrate(task, "good", 0) for task in tasks]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_trajectories(given.out, [*demonstrations, *answers])
    print(f"{given.out}: {len(demonstrations)} demonstrations and {len(answers)} answers of the model itself")
    return 0


def rehearsed(policy: str) -> list[Trajectory]:
    """Returns the model's own answers to the general questions, one each. Answers that do not end are left out."""
    model, tokenizer = load_policy(weights_of(policy))
    chat = ChatTokens(tokenizer)
    engine = TreeEngine(chat.stop_ids)
    engine.load_weights(model, 0)
    questions = [ask.format(topic) for topic in TOPICS for ask in ASKS]
    answers: list[Trajectory] = []
    for first in range(0, len(questions), TOGETHER):
        prompts = [({"role": "user", "content": question},) for question in questions[first : first + TOGETHER]]
        nodes = [engine.open(chat.prompt(list(prompt))) for prompt in prompts]
        samples = engine.sample(nodes, SAMPLING, list(range(first, first + len(nodes))))
        engine.close(nodes)
        for place, (prompt, sample) in enumerate(zip(prompts, samples, strict=True), first):
            text = tokenizer.decode(sample.ids[:-1])
            if not sample.truncated and text.strip():
                answers.append(Trajectory(f"general/{place}", (*prompt, {"role": "assistant", "content": text})))
        print(f"answered {min(first + TOGETHER, len(questions))} of {len(questions)} questions", flush=True)
    engine.shutdown()
    return answers


if __name__ == "__main__":
    raise SystemExit(main())
