"""Keys of Curve25519 (RFC 7748), which WireGuard uses. ``cryptography`` is imported on use, by nodes with WireGuard."""


def generate() -> bytes:
    """A new private key, 32 bytes."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """The public key of a private one, 32 bytes.

    Raises: ValueError when ``private`` has another length than 32 bytes.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
