"""The local kubelet: pods of one node as namespaces with real processes."""
