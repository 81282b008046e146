"""Every error this node raises on purpose.

NodeError
├── InvalidRequest            400  invalid_request_error   the request is wrong; `param` names the field
│   ├── ContextLengthExceeded 400                          prompt + max_tokens do not fit; both numbers are named
│   ├── Unsupported           400                          understood, but this node or model cannot honour it
│   ├── Unauthorized          401  authentication_error
│   ├── Forbidden             403  permission_error        it exists and belongs to somebody else
│   ├── Gone                  410                          it was here and was evicted
│   ├── LinkError             400                       bytes from a link that are no frame, or not an allowed one
│   ├── NotFound              404                          no such route, or no such thing
│   │   └── ModelNotFound     404                          no such model; the ones that exist are named
│   └── TooLarge              413                          the body is over its limit
├── Conflict                  409  conflict_error          the caller's state and the node's do not fit together
├── Overloaded                429  rate_limit_error        retry after `retry_after` seconds
│   └── RateLimited           429                          a caller's own limit; `headers` hold its x-ratelimit-* values
├── Unavailable               503  server_error            draining, or no token decoded yet
│   ├── UpstreamFailed        503                          a neighbour or the cloud; `answered` is its HTTP status
│   └── OutboxFull            503                          what would have to wait for the network has no room
├── Filtered                  502  server_error            the cloud's content filter ended it; nobody goes on
├── Expired                   504  server_error            it waited longer than its time to live, and never ran
├── EngineFailed              500  server_error            the engine broke under a running request
├── StoreFailed               500  server_error            the node's database cannot do what it must
└── OperatorError             exit 1                       what a person at the terminal has to mend
    ├── SettingsError         exit 2                       unknown key, wrong type, impossible combination
    ├── ModelFileError                                     missing, truncated, broken or unsupported weights
    ├── Unfit                                              a model that does not do what its profile promises
    ├── EnrolmentError                                     a key, certificate or list that makes no neighbour
    ├── PullError                                          download failed, wrong hash, no space
    └── FleetError                                         an update is not possible; what was committed serves on
        ├── TrustError                                     the fleet's repository is refused (kinds: fleet/refusal.py)
        ├── Unreachable                                    the repository cannot be reached, or it is not the repository
        └── FetchError                                     a model's bytes cannot be fetched (kinds: fleet/refusal.py)

`code` is OpenAI's machine-readable code; `hint` says what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


class NodeError(Exception):
    """Root of the tree; carries what an HTTP response or a terminal needs."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"
    code: ClassVar[str | None] = None
    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(
        self, message: str, *, param: str | None = None, hint: str | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.hint = hint
        self.retry_after = retry_after


class InvalidRequest(NodeError):
    status = 400
    kind = "invalid_request_error"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, max_tokens: int, context: int) -> None:
        super().__init__(
            f"This model's context is {context} tokens, but the prompt is {prompt_tokens} tokens and "
            f"{max_tokens} were asked for in the answer ({prompt_tokens + max_tokens} in all). "
            "Shorten the prompt or ask for fewer tokens.",
            param="messages",
        )


class Unsupported(InvalidRequest):
    code = "unsupported_value"


class Unauthorized(InvalidRequest):
    status = 401
    kind = "authentication_error"
    code = "invalid_api_key"


class Forbidden(InvalidRequest):
    status = 403
    kind = "permission_error"
    code = "forbidden"


class LinkError(InvalidRequest):
    code = "link_error"


class Gone(InvalidRequest):
    status = 410
    code = "evicted"


class NotFound(InvalidRequest):
    status = 404
    code = "not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class TooLarge(InvalidRequest):
    status = 413
    code = "request_too_large"


class Conflict(NodeError):
    status = 409
    kind = "conflict_error"
    code = "conflict"


class Overloaded(NodeError):
    status = 429
    kind = "rate_limit_error"
    code = "queue_full"
    retryable = True


class RateLimited(Overloaded):
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after: int, headers: Mapping[str, str]) -> None:
        super().__init__(message, retry_after=retry_after)
        self.headers = headers


class Unavailable(NodeError):
    status = 503
    code = "unavailable"
    retryable = True


class UpstreamFailed(Unavailable):
    code = "upstream_failed"

    def __init__(self, message: str, *, answered: int | None = None, retry_after: int | None = None) -> None:
        super().__init__(message, retry_after=retry_after)
        self.answered = answered


class Filtered(NodeError):
    status = 502
    code = "content_filter"


class OutboxFull(Unavailable):
    code = "outbox_full"


class Expired(NodeError):
    status = 504
    code = "expired"
    retryable = True


class EngineFailed(NodeError):
    code = "engine_failed"
    retryable = True


class StoreFailed(NodeError):
    code = "store_failed"
    retryable = True


class OperatorError(NodeError):
    """For the terminal, never for an HTTP client."""


class SettingsError(OperatorError):
    exit_code = 2


class ModelFileError(OperatorError):
    pass


class EnrolmentError(OperatorError):
    pass


class Unfit(OperatorError):
    def __init__(self, message: str, evidence: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.evidence = dict(evidence or {})


class PullError(OperatorError):
    pass


class FleetError(OperatorError):
    pass


class TrustError(FleetError):
    pass


class Unreachable(FleetError):
    pass


class FetchError(FleetError):
    pass
