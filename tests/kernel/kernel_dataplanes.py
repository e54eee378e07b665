"""The data planes of this kernel. What it lacks is skipped by name: the tier ``uml`` has a kernel with the rest."""

from functools import cache
from typing import Any

import pytest
from tests.cases.service_table import NODE
from tests.kernel.service_namespaces import path

from podwire.kernel.features import FeatureAnswer, Features
from podwire.kernel.iptables import find
from podwire.proxy.dataplanes.iptables.dataplane import IptablesDataPlane
from podwire.proxy.modes import open_dataplane
from podwire.proxy.registry import DATAPLANES, FEATURES

UML = ("ipvs",)
"""Data planes that run in user-mode Linux; the kernels of most machines have what the rest of them need."""
LEGACY = "iptables-legacy"
"""The data plane ``iptables`` with the programs of the kind that machines without nf_tables have."""


def every_plane() -> list[Any]:
    """All data planes as parameters of a fixture. Those of :data:`UML` carry the marker ``uml``."""
    return [pytest.param(name, marks=pytest.mark.uml if name in UML else ()) for name in DATAPLANES]


@cache
def answer(feature: str) -> FeatureAnswer:
    return Features().probe(feature)


def opened(name: str) -> Any:
    """A data plane on the node of the test's world."""
    if name == LEGACY:
        return IptablesDataPlane(NODE, path("node"), find("legacy"))
    feature = FEATURES.get(name, "")
    if feature and answer(feature).verdict == "no":
        pytest.skip(f"this kernel lacks {feature}")
    return open_dataplane(name, NODE, path("node"))
