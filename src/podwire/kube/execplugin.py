"""Credentials from a program that a kubeconfig names (``users.user.exec``), as clusters of cloud providers have them.

The program prints an ExecCredential: a bearer token, or a client certificate with its key, and when they expire. It
runs when a request needs credentials and there are none, :data:`MARGIN_S` before they expire, and after the API server
has answered 401: then the clocks differ, or the credentials were withdrawn. It never reads from the terminal.

Source: ``client.authentication.k8s.io/v1`` and ``v1beta1``, client-go ``plugin/pkg/client/auth/exec``.
"""

import base64
import datetime
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from podwire.errors import ApiUnreachable, ConfigError
from podwire.runtime.child import call
from podwire.runtime.clock import parse_rfc3339

MARGIN_S = 10.0
"""Credentials are renewed this long before they expire: a request takes time, and clocks differ."""
LIMIT_S = 60.0
"""How long the program may take."""
_VERSIONS = tuple(f"client.authentication.k8s.io/{version}" for version in ("v1", "v1beta1"))


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """The program; ``cluster`` is what it is told of the cluster, None: nothing."""

    command: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    api_version: str
    install_hint: str = ""
    cluster: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ExecCredentials:
    """What the program printed; ``expires`` None: when the process ends."""

    token: str = ""
    certificate: bytes = b""
    key: bytes = b""
    expires: datetime.datetime | None = None

    def is_current(self, now: datetime.datetime) -> bool:
        """Whether they can be used for a further request."""
        return self.expires is None or (self.expires - now).total_seconds() > MARGIN_S


class _Status(msgspec.Struct, frozen=True, rename="camel"):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str = ""


class _Credential(msgspec.Struct, frozen=True, rename="camel"):
    kind: str
    api_version: str
    status: _Status = _Status()


def parse(file: Path, entry: Mapping[str, Any], cluster: Mapping[str, Any]) -> ExecPlugin:
    """The program of an entry ``exec``; a command with a slash is relative to the kubeconfig.

    Raises: ConfigError naming the file and the field.
    """

    def refuse(field: str, problem: str) -> ConfigError:
        return ConfigError(str(file), f"users.user.exec.{field}", problem)

    command, version = entry.get("command"), entry.get("apiVersion")
    if not isinstance(command, str) or not command:
        raise refuse("command", f"expected the name of a program, got {command!r}")
    if version not in _VERSIONS:
        raise refuse("apiVersion", f"expected {' or '.join(_VERSIONS)}, got {version!r}")
    if entry.get("interactiveMode") == "Always":
        raise refuse("interactiveMode", "Always: podwire gives the program no terminal")
    arguments = entry.get("args") or []
    if not isinstance(arguments, list):
        raise refuse("args", f"expected a list, got {arguments!r}")
    pairs = entry.get("env") or []
    if not isinstance(pairs, list) or not all(isinstance(item, dict) and "name" in item for item in pairs):
        raise refuse("env", f"expected a list of name and value, got {pairs!r}")
    return ExecPlugin(
        command=str(file.parent / command) if "/" in command else command,
        arguments=tuple(map(str, arguments)),
        environment=tuple((str(item["name"]), str(item.get("value") or "")) for item in pairs),
        api_version=version,
        install_hint=str(entry.get("installHint") or ""),
        cluster=dict(cluster) if entry.get("provideClusterInfo") else None,
    )


def run(plugin: ExecPlugin, environ: Mapping[str, str]) -> ExecCredentials:
    """Runs the program and returns its credentials; blocks.

    Raises: ApiUnreachable with what the program said.
    """
    program = shutil.which(plugin.command, path=environ.get("PATH", os.defpath))
    if program is None:
        hint = f": {plugin.install_hint.strip()}" if plugin.install_hint else ""
        raise ApiUnreachable(f"the credential program {plugin.command} is not installed{hint}")
    info: dict[str, Any] = {"interactive": False}
    if plugin.cluster is not None:
        info["cluster"] = plugin.cluster
    document = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": info}
    own = dict(plugin.environment) | {"KUBERNETES_EXEC_INFO": msgspec.json.encode(document).decode()}
    try:
        done = call((program, *plugin.arguments), env={**environ, **own}, timeout_s=LIMIT_S)
    except OSError as failure:
        raise ApiUnreachable(f"the credential program {program} does not start: {failure}") from failure
    if done.code != 0:
        status = f"did not end in {LIMIT_S:g} s" if done.code is None else f"ended with status {done.code}"
        text = done.errors.decode(errors="replace").strip()[-300:]
        raise ApiUnreachable(f"the credential program {program} {status}{': ' if text else ''}{text}")
    return decode(done.output, program, plugin.api_version)


def decode(output: bytes, program: str, api_version: str) -> ExecCredentials:
    """The credentials in what a program printed.

    Raises: ApiUnreachable when it printed something else.
    """
    try:
        printed = msgspec.json.decode(_without_nulls(output), type=_Credential)
        stamp = printed.status.expiration_timestamp
        expires = parse_rfc3339(stamp) if stamp else None
    except (msgspec.DecodeError, ValueError) as failure:
        raise ApiUnreachable(f"the credential program {program} printed no ExecCredential: {failure}") from failure
    if printed.kind != "ExecCredential" or printed.api_version != api_version:
        got = f"{printed.api_version} {printed.kind}"
        raise ApiUnreachable(f"the credential program {program} printed {got}; expected {api_version} ExecCredential")
    status = printed.status
    if not status.token and not (status.client_certificate_data and status.client_key_data):
        raise ApiUnreachable(f"the credential program {program} printed neither a token nor a certificate and its key")
    return ExecCredentials(
        status.token, status.client_certificate_data.encode(), status.client_key_data.encode(), expires
    )


def _without_nulls(output: bytes) -> bytes:
    """The document with absent fields in place of ``null``, as Go reads them."""
    document = msgspec.json.decode(output)
    if isinstance(document, dict):
        status = document.get("status")
        document["status"] = {k: v for k, v in status.items() if v is not None} if isinstance(status, dict) else {}
    return msgspec.json.encode(document)


def information(cluster: Mapping[str, Any], authority: bytes) -> dict[str, Any]:
    """What a program may be told of the cluster of a kubeconfig; ``authority`` is its certificate."""
    names = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
    result = {name: cluster[name] for name in names if cluster.get(name)}
    if authority:
        result["certificate-authority-data"] = base64.b64encode(authority).decode()
    return result
