"""Which targets exist, and how each is made from the settings."""

from __future__ import annotations

from paceline.errors import ConfigurationError
from paceline.model_folder import read_model_folder, tokenizer_fingerprint
from verify_service.settings import VerifySettings
from verify_service.targets.roofline import GPUS, MODELS, Roofline
from verify_service.targets.simulated import VOCAB_SIZE, RealClock, SimulatedTarget
from verify_service.targets.table import TableTarget, markov_logits
from verify_service.targets.target import TargetModel

TABLE_VOCAB_SIZE = 64
TABLE_CONTEXT_LENGTH = 4096


def load_target(settings: VerifySettings) -> TargetModel:
    """Return the target that the settings name; raises ``ConfigurationError``."""
    if settings.target == "table":
        return TableTarget(
            markov_logits(TABLE_VOCAB_SIZE),
            vocab_size=TABLE_VOCAB_SIZE,
            context_length=TABLE_CONTEXT_LENGTH,
        )
    if settings.target == "simulated":
        return _simulated(settings)
    if settings.model is None:
        raise ConfigurationError(
            "setting model: the torch target needs a model folder; pass --model DIR"
        )
    if not settings.model.is_dir():
        raise ConfigurationError(
            f"setting model: there is no folder {settings.model}; "
            "name a folder with config.json, *.safetensors and tokenizer.json"
        )
    # torch models are heavy; a table target starts without them.
    from verify_service.targets.torch_model import TorchTarget

    return TorchTarget.load(
        settings.model,
        device=settings.device,
        weights=settings.weights,
        num_threads=settings.num_threads or None,
    )


def _simulated(settings: VerifySettings) -> SimulatedTarget:
    model, folder = MODELS[settings.simulated_model], settings.model
    num_gpus = settings.simulated_tensor_parallel or model.tensor_parallel
    return SimulatedTarget(
        Roofline(model, GPUS[settings.simulated_gpu], num_gpus),
        RealClock(),
        vocab_size=read_model_folder(folder).vocab_size if folder else VOCAB_SIZE,
        tokenizer_fingerprint=tokenizer_fingerprint(folder) if folder else "",
    )
