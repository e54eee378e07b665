"""The proxy data planes by name; the class is imported when it is chosen."""

DATAPLANES = {
    "nftables": "podwire.proxy.dataplanes.nftables.dataplane:NftablesDataPlane",
}
