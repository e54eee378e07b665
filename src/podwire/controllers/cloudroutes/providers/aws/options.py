"""Options of the cloud ``aws`` (pure)."""

import msgspec


class AwsOptions(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The region of the cluster, its route tables, and the address of the API.

    Empty values: the region of the environment (``AWS_REGION``, the AWS configuration file), the tables with the tag
    ``kubernetes.io/cluster/<cluster>``, and the public address of the API.
    """

    region: str = ""
    route_tables: tuple[str, ...] = ()
    endpoint: str = ""
