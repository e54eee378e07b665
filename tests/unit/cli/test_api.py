"""How long commands wait for an API."""

import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from podwire.cli.api import client_of, within
from podwire.cli.main import root
from podwire.cli.request_timeout import request_timeout
from podwire.errors import ApiUnreachable, ConfigError
from podwire.kube.config import ApiConfig

KUBECONFIG = """
current-context: here
contexts: [{name: here, context: {cluster: here}}]
clusters: [{name: here, cluster: {server: "http://127.0.0.1:%d"}}]
"""


@click.command()
@request_timeout
def command() -> None:
    """Prints how long it would wait."""
    result = within(ApiConfig("http://127.0.0.1:1"))
    click.echo(f"{result.answer_s} {result.timeout_s}")


@pytest.mark.parametrize(
    ("arguments", "waits"),
    [
        ((), "10.0 30.0"),
        (("--request-timeout", "90s"), "90.0 90.0"),
        (("--request-timeout", "2m"), "120.0 120.0"),
        (("--request-timeout", "5"), "5.0 5.0"),
        (("--request-timeout", "0"), "None None"),
    ],
)
def test_command_waits_for_its_timeout(arguments: tuple[str, ...], waits: str) -> None:
    assert CliRunner().invoke(command, arguments).output.strip() == waits


def test_a_time_that_is_none_is_refused() -> None:
    result = CliRunner().invoke(command, ["--request-timeout", "soon"])
    assert result.exit_code == 2 and "'soon' is not a time" in result.output


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[str]:
    """The kubeconfig of an API that takes connections and never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    file = tmp_path / "kubeconfig"
    file.write_text(KUBECONFIG % listener.getsockname()[1])
    yield str(file)
    listener.close()


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("why", "--planned", "shop/web", "svc/shop/db"), ApiUnreachable),
        (("policy", "list"), ConfigError),
        (("policy", "check"), ConfigError),
        (("policy", "diff", "live", "."), ConfigError),
    ],
)
def test_an_api_that_says_nothing_is_not_waited_for_longer(
    frozen: str, arguments: tuple[str, ...], kind: type[Exception]
) -> None:
    result = CliRunner().invoke(root, [*arguments, "--kubeconfig", frozen, "--request-timeout", "0.05"])
    assert isinstance(result.exception, kind), result.exception
    assert "no answer to GET /api" in str(result.exception) and str(result.exception).endswith("in 0.05 s")


def test_without_the_option_there_is_a_bound(frozen: str) -> None:
    assert client_of(frozen).config.answer_s == 10
