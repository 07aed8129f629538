"""The metric guide: for each metric worth watching its healthy band, and when and how to act.

Ordered by importance. The bands are starting points from the field, not laws; what is bad is set so
that a run that learns stays silent.
"""

from __future__ import annotations

from dataclasses import replace

from trainer.health.rules import (
    Above,
    Band,
    Below,
    Fallen,
    Jump,
    Metric,
    NotRisen,
    OverStart,
    Rule,
    UnderStart,
    Zero,
)


def _both(text: str) -> dict[str, str]:
    """``text`` for both algorithms, ALG standing for the name of the section."""
    return {name: text.replace("ALG", name) for name in ("grpo", "ppo")}


_LARGE_STEPS = Rule(
    Above(0.5),
    "The policy moves so far in one update that half of what it samples no longer counts.",
    {
        "grpo": "Lower training.lr, or grpo.grpo_epochs.",
        "ppo": "Lower training.lr, ppo.ppo_epochs or ppo.minibatches.",
    },
)
_SMALL_STEPS = Rule(
    Zero(20),
    "The policy hardly moves.",
    {
        "grpo": "Raise training.lr, or grpo.grpo_epochs.",
        "ppo": "Raise training.lr, or ppo.ppo_epochs.",
    },
    lasting=5,
    unless_learning=True,
    needs_steps=True,
)
_SMALL_STEPS_OF_SEQUENCES = replace(
    _SMALL_STEPS,
    what="No answer meets the clip ranges, which have to be far narrower for ratios of answers.",
    change={
        "grpo": "Lower grpo.clip_range_low and grpo.clip_range_high, to 0.0003 and 0.0004 for long "
        "answers; or raise training.lr."
    },
)
_CRITIC_MISLEADS = Rule(
    Below(-0.1, over=10, after=20),
    "The critic makes advantages noisier, not calmer.",
    {
        "ppo": "Lower ppo.critic.value_lr where its curve jumps; raise it or "
        "ppo.critic.value_epochs where it only creeps up."
    },
    unless_learning=True,
)
_SHARED_CRITIC_MISLEADS = replace(
    _CRITIC_MISLEADS,
    change={"ppo": 'Raise ppo.critic.value_loss_coefficient, or set ppo.critic.kind = "probe".'},
)
_MOST_ARE_CUT = Rule(
    Above(0.5, over=10),
    "Most answers are cut before they are finished.",
    {
        "grpo": "Raise grpo.sampling.max_new_tokens, add [grpo.overlong_penalty], or ask for short "
        "answers.",
        "ppo": "Raise ppo.sampling.max_new_tokens, or ask for short answers.",
    },
)
_EXPLAINED_VARIANCE = Metric(
    "critic/explained_variance",
    "How much of the returns the critic foresees: 1 all, 0 nothing, below 0 less than nothing.",
    Band("above 0.2 after 20 updates", low=0.2, high=1.0, after=20),
    (_CRITIC_MISLEADS,),
    algorithms=("ppo",),
)
_CLIP_MEANS = "Share of answer tokens that the clip kept from pushing the policy further."


def _audit(measure: str, means: str, what: str, reward: str) -> Metric:
    key = f"audit.{measure}_limit"
    change = _both(f"{reward} Or raise ALG.kl_coefficient.")
    change["ppo"] = f'{reward} Or raise ppo.kl_coefficient with ppo.kl_anchor = "reference".'
    return Metric(
        f"audit/{measure}",
        means,
        Band(f"up to `{key}`", low=0.0, high=key),
        (Rule(Above(key), what, change, quiet=True),),
    )


