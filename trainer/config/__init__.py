"""The TOML file that describes a run: models, loader, notes, and what is not available yet."""

from trainer.config.availability import refuse_unavailable, resolved_params
from trainer.config.loader import Overrides, load_config
from trainer.config.models import GrpoConfig, PpoConfig, RolloutConfig, RunConfig, SftConfig
from trainer.config.notes import notes

__all__ = [
    "GrpoConfig",
    "Overrides",
    "PpoConfig",
    "RolloutConfig",
    "RunConfig",
    "SftConfig",
    "load_config",
    "notes",
    "refuse_unavailable",
    "resolved_params",
]
