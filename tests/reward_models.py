"""Small reward models that a test trains and saves: an answer should say that the wall is red."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from trainer.chat.messages import Message, PromptLine
from trainer.reward.exchange import RewardRequest

COLOURS = ("red", "blue", "green", "black")
STEPS = 60
TURNS = ("<|turn|>", "<|end|>", "<|start|>")
TEMPLATE = (
    "<|start|>{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
TEXTS = [
    "user assistant system Paint it The wall is Be brief now What is your answer",
    *(f"Paint it {colour} now, please. It is {colour}." for colour in COLOURS),
]


def requests(question: str, *answers: str, line: int = 3) -> list[RewardRequest]:
    prompt = PromptLine(line, (Message("user", question),), {}, None, question)
    return [RewardRequest(prompt, answer) for answer in answers]


def train_chat_scorer(folder: Path) -> Path:
    """A decoder with one label and a chat template, which has no padding."""
    tokenizer = chat_tokenizer()
    torch.manual_seed(0)
    model = LlamaForSequenceClassification(llama_config(tokenizer, num_labels=1))

    def loss(logits: torch.Tensor, good: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(logits[:, 0], good.float())

    def ids(question: str, answer: str) -> list[int]:
        messages = [("user", question), ("assistant", answer)]
        text = "<|start|>" + "".join(f"<|turn|>{role}\n{text}<|end|>" for role, text in messages)
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    _train(model, loss, [(ids(q, a), None, good) for q, a, good in _examples()])
    return save(folder, model, tokenizer)


def train_pair_scorer(folder: Path) -> Path:
    """An encoder with two labels that reads a pair of texts."""
    tokenizer = pair_tokenizer()
    torch.manual_seed(0)
    model = BertForSequenceClassification(bert_config(tokenizer, num_labels=2))
    rows = []
    for question, answer, good in _examples():
        encoded = tokenizer(question, answer)
        rows.append((encoded["input_ids"], encoded["token_type_ids"], good))
    _train(model, torch.nn.functional.cross_entropy, rows)
    return save(folder, model, tokenizer)


def llama_config(tokenizer: PreTrainedTokenizerFast, **options: object) -> LlamaConfig:
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return LlamaConfig(
        vocab_size=len(tokenizer),
        num_attention_heads=4,
        max_position_embeddings=64,
        pad_token_id=None,
        **shape | options,
    )


def bert_config(tokenizer: PreTrainedTokenizerFast, **options: object) -> BertConfig:
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    return BertConfig(
        vocab_size=len(tokenizer),
        num_attention_heads=4,
        max_position_embeddings=32,
        pad_token_id=tokenizer.pad_token_id,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **shape | options,
    )


def chat_tokenizer(template: str | None = TEMPLATE) -> PreTrainedTokenizerFast:
    """Bytes and a few merges; no padding."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=list(TURNS),
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<|start|>", eos_token="<|end|>"
    )
    tokenizer.chat_template = template
    return tokenizer


def pair_tokenizer() -> PreTrainedTokenizerFast:
    """Words and characters in lower case, and BERT's form for pairs."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.train_from_iterator(
        [text.lower() for text in TEXTS],
        trainers.WordPieceTrainer(
            vocab_size=200,
            special_tokens=special,
            initial_alphabet=list("abcdefghijklmnopqrstuvwxyz.,?[]"),
            show_progress=False,
        ),
    )
    inner.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def save(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast | None = None
) -> Path:
    logging.disable_progress_bar()
    try:
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
    finally:
        logging.enable_progress_bar()
    return folder


def _examples() -> list[tuple[str, str, bool]]:
    """Questions, answers, and whether the answer says red, whatever the question does."""
    forms = ("{}", "It is {}.", "The wall is {} now.")
    return [
        (f"Paint it {asked}, please.", form.format(given), given == "red")
        for asked, given, form in itertools.product(COLOURS, COLOURS, forms)
    ]


def _train(model: PreTrainedModel, loss_of, rows: list[tuple[list[int], list[int] | None, bool]]):
    """Full batches, filled up with an id that no text holds."""
    used = {token for ids, _, _ in rows for token in ids}
    filler = next(token for token in range(model.config.vocab_size) if token not in used)
    longest = max(len(ids) for ids, _, _ in rows)

    def filled(parts: list[list[int]], filler: int) -> torch.Tensor:
        return torch.tensor([part + [filler] * (longest - len(part)) for part in parts])

    arguments = {
        "input_ids": filled([ids for ids, _, _ in rows], filler),
        "attention_mask": filled([[1] * len(ids) for ids, _, _ in rows], 0),
    }
    if rows[0][1] is not None:
        arguments["token_type_ids"] = filled([types for _, types, _ in rows], 0)
    good = torch.tensor([int(good) for _, _, good in rows])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    kept, model.config.pad_token_id = model.config.pad_token_id, filler
    model.train()
    for _ in range(STEPS):
        loss = loss_of(model(**arguments).logits, good)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    model.config.pad_token_id = kept
