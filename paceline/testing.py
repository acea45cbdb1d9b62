"""
A gateway for the tests of applications: real gRPC in this process, no model, scripted answers.

    with FakeGateway(Answer("Hello, world")) as gateway:
        client = paceline.Client(gateway.target)
        assert client.generate("Hi").text == "Hello, world"
        assert gateway.requests[0].text == "Hi"

Each character is one token, whose id is its code point. Answers are used up in order; the last one
is given again and again. A request for ``n`` outputs gets the same answer ``n`` times.

Everything else that a request asks for is noted and has no effect: an answer is said to the end,
whatever ``max_tokens``, ``stop``, the sampling, a constraint or the drafting say, and whatever the
model's name or the credential is. There are no log-probabilities, no speculation and no timing in
it. Only an empty prompt is refused; for other refusals give an ``Answer`` with an ``error``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeAlias

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from paceline.errors import InvalidRequest, PacelineError
from paceline.events import FinishReason
from paceline.status import rich_status
from paceline.v1 import generation_service_pb2 as messages
from paceline.v1 import types_pb2
from paceline.v1.generation_service_pb2_grpc import (
    GenerationServiceServicer,
    add_GenerationServiceServicer_to_server,
)

if TYPE_CHECKING:
    Context: TypeAlias = grpc.ServicerContext

MODEL: Final = "fake"
CONTEXT_LENGTH: Final = 8192
SEED: Final = 42
NUM_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class Answer:
    """What the gateway says to one request."""

    text: str = ""
    error: PacelineError | None = None
    """Raised at the client after the text, as if the gateway had failed there."""
    characters_per_delta: int = 4
    finish_reason: FinishReason = FinishReason.STOP


class FakeGateway:
    """
    A context manager; it listens on the loopback and counts as ready at once.

    ``requests`` holds the messages of all generations asked for, oldest first; ``credentials``
    what each showed, empty for none.
    """

    def __init__(self, *answers: Answer) -> None:
        self.target = ""
        self.requests: list[messages.GenerateRequest] = []
        self.credentials: list[str] = []
        self._answers = list(answers) or [Answer()]
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="fake-gateway")
        self._server = grpc.server(self._threads, options=(("grpc.so_reuseport", 0),))
        add_GenerationServiceServicer_to_server(_Servicer(self), self._server)
        ready = health.HealthServicer()
        for name in ("", "liveness", "readiness"):
            ready.set(name, health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(ready, self._server)

    def add(self, *answers: Answer) -> None:
        """Say these after those that are still to come."""
        with self._lock:
            self._answers.extend(answers)

    def next_answer(self, request: messages.GenerateRequest, credential: str) -> Answer:
        """Note a request and return what to say."""
        with self._lock:
            self.requests.append(request)
            self.credentials.append(credential)
            return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]

    def __enter__(self) -> Self:
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.stop(0).wait()
        self._threads.shutdown()


class _Servicer(GenerationServiceServicer):
    def __init__(self, gateway: FakeGateway) -> None:
        self._gateway = gateway

    def StreamGenerate(  # noqa: N802 named by the proto
        self, request: messages.StreamGenerateRequest, context: Context
    ) -> Iterator[messages.StreamGenerateResponse]:
        """Say the next answer piece by piece."""
        asked = request.request
        answer = self._answer(asked, context)
        yield from _events(asked, answer)
        if answer.error is not None:
            _abort(context, answer.error)
        yield _summary(asked, answer)

    def Generate(  # noqa: N802
        self, request: messages.GenerateRequest, context: Context
    ) -> messages.GenerateResponse:
        """Say the next answer at once."""
        answer = self._answer(request, context)
        if answer.error is not None:
            _abort(context, answer.error)
        summary = _summary(request, answer).summary
        outputs = [
            messages.Output(
                index=index,
                text=answer.text,
                token_ids=map(ord, answer.text) if request.output.return_token_ids else (),
                finish_reason=_reason(answer),
            )
            for index in _outputs(request)
        ]
        return messages.GenerateResponse(
            request_id=request.request_id or "fake",
            model=MODEL,
            sampling=_sampling(request),
            outputs=outputs,
            usage=summary.usage,
        )

    def GetModel(  # noqa: N802
        self, request: messages.GetModelRequest, context: Context
    ) -> messages.GetModelResponse:
        """Describe the only model."""
        return messages.GetModelResponse(model=_model())

    def ListModels(  # noqa: N802
        self, request: messages.ListModelsRequest, context: Context
    ) -> messages.ListModelsResponse:
        """Describe the only model."""
        return messages.ListModelsResponse(models=[_model()])

    def Tokenize(  # noqa: N802
        self, request: messages.TokenizeRequest, context: Context
    ) -> messages.TokenizeResponse:
        """Return code points."""
        text = request.text or "".join(message.content for message in request.chat.messages)
        return messages.TokenizeResponse(token_ids=map(ord, text), context_length=CONTEXT_LENGTH)

    def _answer(self, request: messages.GenerateRequest, context: Context) -> Answer:
        if not _prompt_tokens(request):
            _abort(context, InvalidRequest("prompt: is empty; send one", field="prompt"))
        given = [str(value) for key, value in _metadata(context) if key == "authorization"]
        asked = messages.GenerateRequest()
        asked.CopyFrom(request)
        return self._gateway.next_answer(asked, given[0] if given else "")


def _events(
    request: messages.GenerateRequest, answer: Answer
) -> Iterator[messages.StreamGenerateResponse]:
    yield messages.StreamGenerateResponse(
        started=messages.Started(
            request_id=request.request_id or "fake",
            model=MODEL,
            sampling=_sampling(request),
            prompt_tokens=_prompt_tokens(request),
        )
    )
    size, num_sent = answer.characters_per_delta, len(request.resume_token_ids)
    for begin in range(0, len(answer.text), size):
        piece = answer.text[begin : begin + size]
        num_sent += len(piece)
        for index in _outputs(request):
            ids = map(ord, piece) if request.output.return_token_ids else ()
            delta = messages.Delta(
                index=index, text=piece, token_ids=ids, completion_tokens=num_sent
            )
            yield messages.StreamGenerateResponse(delta=delta)
    for index in _outputs(request) if answer.error is None else ():
        finished = messages.Finished(index=index, finish_reason=_reason(answer))
        yield messages.StreamGenerateResponse(finished=finished)


def _outputs(request: messages.GenerateRequest) -> range:
    return range(max(1, request.n))


def _summary(request: messages.GenerateRequest, answer: Answer) -> messages.StreamGenerateResponse:
    usage = types_pb2.Usage(
        prompt_tokens=_prompt_tokens(request),
        completion_tokens=len(request.resume_token_ids) + len(answer.text) * len(_outputs(request)),
    )
    return messages.StreamGenerateResponse(summary=messages.Summary(usage=usage))


def _sampling(request: messages.GenerateRequest) -> types_pb2.SamplingParams:
    sampling = types_pb2.SamplingParams(temperature=0.0, top_p=1.0, seed=SEED)
    sampling.MergeFrom(request.sampling)
    return sampling


def _prompt_tokens(request: messages.GenerateRequest) -> int:
    if request.HasField("chat"):
        return sum(len(message.content) for message in request.chat.messages)
    return len(request.text) or len(request.token_ids.ids)


def _reason(answer: Answer) -> types_pb2.FinishReason.ValueType:
    return types_pb2.FinishReason.Value(f"FINISH_REASON_{answer.finish_reason.upper()}")


def _model() -> messages.Model:
    return messages.Model(
        name=MODEL,
        vocab_size=0x110000,
        context_length=CONTEXT_LENGTH,
        has_chat_template=True,
        engine=MODEL,
        num_verifiers=1,
        num_ready_verifiers=1,
    )


def _metadata(context: Context) -> Iterator[tuple[str, Any]]:
    yield from context.invocation_metadata() or ()


def _abort(context: Context, error: PacelineError) -> NoReturn:
    context.abort_with_status(rich_status(error))
    raise error
