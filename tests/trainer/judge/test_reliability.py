"""What the costlier strategy gives for its requests."""

from __future__ import annotations

import json

from judge_server import eight, numbers, opened, quality, says, scores

from trainer.judge.scores import kendall_tau


def unsure(request):
    """Sees each answer's quality, from 1 to 8, with an error of 2.5 that is new in every request,
    whether it is shown all answers or two."""
    rng = request.rng()
    if request.pairwise:
        seen = {name: quality(text) + rng.gauss(0, 2.5) for name, text in request.answers().items()}
        return says(json.dumps({"better": max(seen, key=seen.__getitem__)}))
    return scores(
        request, lambda text, _: min(1.0, max(0.0, 0.5 + (quality(text) + rng.gauss(0, 2.5)) / 30))
    )


def test_pairwise_ranks_better_and_costs_more_requests(serve):
    server = serve(unsure)
    groups = [eight(f"question {n}") for n in range(12)]
    known = [quality(answer) for answer in groups[0].answers]
    requests, agreement = {}, {}
    for mode in ("listwise", "pairwise"):
        judge = opened(server.url, strategy={"mode": mode}, max_concurrency=16)
        judgement = judge.judge(groups)
        taus = [kendall_tau(known, numbers(ruling)) for ruling in judgement.rulings]
        requests[mode] = judgement.metrics["judge/requests"]
        agreement[mode] = sum(taus) / len(taus)
    # 8 · 7 / 2 pairs in both orders
    assert requests == {"listwise": 12, "pairwise": 12 * 56}
    assert agreement["pairwise"] > agreement["listwise"] + 0.1
