"""The routing backends by name; a class is imported on demand."""

from podwire.routing.backend import Backend
from podwire.runtime.registry import Registry

BACKENDS: Registry[type[Backend]] = Registry(
    "routing backend",
    "routing.backend",
    {
        "bgp": "podwire.routing.backends.bgp.backend:BgpRouting",
        "bridge": "podwire.routing.backends.bridge.backend:BridgeSegment",
        "cloudroutes": "podwire.routing.backends.cloudroutes.backend:CloudRoutes",
        "geneve": "podwire.routing.backends.geneve.backend:GeneveTunnel",
        "hostgw": "podwire.routing.backends.hostgw.backend:HostGateway",
        "ipip": "podwire.routing.backends.ipip.backend:IpInIp",
        "ipvlan": "podwire.routing.backends.ipvlan.backend:IpvlanLegs",
        "macvlan": "podwire.routing.backends.macvlan.backend:MacvlanLegs",
        "none": "podwire.routing.backends.none.backend:NoRouting",
        "ovs": "podwire.routing.backends.ovs.backend:OpenVSwitch",
        "udp": "podwire.routing.backends.udp.backend:UdpProcess",
        "vlan": "podwire.routing.backends.vlan.backend:VlanSegment",
        "vxlan": "podwire.routing.backends.vxlan.backend:VxlanTunnel",
        "wireguard": "podwire.routing.backends.wireguard.backend:WireGuardTunnel",
    },
)
DEFAULT = "vxlan"
PLAIN = "hostgw"
"""The backend that every kernel can run and every node receives from: for peers of the same subnet with direct routing,
and in place of a backend that the kernel lacks."""
