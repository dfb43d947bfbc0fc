"""Released T5s with their decoders: monoT5, RankT5, and parts of generators."""

from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
import os
import pathlib
from typing import Any

import numpy as np

from dualenc_jax.checkpoints import checkpoint_reader, formats, loading
from dualenc_jax.checkpoints.vocabulary import make_tokenizer, read_model
from dualenc_jax.checkpoints.weights import (
  EMBEDDING,
  infer_encoder,
  SIZES,
  Weights,
)
from dualenc_jax.data.text.template import Template
from dualenc_jax.data.text.tokenizer import Tokenizer, Vocabulary
from dualenc_jax.models import Seq2SeqRanker, T5Decoder, TokenEmbedder
from dualenc_jax.models.cross_encoder import EXTRA_ID_10, FALSE, TRUE
from dualenc_jax.models.t5_encoder import RelativePositionBias
from dualenc_jax.retrieval.encoding.embedder import Scorer
from dualenc_jax.retrieval.encoding.teacher import Calibration, Teacher
from dualenc_jax.utils import machine
from dualenc_jax.utils.errors import expect, UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor

# Maximum tokens of a text in their training, and of a query.
LENGTH, _QUERY_LENGTH = 512, 128
_PIECES = {TRUE: '▁true', FALSE: '▁false'}


@dataclasses.dataclass(frozen=True)
class Form:
  """The text that a released ranker reads, and the tokens of its score.

  Attributes:
    tokens: as of `Seq2SeqRanker`.
    text: as of `Template`.
    calibration: from scores to probabilities, if known.
  """

  tokens: Sequence[int]
  text: str
  calibration: Calibration | None = None


FORMS = {
    'monot5': Form(
        (TRUE, FALSE), 'Query: {query} Document: {passage} Relevant:',
        Calibration(1.0, 0.0),
    ),
    'rankt5': Form((EXTRA_ID_10,), 'Query: {query} Document: {passage}'),
}


def load_ranker(
    path: str | os.PathLike[str], form: str,
    vocabulary: str | os.PathLike[str] | None = None, length: int = LENGTH,
) -> Teacher:
  """Loads a released ranker, in float32 on the devices of this host.

  Args:
    path: a T5X checkpoint or a Hugging Face folder, with its decoder.
    form: a key of `FORMS`.
    vocabulary: a SentencePiece file; None for the one beside the checkpoint.
    length: maximum tokens of query, passage and template together.

  Raises:
    UserError: it has no decoder, is of other sizes, or is of another vocabulary
      than T5's.
  """
  known = f'one of {", ".join(FORMS)}'
  expect(form in FORMS, 'The form of a teacher', form, known)
  weights = formats.read(path)
  decoder = weights.read_decoder()
  if not decoder:
    raise UserError(
        f'{path} has no decoder, whose first token is the score of a {form}.'
        ' Give the whole T5.'
    )
  if vocabulary is None and weights.usage.vocabulary is None:
    raise UserError(
        f"{path} has no SentencePiece file. Give T5's,"
        ' --teacher_vocabulary=spiece.model.'
    )
  tokenizer = make_tokenizer(
      weights, vocabulary, min(_QUERY_LENGTH, length // 2), length
  )
  _check_pieces(tokenizer.vocabulary, weights)
  chosen = FORMS[form]
  rows, width = weights.tensors[EMBEDDING].shape
  if max(chosen.tokens) >= rows:
    raise UserError(
        f'{weights} has {rows} token embeddings; expected more than'
        f' {max(chosen.tokens)}, the number of the token that is the score.'
        ' Give a checkpoint of the released model.'
    )
  model = Seq2SeqRanker(
      TokenEmbedder(rows, width), weights.encoder,
      make_decoder(weights, decoder), tuple(chosen.tokens),
  )
  everything = {**weights.tensors, **decoder}
  params, scorer = loading.place(model, everything, weights.path, make=Scorer)
  template = Template(chosen.text, length)
  facts = provenance(
      weights, everything, tokenizer, model.encoder.dtype
  )
  facts |= {'form': form, 'template': dataclasses.asdict(template)}
  return Teacher(
      params, tokenizer, template.tokens(tokenizer), scorer, facts,
      chosen.calibration,
  )


def _check_pieces(vocabulary: Vocabulary, weights: Weights) -> None:
  pieces = [piece.piece for piece in read_model(vocabulary.file).pieces]
  for number, expected in _PIECES.items():
    piece = repr(pieces[number]) if number < len(pieces) else 'absent'
    if piece != repr(expected):
      raise UserError(
          f'{weights}: piece {number} of {vocabulary.path} is {piece}; expected'
          f' {expected!r}, as in the vocabulary of T5.'
      )


def make_decoder(weights: Weights, decoder: Mapping[str, Tensor]) -> T5Decoder:
  """The decoder stack of what `Weights.read_decoder` returned."""
  sizes = infer_encoder(decoder, weights.encoder.activations, 'decoder')
  usual = RelativePositionBias.num_buckets
  if sizes.num_buckets != usual:
    raise UserError(
        f'{weights.path} has {sizes.num_buckets} buckets of relative positions'
        f' in its decoder; expected {usual}. Its encoder alone can be read.'
    )
  head = decoder.get('decoder/logits_dense/kernel')
  return T5Decoder(
      weights.tensors[EMBEDDING].shape[1],
      vocab_size=head.shape[1] if head else None,
      **{name: getattr(sizes, name) for name in SIZES},
  )


def provenance(
    weights: Weights, tensors: Mapping[str, Tensor], tokenizer: Tokenizer,
    dtype: str,
) -> dict[str, Any]:
  """Facts that the outputs of a released model depend on, as JSON."""
  digest = hashlib.sha256()
  for name in sorted(tensors):
    digest.update(np.ascontiguousarray(tensors[name].read()).data)
  return {
      'checkpoint': pathlib.Path(weights.path).name,
      'checkpoint_kind': weights.kind,
      'checkpoint_step': weights.step,
      # Differs between models of one form.
      'run_id': digest.hexdigest()[:32],
      **checkpoint_reader.tokenizer_facts(tokenizer),
      'dtype': dtype,
      'versions': machine.versions(),
  }
