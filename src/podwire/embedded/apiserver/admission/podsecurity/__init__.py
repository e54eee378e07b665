"""Pod Security: the levels privileged, baseline and restricted of Kubernetes' Pod Security Standards."""
