"""Config and tensors of Hugging Face's Gemma encoders.

They are EmbeddingGemma 1, which is a bidirectional Gemma 3, T5Gemma, and the
text parts of T5Gemma 2 and EmbeddingGemma 2, whose projection is among its
encoder's tensors. Linear maps are [output, input] there.
"""

from collections.abc import Mapping
import pathlib
import re
from typing import Any

from dualenc_jax.checkpoints.hugging_face_config import ANY, check_settings
from dualenc_jax.checkpoints.weights import EMBEDDING, PROJECTION
from dualenc_jax.models import GemmaEncoder
from dualenc_jax.utils import json_file
from dualenc_jax.utils.errors import expect, UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor

GEMMA3, T5GEMMA, T5GEMMA2 = 'gemma3_text', 't5gemma', 't5gemma2_encoder'
EMBEDDING2 = 'embedding_gemma2_text'
# The part of a config that has the encoder, by model_type.
_ENCODERS = {
    GEMMA3: (),
    T5GEMMA: ('encoder',),
    't5gemma2': ('encoder', 'text_config'),
    T5GEMMA2: ('text_config',),
    EMBEDDING2: (),
    'embedding_gemma2': ('text_config',),
}
MODEL_TYPES = tuple(_ENCODERS)
_LOCAL, _GLOBAL = 'sliding_attention', 'full_attention'
_SIZES = {
    'num_hidden_layers': 'num_layers',
    'num_attention_heads': 'num_heads',
    'num_key_value_heads': 'num_kv_heads',
    'head_dim': 'head_dim',
    'intermediate_size': 'mlp_dim',
}
# Every key of an encoder with the values that GemmaEncoder computes; ANY for
# those that are read elsewhere, or that no state depends on.
_ACCEPTED = {
    'hidden_activation': ('gelu_pytorch_tanh',),
    'hidden_act': ('gelu_pytorch_tanh', None),
    'rms_norm_eps': (1e-6,),
    'attention_bias': (False,),
    'is_decoder': (False,),
    'use_bidirectional_attention': (True,),
    **dict.fromkeys((
        *_SIZES, 'model_type', 'hidden_size', 'vocab_size', 'layer_types',
        'embedding_dim', 'hidden_size_per_layer_input', 'per_layer_config',
        'sliding_window', 'sliding_window_pattern', '_sliding_window_pattern',
        'rope_parameters', 'rope_theta', 'rope_local_base_freq', 'rope_scaling',
        'query_pre_attn_scalar', 'attn_logit_softcapping',
        'final_logit_softcapping', 'max_position_embeddings', 'architectures',
        'attention_dropout', 'dropout_rate', 'classifier_dropout_rate',
        'initializer_range', 'use_cache', 'cache_implementation', 'dtype',
        'torch_dtype', 'transformers_version', 'pad_token_id', 'eos_token_id',
        'bos_token_id', 'tie_word_embeddings', 'is_encoder_decoder',
        'cross_attention_hidden_size', 'chunk_size_feed_forward', 'id2label',
        'label2id', 'output_attentions', 'output_hidden_states', 'problem_type',
        'return_dict', '_name_or_path', 'use_return_dict',
    ), ANY),
}
_TYPES: dict[str, Any] = {
    **dict.fromkeys((*_SIZES, 'hidden_size', 'vocab_size'), int),
    'layer_types?': list | None,
    'sliding_window?': int | None,
    'sliding_window_pattern?': int,
    '_sliding_window_pattern?': int,
    'rope_parameters?': dict | None,
    'rope_theta?': float | int,
    'rope_local_base_freq?': float | int,
    'rope_scaling?': dict | None,
    'query_pre_attn_scalar?': float | int,
    'attn_logit_softcapping?': float | int | None,
    'max_position_embeddings?': int,
    'hidden_size_per_layer_input?': int,
    'per_layer_config?': {str: {str: int}},
}
_ROPE = {
    'rope_type': str, 'rope_theta?': float | int, 'factor?': float | int
}
_AGAIN = 'Copy the whole folder again.'

