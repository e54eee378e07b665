"""The compiled filter of the package, and where listeners have it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from podwire.gateway.envoy.headcheck import HEAD_CHECK, compiled, head_check
from podwire.gateway.envoy.listeners import listener
from podwire.gateway.envoy.messages import pack
from podwire.gateway.envoy.resources import FILTER, LISTENER, resources
from podwire.gateway.envoy.settings import EngineSettings
from podwire.gateway.routes import EntryListener, GatewayEntry, StreamTarget, TlsServer

SOURCES = Path(__file__).parents[4] / "src/wasm"
HAS_COMPILER = shutil.which("clang-14") is not None and shutil.which("wasm-ld-14") is not None


@pytest.mark.skipif(not HAS_COMPILER, reason="the compiler of the filter, clang-14 with lld-14, is not installed")
def test_filter_is_what_the_source_compiles_to(tmp_path: Path) -> None:
    shutil.copytree(SOURCES, tmp_path / "src/wasm")
    subprocess.run(["make", "-s", "-C", str(tmp_path / "src/wasm")], check=True)
    made = tmp_path / "src/podwire/gateway/envoy/head_check.wasm"
    assert made.read_bytes() == compiled(), "run `make wasm`"


def test_filter_that_fails_closes_connections() -> None:
    config = head_check()["typedConfig"]["config"]
    assert config["failurePolicy"] == "FAIL_RELOAD" and not config.get("failOpen")


def test_program_is_sent_once_whatever_has_the_filter() -> None:
    names = tuple(f"{number}.example" for number in range(20))
    servers = tuple(TlsServer(names=(name,), certificates=("a",), table="web") for name in names)
    entry = GatewayEntry(listeners=(EntryListener(name="secure", port=443, protocol="HTTPS", servers=servers),))
    made = resources(entry, EngineSettings())
    assert made[FILTER] == {HEAD_CHECK: head_check()}
    sizes = {kind: len(pack(kind, value).message.value) for kind in (FILTER, LISTENER) for value in made[kind].values()}
    assert sizes[FILTER] > len(compiled()) and sizes[LISTENER] < len(names) * len(compiled())


def test_every_chain_of_http_begins_with_the_filter() -> None:
    servers = (
        TlsServer(names=("a.example",), certificates=("a",), table="web"),
        TlsServer(names=("b.example",), certificates=(), stream=StreamTarget(source="TLSRoute b", backends=())),
        TlsServer(names=(), certificates=("default",), table="web"),
    )
    listeners = (
        EntryListener(name="plain", port=80, protocol="HTTP", table="web"),
        EntryListener(name="secure", port=443, protocol="HTTPS", servers=servers),
    )
    chains = {}
    for value in (listener(entry, EngineSettings()) for entry in listeners):
        for chain in (*value["filterChains"], *filter(None, [value.get("defaultFilterChain")])):
            chains[chain["name"]] = [entry["name"].rsplit(".", 1)[-1] for entry in chain["filters"]]
    http = ["head-check", "http_connection_manager"]
    assert chains == {
        "plain": http,
        "secure a.example": http,
        "secure b.example": ["tcp_proxy"],
        "secure default": http,
    }
