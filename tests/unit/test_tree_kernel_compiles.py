"""The kernel compiles for an H100 without one: what the interpreter lets through, this does not."""

from __future__ import annotations

from typing import Any

import pytest

from verify_service.targets.tree_kernel import NUM_WARPS, KernelTraits

triton = pytest.importorskip("triton", reason="triton comes with GPU builds of torch")

MAX_SHARED_BYTES = 163 << 10
"""Of one multiprocessor of an A100; an H100 has 227 KiB."""
TILE = ("tile_span", "tile_first", "tile_rows", "span_first_row")
PARTS = ("part_outputs", "part_maxima", "part_sums")
LLAMA_8B = KernelTraits(32, 8, 128, 16, 0.1)
GEMMA_2B = KernelTraits(8, 4, 256, 16, 0.1, softcap=50.0, window=4096)
GEMMA_270M = KernelTraits(4, 1, 256, 16, 0.1, window=512)
LLAMA_405B = KernelTraits(128, 8, 128, 16, 0.1)


def sizes(traits: KernelTraits) -> dict[str, object]:
    return {
        "HEADS": traits.num_heads,
        "KV_HEADS": traits.num_kv_heads,
        "GROUP": traits.group,
        "DIM": traits.head_dim,
        "QUERIES": traits.tile_queries,
        "SPLITS": 8,
    }


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
    ("traits", "dtype"),
    [(LLAMA_8B, "bf16"), (GEMMA_2B, "fp16"), (GEMMA_270M, "bf16"), (LLAMA_405B, "bf16")],
    ids=["llama 8b", "gemma 2b", "gemma 270m", "llama 405b"],
)
def test_a_share_and_the_merge_compile_within_the_shared_memory_of_one_processor(
    traits: KernelTraits, dtype: str
) -> None:
    from verify_service.targets.tree_kernel_source import attend_partially, merge_shares

    pointers = dict.fromkeys(("queries", "keys", "values"), f"*{dtype}")
    integers = ("positions", "ancestors", *TILE, "span_context", "block_tables")
    pointers |= dict.fromkeys(integers, "*i64") | dict.fromkeys(PARTS, "*fp32")
    pointers |= {"scaling": "fp32", "softcap": "fp32", "table_stride": "i32"}
    constants = {
        **sizes(traits),
        "BLOCK_SIZE": traits.block_size,
        "KEYS": traits.keys_per_step,
        "WINDOW": traits.window,
        "HAS_SOFTCAP": traits.softcap > 0.0,
    }
    share = compiled(attend_partially, pointers, constants)
    pointers = dict.fromkeys(PARTS, "*fp32") | dict.fromkeys(TILE, "*i64") | {"out": f"*{dtype}"}
    merge = compiled(merge_shares, pointers, sizes(traits))

    assert traits.is_served
    assert share.asm["cubin"]
    assert merge.asm["cubin"]
    assert max(share.metadata.shared, merge.metadata.shared) <= MAX_SHARED_BYTES
