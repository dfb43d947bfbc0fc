"""`Weights`, a checkpoint of any form in the terms of this library.

Every reader of `interop` returns a `Weights` and every writer takes one, so
that any form that can be read can be written as any other.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import pathlib
import re
import shutil
from typing import Any

from flax import linen as nn, traverse_util

from dualenc_jax import models
from dualenc_jax.models import Projection, T5Encoder, TokenEmbedder
from dualenc_jax.models.t5_encoder import check_buckets
from dualenc_jax.retrieval.compression import Codec
from dualenc_jax.retrieval.encoding.towers import PassageTower
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor
from dualenc_jax.utils.untrusted import shown

ENCODERS = ('encoder', 'passage_encoder')
EMBEDDING, PROJECTION = 'token_embedder/embedding', 'projection/kernel'
# Of feed-forward blocks: functions of `flax.linen`, and none. Other names there
# are of transformations, some of which change what all of Flax does.
ACTIVATIONS = frozenset(
    'celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu'
    ' linear log_sigmoid relu relu6 selu sigmoid silu soft_sign softplus swish'
    ' tanh'.split()
)
SIZES = ('num_layers', 'num_heads', 'head_dim', 'mlp_dim', 'activations')
# What JSON says of a `Usage`, with the types, and the file of its vocabulary.
USAGE: dict[str, Any] = {
    'query_length': int | None,
    'passage_length': int | None,
    'query_prefix': str,
    'passage_prefix': str,
    'prompts?': {str: str},
    'default_prompt?': str | None,
}
_FACTS = [name.rstrip('?') for name in USAGE]
VOCABULARY = 'vocabulary.model'


@dataclasses.dataclass(frozen=True)
class Usage:
  """How texts are given to a model, as far as its files say so.

  Attributes:
    vocabulary: its SentencePiece file.
    pieces: its vocabulary in the order of the ids, from another file.
    query_length: most tokens of a query, EOS included.
    prompts: prefixes beside the two by name, as of `Tokenizer`.
    default_prompt: as of `Tokenizer`.
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
  default_prompt: str | None = None

  def facts(self) -> dict[str, Any]:
    """Lengths, prefixes and prompts, if there are any, as JSON."""
    found = {n: getattr(self, n) for n in _FACTS}
    absent: dict[str, Any] = {'prompts': {}, 'default_prompt': None}
    return {n: x for n, x in found.items() if n not in absent or x != absent[n]}

  def save_vocabulary(self, folder: pathlib.Path) -> None:
    """Copies the SentencePiece file, if there is one, into a folder."""
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
    tensors: by name, 'encoder/layers_0/mlp/wo/kernel', one for each layer;
      those of a passage tower of its own begin with 'passage_'. A pretrained T5
      has no 'projection/kernel'.
    encoder: sizes of the (query) encoder.
    left_out: tensors that are no part of a dual encoder, with the reason, such
      as 'decoder'.
    loss: parameters of the loss, 'loss/log_temperature'.
    described: of a model_dir, what `models.describe` says of its model.
    passage_tower: of a query tower alone, which one it belongs to.
    trained_dims: of how many first components its embeddings were trained to
      be of use, all of them among these; () where that is not known.
    names_activations: whether its files say what the feed-forward blocks
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
  step: int | None = None
  described: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  passage_tower: PassageTower | None = None
  trained_dims: Sequence[int] = ()
  codec: Codec | None = None
  names_activations: bool = True

  @property
  def has_projection(self) -> bool:
    """Whether it is a dual encoder, not a pretrained T5 alone."""
    return PROJECTION in self.tensors

  @property
  def is_shared(self) -> bool:
    """Whether queries and passages share all parts."""
    return not any(name.startswith('passage_') for name in self.tensors)

  def __str__(self) -> str:
    return f'{self.path} ({self.kind})'

  def model(self) -> models.DualEncoder:
    """The towers of these sizes; T5's width where there is no projection."""
    parts = []
    for side in '', 'passage_':
      table = self.tensors.get(side + EMBEDDING)
      kernel = self.tensors.get(side + PROJECTION)
      parts += [
          table and TokenEmbedder(*table.shape),
          getattr(self, f'{side}encoder'),
          kernel and Projection(kernel.shape[1]),
      ]
    parts[2] = parts[2] or Projection(parts[0].features)
    return models.DualEncoder(*parts)

  def check(self) -> 'Weights':
    """Returns itself if its tensors are those of its sizes, else UserError."""
    _check_matrices(self)
    for encoder in filter(None, (self.encoder, self.passage_encoder)):
      for name in encoder.activations:
        if name not in ACTIVATIONS:
          raise UserError(
              f'{self} has the activation {shown(name)}; expected one of'
              f' {", ".join(sorted(ACTIVATIONS))}.'
          )
      check_sizes(encoder, self.tensors, str(self))
    own = self.encoder
    sizes = (
        f'{own.num_layers} layers, {own.num_heads} heads of {own.head_dim},'
        f' feed-forward {own.mlp_dim} ({" x ".join(own.activations)})'
    )
    try:
      expected = dict(shapes_of(self.model()))
    except (ArithmeticError, AttributeError, TypeError, ValueError) as e:
      raise UserError(
          f'{self} describes a model of {sizes}, which cannot be built:'
          f' {(str(e).splitlines() or [type(e).__name__])[0]}. Copy it again.'
      ) from e
    if not self.has_projection:
      expected.pop(PROJECTION)
    problems = [
        f'{name} is missing' for name in sorted(expected.keys() - self.tensors)
    ]
    others = []
    for name, tensor in sorted(self.tensors.items()):
      where = _end(tensor.where)
      if name not in expected:
        as_ours = '' if tensor.where.endswith(name) else f' ({_end(name)})'
        problems.append(f'{where} is of no use{as_ours}')
      elif tensor.shape != expected[name]:
        others.append(
            f'{where} has the shape {shown(tensor.shape)} (as {name}), expected'
            f' {expected[name]}'
        )
    if problems := problems + others:
      raise UserError(
          f'{self} is not a complete model of {sizes}:'
          f" {listed(problems, 5, '; ')}. Give the whole checkpoint, with the"
          ' config that belongs to it.'
      )
    return self

  def with_activations(self, activations: Sequence[str]) -> 'Weights':
    """This, with what its feed-forward blocks compute, which no file says."""
    known = tuple(self.encoder.activations)
    given = ','.join(activations)
    if self.names_activations:
      raise UserError(
          f'--activations={given} is for a T5X checkpoint, which does not name'
          f" them. {self} does: {','.join(known)}. Leave it out."
      )
    if len(activations) != len(known) or set(activations) - ACTIVATIONS:
      raise UserError(
          f'--activations={given}: feed-forward blocks of {self.path} take'
          f' {len(known)}, as those of {" x ".join(known)}; expected as many of'
          f' {", ".join(sorted(ACTIVATIONS))}, with commas.'
      )
    encoders = {
        name: encoder.clone(activations=tuple(activations))
        for name in ENCODERS
        if (encoder := getattr(self, name)) is not None
    }
    return dataclasses.replace(self, names_activations=True, **encoders)