_NAMES = {
    'self_attn.q_proj': 'attention/query/kernel',
    'self_attn.k_proj': 'attention/key/kernel',
    'self_attn.v_proj': 'attention/value/kernel',
    'self_attn.o_proj': 'attention/out/kernel',
    'self_attn.q_norm': 'attention/query_norm/scale',
    'self_attn.k_norm': 'attention/key_norm/scale',
    'mlp.gate_proj': 'mlp/wi_0/kernel',
    'mlp.up_proj': 'mlp/wi_1/kernel',
    'mlp.down_proj': 'mlp/wo/kernel',
    'pre_feedforward_layernorm': 'pre_mlp_layer_norm/scale',
    'post_feedforward_layernorm': 'post_mlp_layer_norm/scale',
}
# The norms around attention: Gemma 3's names, and those of both T5Gemmas.
_NORMS = {
    GEMMA3: {
        'input_layernorm': 'pre_attention_layer_norm/scale',
        'post_attention_layernorm': 'post_attention_layer_norm/scale',
    },
    T5GEMMA: {
        'pre_self_attn_layernorm': 'pre_attention_layer_norm/scale',
        'post_self_attn_layernorm': 'post_attention_layer_norm/scale',
    },
}
_NORMS |= {T5GEMMA2: _NORMS[T5GEMMA], EMBEDDING2: _NORMS[GEMMA3]}
# The third block of a layer of EmbeddingGemma 2.
_SIGNAL = {
    'ple_block.per_layer_input_gate': 'signal_gate/kernel',
    'ple_block.per_layer_projection': 'signal_out/kernel',
    'ple_block.post_per_layer_input_norm': 'post_signal_layer_norm/scale',
}
_LAYER_SCALE = 'layer_scalar'
_ENDS = {
    'embed_tokens.weight': EMBEDDING,
    'norm.weight': 'encoder/encoder_norm/scale',
    'ple.per_layer_model_projection.weight': 'encoder/signal/kernel',
    'ple.per_layer_projection_norm.weight': 'encoder/signal_norm/scale',
    'embedding_projection.weight': PROJECTION,
}
_PREFIX = {GEMMA3: '', T5GEMMA: 'encoder.', T5GEMMA2: '', EMBEDDING2: ''}
# Parts that no embedding of a text depends on.
_OTHERS = {
    'decoder': 'decoder', 'lm_head': 'head', 'vision_tower': 'vision',
    'multi_modal_projector': 'vision', 'embed_vision': 'vision',
    'audio_tower': 'audio', 'embed_audio': 'audio',
}


def read(
    theirs: Mapping[str, Tensor], config: Mapping[str, Any], where: pathlib.Path
) -> tuple[dict[str, Tensor], GemmaEncoder, dict[str, str]]:
  """Tensors by our names, the encoder's sizes, and what is left out, and why.

  Args:
    theirs: tensors by their names.
    config: the content of the file `where`.

  Raises:
    UserError: the encoder computes something else than GemmaEncoder.
  """
  encoder = _read_encoder(config, where)
  every = _NAMES | _NORMS[GEMMA3] | _NORMS[T5GEMMA] | _SIGNAL
  tensors, left_out = {}, {}
  for name, tensor in theirs.items():
    # Files of several ages have the encoder below one to three names.
    short = re.sub(
        r'^(model\.)?(encoder\.)?((text|language)_model\.)?', '', name
    )
    part = short.partition('.')[0]
    if part in _OTHERS:
      left_out[name] = _OTHERS[part]
    elif short == 'embed_tokens.eoi_embedding':
      # It stands for the end of a picture.
      left_out[name] = 'vision'
    else:
      layer = re.fullmatch(r'layers\.(\d+)\.(.+?)(\.weight)?', short)
      ours = layer and (every | {_LAYER_SCALE: 'scale'}).get(layer[2])
      ours = f'encoder/layers_{layer[1]}/{ours}' if layer and ours else name
      ours = _ENDS.get(short, ours)
      is_kernel = ours.endswith('/kernel')
      tensors[ours] = tensor.transposed() if is_kernel else tensor
  return tensors, encoder, left_out


def max_length(config: Mapping[str, Any]) -> int | None:
  """Tokens of the longest text that the model has positions for, if known."""
  return _inner(config).get('max_position_embeddings')


def _inner(config: Mapping[str, Any]) -> Mapping[str, Any]:
  for part in _ENCODERS[config['model_type']]:
    inner = config.get(part)
    config = inner if isinstance(inner, dict) else {}
  return config


