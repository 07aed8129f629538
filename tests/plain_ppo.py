"""PPO written out in plain torch: whole texts one by one, sums over sums, descent by hand.

It knows of the product's code the decoder, the adapter and the prompts alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from trainer.config import PpoConfig
from trainer.gguf.file import GgufFile
from trainer.gguf.tensors import select_targets
from trainer.inputs import read_inputs
from trainer.model.adapter import Adapter
from trainer.model.decoder import Decoder
from trainer.model.packing import pack_text
from trainer.monitor.protocol import GroupRecord, Trajectory

CPU = torch.device("cpu")


@dataclass
class Numbers:
    """What an update came to, each answer by itself where it is a list."""

    values: list[Tensor]
    returns: list[Tensor]
    advantages: list[Tensor]
    kl_per_answer: float
    kl_coefficient: float
    norms: list[float] = field(default_factory=list)


class PlainProbe:
    """V = u (w · (h − m) / (s √width) + b), by Adam written out; b learns ten times faster."""

    def __init__(self, width: int, lr: float, epochs: int) -> None:
        self.w, self.b = torch.zeros(width).double(), torch.zeros(()).double()
        self.rates, self.epochs = (lr, 10 * lr), epochs
        self.first = [torch.zeros(width).double(), torch.zeros(()).double()]
        self.second = [torch.zeros(width).double(), torch.zeros(()).double()]
        self.time = 0
        self.mean: Tensor | None = None
        self.unit = 0.0

    def see(self, states: Tensor) -> Tensor:
        h = states.double()
        if self.mean is None:
            self.mean = h.sum(0) / len(h)
            deviation = ((h - self.mean) ** 2).mean(0).sqrt()
            self.scale = torch.maximum(deviation, 0.01 * deviation.mean())
        return (h - self.mean) / self.scale / math.sqrt(h.shape[1])

    def values(self, states: Tensor) -> Tensor:
        return (self.unit * (self.see(states) @ self.w + self.b)).float()

    def fit(self, states: Tensor, returns: Tensor) -> None:
        x = self.see(states)
        if self.unit == 0.0:
            self.unit = math.sqrt(float((returns.double() ** 2).mean()))
        if self.unit == 0.0:
            return
        for _ in range(self.epochs):
            miss = x @ self.w + self.b - returns.double() / self.unit
            self.time += 1
            for i, gradient in enumerate(((miss[:, None] * x).mean(0), miss.mean())):
                self.first[i] = 0.9 * self.first[i] + 0.1 * gradient
                self.second[i] = 0.999 * self.second[i] + 0.001 * gradient**2
                m = self.first[i] / (1 - 0.9**self.time)
                v = self.second[i] / (1 - 0.999**self.time)
                move = self.rates[i] * m / (v.sqrt() + 1e-8)
                if i == 0:
                    self.w = self.w - move
                else:
                    self.b = self.b - move


class PlainPpo:
    """A run of ``config``, update by update on the answers that the product's own run drew."""

    def __init__(self, config: PpoConfig) -> None:
        self.config, self.ppo = config, config.ppo
        self.decoder = Decoder(GgufFile(config.model.path), CPU, context=config.training.ctx)
        architecture = self.decoder.architecture
        lora = config.lora
        self.adapter = Adapter(
            architecture,
            select_targets(architecture, lora.targets),
            rank=lora.rank,
            alpha=lora.alpha,
            seed=lora.seed,
            device=CPU,
        )
        self.prompts = [p.tokens for p in read_inputs(config).prompts]
        self.beta = self.ppo.kl_coefficient
        width, critic = architecture.width, self.ppo.critic
        self.head = [torch.zeros(width, requires_grad=True), torch.zeros((), requires_grad=True)]
        self.probe = PlainProbe(width, critic.value_lr, critic.value_epochs)
        self.updates = 0

    # -- the policy ------------------------------------------------------------------------------

    def states(self, i: int, adapter: Adapter | None) -> Tensor:
        """The states before each token of answer ``i``."""
        prompt, answer = self.asked[i], self.drawn[i].tokens.tolist()
        return self.decoder.states(pack_text([*prompt, *answer], CPU), adapter)[
            len(prompt) - 1 : -1
        ]

    def distributions(self, states: Tensor) -> Tensor:
        logits = states @ self.decoder.head.T / self.ppo.sampling.temperature
        return logits.log_softmax(-1)

    def logprobs(self, i: int, adapter: Adapter | None) -> Tensor:
        rows = self.distributions(self.states(i, adapter))
        tokens = torch.from_numpy(self.drawn[i].tokens).long()
        return rows[torch.arange(len(tokens)), tokens]

    # -- an update -------------------------------------------------------------------------------

    def update(self, groups: Sequence[GroupRecord]) -> Numbers:
        trajectories: list[Trajectory] = [t for g in groups for t in g.trajectories]
        count = len(trajectories)
        self.drawn = [t.answer for t in trajectories]
        self.asked = [
            self.prompts[(self.updates * count + i) % len(self.prompts)] for i in range(count)
        ]
        self.updates += 1
        with torch.no_grad():
            before = [self.states(i, self.adapter) for i in range(count)]
            self.old = [self.logprobs(i, self.adapter) for i in range(count)]
            self.initial = [self.logprobs(i, None) for i in range(count)]
        self.estimate(before, [t.reward_raw for t in trajectories])
        numbers = Numbers(self.values, self.returns, self.advantages, self.distance(), self.beta)
        rewards = {t.reward_raw for t in trajectories}
        if len(rewards) > 1 or count == 1 or self.penalised:
            self.passes(numbers)
        if self.ppo.critic.enabled and self.ppo.critic.kind == "probe":
            self.probe.fit(torch.cat(before), torch.cat(self.returns))
        self.control(numbers.kl_per_answer, count)
        return numbers

    @property
    def penalised(self) -> bool:
        return self.ppo.kl_anchor == "reference" and self.ppo.kl_coefficient > 0

    def estimate(self, before: Sequence[Tensor], rewards: Sequence[float]) -> None:
        """A_t as the sum over every later error, each with its own power of γλ."""
        critic = self.ppo.critic
        gamma, decay = critic.gamma, critic.gamma * critic.gae_lambda
        if not critic.enabled:
            gamma = decay = 1.0
        with torch.no_grad():
            self.values = list(self.value(torch.cat(before)).split([len(b) for b in before]))
        self.returns, raw = [], []
        for i, states in enumerate(before):
            length = len(states)
            v = [*self.values[i].tolist(), 0.0]
            r = [0.0] * (length - 1) + [rewards[i]]
            if self.penalised:
                away = (self.old[i] - self.initial[i]).tolist()
                r = [reward - self.beta * a for reward, a in zip(r, away, strict=True)]
            errors = [r[t] + gamma * v[t + 1] - v[t] for t in range(length)]
            a = [sum(decay ** (k - t) * errors[k] for k in range(t, length)) for t in range(length)]
            raw.append(torch.tensor(a))
            self.returns.append(raw[i] + self.values[i])
        if len(raw) == 1:
            self.advantages = raw
            return
        every = torch.cat(raw).double()
        deviation = math.sqrt(float(every.var()) + 1e-8)
        self.advantages = [((a.double() - every.mean()) / deviation).float() for a in raw]

    def value(self, states: Tensor) -> Tensor:
        critic = self.ppo.critic
        if not critic.enabled:
            return torch.zeros(len(states))
        return self.probe.values(states) if critic.kind == "probe" else self.judged(states)

    def judged(self, states: Tensor) -> Tensor:
        return states @ self.head[0] + self.head[1]

    def passes(self, numbers: Numbers) -> None:
        seed = self.ppo.sampling.seed
        for epoch in range(self.ppo.ppo_epochs):
            order = np.random.default_rng((seed, self.updates, epoch)).permutation(len(self.drawn))
            for step in np.array_split(order, self.ppo.minibatches):
                loss = sum(self.loss(i) for i in step) / len(step)
                numbers.norms.append(self.descend(loss))

    def loss(self, i: int) -> Tensor:
        """The mean over an answer's tokens."""
        ppo, critic, training = self.ppo, self.ppo.critic, self.config.training
        states = self.states(i, self.adapter)
        rows = self.distributions(states)
        tokens = torch.from_numpy(self.drawn[i].tokens).long()
        now, old = rows[torch.arange(len(tokens)), tokens], self.old[i]
        advantages = self.advantages[i]
        ratio = (now - old).exp()
        low, high = 1 - ppo.clip_range, 1 + ppo.clip_range
        terms = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
        if training.importance_correction == "token":
            weight = (old - torch.from_numpy(self.drawn[i].logprobs)).exp()
            terms = terms * weight.clamp(max=training.importance_cap)
        if ppo.kl_anchor == "rollout":
            terms = terms + ppo.kl_coefficient * ((old - now).exp() - 1 - (old - now))
        entropy = -(rows.exp() * rows).sum(-1)
        terms = terms - ppo.entropy_coefficient * entropy
        if critic.enabled and critic.kind == "shared":
            v, v_old, target = self.judged(states), self.values[i], self.returns[i]
            held = torch.minimum(
                torch.maximum(v, v_old - critic.value_clip_range), v_old + critic.value_clip_range
            )
            worse = torch.maximum((v - target) ** 2, (held - target) ** 2)
            terms = terms + critic.value_loss_coefficient * 0.5 * worse
        return terms.sum() / len(terms)

    def descend(self, loss: Tensor) -> float:
        """Plain descent; the adapter's gradient and the head's are limited each by itself."""
        sets = [list(self.adapter.parameters())]
        if self.ppo.critic.enabled and self.ppo.critic.kind == "shared":
            sets.append(self.head)
        gradients = torch.autograd.grad(loss, [p for s in sets for p in s])
        norms = []
        for parameters in sets:
            own, gradients = gradients[: len(parameters)], gradients[len(parameters) :]
            norm = math.sqrt(sum(float(g.square().sum()) for g in own))
            limited = min(1.0, self.config.training.max_grad_norm / norm) if norm else 1.0
            norms.append(norm)
            with torch.no_grad():
                for p, g in zip(parameters, own, strict=True):
                    p -= self.config.training.lr * limited * g
        return norms[0]

    # -- the distance from the initial policy ----------------------------------------------------

    def distance(self) -> float:
        sums = []
        for old, first in zip(self.old, self.initial, strict=True):
            d = (first - old).double()
            sums.append(float((d.exp() - 1 - d).sum()))
        return sum(sums) / len(sums)

    def control(self, measured: float, answers: int) -> None:
        control = self.ppo.kl_control
        if control is not None:
            error = max(-0.2, min(0.2, measured / control.target - 1))
            self.beta *= 1 + error * answers / control.horizon
