"""Persistent storage of a local cluster: binding claims to volumes, making and removing folders. Like Kubernetes'
persistent volume controllers, with one provisioner, ``podwire.io/folder``."""
