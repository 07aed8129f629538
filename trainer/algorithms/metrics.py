"""What an update's numbers are called, and how each is computed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import psutil
import torch
from torch import Tensor

from trainer.algorithms import losses
from trainer.algorithms.episodes import Episode
from trainer.algorithms.gae import explained_variance
from trainer.algorithms.groups import Group
from trainer.algorithms.objectives import PassStats
from trainer.config.training import TrainingSection
from trainer.model.learner import PassCounts

Metrics = dict[str, float]


def reward_metrics(groups: Sequence[Group]) -> Metrics:
    """Over every sampled answer; ``reward/mean`` and its kin are of the rewards that are trained
    on (after the overlong penalty), ``reward/verifiable_mean`` of what program and reward model
    gave."""
    rewards = torch.cat([g.rewards for g in groups]).double()
    raw = [r.reward for g in groups for r in g.replies]
    values = {
        "reward/mean": float(rewards.mean()),
        "reward/min": float(rewards.min()),
        "reward/max": float(rewards.max()),
        "reward/std": float(rewards.std(correction=0)),
        "reward/verifiable_mean": float(np.mean(raw)),
    }
    parts: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        for reply in group.replies:
            for name, value in reply.parts.items():
                parts[name].append(value)
    return values | {
        f"reward/parts/{n}": float(torch.tensor(v, dtype=torch.float64).mean())
        for n, v in parts.items()
    }


def completion_metrics(groups: Sequence[Group]) -> Metrics:
    """Over every sampled answer; a duplicate is an answer whose ids another of its group has, or,
    where every prompt has one answer, another of the update."""
    lengths = [len(a.tokens) for g in groups for a in g.answers]
    sets = [[a.tokens.tobytes() for a in g.answers] for g in groups]
    if all(len(s) == 1 for s in sets):
        sets = [[s[0] for s in sets]]
    distinct = sum(len(set(s)) for s in sets)
    return {
        "completions/length_mean": float(np.mean(lengths)),
        "completions/length_min": float(min(lengths)),
        "completions/length_max": float(max(lengths)),
        "completions/truncation_fraction": float(
            np.mean([a.truncated for g in groups for a in g.answers])
        ),
        "completions/duplicate_fraction": 1.0 - distinct / len(lengths),
    }


def batch_metrics(groups: Sequence[Group]) -> Metrics:
    """How much of what was sampled is trained on, and the size of its answers' advantages."""
    trained = [g for g in groups if g.trainable]
    count = sum(len(g.answers) for g in groups)
    sizes = [float(g.advantages[g.live].abs().sum()) for g in trained]
    answers = sum(len(g.members) for g in trained)
    return {
        "batch/trained_fraction": answers / count,
        "batch/advantage_abs_mean": sum(sizes) / answers if answers else 0.0,
    }


def group_metrics(groups: Sequence[Group]) -> Metrics:
    """What only groups of several answers have. ``zero_std_group_fraction``: groups without signal,
    whose live rewards are all equal or of which fewer than two answers count."""
    stds = [float(g.rewards.double().std(correction=0)) for g in groups]
    return {
        "reward/group_std": float(np.mean(stds)),
        "batch/zero_std_group_fraction": float(np.mean([not g.trainable for g in groups])),
    } | _judge_terms(groups)


def _judge_terms(groups: Sequence[Group]) -> Metrics:
    """``reward/judge_mean``: what the judge added to a reward, over the groups that it judged."""
    terms = [
        g.judge_terms
        for g in groups
        if g.judge_terms is not None and g.ruling is not None and g.ruling.failure is None
    ]
    return {"reward/judge_mean": float(torch.cat(terms).mean())} if terms else {}


def critic_metrics(episodes: Sequence[Episode]) -> Metrics:
    """Of the values that the advantages were taken with, so before the critic learnt from this
    batch. ``explained_variance`` is left out where rewards or returns are all equal: there is
    nothing to foresee. ``feature_mib`` is what the kept states take, in MiB."""
    values = torch.cat([e.estimate.values for e in episodes])
    returns = torch.cat([e.estimate.returns for e in episodes])
    kept = sum(e.features.nbytes for e in episodes if e.features is not None)
    explained = explained_variance(values, returns)
    told = episodes[0].trainable and not math.isnan(explained)
    return {
        "policy/value_loss": 0.5 * float((values - returns).square().mean()),
        "critic/value_mean": float(values.mean()),
        "critic/feature_mib": kept / 2**20,
    } | ({"critic/explained_variance": explained} if told else {})


