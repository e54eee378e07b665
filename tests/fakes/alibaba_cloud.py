"""The ECS and VPC APIs of Alibaba Cloud as an HTTP server on loopback, with the calls that podwire makes.

It was written by the API references alone and has never been compared with the cloud. It checks signatures by a
calculation of its own, answers in pages of two objects, and attaches an interface at the second look only.
"""

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv6Network
from typing import Any
from urllib.parse import parse_qsl, quote

KEY, SECRET, TOKEN = "test-key", "test-secret", "test-token"
REGION, TYPE, CLUSTER = "cn-hangzhou", "ecs.small", "demo"
_PAGE = 2
Document = dict[str, Any]
Parameters = Mapping[str, str]


class Refused(Exception):
    """An answer with a code; ``status`` is that of HTTP."""

    def __init__(self, code: str, status: int = 400) -> None:
        self.code, self.status = code, status
        super().__init__(code)


class AlibabaCloud:
    """One VPC with a vSwitch and a route table; instances of one type have three interfaces with four addresses."""

    def __init__(self, network: str = "10.89.0.0/16", vswitch: str = "10.89.0.0/24", network6: str = "") -> None:
        self.vpc, self.vswitch, self.table = "vpc-1", "vsw-1", "vtb-1"
        self._network, self._vswitch_network = network, vswitch
        self.network6, self._vswitch6 = network6, ""
        if network6:
            subnet = list(IPv6Network(network6).subnets(new_prefix=64))[1]  # not that of the nodes
            self._vswitch6, self._free6 = str(subnet), (str(subnet[number]) for number in range(0x100, 0x200))
        self.instances: dict[str, str] = {}
        """The first interface by instance."""
        self.interfaces: dict[str, Document] = {}
        self.entries: dict[str, Document] = {}
        self.quota = 200
        self.log: list[str] = []
        self.refusals: dict[str, Refused] = {}
        self.writes_left: int | None = None
        """The number of changing calls after which the controller is killed; None: it lives."""
        self._free = (f"10.89.0.{number}" for number in range(100, 250))
        self._numbers = iter(range(1, 1000))
        self._lock = threading.Lock()

    # What a test does in the cloud.

    def run(self, address: str) -> str:
        """Runs an instance with this address; returns the ``spec.providerID`` of its Node."""
        instance = f"i-bp{next(self._numbers):04}"
        self.instances[instance] = self.create(address, "Primary", {}, "InUse", instance)
        return f"{REGION}.{instance}"

    def vanish(self, address: str) -> None:
        """Deletes the instance with an address; its routes stay."""
        interface = self.interface(address)["NetworkInterfaceId"]
        self.instances = {name: first for name, first in self.instances.items() if first != interface}
        del self.interfaces[interface]

    def interface(self, address: str) -> Document:
        """The interface with an address."""
        return next(each for each in self.interfaces.values() if each["PrivateIpAddress"] == address)

    def tags(self, address: str) -> dict[str, str]:
        """The tags of an interface."""
        return {tag["TagKey"]: tag["TagValue"] for tag in self.interface(address)["Tags"]["Tag"]}

    def further(self) -> list[Document]:
        """The interfaces that are not the first ones of instances."""
        return [each for each in self.interfaces.values() if each["Type"] != "Primary"]

    def routes(self) -> dict[str, str]:
        """The next hop of each destination, as the VPC's router would use it: the address of the instance."""
        first = {name: self.interfaces[one]["PrivateIpAddress"] for name, one in self.instances.items()}
        hops = {entry["DestinationCidrBlock"]: entry["NextHops"]["NextHop"][0] for entry in self.entries.values()}
        return {network: first.get(hop["NextHopId"], hop["NextHopId"]) for network, hop in hops.items()}

    @contextmanager
    def refusing(self, action: str, code: str, status: int = 400) -> Iterator[None]:
        """Answers calls of one kind with an error."""
        self.refusals[action] = Refused(code, status)
        try:
            yield
        finally:
            del self.refusals[action]

    # What the API does.

    def answer(self, parameters: dict[str, str]) -> Document:
        """The answer to a call.

        Raises: Refused.
        """
        signature = parameters.pop("Signature", "")
        if parameters.get("AccessKeyId") != KEY:
            raise Refused("InvalidAccessKeyId.NotFound", 404)
        if signature != _signature(parameters):
            raise Refused("SignatureDoesNotMatch")
        action = parameters["Action"]
        with self._lock:
            self.log.append(action)
            if action in self.refusals:
                raise self.refusals[action]
            if not action.startswith("Describe") and self.writes_left is not None:
                self.writes_left -= 1
                if self.writes_left < 0:
                    raise Refused("ServiceUnavailable", 503)
            made: Document = getattr(self, f"_{action}")(parameters)
        return made | {"RequestId": "1"}

    def _DescribeInstances(self, asked: Parameters) -> Document:  # noqa: N802
        names = set(json.loads(asked["InstanceIds"]))
        documents = [self._instance(name) for name in sorted(self.instances) if name in names]
        return _page(asked, documents, lambda page: {"Instances": {"Instance": page}})

    def _instance(self, name: str) -> Document:
        own = [each for each in self.interfaces.values() if each["InstanceId"] == name]
        fields = ("NetworkInterfaceId", "Type", "MacAddress")
        listed = [{f: each[f] for f in fields} | {"PrimaryIpAddress": each["PrivateIpAddress"]} for each in own]
        return {
            "InstanceId": name,
            "InstanceType": TYPE,
            "VpcAttributes": {"VpcId": self.vpc, "VSwitchId": self.vswitch},
            "SecurityGroupIds": {"SecurityGroupId": ["sg-1"]},
            "NetworkInterfaces": {"NetworkInterface": listed},
        }

    def _DescribeInstanceTypes(self, asked: Parameters) -> Document:  # noqa: N802
        assert asked["InstanceTypes.1"] == TYPE
        one = {"InstanceTypeId": TYPE, "EniQuantity": 3, "EniPrivateIpAddressQuantity": 4, "EniIpv6AddressQuantity": 4}
        return {"InstanceTypes": {"InstanceType": [one]}}

    def _DescribeNetworkInterfaces(self, asked: Parameters) -> Document:  # noqa: N802
        key, name = asked.get("Tag.1.Key"), asked.get("NetworkInterfaceId.1")
        documents = [
            json.loads(json.dumps(each))
            for each in self.interfaces.values()
            if name in (None, each["NetworkInterfaceId"])
            and (key is None or key in (tag["TagKey"] for tag in each["Tags"]["Tag"]))
        ]
        for document in documents:
            self.interfaces[document["NetworkInterfaceId"]]["Status"] = document["Status"].replace("Attaching", "InUse")
        return _page(asked, documents, lambda page: {"NetworkInterfaceSets": {"NetworkInterfaceSet": page}})

    def _DescribeVSwitches(self, asked: Parameters) -> Document:  # noqa: N802
        assert asked["VSwitchId"] == self.vswitch
        blocks = {"CidrBlock": self._vswitch_network, "Ipv6CidrBlock": self._vswitch6}
        return {"VSwitches": {"VSwitch": [{"VSwitchId": self.vswitch, **blocks}]}}

    def _DescribeVpcs(self, asked: Parameters) -> Document:  # noqa: N802
        assert asked["VpcId"] == self.vpc
        blocks = {"CidrBlock": self._network, "Ipv6CidrBlock": self.network6}
        return {"TotalCount": 1, "Vpcs": {"Vpc": [{"VpcId": self.vpc, **blocks}]}}

    def _CreateNetworkInterface(self, asked: Parameters) -> Document:  # noqa: N802
        assert (asked["VSwitchId"], asked["SecurityGroupIds.1"]) == (self.vswitch, "sg-1")
        tags = {asked["Tag.1.Key"]: asked["Tag.1.Value"]}
        return {"NetworkInterfaceId": self.create(next(self._free), "Secondary", tags)}

    def create(self, address: str, kind: str, tags: Parameters, status: str = "Available", instance: str = "") -> str:
        number = next(self._numbers)
        name = f"eni-bp{number:04}"
        self.interfaces[name] = {
            "NetworkInterfaceId": name,
            "Type": kind,
            "Status": status,
            "InstanceId": instance,
            "MacAddress": f"02:16:3e:00:{number // 256:02x}:{number % 256:02x}",
            "PrivateIpAddress": address,
            "VSwitchId": self.vswitch,
            "PrivateIpSets": {"PrivateIpSet": [{"PrivateIpAddress": address, "Primary": True}]},
            "Tags": {"Tag": [{"TagKey": key, "TagValue": value} for key, value in tags.items()]},
        }
        return name

    def _found(self, asked: Parameters, name: str = "NetworkInterfaceId") -> Document:
        if asked[name] not in self.interfaces:
            raise Refused("InvalidEniId.NotFound", 404)
        return self.interfaces[asked[name]]

    def _TagResources(self, asked: Parameters) -> Document:  # noqa: N802
        tags = self._found(asked, "ResourceId.1")["Tags"]["Tag"]
        tags[:] = [tag for tag in tags if tag["TagKey"] != asked["Tag.1.Key"]]
        tags.append({"TagKey": asked["Tag.1.Key"], "TagValue": asked["Tag.1.Value"]})
        return {}

    def _UntagResources(self, asked: Parameters) -> Document:  # noqa: N802
        tags = self._found(asked, "ResourceId.1")["Tags"]["Tag"]
        tags[:] = [tag for tag in tags if tag["TagKey"] != asked["TagKey.1"]]
        return {}

    def _AttachNetworkInterface(self, asked: Parameters) -> Document:  # noqa: N802
        interface = self._found(asked)
        if interface["Status"] != "Available":
            raise Refused("InvalidOperation.InvalidEniState")
        interface |= {"InstanceId": asked["InstanceId"], "Status": "Attaching"}
        return {}

    def _AssignPrivateIpAddresses(self, asked: Parameters) -> Document:  # noqa: N802
        interface, count = self._found(asked), int(asked["SecondaryPrivateIpAddressCount"])
        addresses = interface["PrivateIpSets"]["PrivateIpSet"]
        if interface["Status"] != "InUse":
            raise Refused("InvalidOperation.InvalidEniState")
        if len(addresses) + count > 4:
            raise Refused("InvalidOperation.Ipv4CountExceeded")
        addresses += [{"PrivateIpAddress": next(self._free), "Primary": False} for _ in range(count)]
        return {}

    def _AssignIpv6Addresses(self, asked: Parameters) -> Document:  # noqa: N802
        interface, count = self._found(asked), int(asked["Ipv6AddressCount"])
        addresses = interface.setdefault("Ipv6Sets", {"Ipv6Set": []})["Ipv6Set"]
        if interface["Status"] != "InUse":
            raise Refused("InvalidOperation.InvalidEniState")
        if not self._vswitch6:
            raise Refused("InvalidOperation.Ipv6NotSupport")
        if len(addresses) + count > 4:
            raise Refused("InvalidOperation.Ipv6CountExceeded")
        addresses += [{"Ipv6Address": next(self._free6)} for _ in range(count)]
        return {}

    def _DetachNetworkInterface(self, asked: Parameters) -> Document:  # noqa: N802
        interface = self._found(asked)
        if interface["InstanceId"] != asked["InstanceId"]:
            raise Refused("InvalidEcsId.NotFound", 404)
        interface |= {"InstanceId": "", "Status": "Available"}
        return {}

    def _DeleteNetworkInterface(self, asked: Parameters) -> Document:  # noqa: N802
        if self._found(asked)["Status"] != "Available":
            raise Refused("InvalidOperation.InvalidEniState")
        del self.interfaces[asked["NetworkInterfaceId"]]
        return {}

    def _DescribeRouteTableList(self, asked: Parameters) -> Document:  # noqa: N802
        listed = [{"RouteTableId": self.table}] if asked["Tag.1.Key"] == f"kubernetes.io/cluster/{CLUSTER}" else []
        return {"TotalCount": len(listed), "RouterTableList": {"RouterTableListType": listed}}

    def _DescribeRouteEntryList(self, asked: Parameters) -> Document:  # noqa: N802
        if asked["RouteTableId"] != self.table:
            raise Refused("InvalidRouteTableId.NotFound", 404)
        chosen = asked.get("DestinationCidrBlock")
        documents = [each for each in self.entries.values() if chosen in (None, each["DestinationCidrBlock"])]
        return _page(asked, documents, lambda page: {"RouteEntrys": {"RouteEntry": page}})

    def _CreateRouteEntry(self, asked: Parameters) -> Document:  # noqa: N802
        network, instance = asked["DestinationCidrBlock"], asked["NextHopId"]
        if network in (entry["DestinationCidrBlock"] for entry in self.entries.values()):
            raise Refused("RouterEntryConflict.Duplicated")
        if len(self.entries) >= self.quota:
            raise Refused("QuotaExceeded.RouteEntry")
        if instance not in self.instances:
            raise Refused("InvalidNexthop.NotFound", 404)
        self.lead(network, instance)
        return {}

    def lead(self, network: str, instance: str) -> None:
        """Makes a route to an instance."""
        name = f"rte-{next(self._numbers)}"
        hops = {"NextHop": [{"NextHopType": "Instance", "NextHopId": instance}]}
        self.entries[name] = {"RouteEntryId": name, "DestinationCidrBlock": network, "NextHops": hops}

    def _DeleteRouteEntry(self, asked: Parameters) -> Document:  # noqa: N802
        if asked["RouteEntryId"] not in self.entries:
            raise Refused("InvalidRouteEntry.NotFound", 404)
        del self.entries[asked["RouteEntryId"]]
        return {}


