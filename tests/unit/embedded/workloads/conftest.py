"""Pods and times for plans."""

import datetime

import msgspec
import pytest

from podwire.model.pod import Pod

NOW = datetime.datetime(2026, 1, 1, 12, 0, 0, tzinfo=datetime.UTC)


def at(seconds):
    """An API time, ``seconds`` from NOW."""
    return (NOW + datetime.timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def make_pod(name, *, ready=True, since=-100, phase="Running", going=False, node="n1", labels=None, **meta):
    """A pod; ``since`` is when its readiness changed, seconds from NOW."""
    metadata = {
        "name": name,
        "uid": name,
        "namespace": "d",
        "labels": labels or {},
        "creationTimestamp": at(-200),
    }
    if going:
        metadata["deletionTimestamp"] = at(-1)
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": at(since)}
    status = {"phase": phase, "conditions": [condition]}
    return msgspec.convert({"metadata": metadata | meta, "spec": {"nodeName": node}, "status": status}, Pod)


class Made:
    """The helpers as one fixture."""

    NOW = NOW
    at = staticmethod(at)
    pod = staticmethod(make_pod)


@pytest.fixture
def made():
    return Made
