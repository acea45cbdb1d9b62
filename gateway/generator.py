"""From a decoded request to a running relay: admission, preparation, outputs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from gateway.admission import Admission, Room
from gateway.affinity import affinity_of
from gateway.counters import Counters
from gateway.drafting_controller import DraftingController
from gateway.failover_budget import FailoverBudget
from gateway.generation import ModelInfo, SequenceRequest, StatisticsLevel
from gateway.generation_request import GenerationRequest, Prompt
from gateway.output import Output
from gateway.output_relay import OutputRelay
from gateway.preparation import PreparedRequest, RequestLimits, check_prompt_size, prepare
from gateway.relay import FailoverLimits, Relay, RelayOptions
from gateway.speculation_record import SpeculationRecord
from gateway.stop_strings import StopStrings
from gateway.text_assembler import TextAssembler
from gateway.tokenization import PromptTokenizer
from gateway.verifier_pool import VerifierPool
from gateway.workload import workload_of
from paceline.errors import DeadlineExceeded, Unavailable
from paceline.tracing import Tracer


@dataclass(slots=True)
class Generator:
    """Everything that requests share; both limits may be replaced at any time."""

    tokenizer: PromptTokenizer
    verifiers: VerifierPool
    admission: Admission
    controller: DraftingController
    counters: Counters
    limits: RequestLimits
    failover: FailoverLimits
    budget: FailoverBudget
    tracer: Tracer | None = None
    """None: nothing is traced."""

    async def open(self, request: GenerationRequest, deadline: float) -> Relay:
        """
        Return the relay of a request, ready to run; the caller closes it.

        Raises ``Overloaded``, ``Unavailable``, ``InvalidRequest``, ``NotFound`` or
        ``DeadlineExceeded``.
        """
        arrived = asyncio.get_running_loop().time()
        info = self.verifiers.model(request.model).info
        self.verifiers.choose(info.model)
        try:
            async with asyncio.timeout_at(deadline):
                room = await self.admission.acquire(request.num_outputs, request.priority)
                try:
                    return await self._open(request, info, room, arrived, deadline)
                except BaseException:
                    room.release()
                    raise
        except TimeoutError:
            raise DeadlineExceeded(
                "the deadline passed before the request could start; allow more time"
            ) from None

    async def tokenize(self, prompt: Prompt, context_length: int) -> tuple[int, ...]:
        """Return a prompt's token ids; raises ``InvalidRequest``."""
        check_prompt_size(prompt, self.limits, context_length)
        return await self.tokenizer.encode(prompt)

    def context_length(self, model: str) -> int:
        """Return a model's context; while no verifier is known, the tokenizer folder's."""
        try:
            return self.verifiers.model(model).info.context_length
        except Unavailable:
            return self.tokenizer.context_length

    async def _open(
        self,
        request: GenerationRequest,
        info: ModelInfo,
        room: Room,
        arrived: float,
        deadline: float,
    ) -> Relay:
        admitted = asyncio.get_running_loop().time()
        prepared = await prepare(
            request, info, tokenizer=self.tokenizer, limits=self.limits, deadline=deadline
        )
        options = RelayOptions(
            request_id=request.request_id,
            model=info.model,
            affinity=affinity_of(request.session_id, prepared.sequences[0]),
            sampling=prepared.sampling,
            prompt_tokens=prepared.prompt_tokens,
            statistics=request.statistics,
            return_token_ids=request.output.return_token_ids,
            min_tokens_per_delta=request.output.min_tokens_per_delta,
            arrived=arrived,
            deadline=deadline,
            admission_seconds=admitted - arrived,
            promised=info.capabilities,
        )
        return Relay(
            options,
            [self._output(request, prepared, i) for i in range(request.num_outputs)],
            verifiers=self.verifiers,
            room=room,
            counters=self.counters,
            failover=self.failover,
            budget=self.budget,
        )

    def _output(
        self, request: GenerationRequest, prepared: PreparedRequest, index: int
    ) -> OutputRelay:
        sequence: SequenceRequest = prepared.sequences[index]
        stopping = request.stopping
        text = TextAssembler(
            self.tokenizer.decoding.detokenizer(
                skip_special_tokens=request.output.skip_special_tokens
            ),
            StopStrings(stopping.stop, include_stop=stopping.include_stop)
            if stopping.stop
            else None,
            min_tokens=stopping.min_tokens,
        )
        with_steps = request.statistics is StatisticsLevel.STEPS
        wish = replace(request.drafting, workload=workload_of(request))
        statistics = SpeculationRecord.at_level(with_steps=with_steps)
        statistics.workload = wish.workload
        output = Output(
            text,
            sequence.limits,
            statistics,
            include_stop=stopping.include_stop,
        )
        output.prime(request.resume_token_ids, prepared.stop_token_ids)
        return OutputRelay(
            index,
            sequence,
            output,
            wish,
            controller=self.controller,
            counters=self.counters,
            tracer=self.tracer,
        )
