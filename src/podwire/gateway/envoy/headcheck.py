"""The filter in front of HTTP that refuses heads which the engine would mend: bare carriage returns, folds, two hosts.

The filter is a WebAssembly program (``src/wasm/head_check.c``), carried in the package and sent within the listeners,
so that an engine always has the one that its gateway means. If it fails, the engine closes the connections that it
reads, and starts it anew.
"""

import base64
from functools import cache
from importlib import resources

from podwire.gateway.envoy.clusters import Json, typed

_NAME = "head-check"


@cache
def compiled() -> bytes:
    """The program."""
    return (resources.files("podwire.gateway.envoy") / "head_check.wasm").read_bytes()


@cache
def head_check_filter() -> Json:
    """The network filter; one value for all chains, which share one machine in each thread of an engine."""
    machine = {
        "vmId": _NAME,
        "runtime": "envoy.wasm.runtime.v8",
        "code": {"local": {"inlineBytes": base64.b64encode(compiled()).decode()}},
    }
    config = {"name": _NAME, "vmConfig": machine, "failurePolicy": "FAIL_RELOAD"}
    return {"name": _NAME, "typedConfig": typed("envoy.extensions.filters.network.wasm.v3.Wasm", config=config)}
