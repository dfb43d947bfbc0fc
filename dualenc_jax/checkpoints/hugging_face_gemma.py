"""Hugging Face's Gemma encoders: tensors read, tensors and config written.

They are those of `gemma_config`. Linear maps are [output, input] there.
"""

from collections.abc import Mapping
import pathlib
import re
from typing import Any

from dualenc_jax.checkpoints.gemma_config import (
  EMBEDDING2,
  GEMMA3,
  GLOBAL,
  LOCAL,
  read_encoder,
  SIZES,
  T5GEMMA,
  T5GEMMA2,
)
from dualenc_jax.checkpoints.weights import EMBEDDING, PROJECTION
from dualenc_jax.models import GemmaEncoder
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files.tensors import Tensor

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
  encoder = read_encoder(config, where)
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
      **{theirs: getattr(encoder, ours) for theirs, ours in SIZES.items()},
      'hidden_size': width,
      'vocab_size': rows,
      'hidden_activation': 'gelu_pytorch_tanh',
      'rms_norm_eps': 1e-6,
      'attention_bias': False,
      'sliding_window': window,
      'layer_types': [
          GLOBAL if encoder.layer_is_global(i) else LOCAL
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
  return {LOCAL: local, GLOBAL: globally}


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
