"""Channel options and connections: how every Paceline process dials and listens."""

from __future__ import annotations

import json
from typing import Final

import grpc.aio

from paceline.tls import DialTls, channel_credentials

MAX_MESSAGE_BYTES: Final = 20 * 1024 * 1024

CLIENT_KEEPALIVE_MS: Final = 30_000
MIN_PING_INTERVAL_MS: Final = 10_000
"""Strictly below the clients' interval, or pings in a long prefill end in GOAWAY."""

_BOTH: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)

SERVER_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    *_BOTH,
    ("grpc.http2.min_recv_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
    ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_INTERVAL_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
)

LINK_OPTIONS: Final[tuple[tuple[str, int | str], ...]] = (
    *_BOTH,
    ("grpc.keepalive_time_ms", CLIENT_KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # In truth the least time that one attempt has, TLS handshake included; retries come sooner.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
"""For the two internal links: one channel per address, streams that never end by themselves."""

_RETRY_SERVICE_CONFIG: Final = json.dumps(
    {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": "readiness"},
        "methodConfig": [
            {
                "name": [{"service": "paceline.v1.GenerationService"}],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.1s",
                    "maxBackoff": "1s",
                    "backoffMultiplier": 2,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ],
    }
)

CLIENT_OPTIONS: Final[tuple[tuple[str, int | str], ...]] = (
    *LINK_OPTIONS,
    ("grpc.service_config", _RETRY_SERVICE_CONFIG),
    ("grpc.enable_retries", 1),
)
"""For applications: round robin over ready gateways, retries before the first message."""


def open_link(address: str, tls: DialTls | None = None) -> grpc.aio.Channel:
    """
    Return a channel for an internal link to one address; in plaintext without ``tls``.

    The certificate files are read now; raises ``ConfigurationError`` for unusable ones.
    """
    if tls is None:
        return grpc.aio.insecure_channel(address, options=LINK_OPTIONS)
    options = (*LINK_OPTIONS, *tls_options(tls))
    return grpc.aio.secure_channel(address, channel_credentials(tls), options=options)


def client_dialing(
    tls: DialTls | None,
) -> tuple[grpc.ChannelCredentials | None, tuple[tuple[str, int | str], ...]]:
    """
    Return credentials and options of an application's channel; None: plaintext.

    The certificate files are read now; raises ``ConfigurationError`` for unusable ones.
    """
    if tls is None:
        return None, CLIENT_OPTIONS
    return channel_credentials(tls), (*CLIENT_OPTIONS, *tls_options(tls))


def tls_options(tls: DialTls) -> tuple[tuple[str, str], ...]:
    """Return the channel options that belong to credentials."""
    return (("grpc.ssl_target_name_override", tls.server_name),) if tls.server_name else ()
