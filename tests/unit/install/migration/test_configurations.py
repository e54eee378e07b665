"""The directory of host-local that a configuration uses."""

import pytest

from podwire.install.migration.configurations import host_local

LIST = '{"name": "cbr0", "plugins": [%s, {"type": "portmap"}]}'


@pytest.mark.parametrize(
    ("text", "directory"),
    [
        (LIST % '{"type": "flannel", "delegate": {}}', "/var/lib/cni/networks/cbr0"),
        (LIST % '{"type": "bridge", "ipam": {"type": "host-local"}}', "/var/lib/cni/networks/cbr0"),
        (LIST % '{"type": "bridge", "ipam": {"type": "host-local", "dataDir": "/d"}}', "/d/cbr0"),
        ('{"name": "one", "type": "ptp", "ipam": {"type": "host-local"}}', "/var/lib/cni/networks/one"),
        (LIST % '{"type": "bridge", "ipam": {"type": "dhcp"}}', ""),
        (LIST % '{"type": "bridge", "ipam": null}', ""),
        ('{"plugins": [1]}', ""),
        ("[]", ""),
        ("{", ""),
    ],
)
def test_directory_of_host_local(text: str, directory: str) -> None:
    assert host_local(text) == directory
