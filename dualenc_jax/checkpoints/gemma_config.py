"""The config.json of Hugging Face's Gemma encoders, read.

They are EmbeddingGemma 1, which is a bidirectional Gemma 3, T5Gemma, and the
text parts of T5Gemma 2 and EmbeddingGemma 2, whose projection is among its
encoder's tensors.
"""

from collections.abc import Mapping, Sequence
import pathlib
from typing import Any

from dualenc_jax.checkpoints.hugging_face_config import ANY, check_settings
from dualenc_jax.models import GemmaEncoder
from dualenc_jax.utils import json_file
from dualenc_jax.utils.errors import expect, UserError

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
LOCAL, GLOBAL = 'sliding_attention', 'full_attention'
SIZES = {
    'num_hidden_layers': 'num_layers',
    'num_attention_heads': 'num_heads',
    'num_key_value_heads': 'num_kv_heads',
    'head_dim': 'head_dim',
    'intermediate_size': 'mlp_dim',
}
# Keys that transformers 4 wrote into every config, of a config's part too: most
# are about generation.
_OF_ALL_MODELS = (
    '_attn_implementation_autoset _name_or_path add_cross_attention'
    ' architectures bad_words_ids begin_suppress_tokens chunk_size_feed_forward'
    ' cross_attention_hidden_size decoder_start_token_id diversity_penalty'
    ' do_sample dtype early_stopping encoder_no_repeat_ngram_size eos_token_id'
    ' exponential_decay_length_penalty finetuning_task forced_bos_token_id'
    ' forced_eos_token_id id2label is_encoder_decoder label2id length_penalty'
    ' max_length min_length no_repeat_ngram_size num_beam_groups num_beams'
    ' num_return_sequences output_attentions output_hidden_states output_scores'
    ' pad_token_id prefix problem_type remove_invalid_values repetition_penalty'
    ' return_dict return_dict_in_generate sep_token_id suppress_tokens'
    ' task_specific_params temperature tf_legacy_loss tie_encoder_decoder'
    ' tie_word_embeddings tokenizer_class top_k top_p torch_dtype torchscript'
    ' transformers_version typical_p use_bfloat16 use_cache use_return_dict'
    ' bos_token_id'
).split()
# Every key of an encoder with the values that GemmaEncoder computes; ANY for
# those that are read elsewhere, or that no state depends on.
_ACCEPTED: dict[str, Sequence[Any] | None] = {
    'hidden_activation': ('gelu_pytorch_tanh',),
    'hidden_act': ('gelu_pytorch_tanh', None),
    'rms_norm_eps': (1e-6,),
    'attention_bias': (False,),
    'is_decoder': (False,),
    'pruned_heads': ({}, None),
    'use_bidirectional_attention': (True,),
    **dict.fromkeys((
        *SIZES, 'model_type', 'hidden_size', 'vocab_size', 'layer_types',
        'embedding_dim', 'hidden_size_per_layer_input', 'per_layer_config',
        'sliding_window', 'sliding_window_pattern', '_sliding_window_pattern',
        'rope_parameters', 'rope_theta', 'rope_local_base_freq', 'rope_scaling',
        'query_pre_attn_scalar', 'attn_logit_softcapping',
        'final_logit_softcapping', 'max_position_embeddings',
        'attention_dropout', 'dropout_rate', 'classifier_dropout_rate',
        'initializer_range', 'cache_implementation', *_OF_ALL_MODELS,
    ), ANY),
}
_TYPES: dict[str, Any] = {
    **dict.fromkeys((*SIZES, 'hidden_size', 'vocab_size'), int),
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


def max_length(config: Mapping[str, Any]) -> int | None:
  """Tokens of the longest text that the model has positions for, if known."""
  return _inner(config).get('max_position_embeddings')


def _inner(config: Mapping[str, Any]) -> Mapping[str, Any]:
  for part in _ENCODERS[config['model_type']]:
    inner = config.get(part)
    config = inner if isinstance(inner, dict) else {}
  return config


def read_encoder(
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
  sizes = {ours: inner[theirs] for theirs, ours in SIZES.items()}
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
    period = types.index(GLOBAL) + 1 if GLOBAL in types else count + 1
  expect(period >= 1, f'{where}: sliding_window_pattern', period, '1 or more')
  pattern = [
      LOCAL if (i + 1) % period else GLOBAL for i in range(count)
  ]
  is_second = config.get('model_type') == EMBEDDING2
  if is_second:
    pattern[-1:] = [GLOBAL] if count else []
  if types is not None and types != pattern:
    raise UserError(
        f'{where}: layer_types is {types!r:.200}; expected {GLOBAL!r} for'
        f' layers whose number is a multiple of one number, {LOCAL!r} for'
        ' others.'
    )
  size = config.get('sliding_window', 4096)
  if LOCAL in pattern:
    expect(
        type(size) is int and size >= 1, f'{where}: sliding_window', size,
        f'a whole number, as there are layers with {LOCAL!r}',
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
      if kind == GLOBAL
  }
  if layers.keys() != expected or len(sizes) != 1 or any(
      set(layer) - names.keys() for layer in layers.values()
  ):
    raise UserError(
        f'{where}: per_layer_config is {layers!r:.200}; expected the same'
        f' head_dim and num_key_value_heads for every layer of {GLOBAL!r}.'
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
    given = {LOCAL: both, GLOBAL: both}
  defaults = {
      LOCAL: float(config.get('rope_local_base_freq', 10_000.0)),
      GLOBAL: base,
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
    given[GLOBAL] = {**(given.get(GLOBAL) or {}), **scaling}
  if unknown := sorted(given.keys() - defaults.keys()):
    raise UserError(
        f'{where}: rope_parameters has {unknown[0]}; expected {LOCAL} and'
        f' {GLOBAL}.'
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
    if name == LOCAL:
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
