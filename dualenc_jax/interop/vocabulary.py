"""The tokenizer of a checkpoint, of the vocabulary it was trained with."""

from collections.abc import Iterator, Sequence
import hashlib
import os
import pathlib

from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2

from dualenc_jax.errors import UserError
from dualenc_jax.interop.weights import Weights
from dualenc_jax.text.tokenizer import Tokenizer, Vocabulary

# What decides, beside the pieces, which ids a text gets.
_NORMALIZER = (
    'precompiled_charsmap',
    'add_dummy_prefix',
    'remove_extra_whitespaces',
    'escape_whitespaces',
)
_TRAINER = ('model_type', 'byte_fallback', 'treat_whitespace_as_suffix')


def make_tokenizer(
    weights: Weights,
    vocabulary: str | os.PathLike[str] | None = None,
    query_length: int | None = None,
    passage_length: int | None = None,
) -> Tokenizer:
  """The tokenizer of a checkpoint; arguments as of `loading.load`."""
  usage = weights.usage
  path = usage.vocabulary if vocabulary is None else vocabulary
  if path is None:
    raise UserError(
        f'{weights.path} ({weights.kind}) comes without a SentencePiece file'
        + (': a tokenizer.json is not enough' if usage.pieces else '')
        + '. Give the one that it was trained with, --vocabulary=spiece.model'
        ' (from Python, vocabulary=).'
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
    raise UserError(f'{weights.path} ({weights.kind}): {e}') from e


def check_same_vocabulary(weights: Weights, vocabulary: Vocabulary) -> None:
  """Compares a vocabulary with the one that lies beside a checkpoint.

  T5X checkpoints have none beside them; of these only the number of rows is
  known. Of a tokenizer.json pieces are compared, of a SentencePiece file all
  that decides about ids; either may have more pieces, T5's extra ids.

  Raises:
    UserError: they differ, or the vocabulary has more ids than the token
      embeddings have rows, or over 255 fewer.
  """
  for name in ('token_embedder', 'passage_token_embedder'):
    tensor = weights.tensors.get(f'{name}/embedding')
    # T5 pads its table to a multiple of 128 rows, beyond 100 extra ids.
    if tensor and not 0 <= tensor.shape[0] - vocabulary.size < 256:
      raise UserError(
          f'{weights.path} ({weights.kind}) has {tensor.shape[0]} token'
          f' embeddings ({name}), but the vocabulary {vocabulary.path} has'
          f' {vocabulary.size} pieces. Expected as many embeddings as pieces,'
          ' or up to 255 more: give the vocabulary that it was trained with.'
      )
  beside = weights.usage.vocabulary
  if beside is not None:
    if hashlib.sha256(beside.read_bytes()).hexdigest() == vocabulary.sha256:
      return
    mine, theirs = read_model(vocabulary.file), read_model(beside)
    found = _differences(mine, theirs)
  elif weights.usage.pieces is not None:
    mine = read_model(vocabulary.file)
    found = _other_pieces(mine, weights.usage.pieces)
  else:
    return
  difference = next(found, None)
  if difference is not None:
    raise UserError(
        f'{weights.path} ({weights.kind}) was made for another vocabulary than'
        f' {vocabulary.path}: {difference}. Give its own vocabulary'
        f'{f", {beside}" if beside else ""}.'
    )


def _differences(
    mine: sentencepiece_model_pb2.ModelProto,
    theirs: sentencepiece_model_pb2.ModelProto,
) -> Iterator[str]:
  """Says how texts would get other ids."""
  yield from _other_pieces(mine, [piece.piece for piece in theirs.pieces])
  for name in ('type', 'score'):
    for i, (a, b) in enumerate(zip(mine.pieces, theirs.pieces)):
      a_value, b_value = getattr(a, name), getattr(b, name)
      if a_value != b_value:
        yield (
            f'the {name} of its piece {i}, {b.piece!r}, is {b_value}, not'
            f' {a_value}'
        )
  for part, names in (
      ('normalizer_spec', _NORMALIZER), ('trainer_spec', _TRAINER)
  ):
    for name in names:
      a, b = (getattr(getattr(m, part), name) for m in (mine, theirs))
      if isinstance(a, bytes):
        a, b = (f'{len(v):,} bytes with SHA-256 {_digest(v)}' for v in (a, b))
      if a != b:
        yield f'its {part}.{name} is {b}, not {a}'


def _other_pieces(
    mine: sentencepiece_model_pb2.ModelProto, theirs: Sequence[str]
) -> Iterator[str]:
  for i, (a, b) in enumerate(zip(mine.pieces, theirs)):
    if a.piece != b:
      yield f'its piece {i} is {b!r}, not {a.piece!r}'
  if len(theirs) < len(mine.pieces):
    yield f'it has {len(theirs)} pieces, not {len(mine.pieces)}'


def read_model(file: pathlib.Path) -> sentencepiece_model_pb2.ModelProto:
  """A SentencePiece file as its proto; raises UserError if it is none."""
  try:
    return sentencepiece_model_pb2.ModelProto.FromString(file.read_bytes())
  except (OSError, DecodeError) as e:
    raise UserError(f'{file} is no SentencePiece model: {e}.') from e


def _digest(value: bytes) -> str:
  return hashlib.sha256(value).hexdigest()[:12]
