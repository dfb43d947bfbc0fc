"""Models that encode texts, loaded from a checkpoint of any form."""

from collections.abc import Callable, Mapping, Sequence
import os
import pathlib
from typing import Any

from flax import linen as nn, traverse_util
import jax
import numpy as np

from dualenc_jax.checkpoints import checkpoint_reader, transforms
from dualenc_jax.checkpoints.vocabulary import make_tokenizer
from dualenc_jax.checkpoints.weights import check_sizes, list_first, Weights
from dualenc_jax.data.text.template import Template
from dualenc_jax.models import abstract_params, T5Decoder, T5Encoder
from dualenc_jax.parallel.partitioning import HostPartitioner, Partitioner
from dualenc_jax.retrieval.encoding.embedder import Embedder, Scorer
from dualenc_jax.retrieval.encoding.split_teacher import (
  SplitScorer,
  SplitTeacher,
)
from dualenc_jax.retrieval.encoding.teacher import load_calibration, Teacher
from dualenc_jax.retrieval.encoding.towers import LoadedModel
from dualenc_jax.utils import machine
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files.tensors import layer_names, Tensor

# Maximum rows that a device encodes at once, as `Experiment.eval_batch_size`.
_BATCH_SIZE = 256


def load(
    weights: Weights, vocabulary: str | os.PathLike[str] | None = None,
    query_length: int | None = None, passage_length: int | None = None,
) -> LoadedModel:
  """Loads a checkpoint on the devices of this host, tensor by tensor.

  Args:
    weights: the result of a reader.
    vocabulary: a SentencePiece file, or the name of a shipped vocabulary; None
      for the one beside the checkpoint.
    query_length: maximum tokens of a query, EOS included; None for that of the
      checkpoint, or 64.
    passage_length: the same of a passage, or 256.

  Raises:
    UserError: there is no projection or no vocabulary; the vocabulary is not
      the checkpoint's; or a tensor cannot be read or is not finite.
  """
  if not weights.has_projection:
    raise UserError(
        f'{weights} has no projection; expected a dual encoder. Train one from'
        f' it, with --gin.INITIAL_CHECKPOINT_PATH={weights.path}.'
    )
  provenance: dict[str, Any] = {
      'checkpoint': pathlib.Path(weights.path).name,
      'checkpoint_kind': weights.kind,
      'checkpoint_step': weights.step,
      'versions': machine.versions(),
  }
  if weights.trained_dims:
    provenance[checkpoint_reader.TRAINED_DIMS] = list(weights.trained_dims)
  tokenizer = make_tokenizer(weights, vocabulary, query_length, passage_length)
  params, embedder = place(weights.model(), weights.tensors, weights.path)
  return LoadedModel(
      params, tokenizer, embedder, provenance, codec=weights.codec
  )


def load_model_dir(
    path: pathlib.Path, step: int | None = None, dim: int | None = None
) -> LoadedModel:
  """Loads a model_dir as it was trained, at its best or newest checkpoint.

  `step` and `dim` are as of `formats.read`.
  """

  def use(checkpoint: checkpoint_reader.Checkpoint) -> LoadedModel:
    weights = checkpoint_reader.to_weights(checkpoint)
    if dim is not None:
      weights = transforms.truncate(weights, dim)
    model = checkpoint_reader.build_model(weights.described, weights.path)
    tokenizer = make_tokenizer(weights)
    checkpoint.check_vocabulary(tokenizer.vocabulary)
    params, embedder = place(model, weights.tensors, weights.path)
    provenance = checkpoint.provenance(model, tokenizer)
    provenance = transforms.truncate_provenance(provenance, dim)
    return LoadedModel(
        params, tokenizer, embedder, provenance, codec=weights.codec
    )

  return checkpoint_reader.restore(path, step, use)


