"""What the servers of texts have in common: errors in OpenAI's shape, and the list of models (docs/openai.md)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ..tensors import LONGEST_SHOWN
from .core import json_answer
from .fields import NoSuchModel, RequestError
from .http_json import NotJson, NotTheForm, quoted

STATUS = ((NotJson, 400), (NotTheForm, 400), (NoSuchModel, 404), (RequestError, 400))
"""HTTP status codes by error, before those of `core.STATUS`."""
CODES = {404: "not_found", 503: "unavailable", 504: "timeout"}
"""What errors are called, by status; others of the server are `internal`."""


def described(message: str, code: str | None = None, field: str = "", *, is_of_server: bool = True) -> dict[str, Any]:
    """Return the body of an error. code: what programs call it. field: the one at fault, "" for none. is_of_server:
    whether the server is at fault."""
    kind = "server_error" if is_of_server else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": field[:LONGEST_SHOWN] or None, "code": code}}


def error(status: int, message: str, field: str) -> dict[str, Any]:
    """Return the body of an error with this status, as `core.Core` wants it."""
    if status < 500:
        codes = {401: "invalid_api_key", 404: "model_not_found" if field else None}
        return described(message, codes.get(status), field, is_of_server=False)
    return described(message, CODES.get(status, "internal"), field)


Routes = Mapping[str, tuple[str, Callable[[Any], Awaitable[Any]]]]


def models(name: str) -> Routes:
    """Return the routes that tell of the one model, called `name`."""
    model = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "rsn"}

    async def every(request: Any) -> Any:
        return json_answer({"object": "list", "data": [model]})

    async def one(request: Any) -> Any:
        if (asked := request.path_params["id"]) != name:
            raise NoSuchModel(f"there is no model {quoted(asked)}; this server has {name!r}", "model")
        return json_answer(model)

    return {"/v1/models": ("GET", every), "/v1/models/{id:path}": ("GET", one)}
