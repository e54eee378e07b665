"""Credential programs of a kubeconfig: real programs, and what they print."""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest

from podwire.errors import ApiUnreachable, ConfigError
from podwire.kube import execplugin
from podwire.kube.execplugin import ExecCredentials, ExecPlugin

V1 = "client.authentication.k8s.io/v1"
NOW = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
FILE = Path("/home/u/.kube/config")


def printed(api_version: str = V1, **status: Any) -> bytes:
    return json.dumps({"apiVersion": api_version, "kind": "ExecCredential", "status": status}).encode()


def program(tmp_path: Path, script: str) -> ExecPlugin:
    (tmp_path / "get-token").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "get-token").chmod(0o755)
    entry = {
        "apiVersion": V1,
        "command": "./get-token",
        "args": ["--cluster", "c"],
        "env": [{"name": "A", "value": "b"}],
    }
    return execplugin.parse(tmp_path / "config", entry | {"provideClusterInfo": True}, {"server": "https://k"})


def test_a_program_gets_arguments_environment_and_cluster(tmp_path: Path) -> None:
    answer = '{"apiVersion": "%s", "kind": "ExecCredential", "status": {"token": "%s"}}'
    script = f'printf \'{answer}\' {V1} "$1-$2-$A"; echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/info'
    credentials = execplugin.run(program(tmp_path, script), {"PATH": "/usr/bin:/bin"})
    assert credentials == ExecCredentials("--cluster-c-b")
    assert json.loads((tmp_path / "info").read_text()) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://k"}},
    }


def test_failures_of_a_program_are_told(tmp_path: Path) -> None:
    with pytest.raises(ApiUnreachable, match="get-token ended with status 3: log in first"):
        execplugin.run(program(tmp_path, "echo log in first >&2; exit 3"), {})
    missing = ExecPlugin("no-such-program", (), (), V1, "install it from the vendor")
    with pytest.raises(ApiUnreachable, match="no-such-program is not installed: install it from the vendor"):
        execplugin.run(missing, {"PATH": "/usr/bin"})


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (b"no JSON", "printed no ExecCredential"),
        (b"[]", "printed no ExecCredential"),
        (printed(), "neither a token nor a certificate"),
        (printed(clientCertificateData="c"), "neither a token nor a certificate"),
        (printed("client.authentication.k8s.io/v1beta1", token="t"), "printed client.authentication.k8s.io/v1beta1"),
        (printed(token="t", expirationTimestamp="soon"), "printed no ExecCredential"),
        (printed(token=7), "printed no ExecCredential"),
    ],
)
def test_wrong_output_is_refused(output: bytes, message: str) -> None:
    with pytest.raises(ApiUnreachable, match=message):
        execplugin.decode(output, "get-token", V1)


def test_credentials_are_renewed_before_they_expire() -> None:
    output = printed(token="t", expirationTimestamp="2026-01-02T03:05:05Z", clientCertificateData=None)
    credentials = execplugin.decode(output, "get-token", V1)
    assert credentials.token == "t"
    assert credentials.is_current(NOW)
    assert not credentials.is_current(NOW + datetime.timedelta(seconds=51))
    assert execplugin.decode(printed(token="t"), "get-token", V1).is_current(NOW + datetime.timedelta(days=99))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"command": ""}, "exec.command: expected the name of a program, got ''"),
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "exec.apiVersion: expected client.auth"),
        ({"interactiveMode": "Always"}, "exec.interactiveMode: Always"),
        ({"args": "x"}, "exec.args: expected a list"),
        ({"env": [{"value": "x"}]}, "exec.env: expected a list of name and value"),
    ],
)
def test_wrong_entries_name_their_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        execplugin.parse(FILE, {"apiVersion": V1, "command": "aws"} | change, {})


def test_a_command_with_a_slash_is_beside_the_kubeconfig() -> None:
    entry = {"apiVersion": V1, "interactiveMode": "IfAvailable"}
    assert execplugin.parse(FILE, entry | {"command": "aws"}, {}).command == "aws"
    assert execplugin.parse(FILE, entry | {"command": "bin/aws"}, {}).command == "/home/u/.kube/bin/aws"
    assert execplugin.parse(FILE, entry | {"command": "aws", "env": None}, {}).cluster is None