def _end(name: str) -> str:
  """The end of a long name, which says more than its folders."""
  return '...' * (len(name) > 120) + name[-120:]


def listed(items: Iterable[str], most: int = 3, between: str = ', ') -> str:
  """The first few, and how many more there are."""
  items = list(items)
  more = f' and {len(items) - most} more' if len(items) > most else ''
  return between.join(items[:most]) + more


def count_reasons(reasons: Sequence[str]) -> str:
  """'28 of decoder, 1 of head': of tensors that are left out."""
  counts = collections.Counter(reasons).items()
  return ', '.join(f'{count} of {reason}' for reason, count in counts)


def _check_matrices(weights: Weights) -> None:
  """Raises UserError unless the tensors that give the sizes are matrices."""
  if EMBEDDING not in weights.tensors:
    raise UserError(
        f'{weights} has no token embeddings ({EMBEDDING}). Give a checkpoint of'
        ' the whole model.'
    )
  for name in EMBEDDING, PROJECTION:
    for tensor in map(weights.tensors.get, (name, f'passage_{name}')):
      if tensor is not None and len(tensor.shape) != 2:
        raise UserError(
            f'{tensor.where} has the shape {tensor.shape}; expected two axes.'
        )


@functools.lru_cache(64)
def shapes_of(model: models.DualEncoder) -> Mapping[str, tuple[int, ...]]:
  """Name and shape of every parameter of a model."""
  boxed = models.abstract_params(model)
  flat = traverse_util.flatten_dict(nn.unbox(boxed), sep='/')
  return {name: leaf.shape for name, leaf in flat.items()}


