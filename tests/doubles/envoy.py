"""A real Envoy in front of some gateways, set up as docs/operations.md advises."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.doubles.process_line import free_port
from tools.helm_tools import FOLDER

ENVOY = FOLDER / "bin" / "envoy"
START_SECONDS = 30.0


@asynccontextmanager
async def running_envoy(folder: Path, gateways: Sequence[str]) -> AsyncIterator[str]:
    """Balance over gateways until the block ends; yields Envoy's address."""
    address = f"127.0.0.1:{free_port()}"
    config = folder / "envoy.json"
    config.write_text(json.dumps(_configuration(address, gateways)))
    with (folder / "envoy.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(str(ENVOY), "--config-path", str(config), "--concurrency", "1"),
            *("--base-id", str(free_port()), "--log-level", "warning"),
            stderr=log,
        )
    try:
        await _until_listening(address)
        yield address
    finally:
        process.kill()
        await process.wait()


async def _until_listening(address: str) -> None:
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection(*address.split(":"))
            except OSError:
                await asyncio.sleep(0.1)
            else:
                writer.close()
                return


def _configuration(address: str, gateways: Sequence[str]) -> dict[str, Any]:
    return {
        "static_resources": {
            "listeners": [_listener(address)],
            "clusters": [_cluster(gateways)],
        }
    }


def _listener(address: str) -> dict[str, Any]:
    manager = {
        "@type": (
            "type.googleapis.com/envoy.extensions.filters.network"
            ".http_connection_manager.v3.HttpConnectionManager"
        ),
        "stat_prefix": "door",
        "codec_type": "HTTP2",
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
                },
            }
        ],
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [_route()]}]
        },
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    return {"address": _socket(address), "filter_chains": [{"filters": filters}]}


def _route() -> dict[str, Any]:
    # Streams are as long as their clients allow: the deadline is the client's own.
    limit = {"grpc_timeout_header_max": "0s"}
    action = {"cluster": "gateways", "timeout": "0s", "max_stream_duration": limit}
    return {"match": {"prefix": "/"}, "route": action}


def _cluster(gateways: Sequence[str]) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": _socket(gateway)}} for gateway in gateways]
    options = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {
        "name": "gateways",
        "type": "STATIC",
        "lb_policy": "LEAST_REQUEST",
        "load_assignment": {
            "cluster_name": "gateways",
            "endpoints": [{"lb_endpoints": endpoints}],
        },
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": options,
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "health_checks": [
            {
                "timeout": "2s",
                "interval": "0.5s",
                "no_traffic_interval": "0.5s",
                "unhealthy_threshold": 1,
                "healthy_threshold": 1,
                "grpc_health_check": {"service_name": "readiness"},
            }
        ],
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
    }


def _socket(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}
