"""Floors for the speeds that rollouts rely on: half of 20,000 steps a second, and 50 microseconds a fork."""

from __future__ import annotations

from time import process_time


def best_of(times, run):
    """Processor seconds of the fastest run; other work on the machine does not count."""
    found = []
    for _ in range(times):
        start = process_time()
        run()
        found.append(process_time() - start)
    return min(found)


def test_steps_and_forks_are_fast(env):
    scripts = []
    for task in env.tasks("train", 60):
        shown = env.demonstrate(task, "clumsy")
        scripts.append((task, [m["content"] for m in shown.messages if m["role"] == "assistant"]))
    seconds = best_of(5, lambda: [env.replay(task, actions) for task, actions in scripts])
    assert sum(len(actions) for _, actions in scripts) / seconds > 10_000

    session = env.replay(*scripts[0][:1], scripts[0][1][:3])
    assert best_of(5, lambda: [session.fork() for _ in range(1000)]) / 1000 < 50e-6
