"""Chooses the program that runs for a container image on this machine. Pure.

No image is ever downloaded. A container runs one of three programs:

* a **command** of this machine, executed in the container's namespaces;
* an **entry**, a Python function of podwire that runs without exec (``podwire/dns``);
* the **stand-in** server (:mod:`podwire.embedded.standin`).

The first matching rule decides:

1. A rule of the user's table, by exact name, then by the longest prefix. The name may be written with or without
   registry, tag and digest. The rule's command replaces the image's entrypoint: the container's ``args`` follow it. The
   container's own ``command`` replaces the rule's command if that program exists on this machine. A rule without a
   command runs the stand-in.
2. ``podwire/<entry>`` runs the entry.
3. An image of general tools (the list ``TOOL_IMAGES``: busybox, alpine, curl, python, ...) runs the container's
   ``command`` and ``args``, or the image's default command, if that program exists on this machine.
4. All other images run the stand-in. It listens on the declared ports and on the ports of its probes; when no port is
   declared, also on the well-known ports of the image. In an init container, and in a container without ports whose pod
   is not always restarted (a Job), the stand-in writes a log line and ends at once with status 0, so that a waiting pod
   or Job can continue.
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
"""Images with tools and no server, by the last part of their name."""

SERVER_PORTS: Mapping[str, tuple[int, ...]] = {
    "nginx": (80,), "httpd": (80,), "caddy": (80,), "traefik": (80,), "haproxy": (80,), "wordpress": (80,),
    "redis": (6379,), "valkey": (6379,), "memcached": (11211,), "postgres": (5432,), "mysql": (3306,),
    "mariadb": (3306,), "mongo": (27017,), "rabbitmq": (5672, 15672), "nats": (4222,), "kafka": (9092,),
    "zookeeper": (2181,), "elasticsearch": (9200,), "etcd": (2379,), "consul": (8500,), "vault": (8200,),
    "grafana": (3000,), "prometheus": (9090,), "minio": (9000,), "whoami": (80,), "httpbin": (80,),
    "echoserver": (8080,), "agnhost": (8080,), "tomcat": (8080,), "jetty": (8080,), "registry": (5000,),
}  # fmt: skip
"""The TCP ports of well-known servers, for manifests that declare no ports."""

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ImageRule(msgspec.Struct, frozen=True, rename="camel"):
    """One rule of the user's table; it has either ``name`` or ``prefix``. Without ``command`` the stand-in runs."""

    command: tuple[str, ...] = ()
    name: str = ""
    prefix: str = ""
    env: Mapping[str, str] = {}
    working_dir: str = ""
    run_probes: bool = False
    """Whether a stand-in runs the commands of exec probes and hooks with this machine's programs.

    Otherwise they succeed without being run.
    """


class ContainerRequest(msgspec.Struct, frozen=True):
    """The facts of a container that choose its program; ``may_end``: the container may run to completion."""

    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    ports: tuple[tuple[int, str], ...] = ()
    probed: tuple[int, ...] = ()
    init: bool = False
    may_end: bool = False


class Program(msgspec.Struct, frozen=True):
    """A program: ``argv`` on this machine, or a Python ``entry``; ``ports`` are the ports of the stand-in."""

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
    """All names by which a rule may name the image, the most exact first."""
    full = repository(image)
    first, slash, rest = full.partition("/")
    has_registry = bool(slash) and ("." in first or ":" in first or first == "localhost")
    bare = rest if has_registry else full
    return (image, full, bare, bare.removeprefix("library/"))


def find_rule(image: str, rules: Iterable[ImageRule]) -> ImageRule | None:
    """The user's rule for an image; None when no rule matches."""
    names = _names(image)
    rules = tuple(rules)
    for rule in rules:
        if rule.name and rule.name in names:
            return rule
    fitting = [rule for rule in rules if rule.prefix and any(name.startswith(rule.prefix) for name in names)]
    return max(fitting, key=lambda rule: len(rule.prefix), default=None)


def choose(
    request: ContainerRequest, rules: Iterable[ImageRule], entries: Iterable[str], exists: Callable[[str], bool]
) -> Program:
    """The program of a container; ``exists`` returns whether an executable exists on this machine."""
    rule = find_rule(request.image, rules)
    if rule is not None and rule.command:
        own = request.command and exists(request.command[0])
        argv = (request.command if own else rule.command) + request.args
        return Program(argv=argv, env=rule.env, working_dir=rule.working_dir)
    *_, last = repository(request.image).split("/")
    if rule is not None:
        return _stand_in(request, last)
    if "/".join(repository(request.image).split("/")[-2:]) == f"podwire/{last}" and last in entries:
        return Program(entry=last) if last != "standin" else _stand_in(request, last)
    if last in TOOL_IMAGES:
        entrypoint, default = TOOL_IMAGES[last]
        argv = request.command + request.args if request.command else entrypoint + (request.args or default)
        if argv and exists(argv[0]):
            return Program(argv=argv)
    return _stand_in(request, last)


def _stand_in(request: ContainerRequest, last: str) -> Program:
    numbers = request.probed if request.ports else SERVER_PORTS.get(last, ()) + request.probed
    ports = tuple(dict.fromkeys((*request.ports, *((number, "TCP") for number in numbers))))
    ends = request.init or (request.may_end and not request.ports)
    return Program(entry="standin", ports=() if ends else ports, ends=ends)
