"""The documents by which other services check tokens of ServiceAccounts."""

import base64
import json
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_published_key_verifies_a_token(play: Callable[..., None]) -> None:
    async def scenario(api: Any) -> None:
        _, document = await api("GET", "/.well-known/openid-configuration")
        issuer = document["issuer"]
        assert document["jwks_uri"] == f"{issuer}/openid/v1/jwks"
        accounts = "/api/v1/namespaces/default/serviceaccounts"
        _, answer = await api("POST", f"{accounts}/default/token", {"spec": {"audiences": ["a"]}})
        head, claims, signature = answer["status"]["token"].split(".")
        _, keys = await api("GET", "/openid/v1/jwks")
        (key,) = [key for key in keys["keys"] if key["kid"] == json.loads(_bytes(head))["kid"]]
        assert (key["kty"], key["crv"], key["alg"], key["use"]) == ("EC", "P-256", "ES256", "sig")
        assert json.loads(_bytes(claims))["iss"] == issuer
        x, y = (int.from_bytes(_bytes(key[name]), "big") for name in "xy")
        public = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
        r, s = (int.from_bytes(part, "big") for part in (_bytes(signature)[:32], _bytes(signature)[32:]))
        public.verify(utils.encode_dss_signature(r, s), f"{head}.{claims}".encode(), ec.ECDSA(hashes.SHA256()))
        assert (await api("GET", "/.well-known/other"))[0] == 404

    play(scenario)
