"""Fixtures that several files use."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.kernel.cni_node import NodeAgent


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., NodeAgent]]:
    """Makes nodes, which are removed after the test."""
    made: list[NodeAgent] = []

    def build(*cidrs: str) -> NodeAgent:
        made.append(NodeAgent(tmp_path, cidrs or ("10.244.1.0/24",)))
        return made[-1]

    yield build
    for node in made:
        node.close()
