"""``/etc/resolv.conf``, ``/etc/hosts`` and the host name of a pod, as text. Pure.

Rules by ``dnsPolicy``, as in kubernetes pkg/kubelet/network/dns:

- ClusterFirst: the cluster's servers, the search list ``<namespace>.svc.<domain> svc.<domain> <domain>`` before the
  node's search list, and ``ndots:5``. For a pod in the node's network it means Default.
- Default: the node's file.
- None: ``dnsConfig`` alone.

Limits: 3 servers, 32 search domains, 2048 characters of search domains.
"""

from collections.abc import Iterable

import msgspec

from podwire.model.pod import Pod, PodDNSConfig

_MAX_SERVERS = 3
_MAX_SEARCHES = 32
_MAX_SEARCH_CHARACTERS = 2048
_MAX_HOSTNAME = 64


class Resolver(msgspec.Struct, frozen=True):
    """Servers, search domains and options in order; ``str()`` is the text of the file."""

    servers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"search {' '.join(self.searches)}"] if self.searches else []
        lines += [f"nameserver {server}" for server in self.servers]
        lines += [f"options {' '.join(self.options)}"] if self.options else []
        return "\n".join(lines) + "\n"


def parse_resolver(text: str) -> Resolver:
    """The settings in the text of a resolv.conf; the last of several search lines is used."""
    servers: list[str] = []
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    for raw in text.splitlines():
        fields = raw.split("#")[0].split(";")[0].split()
        if len(fields) >= 2 and fields[0] == "nameserver":
            servers.append(fields[1])
        elif fields and fields[0] in ("search", "domain"):
            searches = tuple(word if word == "." else word.rstrip(".") for word in fields[1:])
        elif fields and fields[0] == "options":
            options = tuple(fields[1:])
    return Resolver(tuple(servers), searches, options)


def pod_resolver(pod: Pod, node: Resolver, cluster_dns: Iterable[str], domain: str) -> Resolver:
    """The resolver settings of a pod on a node."""
    policy = pod.spec.dns_policy
    if policy == "ClusterFirst" and pod.spec.host_network:
        policy = "Default"
    servers = tuple(cluster_dns)
    if policy == "None":
        resolver = Resolver()
    elif policy == "Default" or not servers:
        resolver = node
    else:
        own = (f"{pod.metadata.namespace}.svc.{domain}", f"svc.{domain}", domain)
        resolver = Resolver(servers, tuple(dict.fromkeys(own + node.searches)), ("ndots:5",))
    return _limit(_merge(resolver, pod.spec.dns_config) if pod.spec.dns_config else resolver)


def _merge(resolver: Resolver, config: PodDNSConfig) -> Resolver:
    options = {option.partition(":")[0]: option for option in resolver.options}
    for option in config.options:
        options[option.name] = option.name if option.value is None else f"{option.name}:{option.value}"
    return Resolver(
        tuple(dict.fromkeys(resolver.servers + config.nameservers)),
        tuple(dict.fromkeys(resolver.searches + config.searches)),
        tuple(options.values()),
    )


def _limit(resolver: Resolver) -> Resolver:
    searches = resolver.searches[:_MAX_SEARCHES]
    while len(" ".join(searches)) > _MAX_SEARCH_CHARACTERS:
        searches = searches[:-1]
    return Resolver(resolver.servers[:_MAX_SERVERS], searches, resolver.options)


def pod_hostname(pod: Pod, node: str) -> str:
    """The node's name in the node's network, else ``spec.hostname`` or the pod's name, at most 63 characters."""
    if pod.spec.host_network:
        return node
    return (pod.spec.hostname or pod.metadata.name)[:63].rstrip("-.")


def kernel_hostname(pod: Pod, node: str, domain: str) -> str:
    """The host name in the kernel: with ``setHostnameAsFQDN`` the whole name of the pod, if it is not too long."""
    name, spec = pod_hostname(pod, node), pod.spec
    full = f"{name}.{spec.subdomain}.{pod.metadata.namespace}.svc.{domain}"
    whole = spec.set_hostname_as_fqdn and spec.subdomain and not spec.host_network
    return full if whole and len(full) <= _MAX_HOSTNAME else name


def pod_hosts(pod: Pod, ips: Iterable[str], hostname: str, domain: str, node_hosts: str) -> str:
    """The text of /etc/hosts; in the node's network the node's file, with the pod's aliases."""
    if pod.spec.host_network:
        lines = ["# Kubernetes-managed hosts file (host network).", node_hosts.rstrip("\n")]
    else:
        lines = [
            "# Kubernetes-managed hosts file.", "127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback",
            "fe00::0\tip6-localnet", "fe00::0\tip6-mcastprefix", "fe00::1\tip6-allnodes", "fe00::2\tip6-allrouters",
        ]  # fmt: skip
        zone = f"{pod.metadata.namespace}.svc.{domain}"
        full = f"{hostname}.{pod.spec.subdomain}.{zone}\t" if pod.spec.subdomain else ""
        lines += [f"{ip}\t{full}{hostname}" for ip in ips]
    if pod.spec.host_aliases:
        lines += ["", "# Entries added by HostAliases."]
        lines += [f"{alias.ip}\t" + "\t".join(alias.hostnames) for alias in pod.spec.host_aliases]
    return "\n".join(lines) + "\n"
