"""Settings that take effect while the gateway runs. The others are named as needing a restart."""

from __future__ import annotations

from typing import Final

import structlog

from gateway.drafting_policy import PolicyLimits
from gateway.fixed_verifiers import FixedVerifiers
from gateway.generator import Generator
from gateway.preparation import RequestLimits
from gateway.relay import FailoverLimits
from gateway.servicer import GenerationServicer
from gateway.settings import GatewaySettings
from gateway.verifier_discovery import PREFIX

log: structlog.stdlib.BoundLogger = structlog.get_logger()

LIVE: Final = frozenset(
    {
        "verifiers",
        "default_pool",
        "max_running",
        "max_waiting",
        "default_deadline_seconds",
        "default_max_tokens",
        "max_prompt_characters",
        "max_bytes_per_token",
        "max_running_to_draft",
        "min_acceptance_length",
        "drafting_dwell_seconds",
        "probe_interval_seconds",
        "max_failovers",
        "failover_wait_seconds",
        "failover_burst",
        "failovers_per_second",
    }
)


def policy_limits(settings: GatewaySettings) -> PolicyLimits:
    """Return the limits of the drafting policy."""
    return PolicyLimits(
        max_running_to_draft=settings.max_running_to_draft,
        min_acceptance_length=settings.min_acceptance_length,
        min_dwell_seconds=settings.drafting_dwell_seconds,
        probe_interval_seconds=settings.probe_interval_seconds,
    )


def request_limits(settings: GatewaySettings) -> RequestLimits:
    """Return what requests may ask for."""
    return RequestLimits(
        settings.default_max_tokens,
        settings.max_prompt_characters,
        settings.max_bytes_per_token,
    )


def failover_limits(settings: GatewaySettings) -> FailoverLimits:
    """Return how hard requests try to go on."""
    return FailoverLimits(
        settings.max_failovers,
        settings.failover_wait_seconds,
        settings.failover_burst,
        settings.failovers_per_second,
    )


class LiveSettings:
    """Carries changed settings to where they act."""

    def __init__(
        self,
        settings: GatewaySettings,
        *,
        generator: Generator,
        servicer: GenerationServicer,
        fixed: FixedVerifiers,
    ) -> None:
        self._current = settings
        self._generator = generator
        self._servicer = servicer
        self._fixed = fixed

    def apply(self, settings: GatewaySettings) -> None:
        """Act by these settings from now on; what runs already goes on as it was prepared."""
        for name in _needing_restart(self._current, settings):
            log.warning("setting_needs_restart", setting=name)
        self._current = settings
        self._fixed.use(fixed_addresses(settings))
        generator = self._generator
        generator.controller.configure(policy_limits(settings), settings.default_pool)
        generator.admission.resize(
            max_running=settings.max_running, max_waiting=settings.max_waiting
        )
        generator.limits = request_limits(settings)
        generator.failover = failover_limits(settings)
        generator.budget.resize(settings.failover_burst, settings.failovers_per_second)
        self._servicer.default_deadline_seconds = settings.default_deadline_seconds


def fixed_addresses(settings: GatewaySettings) -> tuple[str, ...]:
    """Return the verifiers that are named by address."""
    return tuple(entry for entry in settings.verifiers if not entry.startswith(PREFIX))


def _needing_restart(old: GatewaySettings, new: GatewaySettings) -> list[str]:
    changed = {
        name for name in GatewaySettings.model_fields if getattr(old, name) != getattr(new, name)
    }
    if set(old.verifiers) - set(fixed_addresses(old)) == set(new.verifiers) - set(
        fixed_addresses(new)
    ):
        changed.discard("verifiers")
    return sorted(changed - (LIVE - {"verifiers"}))
