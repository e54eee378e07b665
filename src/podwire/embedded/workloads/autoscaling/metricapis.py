"""Reads custom and external metrics from the extension API servers (APIService) that serve them.

``custom.metrics.k8s.io`` has metrics of pods and of other objects, ``external.metrics.k8s.io`` series of anything else.
The version is looked up at each read, so a server that is registered later is used from the next sync on. Messages of
failures are those of Kubernetes' clients.

Source: ``k8s.io/metrics`` (pkg/client/custom_metrics, pkg/client/external_metrics).
"""

import datetime
from collections.abc import Mapping
from urllib.parse import quote

import msgspec

from podwire.embedded.workloads.autoscaling.replicas import MetricFailure, PodMetric
from podwire.embedded.workloads.podstate import parse_time
from podwire.errors import ConfigError
from podwire.kube.client import Client
from podwire.kube.decode import decode_failure
from podwire.model.quantity import parse_milli
from podwire.model.selector import LabelSelector, selector_text

_CUSTOM, _EXTERNAL = "custom.metrics.k8s.io", "external.metrics.k8s.io"
_VERSIONS: Mapping[str, tuple[str, ...]] = {_CUSTOM: ("v1beta2", "v1beta1"), _EXTERNAL: ("v1beta1",)}
"""The versions that are understood, the preferred one first."""
_TITLES: Mapping[str, str] = {_CUSTOM: "custom", _EXTERNAL: "external"}
_WINDOW_S = 60.0
"""The window of a metric that names none."""
_LONG_AGO = datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)


class _ObjectName(msgspec.Struct, frozen=True):
    name: str = ""


class _Value(msgspec.Struct, frozen=True, rename="camel"):
    value: str | int | float
    timestamp: str | None = None
    described_object: _ObjectName = _ObjectName()
    window_seconds: int | None = None


class _Values(msgspec.Struct, frozen=True):
    items: tuple[_Value, ...] | None = ()


class _Version(msgspec.Struct, frozen=True):
    version: str = ""


class _Group(msgspec.Struct, frozen=True):
    versions: tuple[_Version, ...] = ()


class ExtensionMetrics:
    """The metrics of one namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    async def of_pods(self, metric: str, pods: str, selector: LabelSelector | None) -> Mapping[str, PodMetric]:
        """The values by pod; ``pods`` is the label selector of the pods.

        Raises: MetricFailure; ApiUnreachable.
        """
        query = {"labelSelector": pods, **_selection("metricLabelSelector", selector)}
        values = await self._values(_CUSTOM, f"namespaces/{self._namespace}/pods/*/{quote(metric, safe='')}", query)
        return {
            value.described_object.name: PodMetric(
                _milli(value),
                parse_time(value.timestamp) or _LONG_AGO,
                _WINDOW_S if value.window_seconds is None else value.window_seconds,
            )
            for value in values
        }

    async def of_object(self, metric: str, resource: str, name: str, selector: LabelSelector | None) -> int:
        """The value in thousandths; ``resource`` is the plural and group (``ingresses.networking.k8s.io``).

        Raises: MetricFailure; ApiUnreachable.
        """
        path = f"{self._namespace}/{resource}/{quote(name, safe='')}"
        if resource == "namespaces":
            path = f"{quote(name, safe='')}/metrics"
        path = f"namespaces/{path}/{quote(metric, safe='')}"
        return _milli((await self._values(_CUSTOM, path, _selection("metricLabelSelector", selector)))[0])

    async def external(self, metric: str, selector: LabelSelector | None) -> int:
        """The sum of all series of a name that the selector matches, in thousandths.

        Raises: MetricFailure; ApiUnreachable.
        """
        path = f"namespaces/{self._namespace}/{quote(metric, safe='')}"
        return sum(map(_milli, await self._values(_EXTERNAL, path, _selection("labelSelector", selector))))

    async def _values(self, group: str, path: str, query: Mapping[str, str]) -> tuple[_Value, ...]:
        """At least one value."""
        title = _TITLES[group]
        prefix = f"unable to fetch metrics from {title} metrics API"
        version = await self._version(group)
        if not version:
            raise MetricFailure(f"{prefix}: no {title} metrics API ({group}) registered")
        answer = await self._client.raw("GET", f"/apis/{group}/{version}/{path}", query)
        if answer.status != 200:
            raise MetricFailure(f"{prefix}: {decode_failure(answer.status, answer.body).message}")
        try:
            items = msgspec.json.decode(answer.body, type=_Values).items
        except msgspec.DecodeError as failure:
            raise MetricFailure(f"{prefix}: cannot decode the answer: {failure}") from failure
        if not items:
            raise MetricFailure(f"no metrics returned from {title} metrics API")
        return items

    async def _version(self, group: str) -> str:
        answer = await self._client.raw("GET", f"/apis/{group}")
        if answer.status != 200:
            return ""
        try:
            listed = msgspec.json.decode(answer.body, type=_Group).versions
        except msgspec.DecodeError:
            return ""
        served = {entry.version for entry in listed}
        return next((version for version in _VERSIONS[group] if version in served), "")


def _selection(option: str, selector: LabelSelector | None) -> dict[str, str]:
    text = selector_text(selector)
    return {option: text} if text else {}


def _milli(value: _Value) -> int:
    try:
        return parse_milli(value.value)
    except ConfigError as failure:
        raise MetricFailure(f"cannot read a metric's value: {failure.problem}") from failure
