"""Types of the Kubernetes API as data: built-in kinds and those of CustomResourceDefinitions."""
