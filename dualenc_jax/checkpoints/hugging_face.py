"""Hugging Face's T5, mT5, umT5 and Gemma encoders, without transformers.

Gemma's config and names are in `hugging_face_gemma`. Linear maps are [output,
input] there and [input, output] here, the relative position bias is [32, H]
there and [H, 32] here: these are transposed.
"""

from collections.abc import Mapping
import pathlib
import re
from typing import Any

from dualenc_jax.checkpoints import (
  gemma_config,
  hugging_face_config as config_lib,
  hugging_face_gemma as gemma,
  hugging_face_tokenizer as tokenizer,
  transforms,
)
from dualenc_jax.checkpoints.weights import (
  EMBEDDING,
  HIDDEN,
  infer_encoder,
  PROJECTION,
  Weights,
)
from dualenc_jax.models import GemmaEncoder
from dualenc_jax.utils import files
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import safetensors_file
from dualenc_jax.utils.tensor_files.tensors import Tensor

KIND = 'Hugging Face folder'
KNOWN = *config_lib.MODEL_TYPES, *gemma_config.MODEL_TYPES
PROJECTION_FILE = 'projection.safetensors'
LINEAR = 'linear.weight'
_HEAD = 'lm_head.weight'
# Names of T5's one table of token embeddings, of which a file has one or more.
_TABLES = ('shared.weight', 'encoder.embed_tokens.weight',
           'decoder.embed_tokens.weight')


def _layer_names(*attentions: tuple[str, str, str]) -> dict[str, str]:
  """Our names of a layer's tensors by theirs.

  Each attention has their name, ours, and ours of the norm before it.
  """
  names = {}
  for i, (theirs, ours, norm) in enumerate(attentions):
    for part in ('query', 'key', 'value', 'out'):
      names[f'layer.{i}.{theirs}.{part[0]}'] = f'{ours}/{part}/kernel'
    names[f'layer.{i}.layer_norm'] = f'{norm}/scale'
  last = f'layer.{len(attentions)}'
  for part in ('wi', 'wi_0', 'wi_1', 'wo'):
    names[f'{last}.DenseReluDense.{part}'] = f'mlp/{part}/kernel'
  names[f'{last}.layer_norm'] = 'pre_mlp_layer_norm/scale'
  return names


_BIAS = 'layer.0.SelfAttention.relative_attention_bias.weight'
_STACK_NAMES = {_TABLES[0]: EMBEDDING} | {
    theirs: ours
    for stack in ('encoder', 'decoder')
    for theirs, ours in (
        (f'{stack}.block.0.{_BIAS}', f'{stack}/relpos_bias/rel_embedding'),
        (f'{stack}.final_layer_norm.weight', f'{stack}/{stack}_norm/scale'),
    )
}
_LAYER_NAMES = {
    'encoder': _layer_names(
        ('SelfAttention', 'attention', 'pre_attention_layer_norm')
    ),
    'decoder': _layer_names(
        ('SelfAttention', 'self_attention', 'pre_self_attention_layer_norm'),
        (
            'EncDecAttention',
            'encoder_decoder_attention',
            'pre_cross_attention_layer_norm',
        ),
    ),
}
# In the place of the first layer's, which all layers of a T5 share.
_OWN_BIAS = {_BIAS.removesuffix('.weight'): 'relpos_bias/rel_embedding'}
_THEIRS = {
    ours: theirs
    for theirs, ours in (
        _STACK_NAMES | _LAYER_NAMES['encoder'] | _OWN_BIAS
    ).items()
}
# A tensor of old folders, which transformers does not use either.
_UNUSED = _BIAS.replace('layer.0.Self', 'decoder.block.0.layer.1.EncDec')
# Gemma's tokenizers put BOS before a text where no file says otherwise.
_GEMMA_TOKENS = {'add_bos': True, 'add_eos': False}
_PICKLES = '.bin', '.pt', '.pth', '.ckpt'


def matches(path: pathlib.Path) -> bool:
  """Whether it is a folder of a T5 or Gemma, its file, or PyTorch's pickle."""
  if path.is_file():
    if path.name.endswith(('.safetensors', safetensors_file.INDEX)):
      return _has_config(path.parent)
    return path.suffix in _PICKLES
  return _has_config(path)


