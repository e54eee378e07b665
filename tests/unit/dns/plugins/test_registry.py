"""The registry of plugins: each name has the class that reads and handles it."""

from podwire.dns.plugins.acl import AccessList
from podwire.dns.plugins.any import MinimalAny
from podwire.dns.plugins.auto import ZoneFolder
from podwire.dns.plugins.autopath import AutoPath
from podwire.dns.plugins.bufsize import BufferSize
from podwire.dns.plugins.chaos import Chaos
from podwire.dns.plugins.cluster import ClusterZone
from podwire.dns.plugins.dns64 import Dns64
from podwire.dns.plugins.external import ExternalZone
from podwire.dns.plugins.file import ZoneFiles
from podwire.dns.plugins.header import HeaderFlags
from podwire.dns.plugins.hosts import HostNames
from podwire.dns.plugins.local import LocalNames
from podwire.dns.plugins.minimal import Minimal
from podwire.dns.plugins.nsid import Nsid
from podwire.dns.plugins.registry import LINKED, PLUGINS
from podwire.dns.plugins.rewrite import Rewrite
from podwire.dns.plugins.secondary import Secondary
from podwire.dns.plugins.template import Template
from podwire.dns.plugins.transfer import Transfer
from podwire.dns.plugins.upstream import UpstreamServers
from podwire.dns.plugins.whoami import WhoAmI


def test_plugins_are_passed_in_the_order_of_coredns() -> None:
    order = [
        Nsid,
        BufferSize,
        LocalNames,
        Dns64,
        AccessList,
        MinimalAny,
        Chaos,
        Rewrite,
        HeaderFlags,
        AutoPath,
        Minimal,
        Template,
        Transfer,
        HostNames,
        ExternalZone,
        ClusterZone,
        ZoneFiles,
        ZoneFolder,
        Secondary,
        UpstreamServers,
        WhoAmI,
    ]
    assert [PLUGINS.load(name) for name in PLUGINS] == order


def test_links_without_a_directive_are_registered() -> None:
    assert set(LINKED) <= PLUGINS.keys()
