"""The names that a pod's resolver asks for, one after the other (pure).

The kubelet writes ``/etc/resolv.conf`` by ``dnsPolicy`` and ``dnsConfig``; the resolver of glibc appends the domains of
``search``. A name with fewer dots than ``ndots`` is tried with each domain first and as it is last; any other name is
tried as it is first. A name that ends with a dot is tried as it is alone. Sources: resolv.conf(5);
pkg/kubelet/network/dns/dns.go in Kubernetes.
"""

import msgspec

from podwire.model.pod import Pod

_CLUSTER_NDOTS, _NDOTS = 5, 1
_MOST_SEARCHES = 32
"""Kubernetes' limit of domains in ``search``."""


class PodSearch(msgspec.Struct, frozen=True):
    """The part of a pod's ``/etc/resolv.conf`` that decides which names are asked for.

    ``cluster``: the pod asks cluster DNS; otherwise the name servers of its node, or of ``dnsConfig``.
    """

    policy: str
    searches: tuple[str, ...] = ()
    ndots: int = _NDOTS
    cluster: bool = True
    servers: tuple[str, ...] = ()
    """Name servers of ``dnsConfig``."""


def search_of(pod: Pod, domain: str) -> PodSearch:
    """The resolver of a pod; the domains that a node adds are not known here."""
    policy = pod.spec.dns_policy
    if policy == "ClusterFirst" and pod.spec.host_network:
        policy = "Default"
    cluster = policy in ("ClusterFirst", "ClusterFirstWithHostNet")
    zone = domain.removesuffix(".")
    searches = [f"{pod.metadata.namespace}.svc.{zone}", f"svc.{zone}", zone] if cluster else []
    ndots = _CLUSTER_NDOTS if cluster else _NDOTS
    servers: tuple[str, ...] = ()
    if pod.spec.dns_config is not None:
        servers = pod.spec.dns_config.nameservers
        searches += pod.spec.dns_config.searches
        for option in pod.spec.dns_config.options:
            if option.name == "ndots" and (option.value or "").isdigit():
                ndots = int(option.value or 0)
    unique = tuple(dict.fromkeys(search.removesuffix(".") for search in searches if search))
    return PodSearch(policy, unique[:_MOST_SEARCHES], ndots, cluster, servers)


class TriedName(msgspec.Struct, frozen=True):
    """A whole name without the last dot, and the domain that the resolver appended (empty: none)."""

    name: str
    search: str = ""


def tried_names(text: str, resolver: PodSearch | None) -> tuple[TriedName, ...]:
    """The names in the order of the attempts; without a resolver the name as it is."""
    plain = TriedName(text.removesuffix("."))
    if resolver is None or text.endswith("."):
        return (plain,)
    below = tuple(TriedName(f"{text}.{search}", search) for search in resolver.searches)
    return (plain, *below) if text.count(".") >= resolver.ndots else (*below, plain)
