"""Replaces the components of a local cluster: its supervisor, one process, its kinds, the pods of one workload."""

import asyncio
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from podwire.cluster.names import POD_BUILD
from podwire.cluster.networkconfig import SYSTEM_NAMESPACE
from podwire.errors import ClusterError, NotFound
from podwire.kube.client import STRATEGIC_MERGE_PATCH, Client
from podwire.kube.resources import DAEMONSETS, DEPLOYMENTS, Json, Resource
from podwire.local import builds, launch, objects, readiness
from podwire.local.addons import ensure as addons
from podwire.local.briefs import KEEPER, SUPERVISOR
from podwire.local.builds import Build
from podwire.local.components import DNS_NUMBER, service_address
from podwire.local.config import ClusterConfig
from podwire.local.control import ControlRequest, send_request
from podwire.local.rollout.renewal import Renewal
from podwire.local.supervisor import SwapOrder
from podwire.local.topology import Topology
from podwire.runtime.childrecord import read_record
from podwire.runtime.files import write_atomically
from podwire.runtime.polling import wait_until
from podwire.runtime.process import send_signal

WORKLOADS: Mapping[str, str] = {"dns": "podwire-dns", "dns-node": "podwire-dns-node", "gateway": "podwire-gateway"}
"""Workloads whose pods run podwire, by the name of their step."""
_GROWING = ("CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
_DNS_SERVICE = "kube-dns"
_END_S = 30.0
_ROLLOUT_S = 180.0


class Swapper:
    """Replaces the components of one cluster; ``backup`` is the folder with the files of the build before."""

    def __init__(self, topology: Topology, config: ClusterConfig, backup: Path) -> None:
        self._topology = topology
        self._config = config
        self._backup = backup

    def save(self) -> None:
        """Copies the configuration files of all components, once: a further run keeps the first copy."""
        if self._backup.is_dir():
            return
        fresh = self._backup.with_name(f".{self._backup.name}")
        fresh.mkdir(parents=True, exist_ok=True)
        for file in sorted((Path(self._topology.run) / "processes").glob("*.json")):
            record = read_record(file)
            files = record.files if record is not None else ()
            content = {path: Path(path).read_text(encoding="utf-8") for path in files if Path(path).is_file()}
            (fresh / file.name).write_bytes(msgspec.json.encode(content))
        cluster = Path(self._topology.run) / "cluster.yaml"
        (fresh / cluster.name).write_bytes(cluster.read_bytes())
        fresh.rename(self._backup)

    def start_supervisor(self, build: Build, running: Mapping[str, Build]) -> None:
        """Ends the supervisor and starts that of a build, which adopts all processes.

        ``running`` are the builds in which these run; empty: all run in that of the supervisor.

        Raises: ClusterError.
        """
        self._end_supervisor()
        if not running:
            builds.write_components(self._topology, {})
            saved = (self._backup / "cluster.yaml").read_bytes()
            write_atomically(Path(self._topology.run) / "cluster.yaml", saved)
        name = self._topology.name
        program = f"from podwire.local import inventory, launch; launch.ensure_supervisor(inventory.existing({name!r}))"
        status = builds.run_python(build, program)
        if status != 0:
            raise ClusterError(f"the supervisor of {build.label} did not start: exit status {status}")
        if running:
            self._swap(SwapOrder(running=dict(running)))
        else:
            document: dict[str, Any] = yaml.load(
                (self._backup / "cluster.yaml").read_text(encoding="utf-8"), Loader=yaml.CSafeLoader
            )
            self._request("ensure", document)

    def _end_supervisor(self) -> None:
        """Ends keeper and supervisor."""
        folder = Path(self._topology.run) / "processes"
        records = [read_record(folder / f"{name}.json") for name in (KEEPER, SUPERVISOR)]
        running = [record for record in records if record is not None and record.running]
        for record in running:
            send_signal(record.pid, signal.SIGTERM)
        if not wait_until(lambda: not any(record.running for record in running), _END_S):
            raise ClusterError(f"the supervisor does not end: {' '.join(str(record.pid) for record in running)}")

    def start_process(self, name: str, build: Build | None) -> None:
        """Replaces one component; ``build`` None: in the supervisor's build, else in that one with its saved files."""
        files: dict[str, str] = {}
        if build is not None:
            files = msgspec.json.decode((self._backup / f"{name}.json").read_bytes(), type=dict[str, str])
        self._swap(SwapOrder(component=name, build=build, files=files))

    def ensure(self) -> None:
        """Brings the cluster to its configuration with this build's supervisor, with objects that are new."""
        self._request("ensure", msgspec.to_builtins(self._config))

    def _swap(self, order: SwapOrder) -> None:
        self._request("swap", msgspec.to_builtins(order))

    def _request(self, name: str, argument: dict[str, Any]) -> None:
        request = ControlRequest(do=name, argument=argument)
        send_request(launch.control_socket(self._topology), request, lambda _step: None)

    async def update_kinds(self, client: Client) -> None:
        """Applies the definitions of kinds and the roles of this build; objects that a user may change stay."""
        dns = service_address(self._config, DNS_NUMBER)
        manifests = addons.manifests(addons.files_of(self._config), dns, min(2, self._config.nodes))
        await objects.apply(client, [manifest for manifest in manifests if manifest.kind in _GROWING])

    async def renew_pods(self, client: Client, step: str, label: str) -> None:
        """Has the pods of a workload replaced, and waits until the new ones serve and the old ones are gone.

        A Deployment of UDP servers is renewed by :class:`Renewal`, other workloads by their own rolling update.

        Raises: ClusterError.
        """
        resource, body = await _workload(client, WORKLOADS[step])
        if step == "dns" and resource is DEPLOYMENTS:
            await Renewal(client, body, _DNS_SERVICE).run()
            return
        template = {"metadata": {"annotations": {POD_BUILD: label}}}
        patch = {"spec": {"template": template}}
        meta = body["metadata"]
        patched = await client.patch(resource, meta["name"], patch, meta["namespace"], patch_type=STRATEGIC_MERGE_PATCH)
        patched = {"kind": resource.kind, **patched}
        late = await readiness.Waiting(client, (), (patched,)).until_ready(_ROLLOUT_S)
        if late:
            raise ClusterError("; ".join(late))


def every_build(names: list[str], build: Build) -> dict[str, Build]:
    """The same build for all components but the keeper and the supervisor."""
    return {name: build for name in names if name not in (KEEPER, SUPERVISOR)}


async def present_workloads(client: Client) -> list[str]:
    """The steps of workloads that the cluster has."""
    steps = []
    for step, name in WORKLOADS.items():
        try:
            await _workload(client, name)
        except NotFound:
            continue
        steps.append(step)
    return steps


async def _workload(client: Client, name: str) -> tuple[Resource[Any], Json]:
    """The Deployment, or the DaemonSet, of that name in kube-system.

    Raises: NotFound.
    """
    try:
        return DEPLOYMENTS, await client.get(DEPLOYMENTS.raw, name, SYSTEM_NAMESPACE)
    except NotFound:
        return DAEMONSETS, await client.get(DAEMONSETS.raw, name, SYSTEM_NAMESPACE)


async def in_thread(work: Callable[[], None]) -> None:
    """Runs blocking work while the loop goes on."""
    await asyncio.to_thread(work)