def read(path: pathlib.Path) -> Weights:
  """Reads the encoder of a T5, mT5, umT5 or Gemma, with its decoder or not.

  Args:
    path: a folder with config.json and safetensors, or one of those files.

  Raises:
    UserError: the weights are pickles, damaged, or not those of the config; or
      the model computes something else than the encoders here.
  """
  folder = path if path.is_dir() else path.parent
  refuse_pickle(path)
  config, where = config_lib.read(folder), folder / config_lib.FILE
  if config.get('model_type') not in KNOWN:
    raise UserError(
        f'{where}: model_type is {config.get("model_type")!r}; expected'
        f' {", ".join(KNOWN)}. The commands encode, search, evaluate and mine'
        ' take any other model of sentence-transformers as'
        ' --model_dir=st:FOLDER.'
    )
  theirs = safetensors_file.read(path)
  projection = _read_projection(folder)
  if config.get('model_type') in gemma_config.MODEL_TYPES:
    tensors, encoder, left_out = gemma.read(theirs, config, where)
    return Weights(
        KIND, str(path), tensors | projection, encoder,
        usage=tokenizer.read(folder, _GEMMA_TOKENS), left_out=left_out,
        max_length=gemma_config.max_length(config),
    ).check()
  activations = config_lib.read_activations(config, where)
  table, left_out = _read_table(theirs, config, folder)
  tensors = {EMBEDDING: table} | projection
  for name, tensor in theirs.items():
    if name in left_out or tensor is table:
      continue
    if name.startswith('decoder.'):
      left_out[name] = 'decoder'
    else:
      ours = _to_ours(name, config)
      tensors[ours] = _transpose(ours, tensor)
  weights = Weights(
      KIND, str(path), tensors, infer_encoder(tensors, activations),
      usage=tokenizer.read(folder), left_out=left_out,
      read_decoder=lambda: _read_decoder(theirs, left_out, table, config),
  ).check()
  config_lib.check_sizes(config, weights.encoder, table.shape, where)
  return weights


def _read_projection(folder: pathlib.Path) -> dict[str, Tensor]:
  """The kernel that `write` puts beside the encoder, by its name, if any."""
  if not (folder / PROJECTION_FILE).is_file():
    return {}
  linear = safetensors_file.read(folder / PROJECTION_FILE)
  expected = _projection_names(max(len(linear), 1))
  if linear.keys() != expected.keys():
    raise UserError(
        f'{folder / PROJECTION_FILE} holds'
        f' {", ".join(sorted(linear)) or "nothing"}; expected'
        f' {", ".join(expected)} alone.'
    )
  return {
      ours: linear[theirs].transposed() for theirs, ours in expected.items()
  }


def _projection_names(count: int) -> dict[str, str]:
  """Our names of the maps of a projection by those in its file."""
  hidden = range(count - 1)
  return {
      **{f'hidden_{i}.weight': HIDDEN.format(i) for i in hidden},
      LINEAR: PROJECTION,
  }


def _read_decoder(
    theirs: Mapping[str, Tensor], left_out: Mapping[str, str], table: Tensor,
    config: Mapping[str, Any],
) -> dict[str, Tensor]:
  if config['model_type'] == config_lib.BIAS_PER_LAYER:
    raise UserError(
        f"{table.where} is of a umT5, whose decoder has a relative position"
        ' bias in each layer, as no decoder here. Give a T5 or mT5.'
    )
  decoder = {}
  for name, reason in left_out.items():
    if reason == 'decoder' and name != _UNUSED:
      ours = _to_ours(name, config)
      decoder[ours] = _transpose(ours, theirs[name])
  head = theirs[_HEAD] if left_out.get(_HEAD) == 'head' else table
  # A tied head of T5 1.1 is not scaled.
  if decoder and (head is not table or config_lib.is_head_tied(config) is None):
    decoder['decoder/logits_dense/kernel'] = head.transposed()
  return decoder


def write(weights: Weights, folder: pathlib.Path) -> None:
  """Writes a new folder that AutoModel or T5EncoderModel loads.

  The projection goes into a file of its own, since neither has one.
  UserError where queries and passages have towers that differ.
  """
  if not weights.is_shared:
    raise UserError(
        f'{weights} has two towers that differ, but --to=hf has one encoder.'
        ' Give --to=sentence_transformers, which has a folder of each.'
    )
  encoder = dict(weights.tensors)
  names = _projection_names(len(weights.projections()))
  if gemma.holds_projection(weights.encoder):
    if len(names) != 1 or PROJECTION not in encoder:
      raise UserError(
          f'{weights} has {len(weights.projections())} projections, but'
          ' EmbeddingGemma 2 has one. Train one with one.'
      )
    names = {}
  projection = {
      theirs: encoder.pop(ours).transposed()
      for theirs, ours in names.items() if ours in encoder
  }
  if isinstance(weights.encoder, GemmaEncoder):
    config, theirs = gemma.write(encoder, weights.encoder)
  else:
    config = config_lib.make_config(weights.encoder, *encoder[EMBEDDING].shape)
    theirs = {_to_theirs(n): _transpose(n, t) for n, t in encoder.items()}
  files.make_folder(folder)
  tokenizer.write(weights.usage, folder)
  write_tensors(folder / safetensors_file.FILE, theirs)
  if projection:
    write_tensors(folder / PROJECTION_FILE, projection)
  files.write_json(folder / config_lib.FILE, config)


