"""`Weights`, a checkpoint of any form in the terms of this library.

Every reader here returns a `Weights` and every writer takes one, so that any
form that can be read can be written as any other.
"""

import collections
from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import functools
import pathlib
import re
import shutil
from typing import Any

from flax import linen as nn, traverse_util

from dualenc_jax import models
from dualenc_jax.data.text.tokenizer import SPECIAL_TOKENS
from dualenc_jax.models import (
  GemmaEncoder,
  Projection,
  T5Encoder,
  TokenEmbedder,
)
from dualenc_jax.models.t5_encoder import check_buckets
from dualenc_jax.retrieval.compression import Codec
from dualenc_jax.retrieval.encoding.towers import PassageTower
from dualenc_jax.utils.errors import expect, UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor
from dualenc_jax.utils.untrusted import quote

ENCODERS = ('encoder', 'passage_encoder')
EMBEDDING, PROJECTION = 'token_embedder/embedding', 'projection/kernel'
# The maps of a chain of projections before the last, by their number.
HIDDEN = 'projection/hidden_{}/kernel'
# Names of `flax.linen` that a file may have for a feed-forward block, and none.
# Other functions there are transformations, which may change all of Flax.
ACTIVATIONS = frozenset(
    'celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu'
    ' linear log_sigmoid relu relu6 selu sigmoid silu soft_sign softplus swish'
    ' tanh'.split()
)
SIZES = ('num_layers', 'num_heads', 'head_dim', 'mlp_dim', 'activations')
# Settings of a `GemmaEncoder` that embeddings depend on, beside these.
OF_GEMMA = (
    'num_kv_heads', 'window', 'global_every', 'rotary_base',
    'global_rotary_base', 'global_rotary_factor', 'query_scale',
    'query_key_norm', 'logit_cap', 'last_is_global', 'global_head_dim',
    'global_kv_heads', 'value_norm', 'norm_offset', 'signal_dim', 'layer_scale',
)
# The types of a `Usage` as JSON; the file of its vocabulary beside it.
USAGE: dict[str, Any] = {
    'query_length': int | None,
    'passage_length': int | None,
    'query_prefix?': str,
    'passage_prefix?': str,
    'prompts?': {str: str},
    'default_prompt?': str | None,
    'add_bos?': bool,
    'add_eos?': bool,
}
_FACTS = [name.rstrip('?') for name in USAGE]
VOCABULARY = 'vocabulary.model'


