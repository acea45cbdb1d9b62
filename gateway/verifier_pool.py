"""All verifiers, and which of them takes the next sequence."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from gateway.affinity import ANYWHERE, Affinity
from gateway.generation import Capabilities, ModelInfo
from gateway.verifier_link import VerifierLink
from paceline.errors import InvalidRequest, Mismatch, NotFound, PacelineError, Unavailable

RETRY_AFTER_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model and how many verifiers serve it."""

    info: ModelInfo
    num_verifiers: int
    num_ready_verifiers: int


class VerifierPool:
    """The links, and the events of their coming and going."""

    def __init__(self) -> None:
        self._links: list[VerifierLink] = []
        self._changed = asyncio.Event()

    def add(self, link: VerifierLink) -> None:
        """Take in a link."""
        self._links.append(link)

    def remove(self, link: VerifierLink) -> None:
        """Leave out a link whose verifier has gone for good."""
        self._links.remove(link)
        self.announce_change()

    @property
    def links(self) -> Sequence[VerifierLink]:
        """All links."""
        return self._links

    @property
    def is_ready(self) -> bool:
        """Whether at least one verifier can be used."""
        return any(link.is_usable for link in self._links)

    def announce_change(self) -> None:
        """Wake everyone in ``wait_for_change``."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for_change(self) -> None:
        """Return after the next change of any link's state."""
        await self._changed.wait()

    def models(self) -> list[ServedModel]:
        """Return the models that are or were served, in order of name."""
        known: dict[str, list[VerifierLink]] = {}
        for link in self._links:
            if link.info is not None and not isinstance(link.problem, Mismatch):
                known.setdefault(link.info.model, []).append(link)
        return [_served(known[name]) for name in sorted(known)]

    def model(self, name: str) -> ServedModel:
        """Return a model by name; the empty name is the only one served."""
        models = self.models()
        if not models:
            raise self._nobody()
        names = ", ".join(model.info.model for model in models)
        if not name:
            if len(models) > 1:
                raise InvalidRequest(
                    f"model: several are served; name one of {names}", field="model"
                )
            return models[0]
        for model in models:
            if model.info.model == name:
                return model
        raise NotFound(
            f"model: there is no {name!r}; available: {names}",
            field="model",
            reason="MODEL_NOT_FOUND",
        )

    def choose(
        self, model: str, affinity: Affinity = ANYWHERE, *, promised: Capabilities | None = None
    ) -> VerifierLink:
        """
        Return the verifier for a sequence; raises ``Unavailable`` when none can be used.

        One that can do less than was ``promised`` to the request is not used.
        """
        usable = self._usable(model, promised)
        if not usable:
            raise self._nobody()
        return choose_link(usable, affinity)

    async def choose_within(
        self,
        seconds: float,
        model: str,
        affinity: Affinity,
        *,
        avoid: Collection[str],
        promised: Capabilities | None = None,
    ) -> VerifierLink | None:
        """
        Return the verifier for a sequence, waiting while none at all can be used.

        None: there are some, but all are among those to avoid.
        """
        try:
            async with asyncio.timeout(seconds):
                while not (usable := self._usable(model, promised)):
                    await self.wait_for_change()
        except TimeoutError:
            raise self._nobody() from None
        untried = [link for link in usable if link.address not in avoid]
        return choose_link(untried, affinity) if untried else None

    def _usable(self, model: str, promised: Capabilities | None) -> list[VerifierLink]:
        return [
            link
            for link in self._links
            if link.is_usable
            and link.info is not None
            and link.info.model == model
            and (promised is None or link.info.capabilities.cover(promised))
        ]

    def _nobody(self) -> PacelineError:
        problems = [link.problem for link in self._links if link.problem is not None]
        if problems and all(isinstance(problem, Mismatch) for problem in problems):
            return problems[0]
        causes = "; ".join(problem.message for problem in problems) or "all are draining"
        return Unavailable(
            f"no verifier is ready: {causes}",
            reason="NO_VERIFIER",
            retry_after_seconds=RETRY_AFTER_SECONDS,
        )


def choose_link(usable: Sequence[VerifierLink], affinity: Affinity = ANYWHERE) -> VerifierLink:
    """Return the least loaded link, or the affinity's own as long as that is not too busy."""
    least = min(usable, key=lambda link: (_load_of(link), link.address))
    if not affinity.key:
        return least
    own = max(usable, key=lambda link: affinity.rank(link.address))
    return own if affinity.tolerates(_load_of(own), _load_of(least)) else least


def _load_of(link: VerifierLink) -> int:
    return max(link.load.num_running + link.load.num_waiting, link.num_sequences)


def _served(links: Iterable[VerifierLink]) -> ServedModel:
    ordered = sorted(links, key=lambda link: not link.is_usable)
    infos = [link.info for link in ordered if link.info is not None]
    return ServedModel(infos[0], len(ordered), sum(link.is_usable for link in ordered))