def write_tensors(path: pathlib.Path, tensors: Mapping[str, Tensor]) -> None:
  """Writes a file of safetensors that transformers takes for one of torch."""
  safetensors_file.write(path, tensors, {'format': 'pt'})


def _read_table(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any],
    folder: pathlib.Path,
) -> tuple[Tensor, dict[str, str]]:
  """The token embeddings, and names of tensors to leave out, with the reason.

  UserError if there are none, tables that must be equal differ, or an untied
  head is missing.
  """
  tied = config_lib.is_head_tied(config)
  tables = [n for n in (*_TABLES, *([_HEAD] if tied else ())) if n in tensors]
  if not tables:
    raise UserError(
        f'{folder} has no token embeddings: none of its {len(tensors)} tensors'
        f' is {_TABLES[0]}. Give a whole T5.'
    )
  table = tensors[tables[0]]
  left_out = {name: f'equal to {tables[0]}' for name in tables[1:]}
  digest = transforms.digest(table) if left_out else None
  for name in left_out:
    other = tensors[name]
    if other.shape != table.shape or transforms.digest(other) != digest:
      why = 'T5 has one table.'
      if name == _HEAD:
        why = (
            f'{config_lib.FILE} ties the head to it. For a head of its own, as'
            ' in T5 1.1, add this line to the config: "tie_word_embeddings":'
            ' false,'
        )
      raise UserError(f'{other.where} is not equal to {table.where}, but {why}')
  if _HEAD in tensors and _HEAD != tables[0]:
    left_out[_HEAD] = 'head'
  elif tied is False and any(
      str(name).endswith('ForConditionalGeneration')
      for name in config.get('architectures') or ()
  ):
    raise UserError(
        f'{folder} has no {_HEAD}, but {config_lib.FILE} says'
        ' "tie_word_embeddings": false. Give the whole checkpoint.'
    )
  return table, left_out


def _has_config(folder: pathlib.Path) -> bool:
  return config_lib.model_type(folder) in KNOWN


def _to_ours(name: str, config: Mapping[str, Any]) -> str:
  """Our name of a tensor; a name that no T5 has stays as it is."""
  layer = re.fullmatch(r'(encoder|decoder)\.block\.(\d+)\.(.+)\.weight', name)
  bias_per_layer = config['model_type'] == config_lib.BIAS_PER_LAYER
  own = _OWN_BIAS if bias_per_layer else {}
  if name in _STACK_NAMES and not (layer and layer[3] in own):
    return _STACK_NAMES[name]
  if layer and (ours := (_LAYER_NAMES[layer[1]] | own).get(layer[3])):
    return f'{layer[1]}/layers_{layer[2]}/{ours}'
  return name


def _to_theirs(name: str) -> str:
  """Hugging Face's name of a tensor of a query tower of ours."""
  if name in _THEIRS:
    return _THEIRS[name]
  layer, _, rest = name.removeprefix('encoder/layers_').partition('/')
  return f'encoder.block.{layer}.{_THEIRS[rest]}.weight'


def _transpose(name: str, tensor: Tensor) -> Tensor:
  """Turns a tensor, by our name, to the other library's orientation."""
  if name.endswith(('/kernel', '/rel_embedding')):
    return tensor.transposed()
  return tensor


def refuse_pickle(path: pathlib.Path) -> None:
  """Raises UserError for a pickle, or a folder with no other weights."""
  files_found = [path] if path.is_file() else sorted(path.glob('*'))
  pickles = [file for file in files_found if file.suffix in _PICKLES]
  names = safetensors_file.FILE, safetensors_file.INDEX
  if pickles and not any(file.name in names for file in files_found):
    folder = pickles[0].parent
    raise UserError(
        f'{pickles[0]} is a pickle, which can run any program when it is'
        ' opened. If you trust it, save it as safetensors by its own library'
        f' and give the new folder: M.from_pretrained({str(folder)!r})'
        '.save_pretrained(NEW), where M is T5EncoderModel of transformers or,'
        ' with its decoder, T5ForConditionalGeneration; or'
        ' SentenceTransformer(FOLDER).save_pretrained(NEW).'
    )
