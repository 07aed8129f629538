"""A local sequence-classification model that scores answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.closing import Closing
from trainer.errors import ConfigError, RewardError, TemplateError
from trainer.reward.conversation import AnswerTooLongError, ConversationReader, ModelInput
from trainer.reward.exchange import RewardReply, RewardRequest
from trainer.reward.model_folder import load_folder
from trainer.reward.report import describe_request

if TYPE_CHECKING:
    import torch

PART = "reward_model"
"""The name of the model's score among the parts of a reply."""

# Tokens in one pass, padding included: enough to keep the cores busy, few enough for the memory.
_PASS_TOKENS = 2048


def open_reward_model(
    path: Path,
    weight: float,
    *,
    device: torch.device,
    on_note: Callable[[str], None] | None = None,
) -> RewardClassifier:
    """The model in the folder ``path``, on ``device``, in F32. Nothing is fetched, and no code that
    the folder may hold is run.

    ``on_note`` hears what is worth a line in a journal: which of two labels counts as the good
    one, weights that are left over, the first conversation that is cut.

    Raises:
        ConfigError: the package is missing, or the folder does not hold such a model.
    """
    note = on_note or _say_nothing
    try:
        loaded = load_folder(path)
        reader = ConversationReader(loaded.tokenizer, window=_window(loaded.model), name=str(path))
    except ConfigError as error:
        # A template's error is one too, of a subclass.
        raise ConfigError(f'The reward model (reward_model.path = "{path}"): {error}.') from error
    if loaded.unused:
        note(
            f"The reward model has no place for {len(loaded.unused)} tensors of its file, such as "
            f"{loaded.unused[0]}."
        )
    if len(loaded.labels) == 2:
        bad, good = loaded.labels
        note(f'The reward model\'s score is the log-odds of "{good}" against "{bad}".')
    return RewardClassifier(path, loaded.model.to(device), reader, weight, note)


class RewardClassifier(Closing):
    """Scores a conversation with its answer: reward = ``weight`` × score.

    With one label the score is its logit. With two it is the logit of the second less that of the
    first, which is the log-odds of the second.
    """

    def __init__(
        self,
        path: Path,
        model: Any,  # noqa: ANN401  transformers is untyped
        reader: ConversationReader,
        weight: float,
        note: Callable[[str], None],
    ) -> None:
        self._path = path
        self._model = model
        self._pad = _configured_pad(model)
        self._reader = reader
        self._weight = weight
        self._note = note
        self._told_of_cut = False

    def score(
        self,
        requests: Sequence[RewardRequest],
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[RewardReply]:
        """The replies, in the order of ``requests``.

        Raises RewardError for an answer that the model cannot read, or gives no number.
        """
        if self._model is None:
            raise RewardError("The reward model was closed and scores no further answers.")
        inputs = [self._read(request) for request in requests]
        replies: dict[int, RewardReply] = {}
        for batch in _batches([len(read.ids) for read in inputs]):
            scores = self._scores([inputs[place] for place in batch])
            for place, score in zip(batch, scores, strict=True):
                replies[place] = self._reply(requests[place], score)
            if on_progress is not None:
                on_progress(len(replies), len(requests))
        return [replies[place] for place in range(len(requests))]

    def close(self) -> None:
        """Gives the memory back."""
        self._model = None
        self._reader.close()

    def stderr_tail(self) -> str:
        """Nothing: a model has no stderr."""
        return ""

    def _read(self, request: RewardRequest) -> ModelInput:
        try:
            read = self._reader.read(request)
        except AnswerTooLongError as error:
            advice = "Lower max_new_tokens, or use a model that reads more"
            raise self._error(f"cannot read an answer: {error}", request, advice) from error
        except TemplateError as error:
            advice = "Take that prompt out, or use a model whose template accepts it"
            raise self._error(f"cannot read a conversation: {error}", request, advice) from error
        if read.cut and not self._told_of_cut:
            self._told_of_cut = True
            self._note(
                f"The reward model reads {len(read.ids)} tokens at most. The conversation on line "
                f"{request.prompt.line} of the prompts has more with its answer, so its beginning "
                "was cut, as it is for all that are too long."
            )
        return read

    def _scores(self, batch: Sequence[ModelInput]) -> list[float]:
        """The scores of ``batch``, in one pass."""
        import torch

        pad = self._pad
        if pad is None:
            pad = _absent_id(batch)
            # Decoders take the score at the last id that is not this one: alone or in a batch,
            # the last that was really there.
            self._model.config.get_text_config().pad_token_id = pad
        with torch.inference_mode():
            logits = self._model(**_padded(batch, pad, self._model.device)).logits
        score = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
        values: list[float] = score.tolist()
        return values

    def _reply(self, request: RewardRequest, score: float) -> RewardReply:
        if not math.isfinite(score):
            advice = "Its weights are damaged, or too large for F32"
            raise self._error(f"gave the score {score}", request, advice)
        return RewardReply(self._weight * score, {PART: score}, None)

    def _error(self, problem: str, request: RewardRequest, advice: str) -> RewardError:
        return RewardError(
            f'The reward model (reward_model.path = "{self._path}") {problem}. '
            f"{describe_request(request)} {advice}."
        )


def _say_nothing(_: str) -> None:
    return


def _window(model: Any) -> int | None:  # noqa: ANN401
    """The most tokens that the model has positions for; None where it does not say."""
    import torch

    window = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    for name, module in model.named_modules():
        # RoBERTa and its like count positions from the one after the padding's.
        if (
            name.endswith("position_embeddings")
            and isinstance(module, torch.nn.Embedding)
            and module.padding_idx is not None
        ):
            window = module.num_embeddings - module.padding_idx - 1
    return window if window and window > 0 else None


def _configured_pad(model: Any) -> int | None:  # noqa: ANN401
    """The id of the model's padding; some files hold one outside of the vocabulary for none."""
    pad = model.config.get_text_config().pad_token_id
    rows = model.get_input_embeddings().weight.shape[0]
    return pad if isinstance(pad, int) and 0 <= pad < rows else None


def _absent_id(batch: Sequence[ModelInput]) -> int:
    present = {token for read in batch for token in read.ids}
    return next(token for token in range(len(present) + 1) if token not in present)


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """The places of ``lengths``, shortest first, in batches of at most ``_PASS_TOKENS`` with their
    padding (a longer one is alone)."""
    batch: list[int] = []
    for place in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[place] > _PASS_TOKENS:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _padded(batch: Sequence[ModelInput], pad: int, device: torch.device) -> dict[str, torch.Tensor]:
    """``batch`` as the model's arguments, each of shape (rows, longest), filled up on the right."""
    import torch

    longest = max(len(read.ids) for read in batch)

    def filled(rows: Sequence[Sequence[int]], filler: int) -> torch.Tensor:
        padded = [[*row, *[filler] * (longest - len(row))] for row in rows]
        return torch.tensor(padded, dtype=torch.long, device=device)

    arguments = {
        "input_ids": filled([read.ids for read in batch], pad),
        "attention_mask": filled([[1] * len(read.ids) for read in batch], 0),
    }
    types = [read.types for read in batch if read.types is not None]
    if types:
        arguments["token_type_ids"] = filled(types, 0)
    return arguments
