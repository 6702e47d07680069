"""The one exception that becomes an HTTP answer, and how moegg's own errors map to it.

Owns status, type and code of every refusal; each dialect shapes the body. Refuses tracebacks: what is unforeseen is 'internal'.
"""
from __future__ import annotations

from moegg.errors import BadRequest, Cancelled, ContextFull, MoeggError

_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
          405: "invalid_request_error", 408: "timeout_error", 413: "request_too_large",
          415: "invalid_request_error", 429: "rate_limit_error", 499: "cancelled",
          501: "not_supported_error", 503: "overloaded_error"}
# faults of the engine that no request can mend, although the command line reports them as bad input
_OURS = ("sampler-nan", "sampler-empty")


class Problem(Exception):
    """A refusal. param: the field at fault. code: for programs. headers: extra response headers."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None, kind: str | None = None,
                 headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.kind = kind or _TYPES.get(status, "server_error")
        self.headers = headers or {}


def bad(message: str, param: str | None = None, code: str | None = None) -> Problem:
    """A 400."""
    return Problem(400, message, param=param, code=code or "invalid_value")


def too_long(tokens: int | str, ctx: int) -> Problem:
    """A prompt that leaves no room for an answer."""
    return Problem(400, f"the prompt has {tokens} tokens and the context holds {ctx}: no room for an answer; shorten the prompt, or "
                   "start the server with a larger --ctx", param="messages", code="context_length_exceeded")


def of(error: BaseException) -> Problem:
    """The Problem that an exception amounts to."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, ContextFull):
        return Problem(400, str(error), param="messages", code="context_length_exceeded")
    if isinstance(error, BadRequest) and error.slug not in _OURS:
        return Problem(400, str(error), code=error.slug.replace("-", "_"))
    if isinstance(error, Cancelled):
        return Problem(503, "the server is stopping", code="stopping", headers={"Retry-After": "5"})
    if isinstance(error, MoeggError):
        return Problem(500, str(error), code=error.slug.replace("-", "_"))
    if isinstance(error, MemoryError):
        return Problem(503, "out of memory; send less at once", code="no_memory", headers={"Retry-After": "5"})
    return Problem(500, f"internal error: {type(error).__name__}", code="internal")


def openai_error(p: Problem) -> dict:
    """OpenAI's form, which llama.cpp's clients read too."""
    return {"error": {"message": p.message, "type": p.kind, "param": p.param, "code": p.code}}


def anthropic_error(p: Problem) -> dict:
    kind = p.kind if p.kind in ("invalid_request_error", "authentication_error", "permission_error", "not_found_error",
                                "request_too_large", "rate_limit_error", "overloaded_error") else (
        "api_error" if p.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": p.message}}


def ollama_error(p: Problem) -> dict:
    return {"error": p.message}
