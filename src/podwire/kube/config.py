"""Address and credentials of an API server: from a kubeconfig file, or from the environment of a pod.

Credentials may come from a program (:mod:`podwire.kube.execplugin`). Entries ``auth-provider``, which Kubernetes has
removed, raise an error. Sources:
``k8s.io/client-go/tools/clientcmd`` (fields of a kubeconfig), ``rest.InClusterConfig`` (environment and files of a
pod).
"""

import base64
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

import yaml

from podwire.errors import ConfigError
from podwire.http.tls import ResumingContext, client_context
from podwire.kube import execplugin
from podwire.kube.execplugin import ExecPlugin

PATIENCE_S = 10.0
"""How long a command waits for an API server that does not answer."""

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """An API server and the credentials for it; PEM texts are bytes, empty means not given.

    ``token_file`` is read again every minute, since bound tokens rotate. ``answer_s`` is the longest time to connect,
    and the longest time until an answer begins; ``timeout_s`` the longest time of a whole request; None: no limit.
    Before a write opens a further connection, it waits ``turn_s`` for each busy connection: more connections do not
    make a slow API server faster.
    """

    server: str
    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = b""
    token: str = ""
    token_file: Path | None = None
    exec_plugin: ExecPlugin | None = None
    insecure: bool = False
    server_name: str = ""
    namespace: str = "default"
    context: str = ""
    """The context of the kubeconfig; empty in a pod."""
    answer_s: float | None = 30.0
    timeout_s: float | None = 30.0
    turn_s: float = 0.03

    @property
    def url(self) -> SplitResult:
        """The server's address, split."""
        return urlsplit(self.server)

    def ssl_context(self) -> ResumingContext | None:
        """A client context for the server, or None for plain HTTP.

        Raises: ConfigError when a certificate or key does not load.
        """
        if self.url.scheme != "https":
            return None
        try:
            context = client_context(self.ca.decode())
            if self.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if self.certificate:
                self._load_certificate(context)
        except (ssl.SSLError, ValueError) as failure:
            raise ConfigError(self.server, "", f"certificates do not load: {failure}") from failure
        return context

    def _load_certificate(self, context: ssl.SSLContext) -> None:
        # The ssl module reads key pairs from files only; an anonymous file keeps the key off the disk.
        pair = os.memfd_create("client-certificate")
        try:
            os.write(pair, self.certificate.rstrip() + b"\n" + self.key)
            context.load_cert_chain(f"/proc/self/fd/{pair}")
        finally:
            os.close(pair)


def patient(config: ApiConfig, answer_s: float | None = PATIENCE_S, timeout_s: float | None = 30.0) -> ApiConfig:
    """The same API with other time limits."""
    return replace(config, answer_s=answer_s, timeout_s=timeout_s)


