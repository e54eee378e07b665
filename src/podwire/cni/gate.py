"""The policy gate: ADD waits until the pod's policies can be put in force.

The policy part of the agent passes the functions that put policies in force to the gate's constructor.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from podwire.cni.ipam.ledger import Attachment
from podwire.cni.protocol import CniRequest
from podwire.cni.spec import TRY_LATER
from podwire.errors import CniError

KNOWN_S = 5.0
"""How long ADD waits for the pod's object and the first load of policies; kubelet tries again later."""


class PolicyGate(Protocol):
    """Puts a pod's policies in force before the pod gets its devices."""

    def before(self, request: CniRequest) -> Awaitable[None] | None:
        """Returns what to await before a request is handled; None: the request can be handled at once.

        Raises: CniError, also when awaited, when the wait took too long.
        """
        ...

    def attach(self, *attachments: Attachment) -> None:
        """Called before pods are wired.

        Raises: KernelError; the pods are not wired then.
        """
        ...

    def detach(self, attachment: Attachment) -> None:
        """Called after a pod was unwired."""
        ...


class OpenGate:
    """The gate of a node without policy enforcement."""

    def before(self, _request: CniRequest) -> Awaitable[None] | None:
        """Returns None: no request has to wait."""
        return None

    def attach(self, *attachments: Attachment) -> None:
        """Does nothing."""

    def detach(self, attachment: Attachment) -> None:
        """Does nothing."""


class AdmissionCheck(Protocol):
    """Decides when a pod may get its device; implemented by ``policy.admission``."""

    def admits(self, pod: str, uid: str = "") -> bool:
        """Whether the policies of a pod can be put in force now."""
        ...

    async def known(self, pod: str, uid: str = "") -> None:
        """Waits until the policies of a pod can be put in force."""
        ...

    def waits_for(self) -> tuple[str, str]:
        """The condition that :meth:`known` waits for, and a hint what to check."""
        ...


class EnforcementGate:
    """Lets ADD pass when the admission does; ``attach`` and ``detach`` put policies of a pod in force and forget it."""

    def __init__(self, admission: AdmissionCheck, attach: Callable[..., None], detach: Callable[[str], None]) -> None:
        self._admission = admission
        self._attach = attach
        self._detach = detach

    def before(self, request: CniRequest) -> Awaitable[None] | None:
        """Waits with ADD until the pod's object is known and policies are in force; None: no need to wait."""
        if request.command != "ADD" or not request.pod or self._admission.admits(request.pod_name, request.uid):
            return None
        return self._known(request)

    async def _known(self, request: CniRequest) -> None:
        try:
            async with asyncio.timeout(KNOWN_S):
                await self._admission.known(request.pod_name, request.uid)
        except TimeoutError:
            reason, hint = self._admission.waits_for()
            raise CniError(TRY_LATER, f"{request.pod_name}: {reason}", hint) from None

    def attach(self, *attachments: Attachment) -> None:
        """Puts the policies of pods into the kernel.

        Raises: KernelError.
        """
        self._attach(*attachments)

    def detach(self, attachment: Attachment) -> None:
        """Forgets a pod's device."""
        self._detach(attachment.host_link)
