"""The recorded API contract, the version table and the probe that compares an installation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.errors import ConfigurationError
from tests.doubles.fake_tensorrt_llm import drafter_families, llm
from tests.doubles.fake_tensorrt_llm.modules import DRAFTERS, VERSIONS, install
from tests.doubles.fake_tensorrt_llm.requests import LlmRequest
from tests.doubles.tensorrt_verifier import LOGITS, write_target
from verify_service.engine.sampling import SamplingParams
from verify_service.engines.tensorrt_llm import package
from verify_service.engines.tensorrt_llm.llm_arguments import (
    EngineLimits,
    llm_arguments,
    sampling_arguments,
)
from verify_service.engines.tensorrt_llm.loading import (
    check_contract,
    engine_limits,
    load_backend,
    read_info,
)
from verify_service.engines.tensorrt_llm.recorded_contract import FAMILIES, load_contract
from verify_service.engines.tensorrt_llm.version_table import RELEASES, release_of
from verify_service.settings import VerifySettings

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("version", "family"),
    [
        ("1.2.0rc3", "1.2rc"),
        ("1.2.0", "1.2"),
        ("1.2.1", "1.2"),
        ("1.3.0rc15", "1.3rc"),
        ("1.4.0rc1", "main"),
        ("1.5.0", "main"),
    ],
)
def test_a_version_belongs_to_a_family(version: str, family: str) -> None:
    release = release_of(version)

    assert release is not None
    assert release.family == family


@pytest.mark.parametrize("version", ["1.1.0", "0.21.0", "unknown"])
def test_a_version_before_the_first_recorded_one_has_no_family(version: str) -> None:
    assert release_of(version) is None


def test_every_release_has_a_contract_and_none_is_confirmed_yet() -> None:
    """Flip ``confirmed`` only after tests/gpu ran in that release's image."""
    assert [release.family for release in RELEASES] == list(FAMILIES)
    assert not any(release.confirmed for release in RELEASES)
    for family in FAMILIES:
        assert load_contract(family).family == family


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"known: 1\.2rc"):
        load_contract("0.9")


@pytest.mark.parametrize("family", sorted(DRAFTERS))
def test_each_familys_fake_is_as_recorded(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, family, LOGITS)

    release, found = package.probe(VERSIONS[family])

    assert found == []
    assert release is not None
    assert release.family == family


def test_another_familys_package_is_refused_with_the_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, "1.2rc", LOGITS)

    with pytest.raises(ConfigurationError, match=r"Drafter.__init__: takes no max_draft_len"):
        check_contract("1.2.1")


def test_a_lost_method_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "1.2", LOGITS)
    monkeypatch.delattr(drafter_families.BaseResourceManager, "free_resources")

    _, found = package.probe("1.2.1")

    assert [str(each).rpartition(":")[0].rpartition(".")[2] for each in found] == [
        "free_resources",
        "free_resources",
    ]


def test_a_lost_request_field_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "1.2", LOGITS)
    monkeypatch.delattr(LlmRequest, "get_num_tokens")

    with pytest.raises(ConfigurationError, match=r"LlmRequest.get_num_tokens: is missing"):
        check_contract("1.2.1")


def test_a_tree_manager_on_the_base_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sampler would take our chains for trees."""
    install(monkeypatch, "1.2", LOGITS)
    monkeypatch.setattr(
        drafter_families.BaseResourceManager, "spec_tree_manager", None, raising=False
    )

    with pytest.raises(ConfigurationError, match="spec_tree_manager: exists"):
        check_contract("1.2.1")


def test_a_package_that_grows_trees_by_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "1.2", LOGITS)

    def widened(self: llm.UserProvidedDecodingConfig, *, max_draft_len: int, **_: object) -> None:
        self.max_total_draft_tokens = 2 * max_draft_len

    monkeypatch.setattr(llm.UserProvidedDecodingConfig, "__init__", widened)

    with pytest.raises(ConfigurationError, match="max_total_draft_tokens: is 6 for a chain of 3"):
        check_contract("1.2.1")


def test_a_changed_greedy_rule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Temperature alone never switched sampling on or off; should that change, say so."""
    install(monkeypatch, "1.2", LOGITS)
    monkeypatch.setattr(llm.SamplingParams, "_greedy_decoding", property(lambda _: False))

    with pytest.raises(ConfigurationError, match="_greedy_decoding: is not True at temperature 0"):
        check_contract("1.2.1")


def test_an_executor_that_refuses_our_sampling_is_found_before_a_request_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, "1.2", LOGITS)

    def refuse(self: llm.SamplingParams) -> None:
        if self.top_k == 0:
            raise RuntimeError("Assertion failed: topK.value() > 0")

    monkeypatch.setattr(llm.SamplingParams, "_get_sampling_config", refuse)

    with pytest.raises(ConfigurationError, match=r"refuses our arguments .*topK"):
        check_contract("1.2.1")


