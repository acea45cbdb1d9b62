"""Whether the model drafter gives the trees of the CPU on onnxruntime's CUDA provider."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from paceline.errors import PacelineError
from paceline.tree import ROOT, TokenTree

if TYPE_CHECKING:
    from draft_service.onnx_drafter import OnnxDrafter

CUDA = "CUDAExecutionProvider"
PROMPT = tuple(3 + index * 7 % 41 for index in range(48))
NUM_ROUNDS = 20
TINY: Final = Path(__file__).parents[1] / "tests" / "models" / "tiny"
"""The model that is exported where none is named."""


def check_drafter(folder: Path | None) -> bool:
    """Say in one line what is there and what it gives; False: the trees differ."""
    try:
        import onnxruntime
    except ImportError:
        print("onnx         onnxruntime is absent: not checked")
        return True
    providers = onnxruntime.get_available_providers()
    if CUDA not in providers:
        print(f"onnx         no CUDA provider, only {', '.join(providers)}: not checked")
        return True
    try:
        with TemporaryDirectory() as scratch:
            source = folder or _exported(Path(scratch) / "tiny")
            drafters = [_drafter(source, provider) for provider in ("cpu", "cuda")]
    except ImportError as error:
        print(f"onnx         {error}: name a draft model with --onnx DIR to check it")
        return True
    except PacelineError as error:
        print(f"onnx         FAILED: the drafter cannot be loaded on {CUDA} ({error})")
        return False
    trees, seconds = zip(*(_drafted(drafter) for drafter in drafters), strict=True)
    num_same = sum(int(a == b) for a, b in zip(*trees, strict=True))
    print(
        f"onnx         {folder or TINY.name}: {num_same} of {NUM_ROUNDS} best paths as on the CPU; "
        f"{seconds[0] * 1e3:.2f} ms a tree there, {seconds[1] * 1e3:.2f} ms on CUDA"
    )
    return num_same >= 0.8 * NUM_ROUNDS


def _exported(folder: Path) -> Path:
    """Export the tiny model of the tests; raises ``ImportError`` where ``onnx`` is missing."""
    from draft_service.export.exporter import ExportOptions, export_model

    return export_model(TINY, folder, ExportOptions(reports=False), lambda line: None)


def _drafter(folder: Path, provider: str) -> OnnxDrafter:
    from draft_service.onnx_drafter import OnnxDrafter
    from draft_service.onnx_manifest import read_onnx_folder
    from draft_service.onnx_runtime import load_graph
    from draft_service.onnx_session import OnnxOptions

    model = read_onnx_folder(folder)
    graph, signature = load_graph(model.graph, provider, 0)  # type: ignore[arg-type]  # a Literal
    return OnnxDrafter(model, graph, signature, OnnxOptions())


def _drafted(drafter: OnnxDrafter) -> tuple[list[tuple[int, ...]], float]:
    """Return the best path of a tree after each of some commits, and the median time of one."""
    from draft_service.drafter import DraftLimits, SessionSpec

    drafter.warm_up()
    session = drafter.open(SessionSpec(committed_token_ids=list(PROMPT)))
    limits = DraftLimits(max_draft_tokens=8, max_tree_depth=4)
    trees: list[tuple[int, ...]] = []
    times: list[float] = []
    for index in range(NUM_ROUNDS):
        begun = time.perf_counter()
        draft = session.propose(limits)
        while draft.may_grow:
            draft = session.propose(limits)
        times.append(time.perf_counter() - begun)
        trees.append(_best_path(draft.tree))
        session.commit(len(PROMPT) + index, [PROMPT[index]])
    session.close()
    return trees, statistics.median(times)


def _best_path(tree: TokenTree) -> tuple[int, ...]:
    """Return the tokens of the likeliest child at each level."""
    node, path = ROOT, list[int]()
    while below := [child for child, parent in enumerate(tree.parents, 1) if parent == node]:
        node = max(below, key=lambda child: tree.log_probs[child - 1])
        path.append(tree.token_ids[node - 1])
    return tuple(path)