def policy_metrics(
    passes: Sequence[PassStats], kl_coefficient: float, learning_rate: float, steps: int
) -> Metrics:
    """Averages over the update's passes, except where a name says otherwise: ``approx_kl`` is of
    the last pass, ``entropy`` of the first (the policy that generated, but for the steps of that
    pass), ``ratio_max`` over all."""
    first, last = passes[0], passes[-1]
    tokens = sum(p.tokens for p in passes)
    values = {
        "policy/surrogate_loss": sum(p.surrogate for p in passes) / tokens,
        "policy/total_loss": float(np.mean([p.loss / len(p.norms) for p in passes])),
        "policy/approx_kl": last.drift / last.tokens,
        "policy/clip_fraction": float(np.mean([p.clip_fraction for p in passes])),
        "policy/clip_fraction_low": float(np.mean([p.clipped_low / p.tokens for p in passes])),
        "policy/clip_fraction_high": float(np.mean([p.clipped_high / p.tokens for p in passes])),
        "policy/entropy": first.entropy / first.tokens,
        "policy/ratio_max": max(p.ratio_max for p in passes),
        "optimizer/learning_rate": learning_rate,
        "optimizer/grad_norm": float(np.mean([n for p in passes for n in p.norms])),
        "optimizer/step": float(steps),
    }
    if any(p.value_loss for p in passes):
        values["policy/value_loss"] = sum(p.value_loss for p in passes) / tokens
    if kl_coefficient > 0:
        values["policy/kl"] = sum(p.kl for p in passes) / tokens
        values["policy/kl_coefficient"] = kl_coefficient
    return values


def reference_metrics(groups: Sequence[Group]) -> Metrics:
    """How far the policy that generated has moved from the initial one: k3 summed over an answer,
    in nats, averaged over the answers that were scored."""
    sums = [
        float(losses.k3(old, reference).sum())
        for g in groups
        if g.old is not None and g.reference is not None
        for old, reference in zip(g.old, g.reference, strict=True)
    ]
    return {"policy/kl_per_answer": float(np.mean(sums))} if sums else {}


def sampler_metrics(groups: Sequence[Group], training: TrainingSection) -> Metrics:
    """The gap between the trainer's and the sampler's log-probabilities of the trained tokens, and
    k3 of the sampler toward the trainer."""
    old = [t for g in groups for t in g.old or []]
    if not old:
        return {}
    mine = torch.cat(old)
    theirs = torch.cat([t for g in groups if g.old for t in g.sampler_logprobs(mine.device)])
    gap = (mine - theirs).abs()
    values = {
        "sampler/logprob_gap_mean": float(gap.mean()),
        "sampler/logprob_gap_max": float(gap.max()),
        "sampler/kl": float(losses.k3(theirs, mine).mean()),
    }
    if training.importance_correction == "token":
        capped: Tensor = losses.bounded(mine - theirs).exp() > training.importance_cap
        values["sampler/correction_capped_fraction"] = float(capped.float().mean())
    return values


def packing_metrics(counts: PassCounts) -> Metrics:
    """``shared_prefix_fraction`` is the part of the rows that sharing prompts saved,
    ``padding_fraction`` the part of the attention's answer rows that are padding."""
    if not counts.passes:
        return {}
    padding = 1.0 - counts.suffix_rows / counts.block_rows if counts.block_rows else 0.0
    return {
        "packing/fanout": counts.answers / counts.passes,
        "packing/passes": float(counts.passes),
        "packing/shared_prefix_fraction": 1.0 - counts.rows / counts.unpacked_rows,
        "packing/padding_fraction": padding,
    }


def throughput_metrics(
    groups: Sequence[Group], timing: Mapping[str, float], trained_tokens: int
) -> Metrics:
    """Answer tokens a second, sampled and trained (each pass counts)."""
    sampled = sum(len(a.tokens) for g in groups for a in g.answers)
    values = {
        "throughput/generate_tokens_per_second": sampled / max(timing["generate"], 1e-9),
    }
    if trained_tokens:
        values["throughput/train_tokens_per_second"] = trained_tokens / max(timing["train"], 1e-9)
    return values


def system_metrics(process: psutil.Process) -> Metrics:
    """``cpu_percent`` is of one core, over the time since the last call."""
    values = {
        "system/rss_bytes": float(process.memory_info().rss),
        "system/cpu_percent": process.cpu_percent(),
    }
    if torch.cuda.is_available():
        values["system/gpu_bytes"] = float(torch.cuda.memory_allocated())
    return values