def _read_encoder(
    config: Mapping[str, Any], where: pathlib.Path
) -> GemmaEncoder:
  kind, inner = config['model_type'], _inner(config)
  path = ': '.join([str(where), *_ENCODERS[kind]])
  json_file.check(inner, _TYPES, path, _AGAIN)
  if unknown := sorted(inner.keys() - _ACCEPTED.keys()):
    raise UserError(
        f'{path}: {unknown[0]} is an unknown setting. Remove it if it does not'
        ' change what the encoder computes.'
    )
  required = {'use_bidirectional_attention': None} if kind == GEMMA3 else {}
  check_settings(
      {**required, **inner}, _ACCEPTED, path, 'which is all that this library'
      ' computes for a Gemma',
  )
  sizes = {ours: inner[theirs] for theirs, ours in _SIZES.items()}
  local, globally = _read_rope(kind, inner, path)
  is_second = inner.get('model_type') == EMBEDDING2
  scalar = inner.get('query_pre_attn_scalar', 1 if is_second else 256)
  expect(scalar > 0, f'{path}: query_pre_attn_scalar', scalar, 'more than 0')
  cap = 50.0 if kind == T5GEMMA else None
  more: dict[str, Any] = {}
  if is_second:
    more = {
        'value_norm': True, 'norm_offset': 0.0, 'layer_scale': True,
        'signal_dim': inner.get('hidden_size_per_layer_input', 512),
        **_read_global(inner, path),
    }
  return GemmaEncoder(
      **sizes,
      **_read_layers(kind, inner, path),
      **more,
      rotary_base=local[0],
      global_rotary_base=globally[0],
      global_rotary_factor=globally[1],
      query_scale=scalar**-0.5,
      query_key_norm=kind != T5GEMMA,
      logit_cap=inner.get('attn_logit_softcapping', cap),
  )


def _read_layers(
    kind: str, config: Mapping[str, Any], where: str
) -> dict[str, Any]:
  """The window and the period of global layers, as `GemmaEncoder` has them."""
  count, types = config['num_hidden_layers'], config.get('layer_types')
  usual = 2 if kind == T5GEMMA else 6
  # transformers keeps the pattern under either name.
  period = config.get(
      'sliding_window_pattern', config.get('_sliding_window_pattern', usual)
  )
  if types is not None:
    period = types.index(_GLOBAL) + 1 if _GLOBAL in types else count + 1
  expect(period >= 1, f'{where}: sliding_window_pattern', period, '1 or more')
  pattern = [
      _LOCAL if (i + 1) % period else _GLOBAL for i in range(count)
  ]
  is_second = config.get('model_type') == EMBEDDING2
  if is_second:
    pattern[-1:] = [_GLOBAL] if count else []
  if types is not None and types != pattern:
    raise UserError(
        f'{where}: layer_types is {types!r:.200}; expected {_GLOBAL!r} for'
        f' layers whose number is a multiple of one number, {_LOCAL!r} for'
        ' others.'
    )
  size = config.get('sliding_window', 4096)
  if _LOCAL in pattern:
    expect(
        type(size) is int and size >= 1, f'{where}: sliding_window', size,
        f'a whole number, as there are layers with {_LOCAL!r}',
    )
  else:
    size = 4096
  window = size, size
  if kind == GEMMA3:
    window = size // 2, size // 2
  elif kind != T5GEMMA and not is_second:
    window = (size + 1) // 2 - 1, size // 2
  return {
      'window': window, 'global_every': period, 'last_is_global': is_second
  }


def _read_global(config: Mapping[str, Any], where: str) -> dict[str, int]:
  """The sizes of global layers, which are all alike in EmbeddingGemma 2."""
  layers = config.get('per_layer_config', {})
  sizes = {tuple(sorted(layer.items())) for layer in layers.values()}
  names = {
      'head_dim': 'global_head_dim', 'num_key_value_heads': 'global_kv_heads',
  }
  expected = {
      str(i) for i, kind in enumerate(config.get('layer_types') or ())
      if kind == _GLOBAL
  }
  if layers.keys() != expected or len(sizes) != 1 or any(
      set(layer) - names.keys() for layer in layers.values()
  ):
    raise UserError(
        f'{where}: per_layer_config is {layers!r:.200}; expected the same'
        f' head_dim and num_key_value_heads for every layer of {_GLOBAL!r}.'
    )
  return {names[name]: size for name, size in sizes.pop()}


