"""The plugins that handle requests, in the order in which a request passes them, which is that of CoreDNS. Pure.

The plugins that are settings of the server itself (``kubernetes``, ``forward``, ``cache``, ``hosts``, ``log``, ...) are
read by :mod:`podwire.dns.corefile.settings`. Source of the order: CoreDNS' plugin.cfg.
"""

from podwire.dns.plugins.plugin import Plugin
from podwire.runtime.registry import Registry

PLUGINS: Registry[type[Plugin]] = Registry(
    "plugin",
    "Corefile",
    {
        "nsid": "podwire.dns.plugins.nsid:Nsid",
        "bufsize": "podwire.dns.plugins.bufsize:BufferSize",
        "local": "podwire.dns.plugins.local:LocalNames",
        "dns64": "podwire.dns.plugins.dns64:Dns64",
        "acl": "podwire.dns.plugins.acl:AccessList",
        "any": "podwire.dns.plugins.any:MinimalAny",
        "chaos": "podwire.dns.plugins.chaos:Chaos",
        "rewrite": "podwire.dns.plugins.rewrite:Rewrite",
        "header": "podwire.dns.plugins.header:HeaderFlags",
        "autopath": "podwire.dns.plugins.autopath:AutoPath",
        "minimal": "podwire.dns.plugins.minimal:Minimal",
        "template": "podwire.dns.plugins.template:Template",
        "transfer": "podwire.dns.plugins.transfer:Transfer",
        "hosts": "podwire.dns.plugins.hosts:HostNames",
        "k8s_external": "podwire.dns.plugins.external:ExternalZone",
        "kubernetes": "podwire.dns.plugins.cluster:ClusterZone",
        "file": "podwire.dns.plugins.file:ZoneFiles",
        "auto": "podwire.dns.plugins.auto:ZoneFolder",
        "secondary": "podwire.dns.plugins.secondary:Secondary",
        "forward": "podwire.dns.plugins.upstream:UpstreamServers",
        "whoami": "podwire.dns.plugins.whoami:WhoAmI",
    },
)

LINKED = ("kubernetes", "forward")
"""The links of a chain that other settings make: they have no directive of their own."""
