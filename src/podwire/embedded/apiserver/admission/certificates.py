"""Certificate requests: who asks, who may approve and sign, and what may change.

The rules are those of Kubernetes' plugins CertificateApproval, CertificateSigning and CertificateSubjectRestriction,
and of the registry of the kind.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from typing import Any

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest
from podwire.embedded.apiserver.authorization.rules import RequestAttributes
from podwire.embedded.apiserver.failures import Cause
from podwire.embedded.apiserver.validate import causes
from podwire.embedded.certificates import signing
from podwire.errors import ConfigError

Object = dict[str, Any]

TABLE = "certificates.k8s.io/certificatesigningrequests"
_SIGNER = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+/\S+")
_DECIDING = ("Approved", "Denied")
_LEAST_S = 600


class CertificateRequestAdmission:
    """Looks at every write of a certificate request."""

    tables = frozenset({TABLE})

    def __init__(self, context: AdmissionContext) -> None:
        self._authorizer = context.authorizer

    def mutate(self, request: AdmissionRequest) -> None:
        """Sets the user of a new request. In an approval, keeps everything but the conditions as stored."""
        if request.operation not in ("CREATE", "UPDATE"):
            return
        if request.creates:
            user = request.call.user
            spec = request.obj.setdefault("spec", {})
            for field in ("username", "uid", "groups", "extra"):
                spec.pop(field, None)
            identity = {
                "username": user.name, "uid": user.uid, "groups": list(user.groups),
                "extra": {key: list(values) for key, values in user.extra.items()},
            }  # fmt: skip
            spec.update({key: value for key, value in identity.items() if value})
        else:
            _keep_by_subresource(request)

    def validate(self, request: AdmissionRequest) -> None:
        """Raises: Invalid for a wrong request; ApiError 403 for a user who may not approve or sign for the signer."""
        if request.operation not in ("CREATE", "UPDATE"):
            return
        invalid_fields = _wrong_request(request.obj) if request.creates else _wrong_change(request.obj)
        if invalid_fields:
            raise failures.invalid(request.call.kind, request.name, invalid_fields)
        signer = str(request.obj["spec"].get("signerName") or "")
        if request.creates and signer == signing.CLIENT:
            self._check_groups(request)
        elif request.call.subresource == "approval":
            self._confirm(request, "approve", signer)
        elif request.call.subresource == "status" and _certificate(request.obj) != _certificate(request.old):
            self._confirm(request, "sign", signer)

    def _check_groups(self, request: AdmissionRequest) -> None:
        subject = signing.parse_request(base64.b64decode(request.obj["spec"]["request"]))
        if signing.MASTERS in subject.organizations:
            problem = f"use of {signing.CLIENT} signer with {signing.MASTERS} group is not allowed"
            raise failures.forbidden(request.call.kind, request.name, problem)

    def _confirm(self, request: AdmissionRequest, verb: str, signer: str) -> None:
        domain = signer.partition("/")[0]
        for name in (signer, f"{domain}/*"):
            attributes = RequestAttributes(verb, "certificates.k8s.io", "*", "signers", name=name)
            if self._authorizer.decide(request.call.user, attributes).allowed:
                return
        problem = f'user not permitted to {verb} requests with signerName "{signer}"'
        raise failures.forbidden(request.call.kind, request.name, problem)


def _keep_by_subresource(request: AdmissionRequest) -> None:
    """Restores what a write must not change: always the spec; in an approval all but the conditions; in a status
    update the conditions Approved and Denied."""
    new, old, subresource = request.obj, request.old, request.call.subresource
    new["spec"] = old.get("spec") or {}
    before = old.get("status") or {}
    status = dict(new.get("status") or {})
    if subresource == "approval":
        status = {**before, "conditions": status.get("conditions") or []}
    elif subresource == "status":
        decided = [c for c in before.get("conditions") or () if c.get("type") in _DECIDING]
        free = [c for c in status.get("conditions") or () if c.get("type") not in _DECIDING]
        status["conditions"] = decided + free
    if not status.get("conditions"):
        status.pop("conditions", None)
    if status or "status" in new:
        new["status"] = status


def _certificate(obj: Object) -> str:
    return str((obj.get("status") or {}).get("certificate") or "")


def _wrong_request(obj: Object) -> list[Cause]:
    spec = obj.get("spec") or {}
    invalid_fields = [*_wrong_content(str(spec.get("request") or "")), *_wrong_usages(spec.get("usages") or ())]
    signer = str(spec.get("signerName") or "")
    if not signer:
        invalid_fields.append(causes.required("spec.signerName"))
    elif not _SIGNER.fullmatch(signer):
        detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
        invalid_fields.append(causes.invalid("spec.signerName", signer, detail))
    elif signer == signing.LEGACY:
        detail = f"{signing.LEGACY} is not allowed via this API version"
        invalid_fields.append(causes.invalid("spec.signerName", signer, detail))
    seconds = spec.get("expirationSeconds")
    if seconds is not None and seconds < _LEAST_S:
        detail = f"may not specify a duration less than {_LEAST_S} seconds"
        invalid_fields.append(causes.invalid("spec.expirationSeconds", seconds, detail))
    return invalid_fields


def _wrong_content(request: str) -> Iterator[Cause]:
    try:
        signing.parse_request(base64.b64decode(request, validate=True))
    except ConfigError as failure:
        yield causes.invalid("spec.request", request, failure.problem)
    except binascii.Error as failure:
        yield causes.invalid("spec.request", request, str(failure))


def _wrong_usages(usages: Sequence[str]) -> Iterator[Cause]:
    if not usages:
        yield causes.required("spec.usages")
    for index, usage in enumerate(usages):
        if usage not in signing.USAGES:
            yield causes.unsupported(f"spec.usages[{index}]", usage, sorted(signing.USAGES))
        if usage in usages[:index]:
            yield causes.duplicate(f"spec.usages[{index}]", usage)


def _wrong_change(obj: Object) -> list[Cause]:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    types = [condition.get("type") for condition in conditions]
    invalid_fields = [
        causes.duplicate(f"status.conditions[{index}].type", kind)
        for index, kind in enumerate(types)
        if kind in types[:index]
    ]
    if set(_DECIDING) <= set(types):
        detail = "Approved and Denied conditions are mutually exclusive"
        invalid_fields.append(causes.invalid("status.conditions", types, detail))
    return invalid_fields