def _read_rope(
    kind: str, config: Mapping[str, Any], where: str
) -> tuple[tuple[float, float], tuple[float, float]]:
  """Base and factor of rotary positions in local and in global layers."""
  given = dict(config.get('rope_parameters') or {})
  base = float(config.get('rope_theta', 10_000.0 if kind == T5GEMMA else 1e6))
  if kind == T5GEMMA:
    both = {'rope_type': 'default', 'rope_theta': base, **given}
    given = {_LOCAL: both, _GLOBAL: both}
  defaults = {
      _LOCAL: float(config.get('rope_local_base_freq', 10_000.0)),
      _GLOBAL: base,
  }
  scaling = config.get('rope_scaling')
  if scaling and kind == T5GEMMA:
    raise UserError(
        f'{where}: rope_scaling is {scaling!r:.80}; expected none in T5Gemma.'
    )
  if scaling:
    scaling = dict(scaling)
    # Older files call the type so.
    scaling.setdefault('rope_type', scaling.pop('type', 'default'))
    given[_GLOBAL] = {**(given.get(_GLOBAL) or {}), **scaling}
  if unknown := sorted(given.keys() - defaults.keys()):
    raise UserError(
        f'{where}: rope_parameters has {unknown[0]}; expected {_LOCAL} and'
        f' {_GLOBAL}.'
    )
  found = []
  for name, theta in defaults.items():
    rope = {'rope_type': 'default', **(given.get(name) or {})}
    place = f'{where}: rope_parameters: {name}'
    json_file.check(rope, _ROPE, place, _AGAIN)
    accepted: dict[str, Any] = {'rope_type': ('default', 'linear')}
    if unknown := sorted(
        rope.keys() - {'rope_type', 'rope_theta', 'factor'}
    ):
      raise UserError(f'{place} has {unknown[0]}; expected rope_theta, factor.')
    if name == _LOCAL:
      accepted = {'rope_type': ('default',)}
    check_settings(rope, accepted, place)
    factor = 1.0
    if rope['rope_type'] == 'linear':
      factor = float(rope.get('factor', 0))
    theta = float(rope.get('rope_theta', theta))
    expect(
        factor > 0 and theta > 0, f'{place}: factor and rope_theta',
        (factor, theta), 'more than 0',
    )
    found.append((theta, factor))
  return found[0], found[1]


def write(
    tensors: Mapping[str, Tensor], encoder: GemmaEncoder
) -> tuple[dict[str, Any], dict[str, Tensor]]:
  """The config and the tensors of the class that computes the same.

  Args:
    tensors: token embeddings and encoder, by the names of `DualEncoder`.

  Raises:
    UserError: transformers has no class with these settings.
  """
  kind, window = _choose_kind(encoder)
  names = {
      ours: f'{n}.weight'
      for n, ours in (_NAMES | _NORMS[kind] | _SIGNAL).items()
  } | {'scale': _LAYER_SCALE}
  ends = {ours: n for n, ours in _ENDS.items()}
  theirs = {}
  for name, tensor in tensors.items():
    if name.endswith('/kernel'):
      tensor = tensor.transposed()
    if name in ends:
      theirs[_PREFIX[kind] + ends[name]] = tensor
    else:
      layer, _, rest = name.removeprefix('encoder/layers_').partition('/')
      theirs[f'{_PREFIX[kind]}layers.{layer}.{names[rest]}'] = tensor
  rows, width = tensors[EMBEDDING].shape
  scalar = round(encoder.scale**-2)
  if scalar**-0.5 != encoder.scale:
    raise UserError(
        f'GemmaEncoder.query_scale is {encoder.scale}; expected one over the'
        ' root of a whole number, which is all that transformers has.'
    )
  inner = {
      **{theirs: getattr(encoder, ours) for theirs, ours in _SIZES.items()},
      'hidden_size': width,
      'vocab_size': rows,
      'hidden_activation': 'gelu_pytorch_tanh',
      'rms_norm_eps': 1e-6,
      'attention_bias': False,
      'sliding_window': window,
      'layer_types': [
          _GLOBAL if encoder.layer_is_global(i) else _LOCAL
          for i in range(encoder.num_layers)
      ],
      'rope_parameters': _make_rope(kind, encoder),
      'dtype': 'float32',
  }
  if kind == EMBEDDING2:
    inner |= {
        'embedding_dim': tensors[PROJECTION].shape[1],
        'hidden_size_per_layer_input': encoder.signal_dim,
        'per_layer_config': {
            str(i): {'head_dim': dim, 'num_key_value_heads': heads}
            for i in range(encoder.num_layers)
            if encoder.layer_is_global(i)
            for heads, dim in (encoder.layer_heads(i),)
        },
    }
  else:
    inner |= {
        'query_pre_attn_scalar': scalar, 'use_cache': False,
        'attn_logit_softcapping': encoder.logit_cap,
    }
  return _make_config(kind, inner), theirs


