"""The kernel compiles for an H100 without one: what the interpreter lets through, this does not."""

from __future__ import annotations

from typing import Any

import pytest

from verify_service.targets.tree_kernel import KEYS_PER_STEP, NUM_WARPS

triton = pytest.importorskip("triton", reason="triton comes with GPU builds of torch")

SIZES = {"HEADS": 32, "KV_HEADS": 8, "GROUP": 4, "DIM": 128, "QUERIES": 64, "SPLITS": 8}
TILE = ("tile_span", "tile_first", "tile_rows", "span_first_row")
PARTS = ("part_outputs", "part_maxima", "part_sums")


def compiled(kernel: Any, pointers: dict[str, str], constants: dict[str, object]) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = pointers | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    options = {"num_warps": NUM_WARPS}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("dtype", "window", "has_softcap"), [("bf16", 0, False), ("fp16", 512, True)]
)
def test_a_share_compiles_within_the_shared_memory_of_one_processor(
    dtype: str, window: int, has_softcap: bool
) -> None:
    from verify_service.targets.tree_kernel_source import attend_partially

    pointers = dict.fromkeys(("queries", "keys", "values"), f"*{dtype}")
    integers = ("positions", "ancestors", *TILE, "span_context", "block_tables")
    pointers |= dict.fromkeys(integers, "*i64") | dict.fromkeys(PARTS, "*fp32")
    pointers |= {"scaling": "fp32", "softcap": "fp32", "table_stride": "i32"}
    constants: dict[str, object] = {
        **SIZES,
        "BLOCK_SIZE": 16,
        "KEYS": KEYS_PER_STEP,
        "WINDOW": window,
    }
    kernel = compiled(attend_partially, pointers, constants | {"HAS_SOFTCAP": has_softcap})

    assert kernel.asm["cubin"]
    assert kernel.metadata.shared <= 100_000


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.timeout(300)
def test_the_merge_compiles() -> None:
    from verify_service.targets.tree_kernel_source import merge_shares

    pointers = dict.fromkeys(PARTS, "*fp32") | dict.fromkeys(TILE, "*i64") | {"out": "*bf16"}

    assert compiled(merge_shares, pointers, dict(SIZES)).asm["cubin"]
