"""The shop, applied once for all tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from podwire.testing.cluster import Cluster

MANIFESTS = Path(__file__).parents[1] / "k8s"


@pytest.fixture(scope="session")
def shop(podwire_session_cluster: Cluster) -> Iterator[Cluster]:
    with podwire_session_cluster.applied(MANIFESTS):
        yield podwire_session_cluster
