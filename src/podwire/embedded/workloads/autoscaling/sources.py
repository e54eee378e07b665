"""Reads what an autoscaler needs from the API: the scale of its target, and the metrics of pods.

Messages of failures are those of Kubernetes' clients.
"""

from typing import Any

import msgspec

from podwire.embedded.workloads.autoscaling.metricapis import ExtensionMetrics
from podwire.embedded.workloads.autoscaling.plan import Reading
from podwire.embedded.workloads.autoscaling.replicas import MetricFailure, PodMetric
from podwire.embedded.workloads.podstate import parse_time
from podwire.errors import ApiError, NotFound
from podwire.kube.client import Client
from podwire.kube.resources import Json, Resource
from podwire.model.autoscaling import MetricSpec, ScaleTarget
from podwire.model.quantity import parse_nano
from podwire.model.selector import selector_text
from podwire.runtime.clock import Clock

POD_METRICS: Resource[Json] = Resource("metrics.k8s.io", "v1beta1", "pods", "PodMetrics", True, dict)
_KNOWN_S = 60.0


class ScaleFailure(Exception):  # noqa: N818 - the message is what users see
    """Why the scale of a target cannot be read."""


class TargetScale(msgspec.Struct, frozen=True):
    """The scale of a target, as read."""

    resource: Resource[Json]
    name: str
    body: Json

    @property
    def replicas(self) -> int:
        """``spec.replicas``."""
        return int((self.body.get("spec") or {}).get("replicas") or 0)

    @property
    def existing(self) -> int:
        """``status.replicas``."""
        return int((self.body.get("status") or {}).get("replicas") or 0)

    @property
    def selector(self) -> str:
        """The selector of the pods, as text."""
        return str((self.body.get("status") or {}).get("selector") or "")


