"""Messages lost in an upgrade of podwire itself, from an earlier commit to this tree, and on the way back.

A local cluster of two nodes with the gateway starts in the wheel of an earlier commit. `podwire upgrade local apply`
replaces supervisor, API server, controllers, kubelets, agents, DNS and gateway while numbered flows run between all
nodes and from outside, until 100,000 messages were sent; then `rollback` takes it back under the same flows. Lost
messages, leaks of denied probes and ended connections are counted; the aim is 0 of each.

    sudo python -m bench.upgrade_loss [--quick]

With the variable `PROOF` the report and the timeline are written to that folder.
"""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.alone import ROOT, run_alone
from bench.table import Row
from tests.earlier_builds import WITH_GATEWAY, wheel

from podwire.flows import proof
from podwire.flows.proof import LossProof
from podwire.local import inventory
from podwire.local.rollout.run import folder_of

MESSAGES, FEW = 100_000, 5_000
_NAME = f"upgrade-{os.getpid()}"


def podwire(*arguments: str) -> None:
    """Runs a command; its output is that of this process.

    Raises: subprocess.CalledProcessError.
    """
    subprocess.run([sys.executable, "-m", "podwire.cli.main", *arguments], cwd=ROOT, check=True, stdout=sys.stderr)


def measured() -> LossProof:
    """The proof of the last run."""
    file = folder_of(inventory.existing(_NAME)) / "proof.json"
    return proof.parse_json(file.read_bytes(), str(file))


def rows_of(what: str, loss_proof: LossProof) -> list[Row]:
    """The rows of one direction."""
    lost, sent, leaked, denied = proof.counts(loss_proof)
    flows = loss_proof.flows
    return [
        Row(f"{what}: messages sent", "", (sent,)),
        Row(f"{what}: messages lost", "", (lost,), aim=0),
        Row(f"{what}: denied messages sent", "", (denied,)),
        Row(f"{what}: denied messages that leaked", "", (leaked,), aim=0),
        Row(f"{what}: connections that ended", "", (sum(flow.broken for flow in flows),), aim=0),
        Row(f"{what}: longest time without an answer", "ms", (max(flow.gap_ms for flow in flows if not flow.leaked),)),
        Row(f"{what}: changes of kernels", "", (sum(change.number for change in loss_proof.changes),)),
        Row(f"{what}: time", "s", (round(loss_proof.ended - loss_proof.began, 1),)),
    ]


def run(quick: bool) -> list[Row]:
    """The rows of both directions."""
    with TemporaryDirectory() as home:
        config = Path(home, "cluster.yaml")
        config.write_text("{nodes: 2, gateway: true}")
        try:
            podwire("up", "--name", _NAME, "--config", str(config), "--version", str(wheel(WITH_GATEWAY)))
            messages = str(FEW if quick else MESSAGES)
            podwire("upgrade", "local", "apply", "--name", _NAME, "--messages", messages)
            rows = rows_of("there", measured())
            if folder := os.environ.get("PROOF"):
                podwire("upgrade", "report", "--name", _NAME, "--folder", folder)
            podwire("upgrade", "local", "rollback", "--name", _NAME)
            return rows + rows_of("back", measured())
        finally:
            podwire("down", "--name", _NAME)


if __name__ == "__main__":
    run_alone("upgrade_loss", __doc__, run)
