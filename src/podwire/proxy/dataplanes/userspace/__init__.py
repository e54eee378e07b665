"""Services through a relay: rules lead connections to this process, which chooses an endpoint and copies the bytes."""