GUIDE: tuple[Metric, ...] = (
    Metric(
        "reward/mean",
        "Mean of the rewards that are trained on.",
        Band("rising over 20 updates", trend="rising"),
        (
            Rule(
                NotRisen(),
                "The run has not improved what the reward measures.",
                _both(
                    "Give partial credit so that answers differ in reward, raise training.lr, "
                    "lower ALG.kl_coefficient, or begin with a model that gets some answers right."
                ),
                lasting=5,
                unless_at_best=True,
            ),
            Rule(
                Fallen(),
                "The policy has lost much of what it had learnt, or prompts have become harder.",
                _both(
                    "Lower training.lr, end the run earlier with ALG.updates, or raise "
                    "ALG.kl_coefficient."
                ),
                lasting=5,
            ),
        ),
    ),
    Metric(
        "batch/zero_std_group_fraction",
        "Share of groups whose answers all score alike, from which nothing is learnt.",
        Band("under 0.5", low=0.0, high=0.5),
        (
            Rule(
                Above(0.8, over=10),
                "Most prompts teach nothing: they are too easy or too hard, or the reward is too "
                "coarse.",
                {
                    "grpo": "Give partial credit, choose prompts that the model gets right now and "
                    "then, or raise grpo.group_size."
                },
                lasting=5,
                unless_learning=True,
            ),
        ),
        algorithms=("grpo",),
    ),
    Metric(
        "reward/std",
        "Standard deviation of the rewards over the answers of an update.",
        Band("above 0", low=0.0),
        (
            Rule(
                Zero(10),
                "All answers of an update get the same reward, so there is nothing to learn from.",
                {
                    "ppo": "Give partial credit, or choose prompts that the model gets right now "
                    "and then."
                },
                lasting=5,
                unless_learning=True,
            ),
        ),
        algorithms=("ppo",),
    ),
    _audit(
        "verbosity",
        "Share of answers with more words than `audit.max_words`.",
        "Answers are long: length may be what the reward pays for.",
        "Read some; if so, stop paying for length.",
    ),
    _audit(
        "sycophancy",
        "Share of answers that open with flattery (`audit.openers`).",
        "Answers open with flattery: the scorer may like to be agreed with.",
        "Read some; score what is said, not how it pleases.",
    ),
    _audit(
        "repetition",
        "Share of answers that go round in circles.",
        "Answers go round in circles: repeating may be what the reward pays for.",
        "Read some; count a thing once, however often an answer says it.",
    ),
    Metric(
        "sampler/logprob_gap_mean",
        "Difference between llama.cpp's and the trainer's log-probabilities, nats per token.",
        Band("under 0.02", low=0.0, high=0.02),
        (
            Rule(
                Above(0.1),
                "Answers are drawn from another policy than the one that is trained.",
                _both(
                    'Set training.rollout_weights = "f16"; where it is so already, "f32", and '
                    "training.fast_sampling_context = false."
                ),
            ),
        ),
    ),
    Metric(
        "policy/clip_fraction",
        _CLIP_MEANS,
        Band("0.02 to 0.35", low=0.02, high=0.35),
        (_LARGE_STEPS, _SMALL_STEPS),
    ),
    Metric(
        "policy/clip_fraction",
        _CLIP_MEANS,
        Band("0.02 to 0.25", low=0.02, high=0.25),
        (_LARGE_STEPS, _SMALL_STEPS_OF_SEQUENCES),
        algorithms=("grpo",),
        when={"grpo.importance_sampling_level": "sequence"},
    ),
    Metric(
        "policy/kl_per_answer",
        "KL divergence from the initial policy, nats per answer.",
        Band("growing slowly, under 15", low=0.0, high=15.0, trend="slowly rising"),
        (
            Rule(
                Jump(25.0),
                "The policy has left the initial one all of a sudden.",
                _both("Lower training.lr, and raise ALG.kl_coefficient."),
            ),
            Rule(
                Above(25.0),
                "The policy is far from the initial one, where rewards are easily gamed.",
                _both("Raise ALG.kl_coefficient, or lower training.lr."),
            ),
        ),
    ),
    Metric(
        "policy/kl_per_answer",
        "KL divergence from the initial policy, nats per answer.",
        Band("near `ppo.kl_control.target`", low=0.0, trend="steady"),
        (
            Rule(
                Above("ppo.kl_control.target", over=20, times=2.0),
                "The penalty does not hold the policy at its target.",
                {
                    "ppo": "Lower ppo.kl_control.horizon so that the coefficient adapts sooner, "
                    "raise ppo.kl_coefficient, or lower training.lr."
                },
            ),
        ),
        algorithms=("ppo",),
        when={"ppo.kl_control.target": None},
    ),
    Metric(
        "policy/kl",
        "KL divergence from the initial policy, nats per token.",
        Band("near `grpo.kl_schedule.target`", low=0.0, trend="steady"),
        (
            Rule(
                Above("grpo.kl_schedule.target", over=20, times=2.0),
                "The penalty does not hold the policy at its target.",
                {"grpo": "Raise grpo.kl_coefficient, or lower training.lr."},
            ),
        ),
        algorithms=("grpo",),
        when={"grpo.kl_schedule.target": None},
    ),
    Metric(
        "policy/entropy",
        "How undecided the policy is at each token, in nats.",
        Band("falling slowly", low_of_start=1 / 3, trend="slowly falling"),
        (
            Rule(
                UnderStart(1 / 3),
                "The policy has settled on its answers before the reward was got, and hardly "
                "explores.",
                {
                    "grpo": "Raise grpo.clip_range_high, lower training.lr, or raise "
                    "grpo.kl_coefficient.",
                    "ppo": "Raise ppo.entropy_coefficient, lower training.lr, or raise "
                    'ppo.kl_coefficient with ppo.kl_anchor = "reference".',
                },
                lasting=5,
                unless_learning=True,
            ),
        ),
    ),
    Metric(
        "completions/truncation_fraction",
        "Share of answers that were cut at `max_new_tokens`.",
        Band("under 0.2", low=0.0, high=0.2),
        (
            # Runs may be short. A run may well begin with half of its answers cut, and learn.
            replace(_MOST_ARE_CUT, test=Above(0.8, over=10, after=2)),
            _MOST_ARE_CUT,
        ),
    ),
    _EXPLAINED_VARIANCE,
    replace(
        _EXPLAINED_VARIANCE,
        rules=(_SHARED_CRITIC_MISLEADS,),
        when={"ppo.critic.kind": "shared"},
    ),
    Metric(
        "policy/value_loss",
        "The critic's squared error, on the rewards' own scale.",
        Band("falling over the first 100 updates", low=0.0, trend="falling"),
        (),  # no number is too large on every scale; critic/explained_variance has none
        algorithms=("ppo",),
    ),
    Metric(
        "audit/words_mean",
        "Mean number of words of an answer.",
        Band("steady, unless the task asks for more", low=0.0, trend="steady"),
        (
            Rule(
                OverStart(4.0, least=100.0),
                "Answers have become several times as long as they were.",
                _both("Read some; if they are padded, stop paying for length."),
            ),
        ),
    ),
    Metric(
        "sft/loss",
        "Mean of −log p over the tokens that a step learns, in nats.",
        Band("falling", low=0.0, trend="falling"),
        (
            Rule(
                OverStart(1.5, least=0.0),
                "Training makes the texts less likely instead of more.",
                {"sft": "Lower training.lr, or raise training.warmup_steps."},
            ),
        ),
        algorithms=("sft",),
    ),
)