def load_teacher(
    path: pathlib.Path, step: int | None = None, *prompts: str | None
) -> Teacher | SplitTeacher:
  """Loads the re-ranker of a model_dir, as `load_model_dir` does.

  It is a cross-encoder or a split one. `prompts` are those of
  `Tokenizer.prompted`.
  """

  def use(checkpoint: checkpoint_reader.Checkpoint) -> Teacher | SplitTeacher:
    facts = dict(checkpoint.meta['model'])
    kind = checkpoint_reader.kind_of(facts)
    split, template = kind == checkpoint_reader.SPLIT_RANKER, None
    if not split:
      checkpoint_reader.check_kind(facts, checkpoint_reader.CROSS_ENCODER, path)
      template = facts.pop('template')
    model = checkpoint_reader.build_model(facts, str(path))
    tokenizer = checkpoint.tokenizer().prompted(*prompts)
    params, scorer = place(
        model, checkpoint.tensors, str(path),
        make=SplitScorer if split else Scorer,
    )
    provenance = checkpoint.provenance(model, tokenizer)
    calibration = load_calibration(path, checkpoint.meta['step'])
    if template is None:
      loaded = LoadedModel(params, tokenizer, scorer, provenance)
      return SplitTeacher(loaded, calibration)
    provenance['template'] = template
    tokens = Template(**template).tokens(tokenizer)
    return Teacher(params, tokenizer, tokens, scorer, provenance, calibration)

  return checkpoint_reader.restore(path, step, use)


def place(
    model: nn.Module, tensors: Mapping[str, Tensor], path: str,
    partitioner: Partitioner | None = None, batch_size: int = _BATCH_SIZE,
    make: Callable[..., Any] = Embedder,
) -> tuple[Any, Any]:
  """Places tensors on a mesh as the parameters of a model, one at a time.

  Args:
    model: a dual encoder or another model, perhaps of a user's own class.
    tensors: its parameters by name, one for each layer.
    path: of the checkpoint, for messages.
    partitioner: the mesh and its rules; None for the devices of this host,
      each with all parameters.
    batch_size: maximum rows that a device encodes at once.
    make: `Embedder` or `Scorer`.

  Returns:
    The parameters, as `model.apply` takes them, and the result of `make`.
  """
  partitioner = partitioner or HostPartitioner()
  params = place_params(model, tensors, path, partitioner)
  shardings = jax.tree.map(lambda leaf: leaf.sharding, params)
  return params, make(model, partitioner, shardings, batch_size)


def place_params(
    model: nn.Module, tensors: Mapping[str, Tensor], path: str,
    partitioner: Partitioner,
) -> Any:
  """The parameters of `place`; arguments and errors as there."""
  for name in ('encoder', 'passage_encoder', 'decoder'):
    if isinstance(stack := getattr(model, name, None), T5Encoder | T5Decoder):
      check_sizes(stack, tensors, path)
  boxed = abstract_params(model)
  shardings = partitioner.param_shardings(boxed)
  abstract = traverse_util.flatten_dict(nn.unbox(boxed), sep='/')
  parts = {name: layer_names(name, a.shape) for name, a in abstract.items()}
  check_same_shapes(
      {name: tensor.shape for name, tensor in tensors.items()},
      {n: shape for layers in parts.values() for n, shape in layers.items()},
      path,
  )
  where = traverse_util.flatten_dict(shardings, sep='/')
  flat = {
      name: place_array(
          a.shape, where[name], [tensors[part] for part in parts[name]]
      )
      for name, a in abstract.items()
  }
  return traverse_util.unflatten_dict(flat, sep='/')


def place_array(
    shape: tuple[int, ...], sharding: jax.sharding.Sharding,
    layers: Sequence[Tensor],
) -> jax.Array:
  """Places an array of one tensor, or of those of its layers.

  Args:
    shape: of the array.
    sharding: of the array; other hosts call this, too.
    layers: one tensor of that shape, or one for each entry of the first axis.
  """
  if layers[0].shape == tuple(shape):
    host = layers[0].read()
  else:
    host = np.empty(shape, np.float32)
    for row, layer in zip(host, layers, strict=True):
      row[...] = layer.read()
  array = jax.make_array_from_callback(shape, sharding, lambda i: host[i])
  # The copy on the host is needed until this one exists.
  return array.block_until_ready()


def check_same_shapes(
    saved: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]],
    where: str | os.PathLike[str],
) -> None:
  """Raises UserError unless a checkpoint has the arrays that a model wants."""
  problems = [
      f'{name}: {saved.get(name, "absent")} in the checkpoint,'
      f' {wanted.get(name, "absent")} in this model'
      for name in sorted(saved.keys() | wanted.keys())
      if saved.get(name) != wanted.get(name)
  ]
  if problems:
    raise UserError(
        f'{where} is of another model or optimizer.'
        f' {list_first(problems, 5, "; ")}. Give the config that it was trained'
        ' with.'
    )