def holds_projection(encoder: Any) -> bool:
  """Whether `write` puts the projection among the encoder's own tensors."""
  return isinstance(encoder, GemmaEncoder) and encoder.value_norm


def needs_pictures(encoder: Any) -> bool:
  """Whether its class in transformers reads pictures, too."""
  is_gemma = isinstance(encoder, GemmaEncoder)
  return is_gemma and _choose_kind(encoder)[0] == T5GEMMA2


def _choose_kind(encoder: GemmaEncoder) -> tuple[str, int]:
  """The model_type that computes the same, and its sliding_window."""
  before, after = encoder.window
  is_plain = (
      encoder.global_rotary_factor == 1.0
      and encoder.rotary_base == encoder.global_rotary_base
  )
  is_second = (
      encoder.value_norm, encoder.norm_offset, encoder.layer_scale,
      encoder.signal_dim > 0, encoder.last_is_global,
  )
  if tuple(encoder.activations) != ('gelu', 'linear'):
    problem = f'activations {tuple(encoder.activations)}'
  elif all(is_second[:1] + is_second[2:]) and not encoder.norm_offset:
    if (
        before == after and encoder.query_key_norm and encoder.scale == 1.0
        and encoder.logit_cap is None
    ):
      return EMBEDDING2, before
    problem = (
        f'values normed, window {tuple(encoder.window)}, query_scale'
        f' {encoder.scale}, logit_cap {encoder.logit_cap}'
    )
  elif is_second != (False, 1.0, False, False, False) or encoder.is_varied:
    problem = 'some of the parts of EmbeddingGemma 2 alone'
  elif encoder.query_key_norm and before == after:
    return GEMMA3, 2 * before
  elif encoder.query_key_norm and after == before + 1:
    return T5GEMMA2, 2 * after
  elif not encoder.query_key_norm and before == after >= 1 and is_plain:
    return T5GEMMA, before
  else:
    problem = (
        f'window {tuple(encoder.window)} and query_key_norm'
        f' {encoder.query_key_norm}'
    )
  raise UserError(
      f'transformers has no Gemma encoder with {problem}. Save the model from'
      ' Python, Retriever.from_dir(MODEL).save(FOLDER).'
  )


def _make_rope(kind: str, encoder: GemmaEncoder) -> dict[str, Any]:
  local = {'rope_type': 'default', 'rope_theta': encoder.rotary_base}
  if kind == T5GEMMA:
    return local
  globally = {'rope_type': 'default', 'rope_theta': encoder.global_rotary_base}
  if encoder.global_rotary_factor != 1.0:
    factor = encoder.global_rotary_factor
    globally |= {'rope_type': 'linear', 'factor': factor}
  return {_LOCAL: local, _GLOBAL: globally}


def _make_config(kind: str, inner: dict[str, Any]) -> dict[str, Any]:
  if kind == GEMMA3:
    return {
        'architectures': ['Gemma3TextModel'], 'model_type': kind,
        'use_bidirectional_attention': True, **inner,
    }
  if kind == EMBEDDING2:
    return {
        'architectures': ['EmbeddingGemma2TextModel'], 'model_type': kind,
        **inner,
    }
  if kind == T5GEMMA:
    inner |= {'model_type': 't5_gemma_module'}
    return {
        'architectures': ['T5GemmaEncoderModel'], 'model_type': kind,
        'is_encoder_decoder': False, 'vocab_size': inner['vocab_size'],
        # transformers wants a decoder's sizes where it has none, too.
        'encoder': inner, 'decoder': inner, 'dtype': 'float32',
    }
  return {
      'architectures': ['T5Gemma2Encoder'], 'model_type': kind,
      'text_config': {
          'model_type': 't5gemma2_text', 'dropout_rate': 0.0, **inner
      },
      # The least that transformers builds: the pictures' part is unused.
      'vision_config': {
          'model_type': 'siglip_vision_model', 'hidden_size': 2,
          'intermediate_size': 2, 'num_hidden_layers': 0,
          'num_attention_heads': 1, 'image_size': 2, 'patch_size': 2,
      },
      'mm_tokens_per_image': 1, 'dtype': 'float32',
  }
