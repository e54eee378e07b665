"""Custom and external metrics, read from a server that answers as an extension API does."""

import asyncio
import datetime
from typing import Any
from urllib.parse import unquote_plus

import msgspec
import pytest
from tests.fakes import scripted_http as http
from tests.unit.embedded.workloads.autoscaling.test_plan import conditions, decide, scaler

from podwire.embedded.workloads.autoscaling.plan import Reading
from podwire.embedded.workloads.autoscaling.replicas import MetricFailure, PodMetric
from podwire.embedded.workloads.autoscaling.sources import MetricReader, Scales
from podwire.kube.client import Client
from podwire.kube.config import ApiConfig
from podwire.model.autoscaling import MetricSpec
from podwire.model.selector import LabelSelector, selector_text
from podwire.runtime.clock import SystemClock

Json = dict[str, Any]
CUSTOM, EXTERNAL = "/apis/custom.metrics.k8s.io", "/apis/external.metrics.k8s.io"
AT = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)
STAMP = {"timestamp": "2026-05-01T12:00:00Z"}
BLUE = {"selector": {"matchLabels": {"color": "blue"}}}
PODS: Json = {"type": "Pods", "pods": {
    "metric": {"name": "rps", **BLUE}, "target": {"type": "AverageValue", "averageValue": "10"}}}  # fmt: skip
OBJECT: Json = {"type": "Object", "object": {
    "metric": {"name": "hits"}, "target": {"type": "Value", "value": "1"},
    "describedObject": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}}  # fmt: skip
SPACE: Json = {"type": "Object", "object": {**OBJECT["object"], "describedObject": {
    "apiVersion": "v1", "kind": "Namespace", "name": "n"}}}  # fmt: skip
QUEUE: Json = {"type": "External", "external": {
    "metric": {"name": "backlog", **BLUE}, "target": {"type": "AverageValue", "averageValue": "2"}}}  # fmt: skip
GROUPS: dict[str, Json] = {
    CUSTOM: {"versions": [{"version": "v1beta1"}, {"version": "v1beta2"}]},
    EXTERNAL: {"versions": [{"version": "v1beta1"}]},
    "/apis/apps/v1": {"resources": [{"name": "deployments", "kind": "Deployment"}]},
    "/api/v1": {"resources": [{"name": "namespaces", "kind": "Namespace"}]},
}


def values(*items: Json) -> Json:
    return {"items": [{**STAMP, **item} for item in items]}


