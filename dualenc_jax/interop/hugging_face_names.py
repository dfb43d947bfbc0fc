"""Names of Hugging Face's T5 encoder and ours, one to one.

Linear maps are [output, input] there and [input, output] here, the relative
position bias is [32, H] there and [H, 32] here: these are transposed.
"""

import re

from dualenc_jax.tensor_files.tensors import Tensor

EMBEDDING = 'token_embedder/embedding'
SHARED = 'shared.weight'
_OTHERS = {
    SHARED: EMBEDDING,
    'encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight': (
        'encoder/relpos_bias/rel_embedding'
    ),
    'encoder.final_layer_norm.weight': 'encoder/encoder_norm/scale',
}
_OF_LAYER = {
    'layer.0.SelfAttention.q': 'attention/query/kernel',
    'layer.0.SelfAttention.k': 'attention/key/kernel',
    'layer.0.SelfAttention.v': 'attention/value/kernel',
    'layer.0.SelfAttention.o': 'attention/out/kernel',
    'layer.0.layer_norm': 'pre_attention_layer_norm/scale',
    'layer.1.DenseReluDense.wi': 'mlp/wi/kernel',
    'layer.1.DenseReluDense.wi_0': 'mlp/wi_0/kernel',
    'layer.1.DenseReluDense.wi_1': 'mlp/wi_1/kernel',
    'layer.1.DenseReluDense.wo': 'mlp/wo/kernel',
    'layer.1.layer_norm': 'pre_mlp_layer_norm/scale',
}
_THEIRS = {ours: theirs for theirs, ours in (_OTHERS | _OF_LAYER).items()}


def to_ours(name: str) -> str:
  """Our name of a tensor; a name that no T5 encoder has stays as it is."""
  if name in _OTHERS:
    return _OTHERS[name]
  layer = re.fullmatch(r'encoder\.block\.(\d+)\.(.+)\.weight', name)
  if layer and layer[2] in _OF_LAYER:
    return f'encoder/layers_{layer[1]}/{_OF_LAYER[layer[2]]}'
  return name


def to_theirs(name: str) -> str:
  """Hugging Face's name of a tensor of ours, of the query tower's form."""
  if name in _THEIRS:
    return _THEIRS[name]
  layer, _, rest = name.removeprefix('encoder/layers_').partition('/')
  return f'encoder.block.{layer}.{_THEIRS[rest]}.weight'


def turned(name: str, tensor: Tensor) -> Tensor:
  """A tensor in the other's orientation; name: ours."""
  if name.endswith(('/kernel', '/rel_embedding')):
    return tensor.transposed()
  return tensor
