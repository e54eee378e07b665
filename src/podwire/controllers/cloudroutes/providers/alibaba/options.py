"""Options of the cloud ``alibaba`` (pure)."""

import msgspec


class AlibabaOptions(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The region of the cluster, its route tables, the RAM role of the controller's instance, and addresses of APIs.

    Empty values: the tables with the tag ``kubernetes.io/cluster/<cluster>``, credentials of the environment, and the
    public addresses of the APIs. ``metadata_endpoint`` is where credentials of the role are read.
    """

    region: str = ""
    route_tables: tuple[str, ...] = ()
    ram_role: str = ""
    ecs_endpoint: str = ""
    vpc_endpoint: str = ""
    metadata_endpoint: str = "http://100.100.100.200"
