"""Whether a vocabulary is the one that a checkpoint was trained with."""

import hashlib

import sentencepiece

from dualenc_jax.data.vocabulary import Vocabulary
from dualenc_jax.errors import UserError
from dualenc_jax.interop.weights import Weights


def check(weights: Weights, vocabulary: Vocabulary) -> None:
  """Compares a vocabulary with the one that lies beside a checkpoint.

  T5X checkpoints have none beside them; of these only the number of rows is
  known.

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
    theirs = pieces(beside)
  elif weights.usage.pieces is not None:
    theirs = list(weights.usage.pieces)
  else:
    return
  mine = pieces(vocabulary.file)
  for i, (a, b) in enumerate(zip(mine, theirs)):
    if a != b:
      raise UserError(
          f'{weights.path} ({weights.kind}) was made for another vocabulary'
          f' than {vocabulary.path}: its piece {i} is {b!r}, not {a!r}. Give'
          f' its own vocabulary{f", {beside}" if beside else ""}.'
      )
  if len(theirs) < len(mine):
    raise UserError(
        f'{weights.path} ({weights.kind}) has a vocabulary of {len(theirs)}'
        f' pieces; {vocabulary.path} has {len(mine)}. Give its own vocabulary.'
    )


def pieces(file) -> list[str]:
  """The pieces of a SentencePiece file in the order of their ids."""
  processor = sentencepiece.SentencePieceProcessor(model_file=str(file))
  return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