def read(metric: Json, answers: dict[str, Json]) -> Reading:
    """The reading; a path that has no answer is not found."""

    async def answer(received_request: http.ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        result = answers.get(unquote_plus(received_request.target))
        missing = {"kind": "Status", "code": 404, "reason": "NotFound", "message": "no such metric"}
        return http.answer(writer, missing if result is None else result, 404 if result is None else 200)

    async def run() -> Reading:
        async with http.ScriptedServer(answer) as server:
            clock = SystemClock()
            client = Client(ApiConfig(f"http://127.0.0.1:{server.port}"), clock)
            reader = MetricReader(client, "n", "app=web", Scales(client, clock))
            reading = await reader.read(msgspec.convert(metric, MetricSpec))
            await client.close()
            return reading

    return asyncio.run(run())


def test_metric_of_pods_is_read_by_pod() -> None:
    items = values(
        {"describedObject": {"name": "a"}, "value": "1500m", "windowSeconds": 30},
        {"describedObject": {"name": "b"}, "value": "2"},
    )
    path = f"{CUSTOM}/v1beta2/namespaces/n/pods/*/rps?labelSelector=app=web&metricLabelSelector=color=blue"
    assert read(PODS, {**GROUPS, path: items}) == {"a": PodMetric(1500, AT, 30), "b": PodMetric(2000, AT, 60.0)}
    older = {CUSTOM: {"versions": [{"version": "v1beta1"}]}, path.replace("v1beta2", "v1beta1"): items}
    assert read(PODS, {**GROUPS, **older}) == read(PODS, {**GROUPS, path: items})


@pytest.mark.parametrize(
    ("metric", "path", "items", "expected"),
    [
        (OBJECT, f"{CUSTOM}/v1beta2/namespaces/n/deployments.apps/web/hits", ({"value": "3"},), 3000),
        (SPACE, f"{CUSTOM}/v1beta2/namespaces/n/metrics/hits", ({"value": "4"},), 4000),
        (QUEUE, f"{EXTERNAL}/v1beta1/namespaces/n/backlog?labelSelector=color=blue",
         ({"value": "3"}, {"value": "500m"}), 3500),
    ],
    ids=["object", "namespace", "external"],
)  # fmt: skip
def test_wholes_are_read(metric: Json, path: str, items: tuple[Json, ...], expected: int) -> None:
    assert read(metric, {**GROUPS, path: values(*items)}) == expected


PREFIXES = (
    (PODS, "unable to get metric rps: ", "custom"),
    (OBJECT, "unable to get metric hits: Deployment on n web/", "custom"),
    (QUEUE, "unable to get external metric n/backlog/color=blue: ", "external"),
)


@pytest.mark.parametrize(("metric", "prefix", "word"), PREFIXES, ids=["pods", "object", "external"])
def test_failures_name_metric_and_reason(metric: Json, prefix: str, word: str) -> None:
    kinds = {path: body for path, body in GROUPS.items() if "metrics" not in path}
    fetch = f"{prefix}unable to fetch metrics from {word} metrics API: "
    unregistered, unknown = read(metric, kinds), read(metric, GROUPS)
    assert str(unregistered) == f"{fetch}no {word} metrics API ({word}.metrics.k8s.io) registered"
    assert isinstance(unregistered, MetricFailure) and str(unknown) == f"{fetch}no such metric"


def test_answers_that_make_no_sense_are_failures() -> None:
    path = f"{EXTERNAL}/v1beta1/namespaces/n/backlog?labelSelector=color=blue"
    for body, problem in (
        ({"items": []}, "no metrics returned from external metrics API"),
        ({"items": 7}, "cannot decode the answer"),
        (values({"value": "many"}), "cannot read a metric's value"),
    ):
        reading = read(QUEUE, {**GROUPS, path: body})
        assert isinstance(reading, MetricFailure) and problem in str(reading)


def test_unknown_kind_of_a_described_object_is_named() -> None:
    strange = {**OBJECT["object"], "describedObject": {"apiVersion": "apps/v1", "kind": "Shop", "name": "web"}}
    assert 'no matches for kind "Shop"' in str(read({"type": "Object", "object": strange}, GROUPS))


def test_selectors_are_spelled_as_options() -> None:
    expressions = [
        {"key": "a", "operator": "In", "values": ["y", "x"]}, {"key": "b", "operator": "NotIn", "values": ["z"]},
        {"key": "c", "operator": "Exists"}, {"key": "d", "operator": "DoesNotExist"},
    ]  # fmt: skip
    selector = msgspec.convert({"matchLabels": {"k": "v"}, "matchExpressions": expressions}, LabelSelector)
    assert selector_text(selector) == "k=v,a in (x,y),b notin (z),c,!d"
    assert selector_text(None) == ""


PLANS: tuple[tuple[Json, Reading, int, str, Json], ...] = (
    (PODS, {name: PodMetric(20_000, AT, 60) for name in ("a", "b")}, 4, "pods metric rps", {"averageValue": "20"}),
    (OBJECT, 2_000, 4, "Deployment metric hits", {"value": "2"}),
    (QUEUE, 6_000, 3, "external metric backlog(color=blue)", {"averageValue": "3"}),
)


@pytest.mark.parametrize(
    ("metric", "reading", "expected", "title", "current"), PLANS, ids=["pods", "object", "external"]
)
def test_reading_gives_replicas_reason_and_status(
    metric: Json, reading: Reading, expected: int, title: str, current: Json
) -> None:
    result = decide(scaler(metric), 2, reading, existing=2)
    assert (result.rescale_to, result.reason) == (expected, f"{title} above target")
    assert conditions(result)["ScalingActive"] == ("True", "ValidMetricFound")
    field = metric["type"].lower()
    remaining = {key: value for key, value in metric[field].items() if key != "target"}
    assert result.status.current_metrics == ({"type": metric["type"], field: {**remaining, "current": current}},)
