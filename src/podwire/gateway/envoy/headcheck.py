"""The filter in front of HTTP that refuses heads which the engine would mend: bare carriage returns, folds, two hosts.

The filter is a WebAssembly program (``src/wasm/head_check.c``), carried in the package and sent as a resource of its
own, which the listeners name: an engine always has the one that its gateway means, and has it once, however many
chains of filters begin with it. If it fails, the engine closes the connections that it reads, and starts it anew. An
engine opens a listener when it has the filter.
"""

import base64
from functools import cache
from importlib import resources

from podwire.gateway.envoy.clusters import ADS, TYPE_PREFIX, Json, typed

HEAD_CHECK = "head-check"
"""The name of the filter, and of its resource."""
_MESSAGE = "envoy.extensions.filters.network.wasm.v3.Wasm"


@cache
def compiled() -> bytes:
    """The program."""
    return (resources.files("podwire.gateway.envoy") / "head_check.wasm").read_bytes()


@cache
def head_check() -> Json:
    """The filter as a resource; its chains share one machine in each thread of an engine."""
    machine = {
        "vmId": HEAD_CHECK,
        "runtime": "envoy.wasm.runtime.v8",
        "code": {"local": {"inlineBytes": base64.b64encode(compiled()).decode()}},
    }
    config = {"name": HEAD_CHECK, "vmConfig": machine, "failurePolicy": "FAIL_RELOAD"}
    return {"name": HEAD_CHECK, "typedConfig": typed(_MESSAGE, config=config)}


def head_check_filter() -> Json:
    """The network filter of a chain: where it comes from."""
    source = {"configSource": ADS, "typeUrls": [TYPE_PREFIX + _MESSAGE]}
    return {"name": HEAD_CHECK, "configDiscovery": source}
