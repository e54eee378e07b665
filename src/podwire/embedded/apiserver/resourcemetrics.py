"""Answers reads of metrics.k8s.io with the usage that the kubelets report at the time of the request.

1. Without requests, the API server collects nothing.
2. A kubelet is asked at most once a second; requests in between share its answer.
3. A kubelet that does not answer within 5 s is left out, with its pods.

Objects and selectors are those of the nodes and pods in the store, as with metrics-server.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from podwire.embedded.apiserver import failures, views
from podwire.embedded.apiserver.calls import Call
from podwire.embedded.apiserver.fields import parse_filter
from podwire.embedded.apiserver.kinds import KINDS
from podwire.embedded.apiserver.reads import ObjectReader
from podwire.embedded.apiserver.store import Store, StoredObject
from podwire.embedded.metrics.objects import node_metrics, pod_metrics
from podwire.embedded.metrics.usage import UsageReport
from podwire.errors import ApiError, Disconnected
from podwire.http.message import Response
from podwire.observe.log import Log
from podwire.runtime.clock import Clock

Json = dict[str, Any]

_FRESH_S = 1.0
_ANSWER_S = 5.0
_NODES = KINDS["", "v1", "nodes"]
_PODS = KINDS["", "v1", "pods"]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(UsageReport).decode


class Kubelets(Protocol):
    """Reads pages of kubelets."""

    async def read_kubelet(self, node: str, path: str) -> bytes:
        """A page of a node's kubelet."""
        ...


class ResourceMetrics:
    """The metrics of nodes and pods."""

    def __init__(self, store: Store, reader: ObjectReader, kubelets: Kubelets, clock: Clock) -> None:
        self._store = store
        self._reader = reader
        self._kubelets = kubelets
        self._clock = clock
        self._log = Log("apiserver.metrics")
        self._asked: dict[str, tuple[float, asyncio.Future[UsageReport | None]]] = {}

    async def nodes(self, call: Call) -> Response:
        """NodeMetrics: one, or those of the selected nodes."""
        return await self._answered(call, self._nodes)

    async def pods(self, call: Call) -> Response:
        """PodMetrics: one, or those of the selected pods."""
        return await self._answered(call, self._pods)

    async def _answered(self, call: Call, measure: Callable[[Call], Awaitable[Sequence[Json]]]) -> Response:
        try:
            answer = await measure(call)
            if not call.name:
                return self._list(call, answer)
            if not answer:
                name = f"{call.namespace}/{call.name}" if call.namespace else call.name
                kind = msgspec.structs.replace(call.kind, plural=call.kind.kind.lower())
                raise failures.not_found(kind, name)
            return self._reader.render_object(call, answer[0])
        except ApiError as failure:
            return failures.render(failure)

    async def _nodes(self, call: Call) -> Sequence[Json]:
        entries = self._select(call, "/nodes")
        if call.name and not entries:
            raise failures.not_found(_NODES, call.name)
        reports = await self._reports(entry.name for entry in entries)
        return [
            metrics
            for entry in entries
            if entry.name in reports and (metrics := node_metrics(entry.object(), reports[entry.name])) is not None
        ]

    async def _pods(self, call: Call) -> Sequence[Json]:
        entries = self._select(call, "/pods")
        if call.name and not entries:
            raise failures.not_found(_PODS, f"{call.namespace}/{call.name}")
        pods = {entry.uid: entry.object() for entry in entries}
        names = {str((pod.get("spec") or {}).get("nodeName") or "") for pod in pods.values()} - {""}
        reports = await self._reports(names)
        usages = {usage.uid: usage for report in reports.values() for usage in report.pods}
        metrics_of_pods = (pod_metrics(pod, usages[uid]) for uid, pod in pods.items() if uid in usages)
        return [metrics for metrics in metrics_of_pods if metrics is not None]

    def _select(self, call: Call, table: str) -> Sequence[StoredObject]:
        return self._reader.select(table, parse_filter(table, call.query, call.namespace, call.name))

    def _list(self, call: Call, objects: Sequence[Json]) -> Response:
        view = views.choose(call.kind, call.accept, call.query.get("includeObject", ""))
        if view.form == views.TABLE:
            return self._reader.answer(view, _encode(self._reader.table(view, objects, {})))
        noun: Json = {"kind": f"{call.kind.kind}List", "apiVersion": call.kind.api_version}
        if view.form == views.METADATA:
            noun = {"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1"}
            objects = [views.metadata_only(obj) for obj in objects]
        return self._reader.answer(view, _encode({**noun, "metadata": {}, "items": objects}))

    # -- reports

    async def _reports(self, nodes: Iterable[str]) -> dict[str, UsageReport]:
        """The reports of these nodes; those that do not answer are left out."""
        names = tuple(nodes)
        reports = await asyncio.gather(*(self._report(name) for name in names))
        return {name: report for name, report in zip(names, reports, strict=True) if report is not None}

    async def _report(self, node: str) -> UsageReport | None:
        now = self._clock.monotonic()
        self._asked = {name: asked for name, asked in self._asked.items() if now - asked[0] < _ANSWER_S}
        asked_at, running = self._asked.get(node, (0.0, None))
        if running is not None and (not running.done() or now - asked_at < _FRESH_S):
            return await asyncio.shield(running)
        future: asyncio.Future[UsageReport | None] = asyncio.get_running_loop().create_future()
        self._asked[node] = now, future
        report = None
        try:
            report = await self._ask(node)
        finally:
            if not future.done():
                future.set_result(report)
        return report

    async def _ask(self, node: str) -> UsageReport | None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                return _decode(await self._kubelets.read_kubelet(node, "/usage"))
        except (OSError, TimeoutError, Disconnected, ApiError, msgspec.DecodeError) as failure:
            self._log.warning(
                "cannot read the resource usage of a node; its pods are left out of metrics.k8s.io",
                node=node,
                problem=failure,
            )
            return None
