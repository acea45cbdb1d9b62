"""What kind of text a request asks for: which drafts fit is measured for each kind by itself."""

from __future__ import annotations

from gateway.generation_request import ChatPrompt, GenerationRequest


def workload_of(request: GenerationRequest) -> str:
    """
    Return the request's own name for its kind, or what its form tells.

    Tenants are kept apart: neither may skew what is measured for the other.
    """
    kind = request.drafting.workload or _form_of(request)
    return f"{request.tenant}/{kind}" if request.tenant else kind


def _form_of(request: GenerationRequest) -> str:
    if request.structured_output is not None:
        return request.structured_output.kind
    if request.predicted_output:
        return "edit"
    return "chat" if isinstance(request.prompt, ChatPrompt) else "text"
