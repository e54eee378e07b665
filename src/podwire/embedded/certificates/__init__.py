"""Certificates that users ask for through the API: reading and signing requests, and the controller that signs."""
