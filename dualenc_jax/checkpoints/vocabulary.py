"""The tokenizer that belongs to a checkpoint."""

import os
import pathlib
from typing import Any

from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from dualenc_jax.checkpoints.weights import Weights
from dualenc_jax.data.text.tokenizer import (
  SPECIAL_TOKENS,
  Tokenizer,
  Vocabulary,
)
from dualenc_jax.utils.errors import UserError

# A ModelProto, whose class is made at run time.
Model = Any
# Settings that the ids of a text depend on, beside the pieces.
_SETTINGS = {
    'normalizer_spec': (
        'precompiled_charsmap',
        'add_dummy_prefix',
        'remove_extra_whitespaces',
        'escape_whitespaces',
    ),
    'trainer_spec': (
        'model_type', 'byte_fallback', 'treat_whitespace_as_suffix'
    ),
}


def make_tokenizer(
    weights: Weights, vocabulary: str | os.PathLike[str] | None = None,
    query_length: int | None = None, passage_length: int | None = None,
) -> Tokenizer:
  """The tokenizer of a checkpoint; arguments as of `loading.load`."""
  usage = weights.usage
  path = usage.vocabulary if vocabulary is None else vocabulary
  if path is None:
    raise UserError(
        f'{weights} comes without a SentencePiece file. Give the one that it'
        ' was trained with, --vocabulary=spiece.model (from Python,'
        ' vocabulary=).'
    )
  chosen = Vocabulary(os.fspath(path), **usage.special_tokens)
  check_same_vocabulary(weights, chosen)
  lengths = {'query_length': query_length, 'passage_length': passage_length}
  facts = usage.facts() | {n: k for n, k in lengths.items() if k is not None}
  try:
    tokenizer = Tokenizer(chosen, **{
        n: fact for n, fact in facts.items()
        if fact is not None and n not in SPECIAL_TOKENS
    })
  except UserError as e:
    raise UserError(f'{weights}: {e}') from e
  check_lengths(weights, tokenizer)
  return tokenizer


def check_lengths(weights: Weights, tokenizer: Tokenizer) -> None:
  """Raises UserError where a text may be longer than a model has positions."""
  longest = max(tokenizer.query_length, tokenizer.passage_length)
  if weights.max_length is not None and longest > weights.max_length:
    raise UserError(
        f'{weights} has positions for texts of {weights.max_length:,} tokens,'
        f' but the lengths are {tokenizer.query_length:,} (queries) and'
        f' {tokenizer.passage_length:,} (passages). Lower QUERY_LENGTH or'
        ' PASSAGE_LENGTH (--query_length, --passage_length).'
    )


def check_same_vocabulary(weights: Weights, vocabulary: Vocabulary) -> None:
  """Compares a vocabulary with that of a checkpoint.

  A SentencePiece file beside the checkpoint is compared in all that ids depend
  on, a tokenizer.json in its pieces, and a T5X checkpoint, which has neither,
  in its number of rows. Either may have more pieces, T5's extra ids. BOS and
  EOS are compared, too.
  """
  for name, value in weights.usage.special_tokens.items():
    if getattr(vocabulary, name) != value:
      raise UserError(
          f'{weights} reads texts with {name}={value}, but Vocabulary.{name} is'
          f' {not value}. Give --gin.data.Vocabulary.{name}={value}.'
      )
  for name in ('token_embedder', 'passage_token_embedder'):
    tensor = weights.tensors.get(f'{name}/embedding')
    # T5 pads its table to a multiple of 128 rows, beyond 100 extra ids.
    if tensor and not 0 <= tensor.shape[0] - vocabulary.size < 256:
      raise UserError(
          f'{weights} has {tensor.shape[0]} token embeddings ({name}), but the'
          f' vocabulary {vocabulary.path} has {vocabulary.size} pieces;'
          ' expected as many, or up to 255 less. Give the vocabulary that it'
          ' was trained with.'
      )
  beside, pieces = weights.usage.vocabulary, weights.usage.pieces
  model = read_model(vocabulary.file)
  mine = [(p.piece, p.type, p.score) for p in model.pieces]
  problem = None
  if beside is not None:
    other = read_model(beside)
    theirs = [(p.piece, p.type, p.score) for p in other.pieces]
    if mine != theirs[: len(mine)]:
      problem = 'pieces differ'
    for part, names in _SETTINGS.items():
      for name in names:
        one, two = (getattr(getattr(m, part), name) for m in (model, other))
        if one != two:
          problem = f'{part}.{name} differs'
  elif pieces is not None:
    if [piece for piece, _, _ in mine] != list(pieces[: len(mine)]):
      problem = 'pieces differ'
  if problem:
    raise UserError(
        f'{weights} was made for another vocabulary than {vocabulary.path}:'
        f' {problem}. Give its own vocabulary'
        f'{f", {beside}" if beside else ""}.'
    )


def read_model(file: pathlib.Path) -> Model:
  """Reads a SentencePiece file as its proto; UserError if it is not one."""
  try:
    model = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    model.ParseFromString(file.read_bytes())
    return model
  except (OSError, DecodeError) as e:
    raise UserError(f'{file} is not a SentencePiece model: {e}.') from e
