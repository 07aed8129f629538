"""Proximal policy optimisation.

PPO (Schulman et al., arXiv 1707.06347) with generalised advantage estimation (arXiv 1506.02438),
one answer to a prompt, and the reward at the answer's last token. Where it differs from a reader's
expectation:

1. Advantages are whitened over the batch's answer tokens; without a critic a token's advantage is
   the whitened reward of its answer.
2. The default critic is a linear probe on the decoder's states: its loss never touches the adapter.
   ``kind = "shared"`` is the classic form, where it does.
3. ``old`` is the trainer's own log-probability over the whole vocabulary, also where top-p keeps
   the sampler from drawing improbable tokens: a ratio is exactly 1 before the first step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainer.algorithms.critic import Critic, ProbeCritic, SharedCritic
from trainer.algorithms.episodes import Episode, estimate_advantages, score_episodes
from trainer.algorithms.method import Tools
from trainer.algorithms.metrics import Metrics, critic_metrics
from trainer.algorithms.objectives import PassStats, PpoObjective
from trainer.algorithms.optimise import shuffled
from trainer.algorithms.schedules import AdaptiveKl
from trainer.algorithms.stopwatch import Stopwatch
from trainer.checkpoint.file import State
from trainer.config.models import PpoConfig
from trainer.monitor.protocol import Event

_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(slots=True)
class Ppo:
    """``critic`` is None where it is turned off."""

    config: PpoConfig
    tools: Tools[Episode]
    critic: Critic | None = field(init=False)
    kl_coefficient: float = field(init=False)

    def __post_init__(self) -> None:
        self.kl_coefficient = self.config.ppo.kl_coefficient
        self.critic = self._open_critic()

    def collect(self, update: int, watch: Stopwatch) -> list[Episode]:
        """Answers with their rewards, then log-probabilities and values, then advantages."""
        count = self.config.ppo.rollout_batch_size
        episodes = self.tools.sample(update, count, watch, position=(update - 1) * count)
        with watch("score"):
            if self._scores_first:
                self._score(episodes, unscored=())
            estimate_advantages(
                episodes,
                self._values(episodes),
                self.config.ppo.critic,
                kl_penalty=self.kl_coefficient if self._penalised_reward else 0.0,
            )
        return episodes

    def optimise(self, update: int, groups: Sequence[Episode], watch: Stopwatch) -> list[PassStats]:
        """``ppo_epochs`` passes over the batch, then the critic's fit to its returns."""
        passes = self._run_passes(update, groups, watch) if groups[0].trainable else []
        if self.critic is not None and not self.critic.shared:
            with watch("train"):
                returns = torch.cat([e.estimate.returns for e in groups])
                self.critic.fit(_features(groups), returns)
        return passes

    def _run_passes(
        self, update: int, groups: Sequence[Episode], watch: Stopwatch
    ) -> list[PassStats]:
        objective = PpoObjective(self.config.ppo, self.config.training, self.critic)
        epochs = [self._steps(update, groups, e) for e in range(self.config.ppo.ppo_epochs)]
        if not self._scores_first:
            with watch("score"):
                self._score(groups, unscored=[e.index for e in epochs[0][0]])
        return self.tools.run_passes(update, objective, epochs, watch)

    def metrics(self, groups: Sequence[Episode]) -> Metrics:
        return {} if self.critic is None else critic_metrics(groups)

    def conclude(self, update: int, values: Metrics, trained: bool) -> None:
        control = self.config.ppo.kl_control
        if control is not None:
            self.kl_coefficient = AdaptiveKl(control.target, control.horizon).next(
                self.kl_coefficient,
                values.get("policy/kl_per_answer"),
                self.config.ppo.rollout_batch_size,
            )
        if not trained:
            words = f"every answer got the reward {values['reward/mean']:.3g}: nothing to learn"
            self.tools.monitor.event(Event("info", "update_skipped", words, update))

    def state(self) -> State:
        critic = None if self.critic is None else self.critic.state()
        return {"kl_coefficient": self.kl_coefficient, "critic": critic}

    def load_state(self, state: State) -> None:
        self.kl_coefficient = state["kl_coefficient"]
        if self.critic is not None:
            self.critic.load_state(state["critic"])

    # -- scoring ---------------------------------------------------------------------------------

    @property
    def _penalised_reward(self) -> bool:
        return self.config.ppo.kl_anchor == "reference" and self.config.ppo.kl_coefficient > 0

    @property
    def _scores_first(self) -> bool:
        """Whether advantages need values or a penalty. Otherwise answers are scored only once they
        are trained on, and those of the first step by that step itself."""
        return self.critic is not None or self._penalised_reward

    def _score(self, episodes: Sequence[Episode], unscored: Collection[int]) -> None:
        """What wrote the answers, and the initial policy where the reward is penalised."""
        score_episodes(
            self.tools.learner,
            episodes,
            unscored=unscored,
            features=_DTYPES[self.config.ppo.critic.feature_dtype] if self.critic else None,
            with_reference=self._penalised_reward,
            on_progress=self.tools.progress("score"),
        )

    def _values(self, episodes: Sequence[Episode]) -> Tensor | None:
        if self.critic is None:
            return None
        with torch.no_grad():
            return self.critic.values(_features(episodes))

    def _steps(self, update: int, episodes: Sequence[Episode], epoch: int) -> list[list[Episode]]:
        """The answers of each optimizer step of a pass: as many steps as configured, of like
        size."""
        section = self.config.ppo
        order = shuffled(episodes, section.sampling.seed, update, epoch)
        size, more = divmod(len(order), section.minibatches)
        stops = [size * (i + 1) + min(i + 1, more) for i in range(section.minibatches)]
        return [order[a:b] for a, b in zip([0, *stops[:-1]], stops, strict=True)]

    def _open_critic(self) -> Critic | None:
        section, learner = self.config.ppo.critic, self.tools.learner
        width, device = learner.decoder.architecture.width, learner.decoder.device
        if not section.enabled:
            return None
        if section.kind == "shared":
            critic = SharedCritic(width, device=device)
            learner.train_too(critic.parameters())
            return critic
        return ProbeCritic(width, lr=section.value_lr, epochs=section.value_epochs, device=device)


def _features(episodes: Sequence[Episode]) -> Tensor:
    return torch.cat([e.features for e in episodes if e.features is not None])
