"""Asks every API server of a cluster for its version.

A load balancer, or a kubeconfig, leads to one of several API servers. The EndpointSlices of the Service ``kubernetes``
have the addresses of all of them; each is asked with the same credentials, its certificate checked for the name that
the kubeconfig uses. Servers that do not answer within five seconds, such as those behind a firewall, stay unknown.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from podwire.errors import ApiError, ApiUnreachable
from podwire.kube.client import Client
from podwire.kube.resources import ENDPOINTSLICES
from podwire.model.service import SERVICE_NAME_LABEL

_PATIENCE_S = 5.0


class _VersionAnswer(msgspec.Struct, frozen=True, rename="camel"):
    git_version: str = ""


async def own_version(client: Client) -> str:
    """The version of the server that answers; empty when the answer has none.

    Raises: ApiUnreachable.
    """
    answer = await client.raw("GET", "/version")
    try:
        return msgspec.json.decode(answer.body, type=_VersionAnswer).git_version
    except msgspec.DecodeError:
        return ""


async def all_versions(client: Client) -> Mapping[str, str]:
    """By ``address:port`` the version of each API server, empty where it is not known; nothing when there is one.

    Raises: ApiUnreachable.
    """
    addresses = await _addresses(client)
    if len(addresses) < 2:
        return {}
    versions = await asyncio.gather(*(_version_at(client, address) for address in addresses))
    return dict(zip(addresses, versions, strict=True))


async def _addresses(client: Client) -> list[str]:
    try:
        page = await client.list(ENDPOINTSLICES, "default", label_selector=f"{SERVICE_NAME_LABEL}=kubernetes")
    except ApiError:
        return []
    addresses = {
        f"[{address}]:{port.port}" if ":" in address else f"{address}:{port.port}"
        for item in page.items
        for endpoint in item.endpoints or ()
        for address in endpoint.addresses
        for port in item.ports or ()
        if port.port
    }
    return sorted(addresses)


async def _version_at(client: Client, address: str) -> str:
    config = client.config
    name = config.server_name or config.url.hostname or ""
    server = f"{config.url.scheme}://{address}"
    there = replace(config, server=server, server_name=name, answer_s=_PATIENCE_S, timeout_s=_PATIENCE_S)
    other = Client(there, client.clock)
    try:
        return await own_version(other)
    except ApiUnreachable:
        return ""
    finally:
        await other.close()
