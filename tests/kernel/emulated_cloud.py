"""The EC2 API in memory (moto), driven by the real client of AWS; moto's first call takes several seconds.

moto differs from AWS in some rules, which tests bring about themselves (:func:`refuse`, :class:`Vpc`): it has no
quotas, creates a route twice without an error, has no routes whose target no longer exists, may give an address to
two interfaces, has no prefixes of interfaces, and no state of a subnet's range of IPv6.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from moto import mock_aws
from moto.ec2.models import ec2_backends
from tests.kernel.agent_cluster import Machine, eventually

from podwire.cluster.names import CLOUD_MARK
from podwire.controllers.cloudroutes.providers.aws.addresses import AwsAddresses
from podwire.controllers.cloudroutes.providers.aws.options import AwsOptions
from podwire.controllers.cloudroutes.providers.aws.provider import CLUSTER_TAG, AwsRouteTables
from podwire.controllers.cloudroutes.settings import CloudSettings
from podwire.kernel import netns
from podwire.kube.client import Client
from podwire.kube.config import load_kubeconfig
from podwire.kube.controller import Controller, Environment
from podwire.runtime.clock import SystemClock

REGION, CLUSTER, ACCOUNT = "eu-central-1", "demo", "123456789012"
IMAGE = "ami-12c6146b"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
}


@contextmanager
def emulated() -> Iterator[Any]:
    """The emulated API, and a client of it; to be used once for all tests of a file."""
    with pytest.MonkeyPatch.context() as environment, mock_aws():
        for name, text in ENVIRONMENT.items():
            environment.setenv(name, text)
        yield boto3.client("ec2", region_name=REGION)


class Vpc:
    """A VPC with one subnet and one route table of the cluster ``demo``; with ``ipv6`` AWS gives it a range."""

    def __init__(
        self, ec2: Any, network: str = "10.89.0.0/16", subnet: str = "10.89.0.0/24", *, ipv6: bool = False
    ) -> None:
        self.ec2 = ec2
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("moto.ec2.models.vpcs.random_ipv6_cidr", lambda: "fd89::/56")
            made = self.ec2.create_vpc(CidrBlock=network, AmazonProvidedIpv6CidrBlock=ipv6)["Vpc"]
        self.id, self.network6 = made["VpcId"], ""
        blocks = {"CidrBlock": subnet}
        if ipv6:
            self.network6 = made["Ipv6CidrBlockAssociationSet"][0]["Ipv6CidrBlock"]
            blocks["Ipv6CidrBlock"] = str(list(ip_network(self.network6).subnets(new_prefix=64))[1])
        self.subnet = self.ec2.create_subnet(VpcId=self.id, **blocks)["Subnet"]["SubnetId"]
        tags = [{"Key": CLUSTER_TAG + CLUSTER, "Value": "owned"}]
        specification = [{"ResourceType": "route-table", "Tags": tags}]
        table = self.ec2.create_route_table(VpcId=self.id, TagSpecifications=specification)
        self.table = table["RouteTable"]["RouteTableId"]
        self.instances: dict[str, str] = {}
        self._gone: set[str] = set()
        self._free = (f"10.89.0.{number}" for number in range(100, 250))
        self._free_prefixes: dict[str, Iterator[str]] = {
            "Ipv4": (f"10.89.0.{number}/28" for number in range(32, 96, 16))
        }
        if ipv6:
            self._free_prefixes["Ipv6"] = map(str, ip_network(blocks["Ipv6CidrBlock"]).subnets(new_prefix=80))
        self._prefixes: list[tuple[str, str, str]] = []
        """Interface, family and network of each prefix."""

    def provider(self) -> AwsRouteTables:
        """The provider for the table of this VPC."""
        options = AwsOptions(region=REGION, route_tables=(self.table,))
        made = AwsRouteTables(CloudSettings(provider="aws", cluster=CLUSTER), options)
        made.ec2.client.meta.events.register("after-call.ec2.DescribeRouteTables", self._show_dead)
        return made

    def addresses(self, *, ipv6: bool = False) -> AwsAddresses:
        """The provider of addresses for pods."""
        settings = CloudSettings(provider="aws", cluster=CLUSTER, pods="interfaces", ipv6=ipv6)
        made = AwsAddresses(settings, AwsOptions(region=REGION))
        events = made.ec2.client.meta.events
        events.register("provide-client-params.ec2.AssignPrivateIpAddresses", self._choose_further)
        events.register("provide-client-params.ec2.CreateNetworkInterface", self._choose_first)
        events.register("before-call.ec2", self._assign_prefixes)
        events.register("after-call.ec2.DescribeNetworkInterfaces", self._show_prefixes)
        events.register("after-call.ec2.DescribeSubnets", self._show_states)
        return made

    def _assign_prefixes(self, params: dict[str, Any], **_: Any) -> tuple[AWSResponse, dict[str, Any]] | None:
        body = params["body"]
        family = next((family for family in ("Ipv4", "Ipv6") if f"{family}PrefixCount" in body), "")
        if not family:
            return None
        for _number in range(int(body[f"{family}PrefixCount"])):
            self._prefixes.append((body["NetworkInterfaceId"], family, next(self._free_prefixes[family])))
        return AWSResponse("https://ec2", 200, {}, None), {"ResponseMetadata": {"HTTPStatusCode": 200}}

    def _show_prefixes(self, parsed: Any, **_: Any) -> None:
        for document in parsed.get("NetworkInterfaces", ()):
            for interface, family, prefix in self._prefixes:
                if interface == document["NetworkInterfaceId"]:
                    document.setdefault(f"{family}Prefixes", []).append({f"{family}Prefix": prefix})

    def _show_states(self, parsed: Any, **_: Any) -> None:
        for document in parsed.get("Subnets", ()):
            for block in document.get("Ipv6CidrBlockAssociationSet", ()):
                block["Ipv6CidrBlockState"] = {"State": "associated"}

    def _choose_further(self, params: dict[str, Any], **_: Any) -> dict[str, Any]:
        if "Ipv4PrefixCount" in params:
            return params
        count = params["SecondaryPrivateIpAddressCount"]
        addresses = [next(self._free) for _ in range(count)]
        return {"NetworkInterfaceId": params["NetworkInterfaceId"], "PrivateIpAddresses": addresses}

    def _choose_first(self, params: dict[str, Any], **_: Any) -> dict[str, Any]:
        return params | {"PrivateIpAddress": next(self._free)}

    def _show_dead(self, parsed: Any, **_: Any) -> None:
        for table in parsed.get("RouteTables", ()):
            for route in table["Routes"]:
                if route.get("NetworkInterfaceId") in self._gone:
                    route["State"] = "blackhole"

    def run(self, address: str) -> str:
        """Runs an instance with this address; returns the ``spec.providerID`` of its Node."""
        made = self.ec2.run_instances(
            ImageId=IMAGE, MinCount=1, MaxCount=1, SubnetId=self.subnet, InstanceType="t3.small",
            PrivateIpAddress=address,
        )  # fmt: skip
        instance = made["Instances"][0]["InstanceId"]
        self.instances[instance] = address
        return f"aws:///{REGION}a/{instance}"

    def interface(self, address: str) -> dict[str, Any]:
        """The interface with an address, as the API describes it."""
        chosen = [{"Name": "private-ip-address", "Values": [address]}, {"Name": "vpc-id", "Values": [self.id]}]
        interfaces = self.ec2.describe_network_interfaces(Filters=chosen)["NetworkInterfaces"]
        return dict(interfaces[0])

    def marks(self, address: str) -> dict[str, str]:
        """The marks of podwire on an interface."""
        tags = self.interface(address)["TagSet"]
        return {tag["Key"]: tag["Value"] for tag in tags if tag["Key"].startswith(CLOUD_MARK)}

    def routes(self) -> dict[str, str]:
        """The next hop of each destination, as the VPC's router would use it: the address of the interface."""
        described = self.ec2.describe_route_tables(RouteTableIds=[self.table])["RouteTables"][0]["Routes"]
        interfaces = self.ec2.describe_network_interfaces()["NetworkInterfaces"]
        addresses = {each["NetworkInterfaceId"]: each["PrivateIpAddress"] for each in interfaces}
        return {
            route.get("DestinationCidrBlock") or route["DestinationIpv6CidrBlock"]: addresses.get(target, target)
            for route in described
            if (target := route.get("NetworkInterfaceId"))
        }

    def vanish(self, address: str) -> None:
        """Terminates the instance with an address: its interface is deleted, and routes to it lead nowhere."""
        interface = self.interface(address)["NetworkInterfaceId"]
        self.ec2.terminate_instances(InstanceIds=[next(i for i, a in self.instances.items() if a == address)])
        ec2_backends[ACCOUNT][REGION].enis.pop(interface)
        self._gone.add(interface)


