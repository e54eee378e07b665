"""Pods for the plans of workloads, and the time at which the plans are made."""

import datetime
from typing import Any

import msgspec

from podwire.model.pod import Pod

NOW = datetime.datetime(2026, 1, 1, 12, 0, 0, tzinfo=datetime.UTC)


def api_time(seconds: float) -> str:
    """A time as the API writes it, ``seconds`` from NOW."""
    return (NOW + datetime.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def make_pod(
    name: str,
    *,
    ready: bool = True,
    since: float = -100,
    phase: str = "Running",
    going: bool = False,
    node: str = "n1",
    labels: dict[str, str] | None = None,
    **meta: Any,
) -> Pod:
    """A pod of namespace ``d``; its readiness changed ``since`` seconds from NOW, ``going`` means being deleted."""
    metadata: dict[str, Any] = {
        "name": name,
        "uid": name,
        "namespace": "d",
        "labels": labels or {},
        "creationTimestamp": api_time(-200),
    }
    if going:
        metadata["deletionTimestamp"] = api_time(-1)
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": api_time(since)}
    status = {"phase": phase, "conditions": [condition]}
    return msgspec.convert({"metadata": metadata | meta, "spec": {"nodeName": node}, "status": status}, Pod)