@dataclasses.dataclass(frozen=True)
class Usage:
  """Tokenization settings of a checkpoint; None where its files have none.

  Attributes:
    vocabulary: its SentencePiece file.
    pieces: its vocabulary in the order of the ids, from another file.
    query_length: maximum tokens of a query, EOS included.
    passage_length: the same of a passage.
    query_prefix: text before every query.
    passage_prefix: text before every passage.
    prompts: other prefixes by name, as of `Tokenizer`.
    default_prompt: as of `Tokenizer`.
    add_bos, add_eos: as of `Vocabulary`.
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
  add_bos: bool = SPECIAL_TOKENS['add_bos']
  add_eos: bool = SPECIAL_TOKENS['add_eos']

  def facts(self) -> dict[str, Any]:
    """Lengths and prefixes, and all else that is not the default, as JSON."""
    facts = {n: getattr(self, n) for n in _FACTS}
    usual: dict[str, Any] = {
        'prompts': {}, 'default_prompt': None, **SPECIAL_TOKENS
    }
    return {n: x for n, x in facts.items() if n not in usual or x != usual[n]}

  @property
  def special_tokens(self) -> dict[str, bool]:
    """Settings of a `Vocabulary`."""
    return {name: getattr(self, name) for name in SPECIAL_TOKENS}

  def save_vocabulary(self, folder: pathlib.Path) -> None:
    """Copies the SentencePiece file, if there is one, into a folder."""
    if self.vocabulary is not None:
      shutil.copyfile(self.vocabulary, folder / VOCABULARY)

  def updated(self, facts: Mapping[str, Any], folder: pathlib.Path) -> 'Usage':
    """Updates it by saved facts, and by the vocabulary of a folder, if any."""
    values = {name: facts[name] for name in _FACTS if name in facts}
    if (folder / VOCABULARY).is_file():
      values['vocabulary'] = folder / VOCABULARY
    return dataclasses.replace(self, **values)


@dataclasses.dataclass(frozen=True)
class Weights:
  """The tensors of one or two towers, by the names of `DualEncoder`.

  Attributes:
    kind: the form of the files, for people: 'T5X checkpoint'.
    path: the folder or file, for messages.
    tensors: by name, 'encoder/layers_0/mlp/wo/kernel', one for each layer;
      those of a passage tower of its own begin with 'passage_'. A pretrained T5
      has no 'projection/kernel'.
    encoder: the (query) encoder's sizes, a `T5Encoder` or a `GemmaEncoder`.
    passage_encoder: those of a passage encoder of its own.
    usage: how texts are tokenized.
    read_decoder: opens decoder and head by the names of `Seq2Seq`, {} if it has
      none. 'decoder/logits_dense/kernel' does not exist where logits are by the
      token embeddings, over sqrt(E).
    left_out: tensors that are no part of a dual encoder, with the reason, such
      as 'decoder'.
    loss: parameters of the loss, 'loss/log_temperature'.
    step: of training, if known.
    described: the result of `models.describe` in a model_dir.
    passage_tower: the passage tower that a query tower alone belongs to.
    trained_dims: numbers of first components that embeddings were trained for,
      with that of all; () where they are not known.
    codec: a codec that was trained with the model.
    max_length: tokens of the longest text that the encoder has positions for;
      None where there is no limit.
    names_activations: whether its files name the activations of feed-forward
      blocks; otherwise they follow from the number of matrices.
  """

  kind: str
  path: str
  tensors: Mapping[str, Tensor]
  encoder: Any
  passage_encoder: Any = None
  usage: Usage = Usage()
  read_decoder: Callable[[], Mapping[str, Tensor]] = dict
  left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
  loss: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
  step: int | None = None
  described: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  passage_tower: PassageTower | None = None
  trained_dims: Sequence[int] = ()
  codec: Codec | None = None
  max_length: int | None = None
  names_activations: bool = True

  @property
  def has_projection(self) -> bool:
    """Whether it is a dual encoder, not a pretrained T5 alone."""
    return PROJECTION in self.tensors

  @property
  def encoders(self) -> list[Any]:
    """The encoder, and that of passages if they have one of their own."""
    return [e for e in (self.encoder, self.passage_encoder) if e is not None]

  @property
  def is_shared(self) -> bool:
    """Whether queries and passages share all parts."""
    return not any(name.startswith('passage_') for name in self.tensors)

  def hidden_maps(self, side: str = '') -> list[Tensor]:
    """The maps of a chain of projections before the last; [] for one map.

    `side` is '' or 'passage_'.
    """
    maps: list[Tensor] = []
    while tensor := self.tensors.get(side + HIDDEN.format(len(maps))):
      maps.append(tensor)
    return maps

  def projections(self, side: str = '') -> list[Tensor]:
    """The maps of the projection, one or a chain, in their order."""
    last = self.tensors.get(side + PROJECTION)
    return [*self.hidden_maps(side), *([last] if last else [])]

  def __str__(self) -> str:
    return f'{self.path} ({self.kind})'

  def model(self) -> models.DualEncoder:
    """The towers of these sizes; T5's width where there is no projection."""
    parts = []
    for side in '', 'passage_':
      table = self.tensors.get(side + EMBEDDING)
      kernel = self.tensors.get(side + PROJECTION)
      hidden = [kernel.shape[1] for kernel in self.hidden_maps(side)]
      parts += [
          table and TokenEmbedder(*table.shape),
          getattr(self, f'{side}encoder'),
          kernel and Projection(kernel.shape[1], tuple(hidden)),
      ]
    parts[2] = parts[2] or Projection(parts[0].features)
    return models.DualEncoder(*parts)

  def settings(self) -> dict[str, Any]:
    """All that embeddings depend on, except tensors and vocabulary, by name."""
    settings = {**self.usage.facts(), 'passage_tower': self.passage_tower}
    for tower in ENCODERS:
      encoder = getattr(self, tower)
      for name, value in encoder_settings(encoder).items() if encoder else ():
        settings[f'{tower}.{name}'] = value
    return settings

  def check(self) -> 'Weights':
    """Returns itself if its tensors are those of its sizes, else UserError."""
    _check_matrices(self)
    for encoder in self.encoders:
      for name in encoder.activations:
        expect(
            name in ACTIVATIONS, f'{self}: an activation', name,
            f'one of {", ".join(sorted(ACTIVATIONS))}',
        )
      check_sizes(encoder, self.tensors, str(self))
    expected = dict(param_shapes(self.model()))
    if not self.has_projection:
      expected.pop(PROJECTION)
    problems = [
        f'{name} is missing' for name in sorted(expected.keys() - self.tensors)
    ]
    for name, tensor in sorted(self.tensors.items()):
      # The end of a long name says more than its folders.
      where = tensor.where[-120:]
      if name not in expected:
        problems.append(f'{where} is of no use')
      elif tensor.shape != expected[name]:
        problems.append(
            f'{where} has the shape {quote(tensor.shape)} (as {name}), expected'
            f' {expected[name]}'
        )
    if problems:
      own = self.encoder
      raise UserError(
          f'{self} is not a complete model of {own.num_layers} layers,'
          f' {own.num_heads} heads of {own.head_dim}, feed-forward'
          f' {own.mlp_dim} ({" x ".join(own.activations)}):'
          f" {list_first(problems, 5, '; ')}. Give the whole checkpoint."
      )
    return self


