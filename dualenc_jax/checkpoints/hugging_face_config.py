"""The config.json of Hugging Face's T5 and mT5: sizes, activations, head."""

from collections.abc import Collection, Mapping
import pathlib
from typing import Any

from dualenc_jax.models import T5Encoder
from dualenc_jax.models.t5_encoder import check_buckets
from dualenc_jax.utils import json_file, untrusted
from dualenc_jax.utils.errors import expect, UserError

FILE = 'config.json'
MODEL_TYPES = ('t5', 'mt5', 'umt5')
FEED_FORWARD = 'feed_forward_proj'
# Their gated-gelu is the approximate GELU, as Flax's; their gelu is the exact.
_ACTIVATIONS = {
    'relu': ('relu',),
    'gated-gelu': ('gelu', 'linear'),
    'gated-silu': ('silu', 'linear'),
    'gated-relu': ('relu', 'linear'),
    'gelu_new': ('gelu',),
    'silu': ('silu',),
}
_BUCKETS = 'relative_attention_num_buckets'
# What the encoder here has built in; transformers' defaults, too.
_BUILT_IN = {'relative_attention_max_distance': 128, 'layer_norm_epsilon': 1e-6}
# Of what is compared or looked up; sizes have a check of their own.
_TYPES: dict[str, Any] = {
    'model_type?': str | None,
    f'{FEED_FORWARD}?': str | None,
    'dense_act_fn?': str | None,
    'architectures?': list | None,
    'tie_word_embeddings?': bool | None,
    'transformers_version?': str | None,
}
# The version of transformers whose form is written.
_VERSION = '5.23.0'


def read(folder: pathlib.Path) -> dict[str, Any]:
  """The config of a folder; UserError where it is missing or damaged."""
  absent = 'It has the sizes of the model; copy the whole folder.'
  return json_file.read(folder / FILE, absent=absent, **_TYPES)


def model_type(folder: pathlib.Path) -> str | None:
  """The kind of model of a folder; None where no config says so."""
  try:
    return read(folder).get('model_type')
  except UserError:
    return None


def encoder(
    config: Mapping[str, Any], names: Collection[str], path: pathlib.Path
) -> T5Encoder:
  """Sizes of the encoder: of a config read from `path`, tensors by name."""
  if config.get('model_type') not in ('t5', 'mt5'):
    raise UserError(
        f'{path}: model_type is {config.get("model_type")!r}; expected t5 or'
        ' mt5. A umt5 has a relative position bias in each layer, T5 one for'
        ' all.'
    )
  for name, expected in _BUILT_IN.items():
    value = config.get(name, expected)
    only = f'{expected}, which is all that the encoder of this library has'
    expect(value == expected, f'{path}: {name}', value, only)
  activations = _activations(config, names, path)
  # T5's, where the config has none.
  buckets = config.get(_BUCKETS, T5Encoder.num_buckets)
  check_buckets(buckets, f'{path}: {_BUCKETS}')
  layers, *sizes = (
      size(config, n, path) for n in ('num_layers', 'num_heads', 'd_kv', 'd_ff')
  )
  heads, head_dim, mlp_dim = sizes
  return T5Encoder(
      layers, heads, head_dim, mlp_dim, activations, num_buckets=buckets
  )


def size(config: Mapping[str, Any], name: str, path: pathlib.Path) -> int:
  """A size; raises UserError unless it is a whole number from 1."""
  value = config.get(name)
  if type(value) is not int or value < 1:
    raise UserError(
        f'{path}: {name} is {untrusted.shown(value)}; expected a whole number,'
        ' 1 or more. Copy the config of this model.'
    )
  return value


def ties_head(config: Mapping[str, Any]) -> bool | None:
  """Whether the head is the token embeddings; None where nothing says so.

  transformers 5 writes "tie_word_embeddings": true for every T5. For T5 1.1,
  tied or not, it adds "scale_decoder_outputs": false; for mT5 nothing.
  """
  if not config.get('tie_word_embeddings', True):
    return False
  if config.get('scale_decoder_outputs') is False:
    return None
  version = str(config.get('transformers_version', '4')).partition('.')[0]
  if config.get('model_type') == 'mt5' and untrusted.is_digits(version):
    return True if int(version) < 5 else None
  return True


def of_encoder(encoder: T5Encoder, rows: int, width: int) -> dict[str, Any]:
  """The config that T5EncoderModel.save_pretrained writes.

  Token embeddings are [rows, width]. UserError where transformers has no such
  feed-forward block.
  """
  names = {activations: name for name, activations in _ACTIVATIONS.items()}
  feed_forward = names.get(tuple(encoder.activations))
  if feed_forward is None:
    raise UserError(
        f'T5Encoder.activations is {tuple(encoder.activations)}, which'
        " transformers' T5 does not have; expected one of"
        f' {", ".join(map(str, names))}.'
    )
  return {
      'architectures': ['T5EncoderModel'],
      'classifier_dropout': 0.0,
      'd_ff': encoder.mlp_dim,
      'd_kv': encoder.head_dim,
      'd_model': width,
      'dense_act_fn': _dense_act_fn(feed_forward),
      'dropout_rate': 0.1,
      'dtype': 'float32',
      'eos_token_id': 1,
      FEED_FORWARD: feed_forward,
      'initializer_factor': 1.0,
      'is_decoder': False,
      'is_encoder_decoder': False,
      'is_gated_act': feed_forward.startswith('gated-'),
      'model_type': 't5',
      'num_decoder_layers': encoder.num_layers,
      'num_heads': encoder.num_heads,
      'num_layers': encoder.num_layers,
      'pad_token_id': 0,
      _BUCKETS: encoder.num_buckets,
      **_BUILT_IN,
      'scale_decoder_outputs': True,
      'tie_word_embeddings': True,
      'transformers_version': _VERSION,
      'use_cache': False,
      'vocab_size': rows,
  }


def _activations(
    config: Mapping[str, Any], names: Collection[str], path: pathlib.Path
) -> tuple[str, ...]:
  feed_forward = config.get(FEED_FORWARD)
  if feed_forward is None:
    gated = any('.wi_0.' in name for name in names)
    meant, version = ('gated-gelu', '1.1') if gated else ('relu', '1.0')
    raise UserError(
        f'{path} has no {FEED_FORWARD}, which says what the feed-forward blocks'
        f' compute. If it is a T5 {version}, as its tensors look, add this line'
        f' to the config: "{FEED_FORWARD}": "{meant}",'
    )
  if feed_forward not in _ACTIVATIONS:
    exact = (
        ' It is the exact GELU; the one of T5 and Flax is the approximate one.'
        if feed_forward == 'gelu'
        else ''
    )
    raise UserError(
        f'{path}: {FEED_FORWARD} is {feed_forward!r}; expected one of'
        f' {", ".join(_ACTIVATIONS)}.{exact}'
    )
  expected = _dense_act_fn(feed_forward)
  if config.get('dense_act_fn', expected) != expected:
    raise UserError(
        f'{path}: dense_act_fn is {config["dense_act_fn"]!r}, but'
        f' {FEED_FORWARD} is {feed_forward!r}, whose function is {expected}.'
        ' transformers would use the former; make them agree.'
    )
  return _ACTIVATIONS[feed_forward]


def _dense_act_fn(feed_forward: str) -> str:
  """The function that transformers derives from feed_forward_proj."""
  if feed_forward == 'gated-gelu':
    return 'gelu_new'
  return feed_forward.removeprefix('gated-')
