"""The plugins MutatingAdmissionWebhook and ValidatingAdmissionWebhook.

Mutating webhooks are called one after the other, in the order of their configurations' names; each gets the object with
the changes of the webhooks before. A webhook with ``reinvocationPolicy: IfNeeded`` is called a second time when the
object was changed after its first call. Validating webhooks are called at the same time; the first refusal in their
order counts. A request without webhooks costs one look at an empty list. The server's own writes call no webhook.

Sources: ``k8s.io/apiserver/pkg/admission/plugin/webhook/mutating/dispatcher.go``, ``.../validating/dispatcher.go``.
"""

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from podwire.embedded.apiserver import failures
from podwire.embedded.apiserver.admission import review
from podwire.embedded.apiserver.admission.chain import AdmissionContext, AdmissionRequest
from podwire.embedded.apiserver.admission.matching import covered_kind, is_exempt, selects
from podwire.embedded.apiserver.admission.review import WebhookAnswer, WebhookFailure
from podwire.embedded.apiserver.admission.variables import RequestVariables
from podwire.embedded.apiserver.admission.versions import accepted, in_version
from podwire.embedded.apiserver.admission.webhookclient import WebhookClient
from podwire.embedded.apiserver.admission.webhookconfig import Configured, Webhook, read_webhooks
from podwire.embedded.apiserver.cel.conditions import ConditionError, all_hold, compile_conditions
from podwire.embedded.apiserver.kinds import ResourceKind
from podwire.embedded.apiserver.patch import json_patch
from podwire.embedded.apiserver.store import ObjectChange
from podwire.embedded.apiserver.waits import Waits, remainder
from podwire.errors import ApiError
from podwire.observe.log import Log

Object = dict[str, Any]

MUTATING = "admissionregistration.k8s.io/mutatingwebhookconfigurations"
VALIDATING = "admissionregistration.k8s.io/validatingwebhookconfigurations"


class _Chosen(NamedTuple):
    """A webhook to call, and the kind in the version that the webhook expects."""

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
        for matching_webhook in webhooks:
            webhook = matching_webhook.webhook
            kind = covered_kind(webhook.rules, webhook.match_policy, request, self._kinds)
            if kind is not None:
                yield _Chosen(matching_webhook.uid, webhook, kind)

    def shown(
        self, chosen: _Chosen, request: AdmissionRequest, known: dict[ResourceKind, AdmissionRequest]
    ) -> Waits[AdmissionRequest | None]:
        """The request in the webhook's version; None when the webhook's selectors or match conditions exclude it.

        ``known`` caches the request by version, for further webhooks.

        Raises: ApiError 400 for a dry run that the webhook does not support, 403 when a condition that cannot be
        evaluated decides, 500 when a conversion webhook fails.
        """
        if not selects(chosen.webhook, request, self._store):
            return None
        kind = chosen.kind
        if kind not in known:
            known[kind] = yield from in_version(request, kind, self._context)
        if not self._meets_conditions(chosen, known[kind]):
            return None
        if request.call.dry_run and chosen.webhook.has_side_effects:
            raise failures.bad_request(f'admission webhook "{chosen.webhook.name}" does not support dry run')
        return known[kind]

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
        """The webhook's decision on a request in its version, or the failure that ends the request (not raised)."""
        webhook = chosen.webhook
        uid = str(uuid.uuid4())
        body = msgspec.json.encode(review.render_review(request, chosen.kind, uid))
        try:
            try:
                reply = await self._client.post(webhook.client_config, body, webhook.timeout_seconds)
            except WebhookFailure as failure:
                raise WebhookFailure(f"failed to call webhook: {failure!s}") from failure
            try:
                answer = review.parse_review(reply, uid, mutating=self._table == MUTATING)
            except WebhookFailure as failure:
                raise WebhookFailure(f"received invalid webhook response: {failure!s}") from failure
        except WebhookFailure as failure:
            if webhook.failure_policy == "Ignore":
                self._log.warning(
                    "ignored the failure of a webhook (failurePolicy: Ignore)",
                    webhook=webhook.name,
                    failure=str(failure),
                )
                return WebhookAnswer(True)
            return review.failed_call(webhook.name, str(failure))
        return answer


