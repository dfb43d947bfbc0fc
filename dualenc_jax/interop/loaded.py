"""A checkpoint of any kind as towers that encode texts on this machine."""

from collections.abc import Mapping
import dataclasses
import os
import pathlib
from typing import Any

from flax import traverse_util
import jax
import numpy as np

from dualenc_jax.errors import UserError
from dualenc_jax.inference.embedder import Embedder
from dualenc_jax.interop import same_vocabulary, usage_file
from dualenc_jax.interop.weights import Usage, Weights
from dualenc_jax.io import revision
from dualenc_jax.models import DualEncoder
from dualenc_jax.parallel.partitioning import HostPartitioner
from dualenc_jax.tensor_files.tensors import Tensor
from dualenc_jax.text.ragged import Ragged
from dualenc_jax.text.tokenizer import Tokenizer
from dualenc_jax.text.vocabulary import Vocabulary

# Most rows that a device encodes at once, as `Experiment.eval_batch_size`.
_BATCH_SIZE = 256


@dataclasses.dataclass(frozen=True)
class Loaded:
  """Two towers with their parameters, and how texts become their tokens.

  Attributes:
    model: the dual encoder.
    params: its parameters on the devices, float32, as `model.apply` takes them.
    tokenizer: vocabulary, lengths and prefixes.
    embedder: the towers, compiled.
    provenance: what the vectors depend on, as JSON.
  """

  model: DualEncoder
  params: Any
  tokenizer: Tokenizer
  embedder: Embedder
  provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def dim(self) -> int:
    """D, of the embeddings."""
    return self.model.projection.features

  def queries(self, tokens: Ragged) -> np.ndarray:
    """Embeds tokenised queries: float32 [len(tokens), D]."""
    return self.embedder.queries(self.params, tokens)

  def passages(self, tokens: Ragged) -> np.ndarray:
    """Embeds tokenised passages: float32 [len(tokens), D]."""
    return self.embedder.passages(self.params, tokens)


def load(
    weights: Weights,
    vocabulary: str | os.PathLike[str] | None = None,
    query_length: int | None = None,
    passage_length: int | None = None,
) -> Loaded:
  """Puts a checkpoint on the devices of this host, tensor by tensor.

  Args:
    weights: what a reader of `interop` returned.
    vocabulary: a SentencePiece file, or the name of a shipped vocabulary; None
      for the one that lies with the checkpoint.
    query_length: most tokens of a query, EOS included; None for what the
      checkpoint says, else 64.
    passage_length: the same of a passage, else 256.

  Raises:
    UserError: there is no projection or no vocabulary; the vocabulary is not
      the checkpoint's; or a tensor cannot be read.
  """
  if not weights.has_projection:
    raise UserError(
        f'{weights.path} ({weights.kind}) has no projection: it is a pretrained'
        ' encoder, no dual encoder yet. Train one from it, with'
        f' --gin.INITIAL_CHECKPOINT_PATH={weights.path}.'
    )
  tokenizer = make_tokenizer(weights, vocabulary, query_length, passage_length)
  model = weights.model()
  partitioner = HostPartitioner()
  params = read_params(weights.tensors, partitioner.replicated)
  embedder = Embedder(model, partitioner, partitioner.replicated, _BATCH_SIZE)
  provenance = {
      'checkpoint': pathlib.Path(weights.path).name,
      'checkpoint_kind': weights.kind,
      'checkpoint_step': weights.step,
      'versions': revision.versions(),
  }
  return Loaded(model, params, tokenizer, embedder, provenance)


def read_params(
    tensors: Mapping[str, Tensor], sharding: jax.sharding.Sharding
) -> dict[str, Any]:
  """Reads tensors onto devices; the host holds one of them at a time.

  Args:
    tensors: by name, 'encoder/encoder_norm/scale'.
    sharding: of each.

  Returns:
    A nested dict, as `model.apply` takes it.
  """
  flat = {}
  for name, tensor in tensors.items():
    flat[name] = jax.device_put(tensor.read(), sharding)
    # The copy on the host is needed until this one is there.
    flat[name].block_until_ready()
  return traverse_util.unflatten_dict(flat, sep='/')


def make_tokenizer(
    weights: Weights,
    vocabulary: str | os.PathLike[str] | None = None,
    query_length: int | None = None,
    passage_length: int | None = None,
) -> Tokenizer:
  """The tokenizer of a checkpoint; arguments and errors are those of `load`."""
  usage = weights.usage
  path = usage.vocabulary if vocabulary is None else vocabulary
  if path is None:
    raise UserError(
        f'{weights.path} ({weights.kind}) comes without a SentencePiece file'
        + (': a tokenizer.json is not enough' if usage.pieces else '')
        + '. Give the one that it was trained with, --vocabulary=spiece.model'
        ' (from Python, vocabulary=).'
    )
  own = Vocabulary(os.fspath(path))
  same_vocabulary.check(weights, own)
  return Tokenizer(
      own,
      _first(query_length, usage.query_length, Tokenizer.query_length),
      _first(passage_length, usage.passage_length, Tokenizer.passage_length),
      usage.query_prefix,
      usage.passage_prefix,
  )


def tokenizer_of(usage: Usage) -> Tokenizer:
  """The tokenizer of a usage that says everything."""
  return Tokenizer(
      Vocabulary(os.fspath(usage.vocabulary)),
      *(getattr(usage, name) for name in usage_file.NAMES),
  )


def _first(*values: int | None) -> int:
  return next(value for value in values if value is not None)
