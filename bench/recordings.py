"""What the demonstration model says by itself, recorded once, to replay drafters against."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.comparison import generate
from bench.demo_line import BUILD, demo_line
from bench.prompts import BenchPrompt
from paceline.async_client import AsyncClient
from paceline.cli.terminal import progress


@dataclass(frozen=True, slots=True)
class Recording:
    """One output without drafts, with all that a drafter is told about the request."""

    name: str
    category: str
    prompt_token_ids: tuple[int, ...]
    output_token_ids: tuple[int, ...]
    temperature: float
    seed: int


async def recordings(
    prompts: Sequence[BenchPrompt], temperature: float, seed: int = 1, model: Path | None = None
) -> list[Recording]:
    """
    Return the outputs of a model, by default the demonstration model.

    They are generated the first time and kept in ``build``.
    """
    which = [] if model is None else [str(model)]
    asked = json.dumps([[asdict(prompt) for prompt in prompts], temperature, seed, *which])
    path = BUILD / f"recordings-{hashlib.sha256(asked.encode()).hexdigest()[:12]}.json"
    if not path.exists():
        made = await _record(prompts, temperature, seed, model)
        path.write_text(json.dumps([asdict(recording) for recording in made]), encoding="utf-8")
    return [
        Recording(
            name=kept["name"],
            category=kept["category"],
            prompt_token_ids=tuple(kept["prompt_token_ids"]),
            output_token_ids=tuple(kept["output_token_ids"]),
            temperature=kept["temperature"],
            seed=kept["seed"],
        )
        for kept in json.loads(path.read_text(encoding="utf-8"))
    ]


async def _record(
    prompts: Sequence[BenchPrompt], temperature: float, seed: int, model: Path | None
) -> list[Recording]:
    made = []
    async with await demo_line(model) as line, AsyncClient(line.address) as client:
        for prompt in prompts:
            async with progress(f"recording {prompt.name} at temperature {temperature:g}"):
                run = await generate(
                    client,
                    prompt.text,
                    prompt.max_tokens,
                    "off",
                    temperature=temperature,
                    seed=seed,
                )
            token_ids = (await client.tokenize(prompt.text)).token_ids
            made.append(
                Recording(
                    name=prompt.name,
                    category=prompt.category,
                    prompt_token_ids=tuple(token_ids),
                    output_token_ids=run.token_ids,
                    temperature=temperature,
                    seed=seed,
                )
            )
    return made