def load_kubeconfig(path: Path | str, context: str = "") -> ApiConfig:
    """The cluster and user of ``context`` (default: the file's current context).

    Raises: ConfigError naming the file and the field.
    """
    file = Path(path)
    try:
        document = yaml.load(file.read_text(), Loader=yaml.CSafeLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as failure:
        problem = getattr(failure, "strerror", None) or failure
        raise ConfigError(str(file), "", f"cannot be read: {problem}") from failure
    if not isinstance(document, dict):
        raise ConfigError(str(file), "", "expected a kubeconfig mapping")
    reader = _Reader(file, document)
    name = context or str(document.get("current-context") or "")
    if not name:
        raise ConfigError(str(file), "current-context", "expected the name of a context, got none")
    entry = reader.named("contexts", name, "context")
    cluster = reader.named("clusters", str(entry.get("cluster", "")), "cluster")
    user = reader.named("users", str(entry.get("user", "")), "user") if entry.get("user") else {}
    config = reader.config(cluster, user, str(entry.get("namespace") or "default"))
    return replace(config, context=name)


def in_cluster(environ: Mapping[str, str], directory: Path = _SERVICE_ACCOUNT) -> ApiConfig:
    """The API server of the cluster whose pod this process runs in.

    Raises: ConfigError when this is not a pod or the files of its service account are missing.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigError("environment", "KUBERNETES_SERVICE_HOST", "not set: this is not a pod; give --kubeconfig")
    try:
        ca = (directory / "ca.crt").read_bytes()
    except OSError as failure:
        raise ConfigError(str(directory / "ca.crt"), "", f"cannot be read: {failure}") from failure
    namespace_file = directory / "namespace"
    namespace = namespace_file.read_text().strip() if namespace_file.exists() else "default"
    address = f"[{host}]" if ":" in host else host
    return ApiConfig(server=f"https://{address}:{port}", ca=ca, token_file=directory / "token", namespace=namespace)


def load(kubeconfig: Path | str | None, environ: Mapping[str, str]) -> ApiConfig:
    """The configuration of ``kubeconfig``, else of ``$KUBECONFIG``, else of the cluster of this pod.

    Raises: ConfigError.
    """
    path = kubeconfig or named_kubeconfig(environ)
    return load_kubeconfig(path) if path else in_cluster(environ)


def named_kubeconfig(environ: Mapping[str, str]) -> str:
    """The file that ``$KUBECONFIG`` names: of several, separated by colons, the first that exists, else the first.

    Empty when the variable names none. kubectl also skips files that do not exist.
    """
    files = [file for file in environ.get("KUBECONFIG", "").split(":") if file]
    return next((file for file in files if Path(file).exists()), files[0] if files else "")


def _is_url(server: str) -> bool:
    """Whether a client can connect to this address."""
    try:
        url = urlsplit(server)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class _Reader:
    file: Path
    document: dict[str, Any]

    def named(self, section: str, name: str, field: str) -> dict[str, Any]:
        entries = self.document.get(section) or []
        if not isinstance(entries, list):
            raise ConfigError(str(self.file), section, f"expected a list, got {entries!r}")
        for entry in entries:
            if isinstance(entry, dict) and entry.get("name") == name:
                value = entry.get(field) or {}
                if isinstance(value, dict):
                    return value
        raise ConfigError(str(self.file), section, f"no entry named {name!r}")

    def config(self, cluster: dict[str, Any], user: dict[str, Any], namespace: str) -> ApiConfig:
        server = self._text(cluster, "server")
        if not _is_url(server):
            raise ConfigError(str(self.file), "clusters.cluster.server", f"expected an http(s) URL, got {server!r}")
        if "auth-provider" in user:
            raise ConfigError(str(self.file), "users.user.auth-provider", "is not supported; use exec")
        token_file = self._text(user, "tokenFile")
        return ApiConfig(
            server=server,
            ca=self._pem(cluster, "certificate-authority"),
            certificate=self._pem(user, "client-certificate"),
            key=self._pem(user, "client-key"),
            token=str(user.get("token") or ""),
            token_file=self.file.parent / token_file if token_file else None,
            exec_plugin=self._exec_plugin(cluster, user),
            insecure=bool(cluster.get("insecure-skip-tls-verify")),
            server_name=str(cluster.get("tls-server-name") or ""),
            namespace=namespace,
        )

    def _exec_plugin(self, cluster: dict[str, Any], user: dict[str, Any]) -> ExecPlugin | None:
        entry = user.get("exec")
        if entry is None:
            return None
        if not isinstance(entry, dict):
            raise ConfigError(str(self.file), "users.user.exec", f"expected a mapping, got {entry!r}")
        return execplugin.parse(
            self.file, entry, execplugin.information(cluster, self._pem(cluster, "certificate-authority"))
        )

    def _text(self, entry: dict[str, Any], field: str) -> str:
        """The text of a field; empty when it is missing."""
        value = entry.get(field) or ""
        if not isinstance(value, str):
            raise ConfigError(str(self.file), field, f"expected a text, got {value!r}")
        return value

    def _pem(self, entry: dict[str, Any], field: str) -> bytes:
        data, path = self._text(entry, f"{field}-data"), self._text(entry, field)
        try:
            if data:
                return base64.b64decode(data, validate=True)
            return (self.file.parent / path).read_bytes() if path else b""
        except (OSError, ValueError) as failure:
            raise ConfigError(str(self.file), field, f"cannot be read: {failure}") from failure
