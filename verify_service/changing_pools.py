"""Draft pools that change while a verifier runs: links come and go as the routing file says."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.routing import Routing, read_routing
from verify_service.draft_link import DraftLink
from verify_service.engine.sampling import Fallback
from verify_service.engine.steps import Command, PoolDown
from verify_service.settings import VerifySettings


class ChangingPools:
    """
    One link per pool of the settings and of the routing file, which wins where both name one.

    ``links`` is one dictionary that is changed in place, so that whoever holds it sees the change.
    """

    def __init__(
        self,
        settings: VerifySettings,
        make_link: Callable[[str, str], DraftLink],
        send: Callable[[Command], None],
    ) -> None:
        self.routing = read_routing(settings.routing) if settings.routing else Routing()
        self._fixed = settings.pools
        self._make_link = make_link
        self._send = send
        self._addresses = self._wanted(self.routing)
        self.links = {name: make_link(name, at) for name, at in self._addresses.items()}

    async def use(self, routing: Routing) -> None:
        """Close the links of pools that are gone or elsewhere, and start those of new ones."""
        wanted, before = self._wanted(routing), self._addresses
        self._addresses = wanted
        for name in [name for name in before if before[name] != wanted.get(name)]:
            await self.links.pop(name).aclose()
            self._send(PoolDown(name, Fallback.NO_POOL))
        for name in [name for name in wanted if before.get(name) != wanted[name]]:
            self.links[name] = self._make_link(name, wanted[name])
            self.links[name].start()

    def _wanted(self, routing: Routing) -> Mapping[str, str]:
        return {**self._fixed, **routing.addresses}
