"""The tokenizer that belongs to a checkpoint."""

from collections.abc import Iterator, Sequence
import hashlib
import os
import pathlib
from typing import Any

from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from dualenc_jax.checkpoints.weights import Weights
from dualenc_jax.data.text.tokenizer import Tokenizer, Vocabulary
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
  chosen = Vocabulary(os.fspath(path))
  check_same_vocabulary(weights, chosen)
  lengths = {'query_length': query_length, 'passage_length': passage_length}
  facts = usage.facts() | {n: k for n, k in lengths.items() if k is not None}
  try:
    return Tokenizer(
        chosen, **{n: fact for n, fact in facts.items() if fact is not None}
    )
  except UserError as e:
    raise UserError(f'{weights}: {e}') from e


def check_same_vocabulary(weights: Weights, vocabulary: Vocabulary) -> None:
  """Compares a vocabulary with that of a checkpoint.

  A SentencePiece file beside the checkpoint is compared in all that ids depend
  on, a tokenizer.json in its pieces, and a T5X checkpoint, which has neither,
  in its number of rows. Either may have more pieces, T5's extra ids.
  """
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
  theirs: list[tuple[Any, ...]]
  if beside is not None:
    if hashlib.sha256(beside.read_bytes()).hexdigest() == vocabulary.sha256:
      return
    other = read_model(beside)
    theirs = [(p.piece, p.type, p.score) for p in other.pieces]
  elif pieces is not None:
    other, theirs = None, [(piece,) for piece in pieces]
  else:
    return
  mine = read_model(vocabulary.file)
  for difference in _find_differences(mine, theirs, other):
    raise UserError(
        f'{weights} was made for another vocabulary than {vocabulary.path}:'
        f' {difference}. Give its own vocabulary'
        f'{f", {beside}" if beside else ""}.'
    )


def _find_differences(
    model: Model, theirs: Sequence[tuple[Any, ...]], other: Model | None
) -> Iterator[str]:
  """Yields why texts would get other ids.

  Args:
    model: the vocabulary that is given.
    theirs: text, and perhaps type and score, of the pieces of the checkpoint.
    other: its vocabulary with all settings, if known.
  """
  mine = [(p.piece, p.type, p.score) for p in model.pieces]
  for i, (a, b) in enumerate(zip(mine, theirs)):
    for name, x, y in zip(('text', 'type', 'score'), a, b):
      if x != y:
        yield f'the {name} of its piece {i} is {y!r}, not {x!r}'
  if len(theirs) < len(mine):
    yield f'it has {len(theirs)} pieces, not {len(mine)}'
  for part, names in _SETTINGS.items() if other else ():
    for name in names:
      if getattr(getattr(model, part), name) != getattr(
          getattr(other, part), name
      ):
        yield f'its {part}.{name} differs'


def read_model(file: pathlib.Path) -> Model:
  """Reads a SentencePiece file as its proto; UserError if it is not one."""
  try:
    model = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    model.ParseFromString(file.read_bytes())
    return model
  except (OSError, DecodeError) as e:
    raise UserError(f'{file} is not a SentencePiece model: {e}.') from e
