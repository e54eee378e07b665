"""HorizontalPodAutoscalers: how many replicas the pods' use of resources asks for."""
