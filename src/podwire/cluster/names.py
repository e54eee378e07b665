"""Every annotation, label and taint of podwire on API objects, with the writer and the readers of each.

Kubernetes' own labels stand with the object that carries them (:mod:`podwire.model`).
"""

from podwire.model.node import POD_BLOCKS

PREFIX = "podwire.io/"
"""Everything below begins with this prefix."""

NODE_ROUTING_FACTS = "podwire.io/routing-facts"
"""Node annotation. Written by the node's agent (routing); read by the agents of all other nodes."""
NODE_ROUTING = "podwire.io/routing"
"""Node annotation: the routing backend. Written by the node's agent; read by ``podwire status`` and the test plugin."""
NODE_PROXY = "podwire.io/proxy"
"""Node annotation: the data plane of Services. Written by the node's agent; read by ``status``, ``probe``, ``why``."""
NODE_POLICY = "podwire.io/policy"
"""Node annotation: the data plane of policies. Written by the node's agent; read by ``status`` and ``policy list``."""
NODE_HEALTH_PORT = "podwire.io/health"
"""Node annotation: the port of the agent's health endpoint. Written by the agent; read by ``policy list|log``."""
NODE_FALLBACK = "podwire.io/fallback"
"""Node annotation: what works in degraded mode, and why. Written by the node's agent; read by ``podwire status``."""
NODE_SESSIONS = "podwire.io/sessions"
"""Node annotation: the sessions of routing with peers. Written by the node's agent; read by ``podwire status``."""
NODE_CLOUD_INTERFACES = "podwire.io/cloud-interfaces"
"""Node annotation: interfaces for pods. Written by the controller cloudaddresses; read by agents (cloudroutes)."""
NODE_MIGRATED = "podwire.io/migrated"
"""Node label: podwire is the network. Written by ``podwire migrate``; read by selectors of DaemonSets."""
NODE_POD_BLOCKS = POD_BLOCKS
"""Node annotation: the blocks of its pods. Written by the node's agent (block IPAM); read wherever pod CIDRs are."""
NODE_LEAVING = "podwire.io/leaving"
"""Node taint. Written by ``podwire up`` before it removes a node; read by the scheduler and by controllers of pods."""

POLICY_MODE = "podwire.io/mode"
"""Policy annotation: ``audit`` or ``enforce``. Written by users; read by agents, ``why`` and ``policy`` commands."""
POLICY_LOG = "podwire.io/log"
"""Policy annotation: ``all``, ``drops`` or ``none``. Written by users; read by agents."""
POLICY_IGNORE = "podwire.io/ignore"
"""Policy annotation: identifiers of findings. Written by users; read by ``podwire policy check``."""
POLICY_ENFORCED = "podwire.io/enforced"
"""Policy annotation: on how many nodes it is in force. Written by the controller policystatus; read by ``policy``."""
POLICY_REPORT = "podwire.io/report"
"""ConfigMap label: the report of one agent. Written by each agent; read by the controller policystatus."""

EGRESS_LEASE = "podwire.io/egress"
"""Lease label: the node. Written by the agents of nodes that may have egress addresses; read by agents and egress."""

POD_ADDRESSES = "podwire.io/addresses"
"""Pod annotation: the requested addresses. Written by users and conformance; read by the CNI server."""
POD_NETWORK = "podwire.io/network"
"""Pod annotation: the pod network, of which the pod gets addresses. Written by users; read by the CNI server."""
FOLDER_PROVISIONER = "podwire.io/folder"
"""Provisioner of the default StorageClass. Written by the embedded API server; read by the controller of storage."""
CLOUD_MARK = "podwire.io/cluster/"
"""The tag of a cloud's object that podwire changed or made; the cluster's name follows."""
SERVICE_BALANCER = "podwire.io/load-balancer"
"""Service annotation: the balancer of the address. Written and read by the controller of load balancers (service)."""
