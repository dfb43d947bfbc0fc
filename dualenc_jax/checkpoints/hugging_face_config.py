"""The config.json of Hugging Face's T5, mT5 and umT5: sizes and activations."""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

from dualenc_jax.models import T5Encoder
from dualenc_jax.utils import json_file, untrusted
from dualenc_jax.utils.errors import UserError

FILE = 'config.json'
# A umT5 has a relative position bias in each layer.
BIAS_PER_LAYER = 'umt5'
MODEL_TYPES = ('t5', 'mt5', BIAS_PER_LAYER)
# Any value of a setting is accepted.
ANY = None
# By feed_forward_proj. gated-gelu is the approximate GELU, as Flax's; gelu is
# the exact one, which T5 has not.
_ACTIVATIONS = {
    'relu': ('relu',),
    'gated-gelu': ('gelu', 'linear'),
    'gated-silu': ('silu', 'linear'),
    'gated-relu': ('relu', 'linear'),
    'gelu_new': ('gelu',),
    'silu': ('silu',),
}
_FEED_FORWARD = 'feed_forward_proj'
# Settings that are built into the encoder here.
_BUILT_IN = {'relative_attention_max_distance': 128, 'layer_norm_epsilon': 1e-6}
_ACCEPTED: dict[str, Sequence[Any]] = {
    'model_type': MODEL_TYPES,
    _FEED_FORWARD: tuple(_ACTIVATIONS),
    **{name: (value,) for name, value in _BUILT_IN.items()},
}
# Settings that are compared or looked up.
_TYPES: dict[str, Any] = {
    'model_type?': str | None,
    f'{_FEED_FORWARD}?': str | None,
    'architectures?': list | None,
    'tie_word_embeddings?': bool | None,
    'transformers_version?': str | None,
}


def check_settings(
    settings: Mapping[str, Any], accepted: Mapping[str, Sequence[Any] | None],
    where: Any, why: str = 'which is all that this library computes',
) -> None:
  """Checks settings of another library that vectors depend on.

  Args:
    settings: by name, as read; those that are not in `accepted` are ignored.
    accepted: the values of each that are accepted; `ANY` for all.
    where: the file, for messages.
    why: the reason why no other value is accepted.

  Raises:
    UserError: a setting has another value.
  """
  for name, values in accepted.items():
    if values is not ANY and name in settings and settings[name] not in values:
      expected = ' or '.join(map(repr, values))
      raise UserError(
          f'{where}: {name} is {untrusted.quote(settings[name])}; expected'
          f' {expected}, {why}.'
      )


def read(folder: pathlib.Path) -> dict[str, Any]:
  """The config of a folder; UserError where it is missing or damaged."""
  absent = 'It names the activations of the model; copy the whole folder.'
  return json_file.read(folder / FILE, absent=absent, **_TYPES)


def model_type(folder: pathlib.Path) -> str | None:
  """The kind of model of a folder; None where no config says so."""
  try:
    return read(folder).get('model_type')
  except UserError:
    return None


def read_activations(
    config: Mapping[str, Any], where: pathlib.Path
) -> tuple[str, ...]:
  """The activations of a config; UserError if it computes something else."""
  check_settings({'model_type': None, **config}, _ACCEPTED, where)
  # transformers has the same defaults.
  default = 'relu' if config['model_type'] == 't5' else 'gated-gelu'
  feed_forward = config.get(_FEED_FORWARD, default)
  # A dense_act_fn that differs is what transformers computes.
  expected = {'dense_act_fn': (_dense_act_fn(feed_forward),)}
  why = f'as {_FEED_FORWARD} is {feed_forward!r}'
  check_settings(config, expected, where, why)
  return _ACTIVATIONS[feed_forward]


def _dense_act_fn(feed_forward: str) -> str:
  """The function that transformers derives from feed_forward_proj."""
  if feed_forward == 'gated-gelu':
    return 'gelu_new'
  return feed_forward.removeprefix('gated-')


def check_sizes(
    config: Mapping[str, Any], encoder: T5Encoder, table: tuple[int, ...],
    where: pathlib.Path,
) -> None:
  """Raises UserError unless a config has the sizes of the tensors."""
  sizes = {name: (n,) for name, n in _sizes(encoder, *table).items()}
  why = 'the size of the tensors: give the config that belongs to them'
  check_settings(config, sizes, where, why)


def _sizes(encoder: T5Encoder, rows: int, width: int) -> dict[str, int]:
  """Sizes by their names in a config; token embeddings are [rows, width]."""
  return {
      'vocab_size': rows,
      'd_model': width,
      'num_layers': encoder.num_layers,
      'num_heads': encoder.num_heads,
      'd_kv': encoder.head_dim,
      'd_ff': encoder.mlp_dim,
      'relative_attention_num_buckets': encoder.num_buckets,
  }


def is_head_tied(config: Mapping[str, Any]) -> bool | None:
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


def make_config(encoder: T5Encoder, rows: int, width: int) -> dict[str, Any]:
  """The config of a T5EncoderModel or UMT5EncoderModel, without defaults.

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
  kind = BIAS_PER_LAYER if encoder.bias_per_layer else 't5'
  return {
      'architectures': [f'{kind.upper()}EncoderModel'],
      'model_type': kind,
      'dtype': 'float32',
      'is_encoder_decoder': False,
      'use_cache': False,
      _FEED_FORWARD: feed_forward,
      **_BUILT_IN,
      **_sizes(encoder, rows, width),
  }
