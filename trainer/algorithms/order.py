"""Which prompt comes next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from trainer.chat.messages import Prompt


class PromptOrder:
    """An endless walk over the prompts, as a function of position alone.

    ``sequential`` repeats the file's order; ``shuffled`` walks the file in a new order each time
    round. Nothing depends on what was asked before, so a run can go on from any position.
    """

    def __init__(
        self, prompts: Sequence[Prompt], order: Literal["sequential", "shuffled"], seed: int
    ) -> None:
        self._prompts = prompts
        self._order = order
        self._seed = seed

    def at(self, position: int) -> Prompt:
        """The prompt at ``position``, counted from 0."""
        lap, place = divmod(position, len(self._prompts))
        if self._order == "shuffled":
            shuffled = np.random.default_rng((self._seed, lap)).permutation(len(self._prompts))
            place = int(shuffled[place])
        return self._prompts[place]
