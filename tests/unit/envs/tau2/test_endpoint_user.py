"""A model as the user: what it is asked, what is kept, and a fault where it does not answer."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from turnwise.env import EnvironmentFault
from turnwise.judges.endpoint import ChatClient
from turnwise.rollouts.episodes import Openings
from turnwise_worlds.tau2 import EndpointUser, Tau2Env

TICKET = "[service_issue]airplane_mode_on|lock_sim_card_pin[PERSONA:Easy]"  # without a user

pytestmark = pytest.mark.extra("tau2")


@pytest.fixture
def server():
    """A chat endpoint that says what ``answers`` holds, in turn, and keeps what it was asked; an int is a status."""
    asked, answers = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            answer = answers.pop(0)
            body = {"choices": [{"message": {"content": answer}, "finish_reason": "stop"}]}
            data = json.dumps(body).encode()
            self.send_response(answer if isinstance(answer, int) else 200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/v1", asked, answers
        running.shutdown()


@pytest.fixture
def make(server, tmp_path):
    users = []

    def build(**client):
        quick = {"attempts": 2, "backoff": 0.01} | client
        users.append(EndpointUser(ChatClient(server[0], **quick), cache=str(tmp_path / "user.sqlite")))
        return Tau2Env(format="bfcl_python", user="endpoint", endpoint=users[-1])

    yield build
    for user in users:
        user.close()


@pytest.mark.slow
def test_the_first_episodes_of_a_process_may_begin_in_several_threads():
    script = """if True:
        from concurrent.futures import ThreadPoolExecutor
        from turnwise_worlds.tau2 import Tau2Env

        env = Tau2Env()
        with ThreadPoolExecutor(8) as threads:
            print(len(list(threads.map(env.reset, env.tasks("train", 24)))))
    """
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert ran.stdout == "24\n", ran.stderr[-500:]


def test_the_model_is_told_its_part_and_ends_the_conversation(server, make, task):
    _, asked, answers = server
    answers += ["Hi, cancel my flights.", "I am Amelia.", "Thanks! ###STOP###"]
    env = make()
    session = env.reset(task("airline", "39"))
    assert session.opening()[-1] == {"role": "user", "content": "Hi, cancel my flights."}
    assert session.step("Who are you?").observation == "I am Amelia."
    session.step("get_user_details(user_id='amelia_davis_8890')")
    step = session.step("Goodbye.")
    assert (step.observation, step.done, step.won) == ("", True, False)
    system, *others = asked[-1]["messages"]
    assert (
        "User Simulation Guidelines" in system["content"]
        and "You want to cancel all of your upcoming flights" in system["content"]
    )
    assert [message["role"] for message in others] == ["user", "assistant", "user", "assistant", "user"]
    assert others[-1]["content"] == "Goodbye." and "amelia_davis_8890" not in json.dumps(others)  # no call is shown


def test_a_user_that_does_not_answer_is_a_fault_and_nothing_is_kept(server, make, task):
    _, _, answers = server
    env = make()
    for broken in ([500, 500], [404], ["  "]):
        answers[:] = broken
        with pytest.raises(EnvironmentFault, match="the model that plays the user did not answer"):
            env.reset(task("airline", "39"))
    answers[:] = ["Hi."]
    assert env.reset(task("airline", "39")).opening()[-1]["content"] == "Hi."


def test_first_messages_are_asked_for_together_and_replies_are_waited_for_in_threads(server, make, task):
    _, asked, answers = server
    answers += [f"Hi {i}." for i in range(3)]
    env, done = make(), []
    tasks = [task("airline", name) for name in ("39", "2", "9")] + [task("telecom", TICKET)]
    opening = Openings(env, Texts(), threads=4)
    opening.read(tasks, done.append)
    assert sum(done) == len(tasks) and len(asked) == 3
    first = {each.id: env.reset(each).opening()[-1]["content"] for each in tasks[:3]}
    assert sorted(first.values()) == ["Hi 0.", "Hi 1.", "Hi 2."] and len(asked) == 3  # reset reads the cache
    assert all(opening(each)[0][-1]["content"] == first[each.id] for each in tasks[:3])
    answers[:] = [500, 500, "Hi again."]
    opening.read([task("airline", "10")], done.append)  # a user who does not answer is asked again
    assert not answers
    assert env.waits and not Tau2Env().waits


class Texts:
    """A tokenizer whose tokens nobody reads."""

    def prompt(self, messages, tools=()):
        return [len(messages)]
