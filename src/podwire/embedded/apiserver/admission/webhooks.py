"""The plugins MutatingAdmissionWebhook and ValidatingAdmissionWebhook.

Mutating webhooks are called one after the other, in the order of their configurations' names; each gets the object as
the one before has left it. A webhook with ``reinvocationPolicy: IfNeeded`` is called a second time when the object was
changed after its first call. Validating webhooks are called at the same time; the first refusal in their order counts.
A request that no webhook is configured for costs one look at an empty list. The server's own writes call no webhook.

Sources: ``k8s.io/apiserver/pkg/admission/plugin/webhook/mutating/dispatcher.go``, ``.../validating/dispatcher.go``.
"""

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from podwire.embedded.apiserver import conversion, failures
from podwire.embedded.apiserver.admission import review
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest
from podwire.embedded.apiserver.admission.matching import covered_kind, is_exempt, selects
from podwire.embedded.apiserver.admission.review import WebhookAnswer, WebhookFailure
from podwire.embedded.apiserver.admission.variables import RequestVariables
from podwire.embedded.apiserver.admission.webhookclient import WebhookClient
from podwire.embedded.apiserver.admission.webhookconfig import Configured, Webhook, read_webhooks
from podwire.embedded.apiserver.cel.conditions import ConditionError, all_hold, compile_conditions
from podwire.embedded.apiserver.kinds import ResourceKind
from podwire.embedded.apiserver.patch import json_patch
from podwire.embedded.apiserver.store import ObjectChange
from podwire.embedded.apiserver.waits import Waits
from podwire.errors import ApiError
from podwire.observe.log import Log

Object = dict[str, Any]

MUTATING = "admissionregistration.k8s.io/mutatingwebhookconfigurations"
VALIDATING = "admissionregistration.k8s.io/validatingwebhookconfigurations"


class _Chosen(NamedTuple):
    """A webhook that a request is for, and the kind in whose version it wants the objects."""

    uid: str
    webhook: Webhook
    kind: ResourceKind


class WebhookCaller:
    """The webhooks of one table of configurations."""

    def __init__(self, context: AdmissionContext, table: str) -> None:
        self._table = table
        self._context = context
        self._store = context.store
        self._kinds = context.kinds
        self._client = WebhookClient(context.endpoints)
        self._log = Log("apiserver")
        self._webhooks: tuple[Configured, ...] | None = None
        context.store.on_write.append(self._observe)
        context.store.on_rollback.append(self._forget)

    def _observe(self, change: ObjectChange) -> None:
        if change.entry.table == self._table:
            self._webhooks = None

    def _forget(self) -> None:
        self._webhooks = None

    def chosen(self, request: AdmissionRequest) -> list[_Chosen]:
        """The webhooks whose rules cover the request, in their order."""
        if self._webhooks is None:
            self._webhooks = read_webhooks(self._store, self._table)
        if not self._webhooks or request.call.internal or is_exempt(request.call.kind):
            return []
        return list(self._matching(request, self._webhooks))

    def _matching(self, request: AdmissionRequest, webhooks: tuple[Configured, ...]) -> Iterator[_Chosen]:
        for found in webhooks:
            webhook = found.webhook
            kind = covered_kind(webhook.rules, webhook.match_policy, request, self._kinds)
            if kind is not None:
                yield _Chosen(found.uid, webhook, kind)

    def selects(self, chosen: _Chosen, request: AdmissionRequest) -> bool:
        """Whether the webhook's selectors and match conditions choose the request as it is now.

        Raises: ApiError 400 for a dry run that the webhook does not support, 403 when a condition that cannot be
        evaluated decides.
        """
        if not selects(chosen.webhook, request, self._store) or not self._meets_conditions(chosen, request):
            return False
        if request.call.dry_run and chosen.webhook.has_side_effects:
            raise failures.bad_request(f'admission webhook "{chosen.webhook.name}" does not support dry run')
        return True

    def _meets_conditions(self, chosen: _Chosen, request: AdmissionRequest) -> bool:
        webhook = chosen.webhook
        if not webhook.match_conditions:
            return True
        variables = RequestVariables(request, chosen.kind, self._context)
        ignore = webhook.failure_policy == "Ignore"
        try:
            conditions = compile_conditions(webhook.match_conditions, params=False)
            return all_hold(conditions, variables, variables.decide, ignore=ignore)
        except ConditionError as failure:
            raise failures.forbidden(request.call.kind, request.name, str(failure)) from failure

    async def ask(self, chosen: _Chosen, request: AdmissionRequest) -> WebhookAnswer | ApiError:
        """What the webhook decides, or the failure that ends the request; never raises ApiError."""
        webhook = chosen.webhook
        shown = await self._in_version(chosen.kind, request)
        if isinstance(shown, ApiError):
            return shown
        request = shown
        uid = str(uuid.uuid4())
        body = msgspec.json.encode(review.render_review(request, chosen.kind, uid))
        try:
            try:
                found = await self._client.post(webhook.client_config, body, webhook.timeout_seconds)
            except WebhookFailure as failure:
                raise WebhookFailure(f"failed to call webhook: {failure!s}") from failure
            try:
                answer = review.parse_review(found, uid, mutating=self._table == MUTATING)
            except WebhookFailure as failure:
                raise WebhookFailure(f"received invalid webhook response: {failure!s}") from failure
        except WebhookFailure as failure:
            if webhook.failure_policy == "Ignore":
                self._log.warning("passed over a webhook", webhook=webhook.name, failure=str(failure))
                return WebhookAnswer(True)
            return review.failed_call(webhook.name, str(failure))
        return answer

    async def _in_version(self, kind: ResourceKind, request: AdmissionRequest) -> AdmissionRequest | ApiError:
        """The request with its objects in the version of ``kind``, where a webhook has to convert them."""
        if not kind.webhook or kind == request.call.kind:
            return request
        found = await self._context.convert(kind, [obj for obj in (request.obj, request.old) if obj])
        if isinstance(found, ApiError):
            return found
        obj = found.pop(0) if request.obj else None
        return AdmissionRequest(request.call, request.operation, obj, found[0] if found else None, request.options)


