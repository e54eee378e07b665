"""Acting as another user by the headers ``Impersonate-User``, ``-Group``, ``-Uid`` and ``-Extra-KEY``.

Each value needs the verb ``impersonate`` on its own resource: ``users``, ``serviceaccounts`` and ``groups`` of the
core group, ``uids`` and ``userextras/KEY`` of ``authentication.k8s.io``.
Source: ``k8s.io/apiserver/pkg/endpoints/filters/impersonation``.
"""

from collections.abc import Callable
from urllib.parse import unquote

from podwire.embedded.apiserver.authorization.rules import RequestAttributes
from podwire.embedded.apiserver.calls import UserInfo
from podwire.errors import ApiError
from podwire.http.message import Request

Check = Callable[[UserInfo, RequestAttributes], None]

_EXTRA = "impersonate-extra-"
_ACCOUNT = "system:serviceaccount:"
_AUTHENTICATED, _UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"
_AUTHENTICATION = "authentication.k8s.io"


def is_wanted(request: Request) -> bool:
    """Whether a request impersonates a user, a group or a uid; extra values alone do not count."""
    headers = request.headers
    return "impersonate-user" in headers or "impersonate-group" in headers or "impersonate-uid" in headers


def impersonated(request: Request, user: UserInfo, check: Check) -> UserInfo:
    """The user that a request impersonates.

    ``check`` is called for each right that this needs.
    Raises: ApiError 403 of ``check``; 500 when groups or extra values are named without a user.
    """
    name = request.headers.get("impersonate-user", "")
    groups = tuple(request.header_values("impersonate-group"))
    uid = request.headers.get("impersonate-uid", "")
    extra = {
        unquote(header.removeprefix(_EXTRA)): tuple(request.header_values(header))
        for header in request.headers
        if header.startswith(_EXTRA)
    }
    if not name:
        path = request.path
        raise ApiError(500, "InternalError", f'Internal Server Error: "{path}": requested without impersonating a user')
    namespace, account = _account(name)
    if account:
        check(user, RequestAttributes("impersonate", "", "v1", "serviceaccounts", namespace=namespace, name=account))
    else:
        check(user, RequestAttributes("impersonate", "", "v1", "users", name=name))
    for group in groups:
        check(user, RequestAttributes("impersonate", "", "v1", "groups", name=group))
    for key, values in extra.items():
        for value in values:
            check(user, RequestAttributes("impersonate", _AUTHENTICATION, "v1", "userextras", key, name=value))
    if uid:
        check(user, RequestAttributes("impersonate", _AUTHENTICATION, "v1", "uids", name=uid))
    if account and not groups:
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
    return UserInfo(name, _with_default(name, groups), uid, extra)


def _account(name: str) -> tuple[str, str]:
    """Namespace and name of the ServiceAccount that a user name stands for; empty for a person."""
    namespace, _, account = name.removeprefix(_ACCOUNT).partition(":")
    valid = name.startswith(_ACCOUNT) and namespace and account and ":" not in account
    return (namespace, account) if valid else ("", "")


def _with_default(name: str, groups: tuple[str, ...]) -> tuple[str, ...]:
    """The groups, with ``system:authenticated`` or ``system:unauthenticated`` where it is missing."""
    if _AUTHENTICATED in groups or _UNAUTHENTICATED in groups:
        return groups
    return (*groups, _UNAUTHENTICATED if name == "system:anonymous" else _AUTHENTICATED)
