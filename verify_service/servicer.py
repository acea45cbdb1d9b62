"""``VerifyService``: decode, delegate, encode."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING

import grpc.aio
import structlog

from paceline.codec import protocol_range, tree_from_proto
from paceline.errors import DeadlineExceeded, InvalidRequest, PacelineError, Unavailable
from paceline.status import rich_status
from paceline.trace_context import received_context
from paceline.unreadable import readable
from paceline.v1 import verify_service_pb2, verify_service_pb2_grpc
from verify_service.codec import (
    capabilities_to_proto,
    fallback_to_proto,
    request_from_proto,
    sampling_to_proto,
    step_to_proto,
)
from verify_service.draft_distributions import distributions_from_proto
from verify_service.draft_link import DraftLink
from verify_service.engine.constraint import Constraint
from verify_service.engine.sampling import SamplingParams
from verify_service.engine.sequence import Drafting, Request
from verify_service.engine.steps import TreeFact
from verify_service.engine_backend import EngineCapabilities
from verify_service.gateway_stream import GatewayStream, VerifySession
from verify_service.step_router import StepRouter
from verify_service.targets.target import TargetInfo

if TYPE_CHECKING:
    from verify_service.grammar import GrammarCompiler

log: structlog.stdlib.BoundLogger = structlog.get_logger()

IDLE_SESSION_SECONDS = 60.0
"""A ``Verify`` client that sends nothing for this long loses its session and the KV it holds."""


class VerifyServicer(verify_service_pb2_grpc.VerifyServiceServicer):
    """Serves one engine to gateways and to clients with their own drafter."""

    def __init__(
        self,
        router: StepRouter,
        links: Mapping[str, DraftLink],
        info: TargetInfo,
        capabilities: EngineCapabilities,
        defaults: SamplingParams,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self._router = router
        self._grammars = grammars
        self._links = links
        self._info = info
        self._capabilities = capabilities
        self._was_stuck = False
        self._defaults = defaults

    async def GetModelInfo(
        self,
        request: verify_service_pb2.GetModelInfoRequest,
        context: grpc.aio.ServicerContext[
            verify_service_pb2.GetModelInfoRequest, verify_service_pb2.GetModelInfoResponse
        ],
    ) -> verify_service_pb2.GetModelInfoResponse:
        """Return what is fixed about the model, and which draft pools can be used now."""
        if self._is_stuck():
            stuck = Unavailable("the engine has work and finishes no step", reason="ENGINE_STUCK")
            await context.abort_with_status(rich_status(stuck))
        info = self._info
        return verify_service_pb2.GetModelInfoResponse(
            model=info.name,
            tokenizer_fingerprint=info.tokenizer_fingerprint,
            vocab_size=info.vocab_size,
            context_length=info.context_length,
            engine=info.engine,
            eos_token_ids=info.eos_token_ids,
            capabilities=capabilities_to_proto(
                self._capabilities, structured_output=self._grammars is not None
            ),
            protocol=protocol_range(),
            draft_pools=[
                verify_service_pb2.DraftPool(
                    name=link.status.name,
                    available=link.status.cause is None,
                    cause=fallback_to_proto(link.status.cause),
                    detail=link.status.detail,
                    drafter=link.status.drafter,
                    version=link.status.version,
                )
                for link in self._links.values()
            ],
            default_sampling=sampling_to_proto(self._defaults),
            version=version("paceline"),
        )

    def _is_stuck(self) -> bool:
        """Return whether gateways should go elsewhere; news of it is logged."""
        is_stuck = self._router.is_stuck
        if is_stuck != self._was_stuck:
            log.error("engine_stuck") if is_stuck else log.info("engine_goes_on")
            self._was_stuck = is_stuck
        return is_stuck

    async def Attach(
        self,
        request_iterator: AsyncIterator[verify_service_pb2.AttachRequest],
        context: grpc.aio.ServicerContext[
            verify_service_pb2.AttachRequest, verify_service_pb2.AttachResponse
        ],
    ) -> AsyncIterator[verify_service_pb2.AttachResponse]:
        """Serve one gateway until its stream ends; its requests end with it."""
        stream = GatewayStream(
            self._router,
            self._info,
            self._defaults,
            self._capabilities.max_running,
            self._compile_constraint,
        )
        self._router.attach(stream)
        # Asked once: gRPC crashes the process when it is asked after the call has ended.
        peer = context.peer()
        log.info("gateway_attached", peer=peer)
        reader = asyncio.create_task(_receive_all(stream, request_iterator))
        writer = stream.messages()
        following = asyncio.ensure_future(anext(writer))
        try:
            while not reader.done():
                await asyncio.wait((reader, following), return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    break
                yield following.result()
                following = asyncio.ensure_future(anext(writer))
            reader.result()
        except PacelineError as error:
            await context.abort_with_status(rich_status(error))
        finally:
            self._router.detach(stream)
            stream.close()
            reader.cancel()
            following.cancel()
            log.info("gateway_detached", peer=peer)

    async def Verify(
        self,
        request_iterator: AsyncIterator[verify_service_pb2.VerifyRequest],
        context: grpc.aio.ServicerContext[
            verify_service_pb2.VerifyRequest, verify_service_pb2.VerifyResponse
        ],
    ) -> AsyncIterator[verify_service_pb2.VerifyResponse]:
        """Verify a client's own trees, one verdict per proposal."""
        session = VerifySession()
        self._router.attach(session)
        try:
            async for response in self._verify(session, readable(request_iterator)):
                yield response
        except PacelineError as error:
            await context.abort_with_status(rich_status(error))
        finally:
            self._router.detach(session)

    async def _verify(
        self,
        session: VerifySession,
        requests: AsyncIterator[verify_service_pb2.VerifyRequest],
    ) -> AsyncIterator[verify_service_pb2.VerifyResponse]:
        opening = await _next(requests)
        if opening is None or opening.WhichOneof("operation") != "open":
            raise InvalidRequest("the first message of a session must be open", field="operation")
        request = await self._open(opening.open, session)
        committed = len(request.prompt_token_ids) + len(request.emitted_token_ids)
        yield verify_service_pb2.VerifyResponse(opened_len=committed)
        while (message := await _next(requests)) is not None:
            if message.WhichOneof("operation") != "proposal":
                raise InvalidRequest("expected a proposal", field="operation")
            self._propose(message.proposal, request.sequence_id, committed)
            step = await session.verdict()
            committed += len(step.token_ids)
            yield verify_service_pb2.VerifyResponse(
                verdict=step_to_proto(step, opening.open.request_id)
            )
            if step.finish_reason is not None:
                return

    async def _open(self, message: verify_service_pb2.Start, session: VerifySession) -> Request:
        if self._router.is_closed:
            raise Unavailable("the verifier is draining", retry_after_seconds=0.5)
        constraint = (
            await self._compile_constraint(message)
            if message.HasField("structured_output")
            else None
        )
        request = request_from_proto(
            message,
            sequence_id=self._router.next_id(),
            info=self._info,
            defaults=self._defaults,
            now=time.monotonic(),
            constraint=constraint,
            lockstep=True,
        )
        self._router.submit(request, Drafting(), session)
        trace = received_context(message.traceparent, message.tracestate)
        self._router.traces.opened(request.sequence_id, message.client_request_id, trace, "Verify")
        return request

    async def _compile_constraint(self, message: verify_service_pb2.Start) -> Constraint:
        if self._grammars is None:
            raise InvalidRequest(
                "structured_output needs a target with a tokenizer; leave it unset",
                field="structured_output",
                reason="UNSUPPORTED",
            )
        if message.limits.ignore_eos:
            raise InvalidRequest(
                "ignore_eos would leave a finished structured_output no way to end",
                field="limits.ignore_eos",
            )
        constraint = await asyncio.to_thread(self._grammars.compile, message.structured_output)
        emitted = list(message.emitted_token_ids)
        if constraint.num_allowed(emitted) != len(emitted):
            raise InvalidRequest(
                "emitted_token_ids break structured_output", field="emitted_token_ids"
            )
        constraint.commit(emitted)
        return constraint

    def _propose(
        self, message: verify_service_pb2.VerifyProposal, sequence_id: int, committed: int
    ) -> None:
        tree = tree_from_proto(message.tree)
        tree.check_limits(
            max_nodes=self._capabilities.max_draft_tokens,
            max_depth=self._capabilities.max_draft_tokens,
            vocab_size=self._info.num_token_ids,
        )
        if message.base_len > committed:
            raise InvalidRequest(
                f"base_len is {message.base_len}, only {committed} tokens are committed",
                field="base_len",
            )
        # A client that misstates its own draws misleads nobody but itself.
        read = distributions_from_proto(message.tree, tree, self._info.num_token_ids)
        if read.dropped:
            cause = next(iter(read.dropped))
            raise InvalidRequest(
                f"tree.drawn_children: {cause}; see DrawnChildren for what holds",
                field="tree.drawn_children",
            )
        self._router.send(TreeFact(sequence_id, message.base_len, tree, drawn=read.by_node))


async def _receive_all(
    stream: GatewayStream, requests: AsyncIterator[verify_service_pb2.AttachRequest]
) -> None:
    with contextlib.suppress(grpc.aio.UsageError):
        async for message in readable(requests):
            stream.receive(message)


async def _next(
    requests: AsyncIterator[verify_service_pb2.VerifyRequest],
) -> verify_service_pb2.VerifyRequest | None:
    try:
        async with asyncio.timeout(IDLE_SESSION_SECONDS):
            return await anext(requests, None)
    except TimeoutError:
        raise DeadlineExceeded(
            f"no proposal for {IDLE_SESSION_SECONDS:g} seconds; the session is closed"
        ) from None