class Scales:
    """Reads and writes the scale of any kind that has one; kinds are looked up in the API's discovery."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._kinds: dict[tuple[str, str], tuple[float, Resource[Json]]] = {}

    async def read(self, target: ScaleTarget, namespace: str) -> TargetScale:
        """The scale.

        Raises: ScaleFailure; ApiUnreachable.
        """
        resource = await self.resource_of(target)
        try:
            body = await self._client.get(resource, target.name, namespace, subresource="scale")
        except ApiError as failure:
            raise ScaleFailure(failure.message) from failure
        return TargetScale(resource, target.name, body)

    async def write(self, scale: TargetScale, namespace: str, replicas: int) -> None:
        """Sets the replicas of a scale that has not changed since it was read.

        Raises: ApiError.
        """
        body = {**scale.body, "spec": {"replicas": replicas}}
        await self._client.update(scale.resource, body, namespace, name=scale.name, subresource="scale")

    async def resource_of(self, target: ScaleTarget) -> Resource[Json]:
        """The resource of a kind, as discovery names it.

        Raises: ScaleFailure; ApiUnreachable.
        """
        key, now = (target.api_version, target.kind), self._clock.monotonic()
        known = self._kinds.get(key)
        if known is not None and now - known[0] < _KNOWN_S:
            return known[1]
        group, _, version = target.api_version.rpartition("/")
        if target.api_version.count("/") > 1:
            problem = f"unexpected GroupVersion string: {target.api_version}"
            raise ScaleFailure(problem)
        path = f"/apis/{group}/{version}" if group else f"/api/{version or 'v1'}"
        answer = await self._client.raw("GET", path)
        listed: list[Json] = msgspec.json.decode(answer.body)["resources"] if answer.status == 200 else []
        names = [entry["name"] for entry in listed if entry["kind"] == target.kind and "/" not in entry["name"]]
        if not names:
            where = f'"{target.api_version}"' if version else '"v1"'
            problem = f'no matches for kind "{target.kind}" in version {where}'
            raise ScaleFailure(f"unable to determine resource for scale target reference: {problem}")
        resource: Resource[Json] = Resource(group, version or "v1", names[0], target.kind, True, dict)
        self._kinds[key] = now, resource
        return resource


class MetricReader:
    """Reads the metrics of one autoscaler's pods; the list of pods is read once for all its metrics."""

    def __init__(self, client: Client, namespace: str, selector: str, scales: Scales) -> None:
        """``scales`` looks up the resources of described objects."""
        self._client = client
        self._namespace = namespace
        self._selector = selector
        self._scales = scales
        self._extensions = ExtensionMetrics(client, namespace)
        self._items: list[Json] | MetricFailure | None = None

    async def read(self, metric: MetricSpec) -> Reading:
        """The current value of a metric, or the reason why it is unknown.

        Raises: ApiUnreachable.
        """
        source = metric.resource or metric.container_resource
        if source is None:
            return await self._read_named(metric)
        if self._items is None:
            self._items = await self._list()
        if isinstance(self._items, MetricFailure):
            return self._items
        return read_metrics(self._items, source.name, source.container)

    async def _read_named(self, metric: MetricSpec) -> Reading:
        named = metric.pods or metric.object or metric.external
        if named is None:
            return MetricFailure(f'unknown metric source type "{metric.type}"')
        name, selector = named.metric.name, named.metric.selector
        try:
            if metric.external is not None:
                return await self._extensions.external(name, selector)
            if metric.object is None:
                return await self._extensions.of_pods(name, self._selector, selector)
            target = metric.object.described_object or ScaleTarget()
            resource = await self._scales.resource_of(target)
            plural = f"{resource.plural}.{resource.group}" if resource.group else resource.plural
            return await self._extensions.of_object(name, plural, target.name, selector)
        except (MetricFailure, ScaleFailure) as failure:
            return MetricFailure(self._explain(metric, str(failure)))

    def _explain(self, metric: MetricSpec, problem: str) -> str:
        if metric.external is not None:
            external_metric = metric.external.metric
            where = f"{self._namespace}/{external_metric.name}/{selector_text(external_metric.selector)}"
            return f"unable to get external metric {where}: {problem}"
        if metric.object is not None:
            referenced = metric.object.described_object or ScaleTarget()
            target = f"{referenced.kind} on {self._namespace} {referenced.name}"
            return f"unable to get metric {metric.object.metric.name}: {target}/{problem}"
        return f"unable to get metric {metric.pods.metric.name if metric.pods is not None else ''}: {problem}"

    async def _list(self) -> list[Json] | MetricFailure:
        try:
            pod_metrics = await self._client.list(POD_METRICS, self._namespace, label_selector=self._selector)
        except (ApiError, NotFound) as failure:
            return MetricFailure(f"unable to fetch metrics from resource metrics API: {failure.message}")
        return list(pod_metrics.items) or MetricFailure("no metrics returned from resource metrics API")


def read_metrics(items: list[Json], resource: str, container: str) -> Reading:
    """The use of each pod; a pod is left out when one of its containers does not have the resource."""
    metrics: dict[str, PodMetric] = {}
    for item in items:
        meta: dict[str, Any] = item["metadata"]
        chosen = [c for c in item["containers"] if container in ("", c["name"])]
        if container and not chosen:
            where = f"{meta.get('namespace', '')}/{meta['name']}"
            return MetricFailure(
                f"failed to get container metrics: container {container} not present in metrics for pod {where}"
            )
        at = parse_time(item.get("timestamp"))
        if at is None or any(resource not in c["usage"] for c in chosen):
            continue
        milli = sum(-(-parse_nano(c["usage"][resource]) // 10**6) for c in chosen)
        metrics[meta["name"]] = PodMetric(milli, at, parse_window(str(item.get("window", "0s"))))
    return metrics


def parse_window(text: str) -> float:
    """Seconds of a duration as Go writes it, such as ``1m15.5s``."""
    seconds, number = 0.0, ""
    for character in text:
        if character.isdigit() or character == ".":
            number += character
        else:
            seconds += float(number or 0) * {"h": 3600, "m": 60, "s": 1}.get(character, 0)
            number = ""
    return seconds
