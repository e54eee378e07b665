"""What an image means on this machine: a pure table from image and command to a program.

No image is ever fetched. A container becomes one of three things:

* a **command** of this machine, executed in the container's namespaces;
* an **entry**, a Python function of podwire run without exec (``podwire/dns``);
* the **stand-in** server (:mod:`podwire.embedded.standin`).

The rules, first match wins:

1. An entry of the user's table, by exact name, then by the longest prefix. The name may be written with or
   without registry, tag and digest. Its command takes the place of the image's entrypoint: the container's
   ``args`` follow it, and the container's own ``command`` takes its place if that program exists here.
2. ``podwire/<entry>``.
3. An image of general tools (the list ``TOOL_IMAGES``: busybox, alpine, curl, python, ...) runs the container's
   ``command`` and ``args``, or what the image would run by itself, if that program exists here.
4. Everything else is the stand-in, on the declared ports; without any, on the well-known ports of the image and
   those that its probes ask for. In an init container, and in a container without ports of a pod that is not to
   be restarted always (a Job), it logs this and ends with status 0 at once, so that a waiting pod or Job
   can continue.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec

TOOL_IMAGES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    # repository: (entrypoint, default arguments)
    "busybox": ((), ("sh",)),
    "alpine": ((), ("/bin/sh",)),
    "ubuntu": ((), ("/bin/bash",)),
    "debian": ((), ("bash",)),
    "fedora": ((), ("/bin/bash",)),
    "bash": ((), ("bash",)),
    "curl": (("curl",), ()),
    "wget": (("wget",), ()),
    "python": ((), ("python3",)),
    "perl": ((), ("perl",)),
    "netshoot": ((), ("sh",)),
    "dnsutils": ((), ("sleep", "infinity")),
    "jessie-dnsutils": ((), ("sleep", "infinity")),
    "toolbox": ((), ("sh",)),
    "buildpack-deps": ((), ("bash",)),
}
"""Images that hold tools rather than a server, by the last part of their name."""

SERVER_PORTS: Mapping[str, tuple[int, ...]] = {
    "nginx": (80,), "httpd": (80,), "caddy": (80,), "traefik": (80,), "haproxy": (80,), "wordpress": (80,),
    "redis": (6379,), "valkey": (6379,), "memcached": (11211,), "postgres": (5432,), "mysql": (3306,),
    "mariadb": (3306,), "mongo": (27017,), "rabbitmq": (5672, 15672), "nats": (4222,), "kafka": (9092,),
    "zookeeper": (2181,), "elasticsearch": (9200,), "etcd": (2379,), "consul": (8500,), "vault": (8200,),
    "grafana": (3000,), "prometheus": (9090,), "minio": (9000,), "whoami": (80,), "httpbin": (80,),
    "echoserver": (8080,), "agnhost": (8080,), "tomcat": (8080,), "jetty": (8080,), "registry": (5000,),
}  # fmt: skip
"""TCP ports that well-known servers listen on, for manifests that do not declare them."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ImageRule(msgspec.Struct, frozen=True, rename="camel"):
    """One entry of the user's table: exactly one of ``name`` and ``prefix``."""

    command: tuple[str, ...]
    name: str = ""
    prefix: str = ""
    env: Mapping[str, str] = {}
    working_dir: str = ""


class ContainerRequest(msgspec.Struct, frozen=True):
    """What a container asks for; ``may_end`` when it is expected to run to completion."""

    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    ports: tuple[tuple[int, str], ...] = ()
    probed: tuple[int, ...] = ()
    init: bool = False
    may_end: bool = False


class Program(msgspec.Struct, frozen=True):
    """What runs: ``argv`` of this machine, or a Python ``entry``; ``ports`` are the stand-in's."""

    argv: tuple[str, ...] = ()
    entry: str = ""
    env: Mapping[str, str] = {}
    working_dir: str = ""
    ports: tuple[tuple[int, str], ...] = ()
    ends: bool = False
    """Whether the stand-in ends at once with status 0."""


def repository(image: str) -> str:
    """The image without tag and digest."""
    name = image.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]


def _names(image: str) -> tuple[str, ...]:
    """Every spelling under which a user may mean the image, most exact first."""
    full = repository(image)
    first, slash, rest = full.partition("/")
    has_registry = bool(slash) and ("." in first or ":" in first or first == "localhost")
    bare = rest if has_registry else full
    return (image, full, bare, bare.removeprefix("library/"))


def find_rule(image: str, rules: Iterable[ImageRule]) -> ImageRule | None:
    """The user's entry for an image, or None."""
    names = _names(image)
    rules = tuple(rules)
    for rule in rules:
        if rule.name and rule.name in names:
            return rule
    fitting = [rule for rule in rules if rule.prefix and any(name.startswith(rule.prefix) for name in names)]
    return max(fitting, key=lambda rule: len(rule.prefix), default=None)


def choose(
    asked: ContainerRequest, rules: Iterable[ImageRule], entries: Iterable[str], exists: Callable[[str], bool]
) -> Program:
    """The program of a container; ``exists`` says whether an executable is on this machine."""
    rule = find_rule(asked.image, rules)
    if rule is not None:
        own = asked.command and exists(asked.command[0])
        argv = (asked.command if own else rule.command) + asked.args
        return Program(argv=argv, env=rule.env, working_dir=rule.working_dir)
    *_, last = repository(asked.image).split("/")
    if "/".join(repository(asked.image).split("/")[-2:]) == f"podwire/{last}" and last in entries:
        return Program(entry=last) if last != "standin" else _stand_in(asked, last)
    if last in TOOL_IMAGES:
        entrypoint, default = TOOL_IMAGES[last]
        argv = asked.command + asked.args if asked.command else entrypoint + (asked.args or default)
        if argv and exists(argv[0]):
            return Program(argv=argv)
    return _stand_in(asked, last)


def _stand_in(asked: ContainerRequest, last: str) -> Program:
    ports = asked.ports
    if not ports:
        numbers = dict.fromkeys(SERVER_PORTS.get(last, ()) + asked.probed)
        ports = tuple((number, "TCP") for number in numbers)
    ends = asked.init or (asked.may_end and not asked.ports)
    return Program(entry="standin", ports=() if ends else ports, ends=ends)
