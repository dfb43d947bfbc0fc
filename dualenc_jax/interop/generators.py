"""Generators ready to write: those trained here, and docT5query as released."""

from collections.abc import Mapping
import dataclasses
import os
import pathlib
from typing import Any

from dualenc_jax.errors import UserError
from dualenc_jax.interop import encoder_decoder, loading, opening, own
from dualenc_jax.interop.vocabulary import make_tokenizer
from dualenc_jax.models import Seq2Seq, TokenEmbedder
from dualenc_jax.parallel.partitioning import HostPartitioner, Partitioner
from dualenc_jax.text.tokenizer import Tokenizer

# Most tokens of what is read and written where a checkpoint does not say, as
# docT5query was trained.
LENGTH, _QUERY_LENGTH = 512, 64


@dataclasses.dataclass(frozen=True, eq=False)
class Generator:
  """An encoder-decoder with its parameters, and how texts become its tokens.

  Attributes:
    model: reads passages and writes queries.
    params: on the devices, as `model.apply` takes them.
    tokenizer: vocabulary and lengths; `passage_length` is of what is read,
      `query_length` of what is written, EOS included.
    provenance: what its texts depend on, as JSON.
  """

  model: Seq2Seq
  params: Any
  tokenizer: Tokenizer
  provenance: Mapping[str, Any]


def load(
    path: str | os.PathLike[str],
    vocabulary: str | os.PathLike[str] | None = None,
    length: int | None = None,
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
    partitioner: the mesh and its rules; None for the devices of this host, all
      of which get all parameters.

  Raises:
    UserError: it has no decoder, or cannot be read; or the vocabulary is
      missing, or not the checkpoint's.
  """
  partitioner = partitioner or HostPartitioner()
  if opening.reader_of(path) is own:
    if vocabulary is not None:
      raise UserError(
          f'{path} has its own vocabulary: leave out {vocabulary}.'
      )
    return _load_own(pathlib.Path(path).expanduser(), length, partitioner)
  weights, decoder = encoder_decoder.read(path)
  if not decoder:
    raise UserError(
        f'{path} ({weights.kind}) has no decoder, so it writes nothing. Give'
        ' the whole checkpoint, of T5X or a Hugging Face folder of'
        ' T5ForConditionalGeneration, or the model_dir of a generator, which'
        ' --gin_file=runs/doc2query.gin trains.'
    )
  usage = weights.usage
  tokenizer = make_tokenizer(
      weights,
      vocabulary,
      usage.query_length or _QUERY_LENGTH,
      length or usage.passage_length or LENGTH,
  )
  model = Seq2Seq(
      TokenEmbedder(*weights.tensors['token_embedder/embedding'].shape),
      weights.encoder,
      encoder_decoder.decoder_of(weights, decoder),
  )
  tensors = {**weights.tensors, **decoder}
  params = loading.place_params(model, tensors, weights.path, partitioner)
  return Generator(
      model,
      params,
      tokenizer,
      encoder_decoder.provenance(
          weights, tensors, tokenizer, model.encoder.dtype
      ),
  )


def _load_own(
    path: pathlib.Path, length: int | None, partitioner: Partitioner
) -> Generator:
  def use(checkpoint: own.Checkpoint) -> Generator:
    facts = dict(checkpoint.meta['model'])
    if not facts.pop(own.GENERATOR, False):
      raise UserError(
          f'{path} is of a {str(facts.get("class")).split(".")[-1]}, no'
          ' generator, so it writes nothing. Train one with'
          ' --gin_file=runs/doc2query.gin.'
      )
    model = own.model_of(facts, str(path))
    tokenizer = checkpoint.tokenizer()
    if length is not None:
      tokenizer = dataclasses.replace(tokenizer, passage_length=length)
    params = loading.place_params(
        model, checkpoint.tensors, str(path), partitioner
    )
    provenance = checkpoint.provenance(model, tokenizer)
    return Generator(model, params, tokenizer, provenance)

  return own.restore(path, None, use)
