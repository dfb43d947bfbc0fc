"""A T5 that writes queries of passages, from a model_dir, T5X, Hugging Face."""

from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import hashlib
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.checkpoints import (
  checkpoint_reader,
  formats,
  loading,
  released_models,
)
from dualenc_jax.checkpoints.vocabulary import make_tokenizer
from dualenc_jax.checkpoints.weights import EMBEDDING
from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.data.text.tokenizer import EOS, Tokenizer
from dualenc_jax.models import Seq2Seq, TokenEmbedder
from dualenc_jax.parallel.partitioning import HostPartitioner, Partitioner
from dualenc_jax.pipelines.generation.sampling import Sampling
from dualenc_jax.pipelines.generation.writer import LENGTHS, Writer
from dualenc_jax.utils.errors import UserError

# Most tokens of passages and queries where a checkpoint does not say, as
# docT5query was trained.
_PASSAGE_LENGTH, _QUERY_LENGTH = 512, 64


class Query(NamedTuple):
  """A query that was written for a passage.

  Attributes:
    passage: number of the passage in the call.
    number: number of the query among the passage's, from 0.
    text: normalised by the vocabulary, without space around.
    log_probability: mean over its tokens, EOS included, by the model.
    ended: whether it ends with EOS; else it was cut.
  """

  passage: int
  number: int
  text: str
  log_probability: float
  ended: bool


@dataclasses.dataclass(frozen=True, eq=False)
class Generator:
  """A query generator, docT5query (Nogueira and Lin 2019).

  Attributes:
    params: parameters of `writer` on the devices.
    tokenizer: vocabulary and lengths.
    writer: the compiled model.
    provenance: JSON that determines its queries.
  """

  params: Any
  tokenizer: Tokenizer
  writer: Writer
  provenance: Mapping[str, Any]

  @property
  def passage_length(self) -> int:
    """Most tokens read of a passage, EOS included."""
    return min(self.tokenizer.passage_length, LENGTHS[-1])

  def read(self, passages: Sequence[str]) -> tuple[Ragged, np.ndarray]:
    """Tokens of passages, and bool [n], which of them are cut."""
    length = self.passage_length
    longer = dataclasses.replace(self.tokenizer, passage_length=length + 1)
    whole = longer.encode_passages(passages)
    is_cut = whole.lengths > length
    rows = [
        np.append(whole.row(i)[: length - 1], EOS) if cut else whole.row(i)
        for i, cut in enumerate(is_cut)
    ]
    return Ragged.from_rows(rows, whole.values.dtype), is_cut

  def write(
      self,
      sources: Ragged,
      ids: Sequence[str],
      count: int,
      sampling: Sampling,
      length: int,
      seed: int,
  ) -> Iterator[Query]:
    """Yields queries of passages as they are done; see `Writer.write`.

    The ids of the passages and the seed determine the random numbers, so that
    the queries of a passage do not depend on the other passages.
    """
    numbers = np.array([_number(name) for name in ids], np.uint64)
    for text in self.writer.write(
        self.params, sources, numbers, count, sampling, length, seed
    ):
      size = max(len(text.tokens) + text.ended, 1)
      yield Query(
          text.source,
          text.number,
          self.tokenizer.vocabulary.decode(text.tokens).strip(),
          text.log_probability / size,
          text.ended,
      )


def _number(name: str) -> int:
  digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'little')


def load(
    path: str | os.PathLike[str],
    vocabulary: str | os.PathLike[str] | None = None,
    length: int | None = None, batch_size: int | None = None,
    partitioner: Partitioner | None = None,
) -> Generator:
  """A generator on the devices of a mesh.

  Args:
    path: a model_dir, of which the best or newest checkpoint that can be read
      is taken, a T5X checkpoint, or a Hugging Face folder with its decoder.
    vocabulary: a SentencePiece file; None for the one of the model_dir, or
      beside the checkpoint.
    length: most tokens of a passage; None for what it was trained with, else
      512.
    batch_size: as of `Writer`.
    partitioner: the mesh and its rules; None for the devices of this host, all
      of which get all parameters.

  Raises:
    UserError: it has no decoder, or cannot be read; or the vocabulary is
      missing, or not the checkpoint's.
  """
  mesh = partitioner or HostPartitioner()

  def use(checkpoint: checkpoint_reader.Checkpoint) -> Generator:
    facts = dict(checkpoint.meta['model'])
    checkpoint_reader.check_kind(facts, checkpoint_reader.GENERATOR, path)
    facts.pop(checkpoint_reader.GENERATOR)
    model = checkpoint_reader.build_model(facts, str(path))
    tokenizer = checkpoint.tokenizer()
    if length is not None:
      tokenizer = dataclasses.replace(tokenizer, passage_length=length)
    params = loading.place_params(model, checkpoint.tensors, str(path), mesh)
    provenance = checkpoint.provenance(model, tokenizer)
    writer = Writer(model, mesh, batch_size)
    return Generator(params, tokenizer, writer, provenance)

  if formats.detect(path) == formats.MODEL_DIR:
    if vocabulary is not None:
      raise UserError(f'{path} has its own vocabulary: leave out {vocabulary}.')
    return checkpoint_reader.restore(pathlib.Path(path).expanduser(), None, use)
  weights = formats.read(path)
  decoder = weights.read_decoder()
  if not decoder:
    raise UserError(
        f'{path} ({weights.kind}) has no decoder, so it cannot write queries.'
        ' Give a whole T5, or a model_dir of --gin_file=runs/doc2query.gin.'
    )
  usage = weights.usage
  tokenizer = make_tokenizer(
      weights, vocabulary, usage.query_length or _QUERY_LENGTH,
      length or usage.passage_length or _PASSAGE_LENGTH,
  )
  stack = released_models.make_decoder(weights, decoder)
  embedder = TokenEmbedder(*weights.tensors[EMBEDDING].shape)
  model = Seq2Seq(embedder, weights.encoder, stack)
  tensors = {**weights.tensors, **decoder}
  params = loading.place_params(model, tensors, weights.path, mesh)
  provenance = released_models.provenance(
      weights, tensors, tokenizer, model.encoder.dtype
  )
  writer = Writer(model, mesh, batch_size)
  return Generator(params, tokenizer, writer, provenance)
