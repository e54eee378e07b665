"""The image table: the program that runs for a container."""

import pytest

from podwire.embedded.images.table import ContainerRequest, ImageRule, Program, choose, find_rule, repository

HERE = {"sh", "bash", "/bin/sh", "sleep", "curl", "python3", "/opt/app"}
ENTRIES = ("dns", "standin")
RULES = (
    ImageRule(("/opt/app", "--fast"), name="acme/app", env={"MODE": "local"}, working_dir="/srv"),
    ImageRule(("python3", "-m", "http.server"), prefix="ghcr.io/acme/"),
    ImageRule(("python3", "special"), prefix="ghcr.io/acme/special"),
)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("nginx", "nginx"),
        ("nginx:1.25", "nginx"),
        ("localhost:5000/a/b:v1", "localhost:5000/a/b"),
        ("a/b@sha256:00", "a/b"),
        ("registry.k8s.io/pause:3.9@sha256:00", "registry.k8s.io/pause"),
    ],
)
def test_repository(image: str, expected: str) -> None:
    assert repository(image) == expected


@pytest.mark.parametrize(
    ("image", "command"),
    [
        ("acme/app", "/opt/app"),
        ("acme/app:v7", "/opt/app"),
        ("docker.io/acme/app:v7", "/opt/app"),
        ("acme/apple", None),
        ("ghcr.io/acme/web:1", "python3 -m http.server"),
        ("ghcr.io/acme/special-thing", "python3 special"),
        ("ghcr.io/other/web", None),
    ],
)
def test_find_rule(image: str, command: str | None) -> None:
    rule = find_rule(image, RULES)
    actual = None if rule is None else " ".join(rule.command).removesuffix(" --fast")
    assert actual == command


def stand_in(*ports: int, ends: bool = False) -> Program:
    return Program(entry="standin", ports=tuple((port, "TCP") for port in ports), ends=ends)


@pytest.mark.parametrize(
    ("request_facts", "expected"),
    [
        (
            ContainerRequest("acme/app", args=("-v",)),
            Program(("/opt/app", "--fast", "-v"), env={"MODE": "local"}, working_dir="/srv"),
        ),
        (ContainerRequest("ghcr.io/acme/x", command=("sh", "-c"), args=("ls",)), Program(("sh", "-c", "ls"))),
        (ContainerRequest("ghcr.io/acme/x", command=("/no/such",)), Program(("python3", "-m", "http.server"))),
        (ContainerRequest("podwire/dns"), Program(entry="dns")),
        (ContainerRequest("registry.example/podwire/dns:1"), Program(entry="dns")),
        (ContainerRequest("podwire/standin", ports=((7, "TCP"),)), stand_in(7)),
        (ContainerRequest("busybox:1.36", command=("sh", "-c", "ls")), Program(("sh", "-c", "ls"))),
        (ContainerRequest("busybox", args=("sleep", "9")), Program(("sleep", "9"))),
        (ContainerRequest("curlimages/curl", args=("-s", "http://a")), Program(("curl", "-s", "http://a"))),
        (ContainerRequest("python:3.12-slim", command=("python3", "-c", "1")), Program(("python3", "-c", "1"))),
        (ContainerRequest("alpine", command=("nc", "-l")), stand_in()),
        (ContainerRequest("nginx", command=("sh", "-c", "nginx"), ports=((8080, "TCP"),)), stand_in(8080)),
        (ContainerRequest("nginx"), stand_in(80)),
        (ContainerRequest("bitnami/redis:7"), stand_in(6379)),
        (ContainerRequest("mycorp/api", probed=(9000, 9000)), stand_in(9000)),
        (ContainerRequest("postgres", command=("sh", "-c", "until pg_isready"), init=True), stand_in(ends=True)),
        (ContainerRequest("mycorp/migrate", may_end=True), stand_in(ends=True)),
        (ContainerRequest("mycorp/serve", ports=((80, "TCP"),), may_end=True), stand_in(80)),
    ],
    ids=str,
)
def test_choose(request_facts: ContainerRequest, expected: Program) -> None:
    assert choose(request_facts, RULES, ENTRIES, HERE.__contains__) == expected


def test_stand_in_listens_on_the_ports_of_its_probes_too() -> None:
    request = ContainerRequest("acme.example/api", ports=((80, "TCP"),), probed=(8081, 80))
    assert choose(request, (), ENTRIES, HERE.__contains__) == stand_in(80, 8081)


def test_rule_without_command_runs_the_stand_in() -> None:
    rules = (ImageRule(name="busybox", run_probes=True),)
    assert choose(ContainerRequest("busybox", ports=((80, "TCP"),)), rules, ENTRIES, HERE.__contains__) == stand_in(80)
