"""A ``VerifyService`` with one method, ``GetModelInfo``, whose behaviour a test writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import grpc
import grpc.aio

from paceline.v1 import verify_service_pb2

Request = verify_service_pb2.GetModelInfoRequest
Response = verify_service_pb2.GetModelInfoResponse
Context = grpc.aio.ServicerContext[Request, Response]
Answer = Callable[[Request, Context], Awaitable[Response]]


def add_info_service(answer: Answer, server: grpc.aio.Server) -> None:
    """Serve ``GetModelInfo`` with ``answer``."""
    handler = grpc.unary_unary_rpc_method_handler(
        answer,
        request_deserializer=Request.FromString,
        response_serializer=Response.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "paceline.v1.VerifyService", {"GetModelInfo": handler}
            ),
        )
    )
