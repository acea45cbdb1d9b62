"""Verifiers and routing that change while a gateway runs: what files and names say is taken up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any

from gateway.drafting_controller import DraftingController
from gateway.fixed_verifiers import FixedVerifiers
from gateway.reloading import SourceKind
from gateway.settings import GatewaySettings
from gateway.verifier_discovery import PREFIX, VerifierDiscovery
from gateway.verifier_link import VerifierLink
from gateway.verifier_pool import VerifierPool
from paceline.routing import Routing, follow_routing, read_routing


class ChangingVerifiers:
    """The links of a gateway: fixed addresses at once, names and routing as they change."""

    def __init__(
        self,
        settings: GatewaySettings,
        verifiers: VerifierPool,
        controller: DraftingController,
        make_link: Callable[[str], VerifierLink],
        refused: MutableMapping[str, str],
    ) -> None:
        """``refused`` holds what is wrong with a routing file that is not in force."""
        self._settings = settings
        self._verifiers = verifiers
        self._controller = controller
        self._make_link = make_link
        self._refused = refused
        self._names = [
            entry.removeprefix(PREFIX) for entry in settings.verifiers if entry.startswith(PREFIX)
        ]
        self._routing = read_routing(settings.routing) if settings.routing else Routing()
        controller.use_routing(self._routing)
        addresses = [entry for entry in settings.verifiers if not entry.startswith(PREFIX)]
        self.fixed = FixedVerifiers(addresses, open_link=self._open, close_link=self._close)

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """Return what has to run."""
        running: list[Coroutine[Any, Any, None]] = [self.fixed.run()]
        if self._settings.routing is not None:
            path = self._settings.routing
            running.append(follow_routing(path, self._routing, self._use, self._note_problem))
        if self._names:
            discovery = VerifierDiscovery(self._names, open_link=self._open, close_link=self._close)
            running.append(discovery.run())
        return running

    async def _use(self, routing: Routing) -> None:
        self._controller.use_routing(routing)
        for link in list(self._verifiers.links):
            self._controller.refresh(link, pools_changed=True)
            await asyncio.sleep(0)

    def _note_problem(self, problem: str) -> None:
        if problem:
            self._refused[SourceKind.ROUTING] = problem
        else:
            self._refused.pop(SourceKind.ROUTING, None)

    def _open(self, address: str) -> VerifierLink:
        link = self._make_link(address)
        self._verifiers.add(link)
        return link

    def _close(self, link: VerifierLink) -> None:
        self._verifiers.remove(link)
        # A verifier that was named again has another link by now, whose sequences go on.
        if all(other.address != link.address for other in self._verifiers.links):
            self._controller.forget_verifier(link.address)
