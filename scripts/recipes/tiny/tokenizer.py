"""Trains a byte-level BPE tokenizer whose vocabulary holds the corpus's words whole.

Text is split so that a line break always stands alone and no special token is merged with other text. Two pieces that
meet at a line break or at a special token therefore give the same ids whether they are tokenised separately or joined.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END_OF_TEXT, TURN_START, TURN_END)
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

# The pattern matches a line break; a number of at most two digits; a word; one punctuation mark; or one blank.
_PIECES = r"\n| ?\p{N}{1,2}| ?\p{L}+| ?[^\s\p{L}\p{N}]|\s"


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    cut = pre_tokenizers.Split(Regex(_PIECES), behavior="isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def build_tokenizer(
    texts: Iterable[str], template: str, size: int = 1024, merged: int = 384
) -> PreTrainedTokenizerFast:
    """Trains the tokenizer on ``texts``.

    ``merged`` ids are used for bytes and for pieces of words, learned as BPE merges. The rest of ``size``, except the
    special tokens, is used for the most frequent whole words. A whole word is looked up before any merge is applied.

    Raises:
        ValueError: ``size`` leaves no room for whole words.
    """
    room = size - merged - len(SPECIAL) - len(MARKS)
    if merged < 256 or room < 1:
        raise ValueError(
            f"size {size} must exceed merged {merged} by more than {len(SPECIAL) + len(MARKS)}; "
            "merged must be at least 256"
        )
    cutter = _pre_tokenizer()
    counts = Counter(piece for text in texts for piece, _ in cutter.pre_tokenize_str(text))

    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = cutter
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=merged, initial_alphabet=alphabet, show_progress=False)
    # Each distinct word counts once, because merges serve the words that the vocabulary does not hold whole.
    decode = decoders.ByteLevel()
    pieces.train_from_iterator((decode.decode([piece]) for piece in sorted(counts)), trainer)
    learned = pieces.get_vocab(with_added_tokens=False)
    merges = [tuple(pair) for pair in json.loads(pieces.to_str())["model"]["merges"]]

    words = sorted((p for p in counts if p not in learned), key=lambda p: (-counts[p], p))[:room]
    vocab = {token: i for i, token in enumerate([*SPECIAL, *sorted(learned, key=learned.__getitem__), *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = cutter
    tokenizer.decoder = decode
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        chat_template=template,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )
