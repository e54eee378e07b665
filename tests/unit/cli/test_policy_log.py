"""Reading the logs of nodes, again and again, from sockets that answer as agents do."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from podwire.cli.policy_agents import LocalAgents
from podwire.cli.policy_log import Reader, last_of
from podwire.policy.status.logged import LoggedPacket


class Node:
    """Answers for the log of one node; ``lines`` are its numbers and what it names as their time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[tuple[int, str]] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            with connection:
                fields = connection.recv(4096).split(b" ")
                if len(fields) < 2:
                    return
                query = parse_qs(urlsplit(fields[1].decode()).query)
                after, last = (int(query[name][0]) for name in ("after", "last"))
                reported = [entry for entry in self.lines if entry[0] > after][-last:]
                body = "".join(f"{json.dumps(self.document(*entry))}\n" for entry in reported).encode()
                head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
                connection.sendall(head + body)

    def document(self, number: int, at: str) -> dict[str, object]:
        ends = {"source": "a", "destination": "b", "sourceAddress": "10.0.0.1", "destinationAddress": "10.0.0.2"}
        rest = {"node": self.path.name, "verdict": "dropped", "direction": "ingress", "protocol": "TCP", "port": 1}
        return {"number": number, "at": at, **ends, **rest}

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(self.path))
        self.thread.join()
        self.listener.close()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Node, Node]]:
    item, other = Node(tmp_path / "node-1"), Node(tmp_path / "node-2")
    yield item, other
    item.close()
    other.close()


def reader(*nodes: Node) -> Reader:
    return Reader(LocalAgents({node.path.name: node.path for node in nodes}))


def read(reader: Reader, last: int = 1000) -> list[str]:
    return [f"{item.node} {item.at}" for item in reader.read(last)]


def test_lines_of_all_nodes_are_sorted_by_time_without_repeats(nodes: tuple[Node, Node]) -> None:
    item, other = nodes
    item.lines, other.lines = [(1, "01"), (2, "03")], [(7, "02")]
    both = reader(*nodes)
    assert read(both) == ["node-1 01", "node-2 02", "node-1 03"]
    assert read(both) == []
    item.lines.append((3, "04"))
    assert read(both) == ["node-1 04"]
    assert both.complaints() == []


def test_only_the_last_lines_of_each_node(nodes: tuple[Node, Node]) -> None:
    for node in nodes:
        node.lines = [(number, f"{number:02}") for number in range(1, 6)]
    assert read(reader(*nodes), 1) == ["node-1 05", "node-2 05"]


def test_restarted_agent_is_read_from_the_beginning(nodes: tuple[Node, Node]) -> None:
    item, _ = nodes
    item.lines = [(number, f"{number:02}") for number in range(1, 6)]
    only = reader(item)
    assert len(read(only)) == 5
    item.lines = []
    assert read(only) == []
    item.lines = [(1, "07")]
    assert read(only) == ["node-1 07"]
    assert read(only) == []


def test_silent_agent_is_reported_once_and_others_are_read(nodes: tuple[Node, Node], tmp_path: Path) -> None:
    item, _ = nodes
    item.lines = [(1, "01")]
    both = Reader(LocalAgents({"node-1": item.path, "node-9": tmp_path / "nowhere"}))
    assert read(both) == ["node-1 01"]
    (complaint,) = both.complaints()
    assert complaint.startswith("no answer from node-9: its agent does not answer on ")
    assert read(both) == [] and both.complaints() == []
    assert list(both.failures) == ["node-9"]


def test_last_lines_are_those_of_the_requested_policy() -> None:
    created = [
        LoggedPacket(
            at=f"2026-01-01T00:00:0{n}.000Z",
            node=node,
            verdict="dropped",
            direction="ingress",
            source="shop/web",
            destination="shop/db",
            protocol="TCP",
            port=n,
            source_address="10.0.0.1",
            destination_address="10.0.0.2",
            policies=(policy,),
        )
        for n, node, policy in ((1, "a", "shop/x"), (2, "a", "shop/x"), (3, "b", "shop/x"), (4, "a", "shop/y"))
    ]
    assert [item.port for item in last_of(created, "", 1)] == [3, 4]
    assert [item.port for item in last_of(created, "shop/x", 1)] == [2, 3]
    assert last_of(created, "", 0) == []
