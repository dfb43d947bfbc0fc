"""The tokenizer that belongs to a checkpoint."""

from collections.abc import Iterable, Iterator, Sequence
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
# What decides, beside the pieces, which ids a text gets.
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
        f'{weights} comes without a SentencePiece file'
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
    raise UserError(f'{weights}: {e}') from e


def check_same_vocabulary(weights: Weights, vocabulary: Vocabulary) -> None:
  """Compares a vocabulary with the one that lies beside a checkpoint.

  T5X checkpoints have none beside them; of these only the number of rows is
  known. Of a tokenizer.json pieces are compared, of a SentencePiece file all
  that decides about ids; either may have more pieces, T5's extra ids.
  """
  for name in ('token_embedder', 'passage_token_embedder'):
    tensor = weights.tensors.get(f'{name}/embedding')
    # T5 pads its table to a multiple of 128 rows, beyond 100 extra ids.
    if tensor and not 0 <= tensor.shape[0] - vocabulary.size < 256:
      raise UserError(
          f'{weights} has {tensor.shape[0]} token embeddings ({name}), but the'
          f' vocabulary {vocabulary.path} has {vocabulary.size} pieces.'
          ' Expected as many embeddings as pieces, or up to 255 more: give the'
          ' vocabulary that it was trained with.'
      )
  beside, pieces = weights.usage.vocabulary, weights.usage.pieces
  found: Iterable[str] = ()
  if beside is not None:
    if hashlib.sha256(beside.read_bytes()).hexdigest() == vocabulary.sha256:
      return
    found = _differences(read_model(vocabulary.file), read_model(beside))
  elif pieces is not None:
    found = _other_pieces(read_model(vocabulary.file), pieces)
  for difference in found:
    raise UserError(
        f'{weights} was made for another vocabulary than {vocabulary.path}:'
        f' {difference}. Give its own vocabulary'
        f'{f", {beside}" if beside else ""}.'
    )


def _differences(mine: Model, theirs: Model) -> Iterator[str]:
  """How texts would get other ids."""
  yield from _other_pieces(mine, [piece.piece for piece in theirs.pieces])
  for name in ('type', 'score'):
    for i, (a, b) in enumerate(zip(mine.pieces, theirs.pieces)):
      values = getattr(a, name), getattr(b, name)
      if values[0] != values[1]:
        yield (
            f'the {name} of its piece {i}, {b.piece!r}, is {values[1]}, not'
            f' {values[0]}'
        )
  for part, names in _SETTINGS.items():
    for name in names:
      a, b = (getattr(getattr(m, part), name) for m in (mine, theirs))
      if isinstance(a, bytes):
        digests = (hashlib.sha256(v).hexdigest()[:12] for v in (a, b))
        a, b = (
            f'{len(v):,} bytes with SHA-256 {digest}'
            for v, digest in zip((a, b), digests)
        )
      if a != b:
        yield f'its {part}.{name} is {b}, not {a}'


def _other_pieces(mine: Model, theirs: Sequence[str]) -> Iterator[str]:
  for i, (a, b) in enumerate(zip(mine.pieces, theirs)):
    if a.piece != b:
      yield f'its piece {i} is {b!r}, not {a.piece!r}'
  if len(theirs) < len(mine.pieces):
    yield f'it has {len(theirs)} pieces, not {len(mine.pieces)}'


def read_model(file: pathlib.Path) -> Model:
  """A SentencePiece file as its proto; raises UserError if it is none."""
  try:
    found = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    found.ParseFromString(file.read_bytes())
    return found
  except (OSError, DecodeError) as e:
    raise UserError(f'{file} is not a SentencePiece model: {e}.') from e
