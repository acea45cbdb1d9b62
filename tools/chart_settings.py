"""Which settings of the services the charts fill in themselves, and which are the user's."""

from __future__ import annotations

from collections.abc import Mapping

from draft_service.settings import DraftSettings
from gateway.settings import GatewaySettings
from paceline.settings import ServiceSettings
from verify_service.settings import VerifySettings

COMMON_MANAGED = {
    "listen": "port",
    "admin_listen": "monitoring.port",
    "log_level": "global.logLevel",
    "log_format": "global.logFormat",
    "tls_certificate": "tls.existingSecret",
    "tls_private_key": "tls.existingSecret",
    "tls_client_ca": "tls.clientCASecret",
    "otlp_endpoint": "tracing.otlpEndpoint",
    "trace_ratio": "tracing.ratio",
}
"""Settings that templates fill in, and the value that decides each."""

LINKS_MANAGED = {
    "link_ca": "links.caSecret",
    "link_certificate": "links.certificateSecret",
    "link_private_key": "links.certificateSecret",
}

MANAGED: Mapping[str, Mapping[str, str]] = {
    "gateway": {
        **COMMON_MANAGED,
        "listen": "service.port",
        "verifiers": "verifiers",
        "model": "model",
        "routing": "routing",
        "default_pool": "routing.default",
        "api_keys": "auth.apiKeysSecret",
        "jwks": "auth.jwksSecret",
        **LINKS_MANAGED,
    },
    "verifier": {
        **COMMON_MANAGED,
        "engine": "engine",
        "model": "model",
        "routing": "routing",
        **LINKS_MANAGED,
    },
    "draft": {
        **COMMON_MANAGED,
        "name": "the pool's name",
        "drafter": "engine",
        "onnx_model": "model",
    },
}

SETTINGS: Mapping[str, type[ServiceSettings]] = {
    "gateway": GatewaySettings,
    "verifier": VerifySettings,
    "draft": DraftSettings,
}