def encoder_settings(encoder: T5Encoder | GemmaEncoder) -> dict[str, Any]:
  """All that states depend on, except tensors; equal for equal encoders."""
  own = OF_GEMMA if isinstance(encoder, GemmaEncoder) else ('num_buckets',)
  values = {name: getattr(encoder, name) for name in (*SIZES, *own)}
  settings = {
      name: tuple(value) if isinstance(value, Sequence) else value
      for name, value in values.items()
  }
  if isinstance(encoder, GemmaEncoder):
    # Several values of these are the same encoder.
    settings['query_scale'] = encoder.scale
    every = min(encoder.global_every, encoder.num_layers + 1)
    settings['global_every'] = every
    for name in 'head_dim', 'kv_heads':
      all_layers = settings[name if name == 'head_dim' else f'num_{name}']
      settings[f'global_{name}'] = settings[f'global_{name}'] or all_layers
  return settings


def rebuild_gemma(facts: Mapping[str, Any], where: str) -> GemmaEncoder:
  """The saved encoder, in float32, as it is used and not as it was trained."""
  encoder = models.rebuild(facts, where)
  return encoder.clone(
      dtype='float32', dropout_rate=0.0, scan_layers=False, remat=False,
      residual_init=1.0,
  )


def list_first(items: Iterable[str], most: int = 3, between: str = ', ') -> str:
  """Joins the first few items, and the number of those left out."""
  items = list(items)
  more = f' and {len(items) - most} more' if len(items) > most else ''
  return between.join(items[:most]) + more


def count_reasons(reasons: Sequence[str]) -> str:
  """Counts tensors that are left out: '28 of decoder, 1 of head'."""
  counts = collections.Counter(reasons).items()
  return ', '.join(f'{count} of {reason}' for reason, count in counts)


def _check_matrices(weights: Weights) -> None:
  if EMBEDDING not in weights.tensors:
    raise UserError(
        f'{weights} has no token embeddings ({EMBEDDING}). Give a checkpoint of'
        ' the whole model.'
    )
  for side in '', 'passage_':
    names = side + EMBEDDING, side + PROJECTION
    tensors = [*map(weights.tensors.get, names), *weights.hidden_maps(side)]
    for tensor in tensors:
      if tensor is not None and len(tensor.shape) != 2:
        raise UserError(
            f'{tensor.where} has the shape {tensor.shape}; expected two axes.'
        )


@functools.lru_cache(64)
def param_shapes(model: models.DualEncoder) -> Mapping[str, tuple[int, ...]]:
  """Name and shape of every parameter of a model."""
  boxed = models.abstract_params(model)
  flat = traverse_util.flatten_dict(nn.unbox(boxed), sep='/')
  return {name: leaf.shape for name, leaf in flat.items()}


def check_sizes(stack: Any, tensors: Mapping[str, Tensor], where: str) -> None:
  """Checks sizes that were read, before a model of them is built.

  Args:
    stack: a `T5Encoder` or `T5Decoder`.
    tensors: at least one for each layer.
    where: the place that the sizes are from, for messages.
  """
  for name in SIZES[:-1]:
    size = getattr(stack, name)
    most = len(tensors) if name == 'num_layers' else 2**31
    # Sizes of layers that do not exist may be 0.
    least = int(stack.num_layers != 0)
    if type(size) is not int or not least <= size <= most:
      raise UserError(
          f'{where} has {len(tensors)} tensors, but its {name} is'
          f' {quote(size)}. Give the whole checkpoint.'
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
        f'The {tower}{where} has no layers: none of its {len(tensors)} tensors'
        f' is {tower}/layers_0/... Give a T5.'
    )
  first = f'{tower}/layers_0'
  gated = f'{first}/mlp/wi_0/kernel' in tensors
  attention = 'self_attention' if tower == 'decoder' else 'attention'
  shared, own = (f'{x}/relpos_bias/rel_embedding' for x in (tower, first))
  bias_per_layer = shared not in tensors and own in tensors
  needed = (
      own if bias_per_layer else shared,
      f'{first}/{attention}/query/kernel',
      f'{first}/mlp/{"wi_0" if gated else "wi"}/kernel',
  )
  for name in needed:
    if name not in tensors or len(tensors[name].shape) != 2:
      shape = tensors[name].shape if name in tensors else 'absent'
      raise UserError(
          f'{name} is {shape}; expected a matrix. Give a whole T5, in place'
          f' of the {len(tensors)} tensors{where}.'
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
        f' {query.shape}: expected heads of one component or more.'
    )
  encoder = T5Encoder(
      max(layers) + 1, heads, head_dim, mlp.shape[1], tuple(activations),
      num_buckets=buckets, bias_per_layer=bias_per_layer,
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