def _page(asked: Parameters, documents: list[Document], shape: Callable[[list[Document]], Document]) -> Document:
    """The documents behind the token of the question, and the token for the next ones."""
    begin = int(asked.get("NextToken", 0))
    end = begin + min(_PAGE, int(asked.get("MaxResults", asked.get("MaxResult", _PAGE))))
    return shape(documents[begin:end]) | {"NextToken": str(end) if end < len(documents) else ""}


def _signature(parameters: Parameters) -> str:
    def encoded(text: str) -> str:
        return quote(text, safe="").replace("%7E", "~")

    query = "&".join(f"{encoded(key)}={encoded(value)}" for key, value in sorted(parameters.items()))
    digest = hmac.new(f"{SECRET}&".encode(), f"POST&%2F&{encoded(query)}".encode(), hashlib.sha1).digest()
    return base64.b64encode(digest).decode()


@contextmanager
def served(cloud: AlibabaCloud) -> Iterator[str]:
    """The address of the APIs on loopback; below it are the metadata of an instance with the role ``nodes``."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # noqa: N802
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            try:
                self._send(200, cloud.answer(dict(parse_qsl(body, keep_blank_values=True))))
            except Refused as refusal:
                self._send(refusal.status, {"Code": refusal.code, "Message": "refused by a test", "RequestId": "1"})

        def do_GET(self) -> None:  # noqa: N802
            if self.path != "/latest/meta-data/ram/security-credentials/nodes":
                self._send(404, {})
                return
            cloud.log.append("metadata")
            key = {"AccessKeyId": KEY, "AccessKeySecret": SECRET, "SecurityToken": TOKEN}
            self._send(200, key | {"Expiration": "2030-01-01T00:00:00Z", "Code": "Success"})

        def _send(self, status: int, document: Document) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