def test_every_engine_argument_is_a_recorded_one() -> None:
    """The package forbids unknown fields; the probe names one that is gone before weights load."""
    limits = EngineLimits(4, 4, 128, prefix_caching=False)
    configs = {"kv_cache_config", "cuda_graph_config", "speculative_config"}
    sent = configs | set(llm_arguments("m", limits))

    for family in FAMILIES:
        recorded = load_contract(family).attributes
        assert sent == set(recorded["tensorrt_llm.llmapi.llm_args:TorchLlmArgs"])
        params = sampling_arguments(SamplingParams(), max_tokens=1, stop_token_ids=frozenset())
        assert set(params) <= set(recorded["tensorrt_llm:SamplingParams"])


def test_a_lost_engine_argument_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "1.2", LOGITS)
    monkeypatch.delitem(llm.TorchLlmArgs.__annotations__, "stream_interval")

    with pytest.raises(ConfigurationError, match=r"TorchLlmArgs.stream_interval: is missing"):
        check_contract("1.2.1")


def test_a_release_that_takes_any_keyword_keeps_no_tenants_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It could drop the salt unread, and tenants would share prefixes."""
    install(monkeypatch, "1.2", LOGITS)

    def generate_async(self: object, inputs: object, **options: object) -> None:
        del self, inputs, options

    monkeypatch.setattr(llm.LLM, "generate_async", generate_async)

    assert not package.load_package().takes_cache_salt


def test_an_old_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "1.2", LOGITS)

    with pytest.raises(ConfigurationError, match="older than every recorded release"):
        check_contract("1.1.0")


def test_without_the_package_the_refusal_names_the_image(tmp_path: Path) -> None:
    settings = VerifySettings(engine="tensorrt-llm", model=write_target(tmp_path))

    with pytest.raises(ConfigurationError, match=r"run the verifier in nvcr.io/nvidia/tensorrt"):
        load_backend(settings)


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_several_ranks_are_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, "1.2", LOGITS)
    monkeypatch.setenv(name, "2")
    settings = VerifySettings(engine="tensorrt-llm", model=write_target(tmp_path))

    with pytest.raises(ConfigurationError, match="one GPU only"):
        load_backend(settings)


@pytest.mark.parametrize("length", [0, 32])
def test_a_chain_that_the_package_cannot_verify_is_refused(
    length: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Mask packing is wrong beyond 32 columns."""
    install(monkeypatch, "1.2", LOGITS)
    settings = VerifySettings(
        engine="tensorrt-llm", model=write_target(tmp_path), max_draft_tokens=length
    )

    with pytest.raises(ConfigurationError, match="max_draft_tokens"):
        load_backend(settings)


@pytest.mark.parametrize(("num_kv_blocks", "longest"), [(0, 512), (1000, 512), (4, 4 * 16 - 1 - 8)])
def test_a_sequence_may_not_outgrow_the_kv_cache(
    num_kv_blocks: int, longest: int, tmp_path: Path
) -> None:
    """The package would never schedule it; the limit is published as the context length."""
    settings = VerifySettings(engine="tensorrt-llm", num_kv_blocks=num_kv_blocks)
    info = read_info(write_target(tmp_path))

    limits = engine_limits(settings, info, can_separate_tenants=True)

    assert limits.context_length == longest


def test_a_kv_cache_without_room_for_a_chain_is_refused(tmp_path: Path) -> None:
    settings = VerifySettings(engine="tensorrt-llm", num_kv_blocks=1, block_size=8)

    with pytest.raises(ConfigurationError, match="setting num_kv_blocks: 8 tokens hold no"):
        engine_limits(settings, read_info(write_target(tmp_path)), can_separate_tenants=True)


def test_only_the_plugin_needs_the_package() -> None:
    """
    Everything else, the server included, imports without ``tensorrt_llm``, and without what comes
    with the extra `verify`: NVIDIA's image has releases of its own of some, and none of others.
    """
    folder = ROOT / "verify_service" / "engines" / "tensorrt_llm"
    names = sorted(path.stem for path in folder.glob("*.py") if path.stem != "worker_plugin")
    prefix = "verify_service.engines.tensorrt_llm"
    absent = ("tensorrt_llm", "transformers", "numba", "llguidance", "gguf", "tokenizers")
    script = "import importlib, sys\n" + "".join(
        [
            *(f"sys.modules[{name!r}] = None\n" for name in absent),
            *(f"importlib.import_module({f'{prefix}.{name}'!r})\n" for name in names),
        ]
    )
    command = [sys.executable, "-c", script + "import verify_service.server\n"]

    outcome = subprocess.run(  # noqa: S603 own script
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert outcome.stderr == ""
