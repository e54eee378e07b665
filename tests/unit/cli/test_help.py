"""The help of every command: it says what the command does, and lists stay lists."""

import pytest
from click.testing import CliRunner

from podwire.cli.main import COMMANDS, SECTIONS, root


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(root, [*arguments, "--help"], prog_name="podwire")
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_does(command: str) -> None:
    text = shown(command)
    assert text.startswith(f"Usage: podwire {command} ")
    first = text.split("\n\n")[1].strip()
    assert first.endswith((".", ":")) and len(first) > 20
    assert all(len(line) <= 80 for line in text.splitlines() if "podwire" not in line)


def test_the_overview_names_every_command() -> None:
    text = shown()
    for name, (_, line) in COMMANDS.items():
        assert any(row.split()[:1] == [name] and line.split()[0] in row for row in text.splitlines()), name


def test_each_command_stands_in_one_section_of_the_overview() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(COMMANDS)
    text = shown()
    assert [text.index(f"\n{heading}:\n") for heading in SECTIONS] == sorted(
        text.index(f"\n{heading}:\n") for heading in SECTIONS
    )


def test_the_words_of_probe_have_a_line_each() -> None:
    starts = [line.strip().partition(" ")[0] for line in shown("probe").splitlines()]
    for word in ("all", "host", "shop/web-0", "shop/app=web", "svc/shop/web"):
        assert word in starts


def test_policy_without_a_command_takes_the_options_of_list() -> None:
    result = CliRunner().invoke(root, ["policy", "--name", "NOT A NAME", "-o", "json"], prog_name="podwire")
    assert "NOT A NAME" in str(result.exception), result.output
