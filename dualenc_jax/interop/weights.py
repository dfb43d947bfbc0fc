"""What a checkpoint holds, in the words of this library, whoever wrote it.

Every reader of `interop` returns a `Weights` and every writer takes one, so
that any form that can be read can be written as any other.
"""

import collections
from collections.abc import Mapping, Sequence
import dataclasses
import functools
import pathlib
import re
import shutil
from typing import Any

from flax import linen as nn, traverse_util

from dualenc_jax.compression import Codec
from dualenc_jax.errors import UserError
from dualenc_jax.inference.towers import PassageTower
from dualenc_jax.io.untrusted import shown
from dualenc_jax.models import (
  abstract_params,
  DualEncoder,
  Projection,
  T5Encoder,
  TokenEmbedder,
)
from dualenc_jax.models.t5_encoder import check_buckets
from dualenc_jax.tensor_files.tensors import Tensor

ENCODERS = ('encoder', 'passage_encoder')
# Of feed-forward blocks: functions of `flax.linen`, and none. Other names there
# are of transformations, some of which change what all of Flax does.
ACTIVATIONS = frozenset(
    'celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu'
    ' linear log_sigmoid relu relu6 selu sigmoid silu soft_sign softplus swish'
    ' tanh'.split()
)
SIZES = ('num_layers', 'num_heads', 'head_dim', 'mlp_dim', 'activations')
# What JSON says of a `Usage`, with the types, and the file of its vocabulary.
USAGE = {
    'query_length': int | None,
    'passage_length': int | None,
    'query_prefix': str,
    'passage_prefix': str,
    'prompts?': {str: str},
}
_FACTS = [name.rstrip('?') for name in USAGE]
VOCABULARY = 'vocabulary.model'


@dataclasses.dataclass(frozen=True)
class Usage:
  """How texts are given to a model, as far as its files say so.

  Attributes:
    vocabulary: its SentencePiece file; None where there is none.
    pieces: its vocabulary in the order of the ids, from another file.
    query_length: most tokens of a query, EOS included.
    passage_length: most tokens of a passage.
    query_prefix: put in front of every query.
    passage_prefix: put in front of every passage.
    prompts: other prefixes by name, as of `Tokenizer`.
  """

  vocabulary: pathlib.Path | None = None
  pieces: Sequence[str] | None = None
  query_length: int | None = None
  passage_length: int | None = None
  query_prefix: str = ''
  passage_prefix: str = ''
  prompts: Mapping[str, str] = dataclasses.field(
      default_factory=dict, hash=False
  )

  def facts(self) -> dict[str, Any]:
    """Lengths, prefixes and prompts, if there are any, as JSON."""
    found = {n: getattr(self, n) for n in _FACTS}
    return {n: x for n, x in found.items() if n != 'prompts' or x}

  def save_vocabulary(self, folder: pathlib.Path) -> None:
    """Copies the SentencePiece file, if there is one."""
    if self.vocabulary is not None:
      shutil.copyfile(self.vocabulary, folder / VOCABULARY)

  def saved(self, facts: Mapping[str, Any], folder: pathlib.Path) -> 'Usage':
    """This with saved facts, and with the vocabulary of a folder, if any."""
    values = {name: facts[name] for name in _FACTS if name in facts}
    if (folder / VOCABULARY).is_file():
      values['vocabulary'] = folder / VOCABULARY
    return dataclasses.replace(self, **values)


