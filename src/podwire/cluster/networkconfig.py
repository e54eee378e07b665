"""The name of the ConfigMap with the settings that can change on a running cluster; agents watch it."""

SYSTEM_NAMESPACE = "kube-system"
NETWORK_CONFIG = "podwire-config"