def _accept(chosen: _Chosen, request: AdmissionRequest, answer: WebhookAnswer | ApiError) -> WebhookAnswer:
    """The answer; its warnings are passed on to the client, its annotations to the audit event.

    Raises: ApiError when the webhook denies the request or could not be called.
    """
    if isinstance(answer, ApiError):
        raise answer
    request.call.warnings.extend(answer.warnings)
    for key, text in answer.annotations.items():
        request.call.annotate(f"{chosen.webhook.name}/{key}", text)
    if not answer.allowed:
        raise review.refusal(chosen.webhook.name, answer.status)
    return answer


class MutatingAdmissionWebhook:
    """Lets webhooks change objects."""

    def __init__(self, context: AdmissionContext) -> None:
        self._caller = WebhookCaller(context, MUTATING)
        self._context = context

    def mutate(self, request: AdmissionRequest) -> Waits[None] | None:
        """Calls the webhooks whose rules cover the request.

        Raises: ApiError when a webhook denies the request or fails with ``failurePolicy: Fail``.
        """
        chosen = self._caller.chosen(request)
        return remainder(self._mutate(request, chosen)) if chosen else None

    def _mutate(self, request: AdmissionRequest, chosen: list[_Chosen]) -> Waits[None]:
        """Keeps in ``invoked`` the object after the last call, the webhooks to call again, and those called once."""
        memory = request.invoked.setdefault("webhooks", {"object": None, "again": set(), "callable": set()})
        if request.repeated and memory["object"] != request.obj:
            memory["again"] |= memory["callable"]
        for matching_hook in chosen:
            if request.repeated and matching_hook.uid not in memory["again"]:
                continue
            shown = yield from self._caller.shown(matching_hook, request, {})
            if shown is None:
                continue
            if (yield from self._call(matching_hook, request, shown)):
                memory["again"] |= memory["callable"]
                request.again = True
            if matching_hook.webhook.reinvocation_policy == "IfNeeded":
                memory["callable"].add(matching_hook.uid)
        memory["object"] = request.obj if request.repeated else msgspec.json.decode(msgspec.json.encode(request.obj))

    def _call(self, hook: _Chosen, request: AdmissionRequest, shown: AdmissionRequest) -> Waits[bool]:
        """Calls the webhook with the request ``shown``. Returns whether it changed the object."""
        answer = _accept(hook, request, (yield self._caller.ask(hook, shown)))
        if not answer.patch:
            return False
        if not request.obj:
            problem = (
                f'admission webhook "{hook.webhook.name}" attempted to modify the object, which is not supported '
                "for this operation"
            )
            raise review.internal_error(problem)
        before = request.obj
        try:
            patched = json_patch.apply(shown.obj, answer.patch)
        except ApiError as failure:
            raise review.internal_error(failure.message) from failure
        if not isinstance(patched, dict) or not isinstance(patched.get("metadata", {}), dict):
            raise review.internal_error("the patched value is not an object")
        request.obj = yield from accepted(request, hook.kind, patched, self._context)
        return request.obj != before


class ValidatingAdmissionWebhook:
    """Lets webhooks refuse requests."""

    def __init__(self, context: AdmissionContext) -> None:
        self._caller = WebhookCaller(context, VALIDATING)

    def validate(self, request: AdmissionRequest) -> Waits[None] | None:
        """Calls the webhooks whose rules and selectors choose the request, all at once.

        Raises: ApiError when a webhook denies the request or fails with ``failurePolicy: Fail``.
        """
        chosen = self._caller.chosen(request)
        return remainder(self._validate(request, chosen)) if chosen else None

    def _validate(self, request: AdmissionRequest, chosen: list[_Chosen]) -> Waits[None]:
        known: dict[ResourceKind, AdmissionRequest] = {}
        asked = []
        for matching_hook in chosen:
            shown = yield from self._caller.shown(matching_hook, request, known)
            if shown is not None:
                asked.append((matching_hook, shown))
        if not asked:
            return
        answers = yield asyncio.gather(*(self._caller.ask(hook, shown) for hook, shown in asked))
        for (matching_hook, _), answer in zip(asked, answers, strict=True):
            _accept(matching_hook, request, answer)
