"""Calls CNI plugins as a container runtime does.

The configuration is the first ``.conflist``, ``.conf`` or ``.json`` file of a directory in lexical order. The plugins
of a list are called in order for ADD and CHECK, in reverse order for DEL. Each plugin gets its own section with the
list's name and version, the previous result, and the ``runtimeConfig`` for the capabilities that the plugin declares.
The caller keeps the final result of ADD and passes it to DEL and CHECK. GC and STATUS are called with version 1.1.0 or
newer.

Cost: one process start per plugin, 0.3 ms plus the plugin. Sources: CNI specification 1.1.0 sections 2 to 4,
containerd/go-cni (order of files, arguments).
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from podwire.embedded.kubelet.config import PluginSection
from podwire.errors import CniError
from podwire.runtime.child import run

_TIMEOUT_S = 120.0
_SUFFIXES = (".conflist", ".conf", ".json")
_INTERFACE = "eth0"


class CniSandbox(msgspec.Struct, frozen=True):
    """The sandbox for which a plugin is called."""

    sandbox: str
    netns: str
    namespace: str = ""
    name: str = ""
    uid: str = ""
    port_mappings: tuple[dict[str, str | int], ...] = ()
    annotations: Mapping[str, str] = {}

    def arguments(self) -> str:
        """CNI_ARGS in the form that container runtimes use for the kubelet."""
        return (
            f"IgnoreUnknown=1;K8S_POD_NAMESPACE={self.namespace};K8S_POD_NAME={self.name};"
            f"K8S_POD_INFRA_CONTAINER_ID={self.sandbox};K8S_POD_UID={self.uid}"
        )


class NetworkList(msgspec.Struct, frozen=True):
    """A network configuration with its plugins in order."""

    name: str
    version: str
    plugins: tuple[dict[str, Any], ...]
    disable_check: bool = False


def load(directory: Path) -> NetworkList:
    """The network configuration of a directory.

    Raises: CniError 50 when there is no configuration, 6 or 7 when the first file is not valid.
    """
    try:
        files = sorted(path for path in directory.iterdir() if path.suffix in _SUFFIXES)
    except OSError:
        files = []
    if not files:
        raise CniError(50, f"no network configuration in {directory}")
    try:
        document = msgspec.json.decode(files[0].read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as failure:
        raise CniError(6, f"{files[0]}: {failure}") from failure
    return parse_list(document, str(files[0]))


def parse_list(document: Mapping[str, Any], source: str) -> NetworkList:
    """A configuration list; a configuration of a single plugin becomes a list with this plugin.

    The version is the highest that the document names and that is not above 1.1.0.

    Raises: CniError 7.
    """
    name = document.get("name")
    plugins = document.get("plugins") or ([document] if "type" in document else [])
    if not name or not plugins or not all(isinstance(p, dict) and p.get("type") for p in plugins):
        raise CniError(7, f"{source}: expected name and plugins, each with a type")
    versions = [str(document.get("cniVersion", "0.1.0")), *map(str, document.get("cniVersions", ()))]
    version = max((v for v in versions if v <= "1.1.0"), key=_numbers, default="1.0.0")
    return NetworkList(str(name), version, tuple(plugins), bool(document.get("disableCheck")))


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def request(
    network: NetworkList, plugin: Mapping[str, Any], attachment: CniSandbox | None, previous: Any
) -> dict[str, Any]:
    """The document that a plugin reads on standard input."""
    body = {key: value for key, value in plugin.items() if key not in ("cniVersions", "name", "cniVersion")}
    body |= {"cniVersion": network.version, "name": network.name}
    if previous is not None:
        body["prevResult"] = previous
    capabilities = plugin.get("capabilities") or {}
    if attachment is not None and capabilities:
        offered = {
            "portMappings": list(attachment.port_mappings) or None,
            "io.kubernetes.cri.pod-annotations": dict(attachment.annotations) or None,
        }
        runtime_config = {key: value for key, value in offered.items() if value and capabilities.get(key)}
        if runtime_config:
            body["runtimeConfig"] = runtime_config
    return body


def addresses(result: Any) -> tuple[str, ...]:
    """The addresses of the pod in a result of ADD, IPv4 first."""
    ips = [str(entry.get("address", "")).partition("/")[0] for entry in (result or {}).get("ips", ())]
    return tuple(sorted(filter(None, ips), key=lambda ip: ":" in ip))


class Network:
    """Calls the plugins of one node; the configuration is read again at each call."""

    def __init__(self, section: PluginSection) -> None:
        self._section = section
        self.problem: str | None = "the CNI plugins have not reported their status yet"
        """Why the last STATUS call failed; None when the network is ready."""

    async def add(self, attachment: CniSandbox) -> dict[str, Any]:
        """Attaches a sandbox and returns the final result.

        Raises: CniError; the caller must then call :meth:`delete`.
        """
        network = load(Path(self._section.conf_dir))
        result: Any = None
        for plugin in network.plugins:
            body = request(network, plugin, attachment, result)
            result = _decode(await self._call("ADD", network, plugin, attachment, body))
        if not addresses(result):
            raise CniError(999, "the CNI plugins returned no address for the pod; check their IPAM configuration")
        return dict(result)

    async def delete(self, attachment: CniSandbox, result: Any) -> None:
        """Detaches a sandbox; may be repeated.

        Raises: CniError.
        """
        network = load(Path(self._section.conf_dir))
        for plugin in reversed(network.plugins):
            await self._call("DEL", network, plugin, attachment, request(network, plugin, attachment, result))

    async def check(self, attachment: CniSandbox, result: Any) -> None:
        """Checks that a sandbox is still attached as in the result of ADD.

        Raises: CniError when the sandbox differs.
        """
        network = load(Path(self._section.conf_dir))
        if network.disable_check:
            return
        for plugin in network.plugins:
            await self._call("CHECK", network, plugin, attachment, request(network, plugin, attachment, result))

    async def status(self) -> None:
        """Returns when the plugins report that ADD would work now.

        Raises: CniError 50 or 51 when ADD would fail.
        """
        network = load(Path(self._section.conf_dir))
        if _numbers(network.version) < (1, 1):
            return
        for plugin in network.plugins:
            await self._call("STATUS", network, plugin, None, request(network, plugin, None, None))

    async def collect(self, sandboxes: Sequence[str]) -> None:
        """Tells the plugins which sandboxes exist, so that they release the resources of all others.

        Raises: CniError.
        """
        network = load(Path(self._section.conf_dir))
        if _numbers(network.version) < (1, 1):
            return
        valid = [{"containerID": sandbox, "ifname": _INTERFACE} for sandbox in sandboxes]
        for plugin in network.plugins:
            body = request(network, plugin, None, None) | {"cni.dev/valid-attachments": valid}
            await self._call("GC", network, plugin, None, body)

    async def _call(
        self, command: str, network: NetworkList, plugin: Mapping[str, Any], attachment: CniSandbox | None, body: Any
    ) -> bytes:
        binary = shutil.which(str(plugin["type"]), path=self._section.bin_dir)
        if binary is None:
            raise CniError(50, f"no plugin {plugin['type']} in {self._section.bin_dir}")
        env = {"CNI_COMMAND": command, "CNI_PATH": self._section.bin_dir, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        if attachment is not None:
            env |= {
                "CNI_CONTAINERID": attachment.sandbox, "CNI_NETNS": attachment.netns,
                "CNI_IFNAME": _INTERFACE, "CNI_ARGS": attachment.arguments(),
            }  # fmt: skip
        try:
            done = await run(
                (binary,), env=env | self._section.env, stdin=msgspec.json.encode(body), timeout_s=_TIMEOUT_S
            )
        except OSError as failure:
            raise CniError(5, f"{binary}: {failure}") from failure
        if done.code != 0:
            raise _failure(f"{plugin['type']} {command}", done.code, done.output or done.errors)
        return done.output


def _decode(output: bytes) -> Any:
    try:
        return msgspec.json.decode(output)
    except msgspec.DecodeError as failure:
        raise CniError(6, f"a plugin's result is not JSON: {failure}") from failure


def _failure(call: str, status: int | None, output: bytes) -> CniError:
    try:
        document = msgspec.json.decode(output, type=dict[str, Any])
    except msgspec.DecodeError:
        ended = "ran out of time" if status is None else f"ended with status {status}"
        return CniError(999, f"{call} {ended}", output.decode(errors="replace").strip()[:500])
    message = f"{call}: {document.get('msg', 'failed')}"
    return CniError(int(document.get("code", 999)), message, str(document.get("details", "")))
