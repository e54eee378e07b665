"""Takes out of a cluster what ``podwire install`` applied, and what podwire's programs wrote there.

Objects are found by their field managers, so the command needs no chart, and objects of a Helm release, of other
programs and of people stay. Deployments end first and agents last: pods of the others are deleted by an agent. Behind
them go the other objects of the chart, then Leases and ConfigMaps that podwire's programs wrote, and annotations of
Nodes. Definitions of kinds stay unless they are requested, because all objects of these kinds go with them.
"""

from collections.abc import Callable, Iterable
from typing import Any

from podwire.cluster.names import PREFIX
from podwire.errors import ApiError, ClusterError, NotFound
from podwire.install.cluster import NAMESPACE
from podwire.install.objects import is_installed, is_written_at_work, resources, title
from podwire.kube.client import MERGE_PATCH, Client
from podwire.kube.resources import CONFIGMAPS, LEASES, NODES, PODS, Json, Resource
from podwire.model.wording import count as counted

_DEFINITION = "CustomResourceDefinition"
_AGENTS = "DaemonSet"
_WORKLOADS = ("Deployment", _AGENTS)
_PAUSE_S = 0.5
_LIMIT_S = 120.0
"""How long the pods of a workload may take to end."""


class ClusterRemoval:
    """Removes objects; ``say`` gets a line for each one, ``dry`` only says what would be removed."""

    def __init__(self, client: Client, say: Callable[[str], None], *, dry: bool) -> None:
        self._client = client
        self._say = say
        self._dry = dry

    async def run(self, *, definitions: bool) -> int:
        """Removes everything; returns how many objects were concerned. ``definitions``: also those of kinds.

        Raises: ClusterError when pods do not end; ApiError, ApiUnreachable.
        """
        installed = [(kind, obj) for kind in resources() for obj in await self._list(kind) if is_installed(obj)]
        workloads = [pair for pair in installed if pair[0].kind in _WORKLOADS]
        workloads.sort(key=lambda pair: pair[0].kind == _AGENTS)
        settings = [pair for pair in installed if pair[0].kind not in (*_WORKLOADS, _DEFINITION)]
        for kind, obj in workloads:
            await self._delete(kind, obj)
            await self._until_pods_ended(obj)
        for kind, obj in settings:
            await self._delete(kind, obj)
        count = len(workloads) + len(settings) + await self._remove_written()
        defined = [pair for pair in installed if pair[0].kind == _DEFINITION]
        for kind, obj in defined if definitions else ():
            await self._delete(kind, obj)
        if defined and not definitions:
            self._say(f"left: {counted(len(defined), 'definition')} of kinds with their objects; --crds removes them")
        return count + (len(defined) if definitions else 0)

    async def _list(self, kind: Resource[Json], namespace: str = "") -> Iterable[Json]:
        """The objects of a kind with their kind in them; none when the cluster does not have it."""
        try:
            page = await self._client.list(kind, namespace)
        except NotFound:
            return ()
        version = f"{kind.group}/{kind.version}" if kind.group else kind.version
        return [{"apiVersion": version, "kind": kind.kind, **obj} for obj in page.items]

    async def _delete(self, kind: Resource[Any], obj: Json) -> None:
        if not self._dry:
            meta = obj["metadata"]
            try:
                await self._client.delete(
                    kind, meta["name"], meta.get("namespace", ""), propagation="Background", uid=meta.get("uid", "")
                )
            except NotFound:
                return
        self._say(f"{'would delete' if self._dry else 'deleted'} {title(obj)}")

    async def _until_pods_ended(self, workload: Json) -> None:
        if self._dry:
            return
        labels = workload["spec"]["selector"].get("matchLabels", {})
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        until = self._client.clock.monotonic() + _LIMIT_S
        while (await self._client.list(PODS.raw, workload["metadata"]["namespace"], label_selector=selector)).items:
            if self._client.clock.monotonic() > until:
                raise ClusterError(
                    f"pods of {title(workload)} did not end within {_LIMIT_S:g} s; the command can be repeated"
                )
            await self._client.clock.sleep(_PAUSE_S)

    async def _remove_written(self) -> int:
        """Removes what podwire's programs wrote; returns the number of objects."""
        count = 0
        for kind in (LEASES.raw, CONFIGMAPS):
            for obj in await self._list(kind, NAMESPACE):
                if is_written_at_work(obj):
                    await self._delete(kind, obj)
                    count += 1
        for node in await self._list(NODES.raw):
            meta = node["metadata"]
            own = [key for key in meta.get("annotations", {}) if key.startswith(PREFIX)]
            if own:
                count += 1
                await self._strip(meta["name"], own)
        return count

    async def _strip(self, node: str, annotations: Iterable[str]) -> None:
        names = tuple(annotations)
        if not self._dry:
            body = {"metadata": {"annotations": dict.fromkeys(names)}}
            try:
                await self._client.patch(NODES, node, body, patch_type=MERGE_PATCH)
            except NotFound:
                return
            except ApiError as failure:
                raise ClusterError(f"Node {node}: {failure}") from failure
        verb = "would remove" if self._dry else "removed"
        self._say(f"{verb} {counted(len(names), 'annotation')} of Node {node}")