def _accept(chosen: _Chosen, request: AdmissionRequest, answer: WebhookAnswer | ApiError) -> WebhookAnswer:
    """The answer, whose warnings the client gets.

    Raises: ApiError when the webhook denies the request or could not be asked.
    """
    if isinstance(answer, ApiError):
        raise answer
    request.call.warnings.extend(answer.warnings)
    if not answer.allowed:
        raise review.refusal(chosen.webhook.name, answer.status)
    return answer


class MutatingAdmissionWebhook:
    """Lets webhooks change objects."""

    def __init__(self, context: AdmissionContext) -> None:
        self._caller = WebhookCaller(context, MUTATING)
        self._decode = context.decode
        self._convert = context.convert

    def mutate(self, request: AdmissionRequest) -> Waits[None] | None:
        """Calls the webhooks whose rules cover the request.

        Raises: ApiError when a webhook denies the request or fails and must not be passed over.
        """
        chosen = self._caller.chosen(request)
        return self._mutate(request, chosen) if chosen else None

    def _mutate(self, request: AdmissionRequest, chosen: list[_Chosen]) -> Waits[None]:
        """Keeps in ``invoked`` the object after the last call, the webhooks to call again, and those called once."""
        memory = request.invoked.setdefault("webhooks", {"object": None, "again": set(), "callable": set()})
        if request.repeated and memory["object"] != request.obj:
            memory["again"] |= memory["callable"]
        for found in chosen:
            if request.repeated and found.uid not in memory["again"]:
                continue
            if not self._caller.selects(found, request):
                continue
            if (yield from self._call(found, request)):
                memory["again"] |= memory["callable"]
                request.again = True
            if found.webhook.reinvocation_policy == "IfNeeded":
                memory["callable"].add(found.uid)
        memory["object"] = request.obj if request.repeated else msgspec.json.decode(msgspec.json.encode(request.obj))

    def _call(self, found: _Chosen, request: AdmissionRequest) -> Waits[bool]:
        """Whether the webhook has changed the object."""
        answer = _accept(found, request, (yield self._caller.ask(found, request)))
        if not answer.patch:
            return False
        if not request.obj:
            problem = (
                f'admission webhook "{found.webhook.name}" attempted to modify the object, which is not supported '
                "for this operation"
            )
            raise review.internal_error(problem)
        before, call = request.obj, request.call
        sent = (yield from self._view(found.kind, before)) if found.kind != call.kind else before
        try:
            patched = json_patch.apply(sent, answer.patch)
        except ApiError as failure:
            raise review.internal_error(failure.message) from failure
        if not isinstance(patched, dict) or not isinstance(patched.get("metadata", {}), dict):
            raise review.internal_error("the patched value is not an object")
        if found.kind != call.kind:
            own = call.kind
            patched = (yield from self._view(own, patched)) if own.webhook else conversion.stored(found.kind, patched)
        request.obj = self._decode(call, patched)
        return request.obj != before

    def _view(self, kind: ResourceKind, obj: Object) -> Waits[Object]:
        """An object in the version of ``kind``.

        Raises: ApiError when a conversion webhook fails.
        """
        if not kind.webhook:
            return conversion.view(kind, obj)
        found = yield self._convert(kind, (obj,))
        if isinstance(found, ApiError):
            raise found
        return dict(found[0])


class ValidatingAdmissionWebhook:
    """Lets webhooks refuse requests."""

    def __init__(self, context: AdmissionContext) -> None:
        self._caller = WebhookCaller(context, VALIDATING)

    def validate(self, request: AdmissionRequest) -> Waits[None] | None:
        """Calls the webhooks whose rules and selectors choose the request, all at once.

        Raises: ApiError when a webhook denies the request or fails and must not be passed over.
        """
        chosen = [found for found in self._caller.chosen(request) if self._caller.selects(found, request)]
        return self._validate(request, chosen) if chosen else None

    def _validate(self, request: AdmissionRequest, chosen: list[_Chosen]) -> Waits[None]:
        answers = yield asyncio.gather(*(self._caller.ask(found, request) for found in chosen))
        for found, answer in zip(chosen, answers, strict=True):
            _accept(found, request, answer)