def check_sizes(stack: Any, tensors: Mapping[str, Tensor], where: str) -> None:
  """Checks the sizes of a `T5Encoder`, say, before a model of them is made.

  `tensors` are one for each layer at least; `where` the sizes are from.
  """
  # A stack without layers is a bag of words, whose other sizes say nothing.
  least = int(stack.num_layers != 0)
  bad = [
      f'{name} is {shown(n)}'
      for name in SIZES[:-1]
      if type(n := getattr(stack, name)) is not int
      or not least * (name != 'num_layers') <= n < 2**31
  ]
  if not bad and stack.num_layers > len(tensors):
    bad = [f'num_layers is {stack.num_layers:,}']
  if bad:
    raise UserError(
        f'{where} has {len(tensors)} tensors, but its {bad[0]}. Give the whole'
        ' checkpoint, with the config that belongs to it.'
    )


def infer_encoder(
    tensors: Mapping[str, Tensor], activations: Sequence[str] | None = None,
    tower: str = 'encoder',
) -> T5Encoder:
  """Sizes of a stack from the shapes of its tensors.

  Args:
    tensors: by the names of `DualEncoder`.
    activations: of the feed-forward blocks; None for ReLU where they have one
      matrix, as T5 1.0, and gated GELU where they have two, as T5 1.1.
    tower: 'encoder', 'passage_encoder' or 'decoder'.
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
  first = f'{tower}/layers_0'
  gated = f'{first}/mlp/wi_0/kernel' in tensors
  attention = 'self_attention' if tower == 'decoder' else 'attention'
  needed = (
      f'{tower}/relpos_bias/rel_embedding',
      f'{first}/{attention}/query/kernel',
      f'{first}/mlp/{"wi_0" if gated else "wi"}/kernel',
  )
  for name in needed:
    if name not in tensors or len(tensors[name].shape) != 2:
      found = tensors[name].shape if name in tensors else 'absent'
      raise UserError(
          f'{name} is {found}; expected a matrix. The checkpoint{where} has'
          f' {len(tensors)} tensors of a T5 encoder. Give a whole T5.'
      )
  bias, query, mlp = (tensors[name] for name in needed)
  if activations is None:
    activations = ('gelu', 'linear') if gated else ('relu',)
  heads, buckets = bias.shape
  check_buckets(buckets, f'{bias.where}: the second axis')
  head_dim = query.shape[1] // max(heads, 1)
  if not (heads and head_dim):
    raise UserError(
        f'{needed[0]} has the shape {bias.shape}, and {needed[1]}'
        f' {query.shape}: expected heads of one component or more. Give a whole'
        ' T5.'
    )
  encoder = T5Encoder(
      max(layers) + 1, heads, head_dim, mlp.shape[1], tuple(activations),
      num_buckets=buckets,
  )
  check_sizes(encoder, tensors, f'The {tower}{where}')
  return encoder


def infer_encoders(
    tensors: Mapping[str, Tensor], activations: Sequence[str] | None = None,
    passage_activations: Sequence[str] | None = None,
) -> tuple[T5Encoder, T5Encoder | None]:
  """Sizes of the query encoder, and of a passage encoder with its own tensors.

  Activations are as of `infer_encoder`.
  """
  passage_encoder = None
  if any(name.startswith('passage_encoder/') for name in tensors):
    passage_encoder = infer_encoder(
        tensors, passage_activations, 'passage_encoder'
    )
  return infer_encoder(tensors, activations), passage_encoder
