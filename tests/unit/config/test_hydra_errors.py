from __future__ import annotations

from pathlib import Path

import pytest
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from tests.configuration_files import READ

from turnwise.config.overrides import explain
from turnwise.config.schema import compose_config

CONF = Path(__file__).parents[3] / "conf"


def explained(*arguments: str, folder: Path = CONF) -> list[str]:
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    with pytest.raises((HydraException, OmegaConfBaseException)) as caught:
        compose_config(overrides, folder)
    return explain(caught.value, arguments, folder).mistakes


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("method=pivtorl", "method=pivtorl: method has no 'pivtorl'; did you mean 'pivotrl'?"),
        ("engine=qqq", "engine=qqq: engine has no 'qqq'; choose one of tree"),
        ("experiment=pivotrl/tab4/ful", "did you mean 'pivotrl/tab4/full'?"),
        ("loss.clip_hihg=.3", "loss.clip_hihg=.3: loss has no key 'clip_hihg'; did you mean 'clip_high'?"),
        ("los.clip_high=.3", "los.clip_high=.3: there is no key 'los'; did you mean 'loss'?"),
        ("rollout.samplign.top_p=1", "rollout has no key 'samplign'; did you mean 'sampling'?"),
        ("sed=3", "sed=3: there is no key 'sed'; did you mean 'seed'?"),
        ("metod=sft", "metod=sft: there is no key 'metod'; did you mean 'method'?"),
        ("seed=abc", "seed=abc: Value 'abc' of type 'str' could not be converted to Integer"),
        ("fresh=maybe", "fresh=maybe: Value 'maybe' is not a valid bool"),
        ("hydra.launcher.cores=2", "To append to your config use +hydra.launcher.cores=2"),
        ("method", "method: this is not of the form key=value"),
        ("~loss.clip_hihg", "~loss.clip_hihg: loss has no key 'clip_hihg'; did you mean 'clip_high'?"),
        ("data.file=${nmae}", "data.file=${nmae}: Interpolation key 'nmae' not found"),
        ("name=${nmae}", "name=${nmae}: Interpolation key 'nmae' not found"),
    ],
)
def test_hydras_refusals_become_one_line(override: str, message: str) -> None:
    found = explained(override)
    assert len(found) == 1
    assert message in found[0]
    assert "\n" not in found[0]


def test_all_bad_overrides_are_listed_with_what_the_check_finds_in_the_rest() -> None:
    found = explained("method=pivtorl", "loss.clip_hihg=.3", "sed=3", "seed=abc", "loss.clip_low=abc", "--multirun")
    assert [line.split(":")[0] for line in found] == [
        "method=pivtorl",
        "loss.clip_hihg=.3",
        "sed=3",
        "seed=abc",
        "loss.clip_low",
    ]


def test_a_bad_key_of_a_sweep_is_named_once() -> None:
    with pytest.raises((HydraException, OmegaConfBaseException)) as caught:
        compose_config(["sed=1"], CONF, read=READ)
    found = explain(caught.value, ["-m", "sed=1,2,3", "loss.clip_high=.2,.3"], CONF).mistakes
    assert found == ["sed=1: there is no key 'sed'; did you mean 'seed'?"]


def test_the_bad_value_of_a_sweep_is_named() -> None:
    with pytest.raises((HydraException, OmegaConfBaseException)) as caught:
        compose_config(["seed=x"], CONF, read=READ)
    found = explain(caught.value, ["-m", "seed=0,1,x"], CONF).mistakes
    assert found == ["seed=x: Value 'x' of type 'str' could not be converted to Integer"]


@pytest.mark.parametrize(
    ("preset", "message"),
    [
        (
            "defaults:\n  - override /states: pivtos\n",
            "conf/method/mine.yaml: states has no 'pivtos'; did you mean 'pivots'?",
        ),
        ("sed: 3\n", "Key 'sed' not in 'RunConfig'"),
        ("seed: abc\n", "Value 'abc' of type 'str' could not be converted to Integer"),
    ],
)
def test_a_mistake_in_a_file_is_told(tmp_path: Path, preset: str, message: str) -> None:
    folder = tmp_path / "conf"
    for path in CONF.rglob("*.yaml"):
        copy = folder / path.relative_to(CONF)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(path.read_text())
    (folder / "method" / "mine.yaml").write_text(f"# @package _global_\n{preset}")
    found = explained("method=mine", folder=folder)
    assert len(found) == 1
    assert message in found[0]