@dataclasses.dataclass(frozen=True)
class Weights:
  """The tensors of one or two towers, by the names of `DualEncoder`.

  Attributes:
    kind: what the files are, for people: 'T5X checkpoint'.
    path: where they are.
    tensors: by name, 'encoder/layers_0/mlp/wo/kernel', one for each layer;
      those of a passage tower of its own begin with 'passage_'. A pretrained T5
      has no 'projection/kernel'.
    encoder: sizes of the (query) encoder.
    passage_encoder: sizes of the passage encoder, if it has its own.
    usage: vocabulary, lengths and prefixes.
    left_out: tensors that are no part of a dual encoder, with the reason, such
      as 'decoder'.
    loss: parameters of the loss, 'loss/log_temperature'.
    optimizer: its statistics, 'encoder/.../kernel/v_row' and so on, and the
      'count' of its updates where that is not `step`.
    step: of the training that made it.
    described: of a model_dir, what `models.describe` says of its model.
    passage_tower: of a query tower alone, which one it belongs to.
    trained_dims: of how many first components its embeddings were trained to
      be of use, all of them among these; () where that is not known.
    codec: that was trained with the towers, if one was.
    tells_activations: whether its files say what the feed-forward blocks
      compute; where not, it is taken from the number of their matrices.
  """

  kind: str
  path: str
  tensors: Mapping[str, Tensor]
  encoder: T5Encoder
  passage_encoder: T5Encoder | None = None
  usage: Usage = Usage()
  left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
  loss: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
  optimizer: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
  step: int | None = None
  described: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  passage_tower: PassageTower | None = None
  trained_dims: Sequence[int] = ()
  codec: Codec | None = None
  tells_activations: bool = True

  @property
  def has_projection(self) -> bool:
    """Whether it is a dual encoder, not a pretrained T5 alone."""
    return 'projection/kernel' in self.tensors

  def model(self) -> DualEncoder:
    """The towers of these sizes; T5's width where there is no projection."""
    own = self.passage_encoder
    return DualEncoder(
        self._embedder('token_embedder/embedding'),
        self.encoder,
        self._projection('projection/kernel')
        or Projection(self._embedder('token_embedder/embedding').features),
        self._embedder('passage_token_embedder/embedding'),
        own,
        self._projection('passage_projection/kernel'),
    )

  def check(self) -> 'Weights':
    """Returns itself if its tensors are those of its sizes.

    Raises:
      UserError: tensors are missing, have other shapes, or are too many; says
        which.
    """
    check_matrices(self)
    for encoder in filter(None, (self.encoder, self.passage_encoder)):
      check_activations(encoder.activations, f'{self.path} ({self.kind})')
      check_sizes(encoder, self.tensors, f'{self.path} ({self.kind})')
    try:
      expected = dict(shapes_of(self.model()))
    except (ArithmeticError, AttributeError, TypeError, ValueError) as e:
      raise UserError(
          f'{self.path} ({self.kind}) says it is a model of'
          f' {_describe(self.encoder)}, which cannot be built:'
          f' {(str(e).splitlines() or [type(e).__name__])[0]}. Copy it again.'
      ) from e
    if not self.has_projection:
      expected.pop('projection/kernel')
    problems = [f'{name} is missing' for name in sorted(expected)
                if name not in self.tensors]
    problems += [
        f'{_end(tensor.where)} is of no use' + (
            f' ({_end(name)})' if not tensor.where.endswith(name) else ''
        )
        for name, tensor in sorted(self.tensors.items())
        if name not in expected
    ]
    problems += [
        f'{_end(tensor.where)} has the shape {shown(tensor.shape)} (as {name}),'
        f' expected {expected[name]}'
        for name, tensor in sorted(self.tensors.items())
        if name in expected and tensor.shape != expected[name]
    ]
    if problems:
      more = f'; and {len(problems) - 5} more' if len(problems) > 5 else ''
      raise UserError(
          f'{self.path} ({self.kind}) is no whole model of'
          f' {_describe(self.encoder)}: '
          + '; '.join(problems[:5])
          + more
          + '. Give the whole checkpoint, with the config that belongs to it.'
      )
    return self

  def with_activations(self, activations: Sequence[str]) -> 'Weights':
    """This, with what its feed-forward blocks compute, which no file tells.

    Args:
      activations: of the encoders, as of `T5Encoder`.

    Raises:
      UserError: its files do tell; or they are unknown, or not as many as the
        blocks have matrices.
    """
    told = tuple(self.encoder.activations)
    given = ','.join(activations)
    if self.tells_activations:
      raise UserError(
          f'--activations={given} is for a T5X checkpoint, which does not tell'
          f' them. {self.path} ({self.kind}) does: {",".join(told)}. Leave it'
          ' out.'
      )
    if len(activations) != len(told) or set(activations) - ACTIVATIONS:
      raise UserError(
          f'--activations={given}: feed-forward blocks of {self.path} take'
          f' {len(told)}, as those of {" x ".join(told)}; expected as many of'
          f' {", ".join(sorted(ACTIVATIONS))}, with commas.'
      )
    encoders = {
        name: encoder.clone(activations=tuple(activations))
        for name in ENCODERS
        if (encoder := getattr(self, name)) is not None
    }
    return dataclasses.replace(self, tells_activations=True, **encoders)

  def _embedder(self, name: str) -> TokenEmbedder | None:
    tensor = self.tensors.get(name)
    return tensor and TokenEmbedder(*tensor.shape)

  def _projection(self, name: str) -> Projection | None:
    tensor = self.tensors.get(name)
    return tensor and Projection(tensor.shape[1])


def _end(name: str) -> str:
  """The end of a long name, which tells more than its folders."""
  return '...' * (len(name) > 120) + name[-120:]


def count_reasons(reasons: Sequence[str]) -> str:
  """'28 of decoder, 1 of head': of tensors that are left out."""
  return ', '.join(
      f'{count} of {reason}'
      for reason, count in collections.Counter(reasons).items()
  )


def check_activations(activations: Sequence[str], where: str) -> None:
  """Raises UserError for what feed-forward blocks do not compute."""
  if unknown := [a for a in activations if a not in ACTIVATIONS]:
    raise UserError(
        f'{where} has the activation {shown(unknown[0])}; expected one of'
        f' {", ".join(sorted(ACTIVATIONS))}.'
    )