@contextmanager
def refuse(
    provider: AwsRouteTables | AwsAddresses, operation: str, code: str, status: int = 400
) -> Iterator[list[str]]:
    """Answers calls of one operation with an error instead of passing them to the emulator; yields their names."""
    asked: list[str] = []

    def answer(model: Any, params: Any, **_: Any) -> tuple[AWSResponse, dict[str, Any]]:
        asked.append(model.name)
        document = {"Error": {"Code": code, "Message": "refused by a test"}}
        document["ResponseMetadata"] = {"HTTPStatusCode": status}  # type: ignore[dict-item]
        return AWSResponse("https://ec2", status, {}, None), document

    events = provider.ec2.client.meta.events
    events.register(f"before-call.ec2.{operation}", answer, unique_id="refuse")
    try:
        yield asked
    finally:
        events.unregister(f"before-call.ec2.{operation}", unique_id="refuse")


class Killed(Exception):
    """The end of a controller in the middle of its work."""


@contextmanager
def killed_after(provider: Any, calls: int) -> Iterator[None]:
    """Ends the controller before its writing call with this number."""
    left = [calls]

    def count(model: Any, **_: Any) -> None:
        if not model.name.startswith("Describe"):
            left[0] -= 1
            if left[0] < 0:
                raise Killed

    provider.ec2.client.meta.events.register("before-call.ec2.*", count, unique_id="kill")
    try:
        yield
    finally:
        provider.ec2.client.meta.events.unregister("before-call.ec2.*", unique_id="kill")


@contextmanager
def controlling(machine: Machine, make: Callable[[Environment], Controller]) -> Iterator[None]:
    """The controller as a thread in the namespace of the API server."""
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

    async def control() -> None:
        client = Client(load_kubeconfig(machine.kubeconfig), SystemClock())
        environment = Environment(client)
        running = asyncio.ensure_future(environment.run({"cloud": make(environment)}))
        started.append((asyncio.get_running_loop(), running))
        await asyncio.gather(running, return_exceptions=True)
        await client.close()

    def run() -> None:
        with netns.inside(machine.fabric):
            asyncio.run(control())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        eventually(lambda: started)
        loop, running = started[0]
        loop.call_soon_threadsafe(running.cancel)
        thread.join()
