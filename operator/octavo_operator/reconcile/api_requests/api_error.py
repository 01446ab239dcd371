"""Errors of requests to the API server."""

from __future__ import annotations

from octavo_operator.reconcile.queue import ExpectedError

_WRONG_TYPE = "failed to create typed patch object"
_WRONG_TYPE_THERE = ("failed to create typed live object", "failed to create manager for existing fields")
_NAMESPACE_ENDS = "NamespaceTerminating"
_CRD_ENDS = "not allowed while custom resource definition is terminating"
HELD_BACK = "HeldBack"
"""The reason of an error in the place of a request that is not sent, as the answer to an earlier one asked to wait."""
REFUSED_SECONDS = 60.0
"""The time after which a refused request is tried again: no event reports a right given, a quota raised, a policy
changed, or a webhook that answers again.
"""


class ApiError(ExpectedError):
    """The API server refused, or could not be reached (`status` 0). `reason` is its word, `message` its sentence.

    `causes`: the reasons of the causes that it gives in the details of its answer.
    """

    longest_pause = REFUSED_SECONDS

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        causes: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.causes = causes
        self.at_least = retry_after
        self.within = self.longest_pause

    @property
    def transient(self) -> bool:
        """True if the same request may succeed a moment later: the error says nothing about the object.

        500 is such, as while etcd changes its leader, but not for server-side apply of what does not fit the schema.
        """
        if self.status == 500:
            return _WRONG_TYPE not in self.message and not self.is_of_what_is_stored
        return self.status in (0, 401, 408, 409, 429, 502, 503, 504)

    @property
    def namespace_ends(self) -> bool:
        """True if nothing can be created since the namespace is being deleted, which cannot be undone.

        The message alone does not tell: that of an admission webhook may have the same words.
        """
        return self.status == 403 and _NAMESPACE_ENDS in self.causes

    @property
    def kind_ends(self) -> bool:
        """True if there is no such object or kind, or if the CRD of the kind is being deleted."""
        return self.status == 404 or (self.status == 403 and _CRD_ENDS in self.message)

    @property
    def is_of_what_is_stored(self) -> bool:
        """True if a stored field has another type than the schema: server-side apply does not change such an object."""
        return any(words in self.message for words in _WRONG_TYPE_THERE)


class NotLeadingError(ExpectedError):
    """This replica may not write at this moment. Either its process ends, or the lease is renewed within seconds, as
    where the API server refuses some requests: then it goes on, and what waited must not wait for minutes more.
    """

    within = 2.0