def check_matrices(weights: Weights) -> None:
  """Raises UserError unless the tensors that give the sizes are matrices."""
  names = ('token_embedder/embedding', 'projection/kernel')
  for name in (*names, *(f'passage_{name}' for name in names)):
    tensor = weights.tensors.get(name)
    if tensor is None and name == names[0]:
      raise UserError(
          f'{weights.path} ({weights.kind}) has no token embeddings ({name}).'
          ' Give a checkpoint of the whole model.'
      )
    if tensor is not None and len(tensor.shape) != 2:
      raise UserError(
          f'{tensor.where} has the shape {tensor.shape}; expected two axes.'
      )


@functools.lru_cache(64)
def shapes_of(model: DualEncoder) -> Mapping[str, tuple[int, ...]]:
  """Name and shape of every parameter of a model."""
  flat = traverse_util.flatten_dict(nn.unbox(abstract_params(model)), sep='/')
  return {name: leaf.shape for name, leaf in flat.items()}


def check_sizes(
    stack: Any, tensors: Mapping[str, Tensor], where: str
) -> None:
  """Checks the sizes of a stack before a model of these sizes is made.

  Args:
    stack: such as a `T5Encoder`.
    tensors: one for each layer at least.
    where: the sizes are from.

  Raises:
    UserError: a size can be none, or there are more layers than tensors.
  """
  sizes = [(name, getattr(stack, name)) for name in SIZES[:-1]]
  # A stack without layers is a bag of words, whose other sizes say nothing.
  least = int(stack.num_layers != 0)
  bad = [
      f'{name} is {shown(n)}'
      for name, n in sizes
      if type(n) is not int or not least * (name != 'num_layers') <= n < 2**31
  ]
  if not bad and stack.num_layers > len(tensors):
    bad = [f'num_layers is {stack.num_layers:,}']
  if bad:
    raise UserError(
        f'{where} has {len(tensors)} tensors, and its {bad[0]}. Give the whole'
        ' checkpoint, with the config that belongs to it.'
    )


def infer_encoder(
    tensors: Mapping[str, Tensor],
    activations: Sequence[str] | None = None,
    tower: str = 'encoder',
) -> T5Encoder:
  """Sizes of a stack from the shapes of its tensors.

  Args:
    tensors: by the names of `DualEncoder`.
    activations: of the feed-forward blocks; None for ReLU where they have one
      matrix, as T5 1.0, and gated GELU where they have two, as T5 1.1.
    tower: 'encoder', 'passage_encoder' or 'decoder'.

  Raises:
    UserError: the first layer or the relative positions are missing, or the
      latter are in a number of buckets that there cannot be.
  """
  names = {
      name.split('/')[1].removeprefix('layers_')
      for name in tensors
      if name.startswith(f'{tower}/layers_')
  }
  # None of a checkpoint has more digits, and leading zeros would be another.
  layers = {int(n) for n in names if re.fullmatch(r'0|[1-9][0-9]{0,8}', n)}
  where = next((f' of {t.where}' for t in tensors.values()), '')
  if not layers:
    raise UserError(
        f'The {tower}{where} has no layers: {len(tensors)} tensors, none of'
        f' them {tower}/layers_0/... A bag of words is not converted; give a'
        ' T5.'
    )
  gated = f'{tower}/layers_0/mlp/wi_0/kernel' in tensors
  mlp = f'{tower}/layers_0/mlp/{"wi_0" if gated else "wi"}/kernel'
  attention = 'self_attention' if tower == 'decoder' else 'attention'
  query = f'{tower}/layers_0/{attention}/query/kernel'
  bias = f'{tower}/relpos_bias/rel_embedding'
  for name in (bias, query, mlp):
    if name not in tensors or len(tensors[name].shape) != 2:
      found = tensors[name].shape if name in tensors else 'absent'
      raise UserError(
          f'{name} is {found}; expected a matrix. The checkpoint{where} has'
          f' {len(tensors)} tensors of a T5 encoder. Give a whole T5.'
      )
  if activations is None:
    activations = ('gelu', 'linear') if gated else ('relu',)
  heads, buckets = tensors[bias].shape
  check_buckets(buckets, f'{tensors[bias].where}: the second axis')
  encoder = T5Encoder(
      num_layers=max(layers) + 1,
      num_heads=heads,
      head_dim=tensors[query].shape[1] // max(heads, 1),
      mlp_dim=tensors[mlp].shape[1],
      activations=tuple(activations),
      num_buckets=buckets,
  )
  if not (heads and encoder.head_dim):
    raise UserError(
        f'{bias} has the shape {tensors[bias].shape}, and {query}'
        f' {tensors[query].shape}: expected heads of one component or more.'
        ' Give a whole T5.'
    )
  check_sizes(encoder, tensors, f'The {tower}{where}')
  return encoder


def _describe(encoder: T5Encoder) -> str:
  e = encoder
  return (
      f'{e.num_layers} layers, {e.num_heads} heads of {e.head_dim},'
      f' feed-forward {e.mlp_dim} ({" x ".join(e.activations)})'
  )
