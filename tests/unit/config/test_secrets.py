from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf
from tests.configuration_files import READ
from turnwise.config.secrets import refuse_secrets, secrets_in

from turnwise.config.check import check_config
from turnwise.config.schema import ConfigError, compose_config

CONF = Path(__file__).parents[3] / "conf"
SECRET = "hunter2"


@pytest.mark.parametrize(
    ("argument", "key"),
    [
        (f"judge.client.url=http://user:{SECRET}@host/v1", "judge.client.url"),
        (f"judge.client.url=https://{SECRET}@host/v1", "judge.client.url"),
        (f"judge.client.url=http://user:{SECRET}/x@host/v1", "judge.client.url"),  # the slash ends no password
        (f"judge.client.url=user:{SECRET}@host:80", "judge.client.url"),
        (f"engine.urls=[http://one:8000,http://u:{SECRET}@two:8000]", "engine.urls"),
        (f"+env.retriever=http://u:{SECRET}@host/retrieve", "env.retriever"),
        (f"http://u:{SECRET}@host", "an argument"),
        (f"judge.client.key_variable=sk-{SECRET}", "judge.client.key_variable"),
        (f"judge.client.key_variable=TURNWISE_KEY,sk-{SECRET}", "judge.client.key_variable"),
        (f"judge.client={{url: http://h/v1, key_variable: '{SECRET}'}}", "judge.client"),
    ],
)
def test_a_secret_is_refused_by_its_key_and_not_repeated(argument: str, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        refuse_secrets(["method=awpo", argument])
    assert str(refused.value).startswith(f"{key}: ")
    assert SECRET not in str(refused.value)


def test_what_only_looks_alike_passes() -> None:
    refuse_secrets(
        [
            *(
                "judge.client.url=http://host:8000/v1/@cf/model",
                "judge.client.key_variable=MY_KEY",
                "data.file=me@home.jsonl",
            ),
            *("judge.client.key_variable=${oc.env:WHICH}", "hydra.searchpath=[pkg://mine]", "--multirun", "name=a@b"),
        ]
    )


def test_secrets_of_files_and_of_the_environment_are_found_in_the_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_URL", f"http://u:{SECRET}@host/v1")
    monkeypatch.setenv("MY_KEY", f"sk-{SECRET}")
    given = [
        "judge.client.url=${oc.env:MY_URL}",
        "judge.client.key_variable=${oc.env:MY_KEY}",
        "judge.client.attempts=0",
    ]
    with pytest.raises(ConfigError) as refused:
        check_config(compose_config(["method=awpo", "judge=endpoint", *given], CONF, read=READ))
    assert [mistake.split(":")[0] for mistake in refused.value.mistakes] == [
        "judge.client.url",
        "judge.client.key_variable",
    ]
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("url", ["http://host:99999/v1", "http://host:0/v1", "http://host:abc/v1", "http://[::1/v1"])
def test_a_port_is_one_that_exists(url: str) -> None:
    tree = OmegaConf.to_container(OmegaConf.create({"a": {"urls": ["http://host:8000", url]}}))
    assert [mistake.split(":")[0] for mistake in secrets_in(tree)] == ["a.urls.1"]
