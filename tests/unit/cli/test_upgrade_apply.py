"""Wrong input of the commands that apply and undo upgrades: exit status 2, one line, no traceback."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.upgrade.apply.scenario import make_plan

from podwire.cli.upgrade import upgrade
from podwire.errors import ConfigError
from podwire.upgrade.plan.values import plan_json


@pytest.fixture
def plan(tmp_path: Path) -> str:
    file = tmp_path / "plan.json"
    file.write_text(plan_json(make_plan()))
    return str(file)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--plan", "PLAN", "--to", "1.36"), "expected either --plan or --to"),
        (("--plan", "PLAN", "--canary", "a"), "--canary needs --to, since the plan decides it"),
        (("--mirror", "a=b"), "--mirror needs --to, since the plan decides it"),
    ],
)
def test_options_that_say_nothing_are_refused(plan: str, words: tuple[str, ...], message: str) -> None:
    words = tuple(plan if word == "PLAN" else word for word in words)
    result = CliRunner().invoke(upgrade, ["apply", *words])
    assert (result.exit_code, message in result.output) == (2, True), result.output


def test_plans_and_images_are_checked_before_the_cluster_is_asked(plan: str, tmp_path: Path) -> None:
    for words, message in (
        (["--plan", str(tmp_path / "none")], "--plan: .* cannot be read: No such file"),
        (["--plan", plan, "--require-digests"], "image flannel/flannel:v0.26.0 has no digest"),
        (["--plan", plan, "--registry", "UPPER CASE"], "--registry: expected an image"),
    ):
        result = CliRunner().invoke(upgrade, ["apply", *words])
        with pytest.raises(ConfigError, match=message):
            raise result.exception or AssertionError(result.output)


def test_kinds_of_connections_are_checked() -> None:
    result = CliRunner().invoke(upgrade, ["verify", "--skip", "pods"])
    assert str(result.exception) == "--skip: expected one of pod, service, nodeport, dns, policy, egress, got 'pods'"
