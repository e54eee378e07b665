"""Groups of commands that are loaded when they are called."""

import sys

import click
import pytest
from click.testing import CliRunner

from podwire.cli.lazy import LazyGroup

TABLE = {"probe": ("podwire.cli.probe:probe", "Test things."), "gone": ("podwire.cli.gone:gone", "Never there.")}


@pytest.fixture
def group() -> click.Group:
    return LazyGroup("tools", table=TABLE)


def test_the_overview_has_a_line_each_and_imports_nothing(group: click.Group) -> None:
    result = CliRunner().invoke(group, ["--help"])
    assert result.exit_code == 0
    assert "Test things." in result.output and "Never there." in result.output
    assert "podwire.cli.gone" not in sys.modules


def test_a_command_is_loaded_when_it_is_called(group: click.Group) -> None:
    result = CliRunner().invoke(group, ["probe", "--help"])
    assert result.exit_code == 0 and "Usage: tools probe" in result.output
    with pytest.raises(ModuleNotFoundError):
        CliRunner().invoke(group, ["gone"], catch_exceptions=False)


def test_unknown_command_is_refused(group: click.Group) -> None:
    result = CliRunner().invoke(group, ["other"])
    assert result.exit_code == 2 and "No such command 'other'" in result.output


def test_a_group_without_commands_has_help() -> None:
    assert CliRunner().invoke(LazyGroup("none", table={}), ["--help"]).exit_code == 0
