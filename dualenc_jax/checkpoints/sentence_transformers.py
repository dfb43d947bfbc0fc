"""Reads folders of the sentence-transformers library, without that library.

Modules are those of `KINDS`; several Dense one after the other are a chain.
"""

from collections.abc import Sequence
import dataclasses
import logging
import pathlib
from typing import Any, NamedTuple

from dualenc_jax.checkpoints import (
  hugging_face,
  static_embedding,
  transforms,
)
from dualenc_jax.checkpoints.hugging_face_config import ANY, check_settings
from dualenc_jax.checkpoints.weights import HIDDEN, PROJECTION, Weights
from dualenc_jax.data.text.tokenizer import DOCUMENT, QUERY
from dualenc_jax.utils import json_file, untrusted
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.tensor_files import safetensors_file
from dualenc_jax.utils.tensor_files.tensors import Tensor

KIND = 'sentence-transformers folder'
MODULES = 'modules.json'
KINDS = ['Transformer', 'Pooling', 'Dense', 'Normalize']
ROUTER_CONFIG = 'router_config.json'
CONFIG = 'config_sentence_transformers.json'
TRANSFORMER_CONFIG = 'sentence_bert_config.json'
IDENTITY = 'torch.nn.modules.linear.Identity'
_KERNEL, _BIAS = hugging_face.LINEAR, 'linear.bias'
_PASSAGE_ROUTES = ('document', 'passage', 'doc', 'corpus')
# The option of these settings that is a length, if the Transformer has none.
_LENGTH_OPTIONS = 'processor_kwargs', 'tokenizer_args'
_VECTORS: dict[str, Sequence[Any]] = dict.fromkeys(
    ('module_input_name', 'module_output_name'), ('sentence_embedding', None)
)
# All settings of each module with the values that the towers of this library
# have; `ANY` for those that no vector depends on, or that are read elsewhere.
_ACCEPTED: dict[str, dict[str, Any]] = {
    'Transformer': {
        'do_lower_case': (False,),
        'transformer_task': ('feature-extraction',),
        'module_output_name': ('token_embeddings',),
        'processing_kwargs': (None, {}),
        'query_expansion': (None,),
        **dict.fromkeys((
            'max_seq_length', 'query_length', 'document_length',
            'modality_config', 'unpad_inputs', 'backend', 'model_args',
            'tokenizer_args', 'processor_args', 'config_args', 'model_kwargs',
            'tokenizer_kwargs', 'processor_kwargs', 'config_kwargs',
        ), ANY),
    },
    'Pooling': {
        'include_prompt': (True,),
        'pooling_mode': ('mean', ['mean']),
        'pooling_mode_mean_tokens': (True,),
        'pooling_mode_cls_token': (False,),
        'pooling_mode_max_tokens': (False,),
        'pooling_mode_mean_sqrt_len_tokens': (False,),
        'pooling_mode_weightedmean_tokens': (False,),
        'pooling_mode_lasttoken': (False,),
        'word_embedding_dimension': ANY,
        'embedding_dimension': ANY,
    },
    'Dense': {
        'activation_function': (IDENTITY, 'torch.nn.Identity'),
        'use_residual': (False,),
        **dict.fromkeys(('in_features', 'out_features', 'bias'), ANY),
        **_VECTORS,
    },
    'Normalize': _VECTORS,
}
# Options of transformers' loaders that have other files opened, or code run.
_OTHER_FILES = {
    'gguf_file', 'subfolder', 'trust_remote_code', 'use_safetensors', 'variant',
    'weights_only',
}
_AGAIN = 'Copy it again.'
_EXPECTED = 'Transformer, Pooling (mean), Dense, Normalize'
_LOG = logging.getLogger(__name__)


class _Tower(NamedTuple):
  """The folders of a tower's modules, which need not exist, by their kind.

  `normalize` is None where vectors are left as long as they are.
  """

  transformer: pathlib.Path
  pooling: pathlib.Path
  dense: Sequence[pathlib.Path]
  normalize: pathlib.Path | None = None


# The name of a module's class, and its folder.
_Module = tuple[str, pathlib.Path]


def matches(path: pathlib.Path) -> bool:
  """Whether it is a folder that sentence-transformers has saved."""
  return (path / MODULES).is_file()


def read(path: pathlib.Path) -> Weights:
  """The towers of a folder: Transformer, Pooling, Dense, Normalize.

  The modules may lie below a Router of queries and documents. A passage tower's
  part that equals the query tower's bit for bit is shared. A folder without
  Normalize is read if its vectors are compared by cosine, which is the same for
  vectors of norm one, as ours always are.

  Raises:
    UserError: a file is damaged, or the towers compute something else than
      those of this library.
  """
  modules = _read_modules(path)
  if modules and modules[0][0] == 'StaticEmbedding':
    return _read_static(path, modules)
  towers = _route_towers(modules, path / MODULES)
  by_tower = {t: _read_tower(t, path) for t in dict.fromkeys(towers)}
  query, passage = (by_tower[tower] for tower in towers)
  joint = transforms.join_towers(query, passage, path)
  lengths = {
      f'{side}_length': read_length(tower.transformer, task)
      for side, task, tower in zip(
          ('query', 'passage'), (QUERY, DOCUMENT), towers
      )
  }
  facts: dict[str, Any] = {n: x for n, x in lengths.items() if x}
  facts |= read_prompts(path)
  return dataclasses.replace(
      joint, usage=dataclasses.replace(joint.usage, **facts),
      left_out={**query.left_out, **passage.left_out},
  ).check()


def _read_static(path: pathlib.Path, modules: Sequence[_Module]) -> Weights:
  kinds = [kind for kind, _ in modules]
  if kinds[1:] not in ([], ['Normalize']):
    raise UserError(
        f'{path / MODULES} names the modules {", ".join(kinds)}; expected'
        ' StaticEmbedding and perhaps Normalize.'
    )
  weights = static_embedding.read(modules[0][1])
  usage = dataclasses.replace(weights.usage, **read_prompts(path))
  return dataclasses.replace(weights, path=str(path), usage=usage).check()


def _read_modules(path: pathlib.Path) -> list[_Module]:
  file = path / MODULES
  modules = []
  for entry in json_file.parse(json_file.read_text(file), file, kind=list):
    types = {'path': str, 'type': str}
    json_file.check(entry, types, f'{file}: an entry', _AGAIN)
    modules.append(_parse_module(entry['type'], path, entry['path'], file))
  return modules


def _route_towers(
    modules: Sequence[_Module], file: pathlib.Path
) -> tuple[_Tower, _Tower]:
  """The query and the passage tower; the same where nothing routes."""
  query: list[_Module] = []
  passage: list[_Module] = []
  for kind, folder in modules:
    routes = [(kind, folder)], [(kind, folder)]
    if kind in ('Router', 'Asym'):
      routes = _read_routes(folder)
    query += routes[0]
    passage += routes[1]
  return _make_tower(query, file), _make_tower(passage, file)


def _parse_module(
    kind: str, above: pathlib.Path, name: str, file: pathlib.Path
) -> _Module:
  package, _, class_name = kind.rpartition('.')
  if package.partition('.')[0] != 'sentence_transformers':
    raise UserError(
        f'{file} names the module {kind}, whose code is not part of'
        f' sentence-transformers. Expected {_EXPECTED} of that library.'
    )
  inner = untrusted.check_name(name, f'{file}: the path of a module')
  return class_name, above / inner


def _read_routes(router: pathlib.Path) -> tuple[list[_Module], list[_Module]]:
  """The modules that a router sends queries and passages through."""
  file = router / ROUTER_CONFIG
  file = file if file.is_file() else router / 'config.json'
  types: dict[str, Any] = {
      'types': {str: str}, 'structure': {str: [str]}, 'parameters?': dict
  }
  config = json_file.read(file, **types)
  kinds, structure = config['types'], config['structure']
  passage = [route for route in structure if route in _PASSAGE_ROUTES]
  if (
      config.get('parameters', {}).get('route_mappings')
      or len(structure) != 2
      or 'query' not in structure
      or not passage
      or set().union(*structure.values()) - kinds.keys()
  ):
    raise UserError(
        f'{file} has the routes {", ".join(structure)}; expected "query" and'
        ' "document", without route_mappings, of modules in "types".'
    )
  modules = {
      name: _parse_module(kind, router, name, file)
      for name, kind in kinds.items()
  }
  return (
      [modules[name] for name in structure['query']],
      [modules[name] for name in structure[passage[0]]],
  )


def _make_tower(modules: Sequence[_Module], file: pathlib.Path) -> _Tower:
  kinds = [kind for kind, _ in modules]
  folders = [folder for _, folder in modules]
  end = kinds.index('Normalize') if 'Normalize' in kinds else len(kinds)
  count = kinds.count('Dense')
  if kinds == [*KINDS[:2], *['Dense'] * count, *kinds[end:][:1]]:
    normalize = folders[end] if end < len(folders) else None
    return _Tower(folders[0], folders[1], tuple(folders[2:end]), normalize)
  raise UserError(
      f'{file} names the modules {", ".join(kinds)}; expected {_EXPECTED}, in'
      f' this order, each once, except Dense.'
  )


def _read_settings(
    file: pathlib.Path, module: str, **defaults: Any
) -> dict[str, Any]:
  """The settings of a module, which may have no file.

  `defaults` are those of the library that ours differ from.
  """
  settings = json_file.read(file) if file.is_file() else {}
  accepted = _ACCEPTED[module]
  check_settings(defaults | settings, accepted, f'{file}: {module}')
  if unknown := sorted(settings.keys() - accepted.keys()):
    raise UserError(
        f'{file}: {unknown[0]} is an unknown setting of {module}. Remove it if'
        ' it does not change the vectors.'
    )
  return settings


def _read_tower(tower: _Tower, path: pathlib.Path) -> Weights:
  _read_settings(tower.pooling / 'config.json', 'Pooling')
  if tower.normalize:
    _read_settings(tower.normalize / 'config.json', 'Normalize')
  else:
    similarity = _read_config(path).get('similarity_fn_name') or 'cosine'
    if similarity != 'cosine':
      raise UserError(
          f'{path / MODULES} names no Normalize, and {CONFIG} compares vectors'
          f' by {similarity!r}; expected Normalize, or cosine, as vectors of'
          ' this library have norm one.'
      )
  transformer = hugging_face.read(tower.transformer)
  if not (tower.dense or transformer.has_projection):
    raise UserError(
        f'{path / MODULES} names no Dense; expected {_EXPECTED}. To start from'
        ' an encoder without a projection, give the file model.safetensors of'
        ' its Transformer.'
    )
  kernels: dict[str, Tensor] = {}
  left_out: dict[str, str] = {}
  names = [HIDDEN.format(i) for i in range(len(tower.dense) - 1)]
  for name, folder in zip([*names, PROJECTION], tower.dense):
    kernels[name], zeros = _read_dense(folder)
    left_out |= zeros
  return dataclasses.replace(
      transformer,
      kind=KIND,
      tensors={**transformer.tensors, **kernels},
      left_out={**transformer.left_out, **left_out},
  )


def _read_dense(folder: pathlib.Path) -> tuple[Tensor, dict[str, str]]:
  """The kernel [E, D] of a Dense, and the tensors that are left out."""
  config = folder / 'config.json'
  settings = _read_settings(
      config, 'Dense', activation_function='torch.nn.modules.activation.Tanh'
  )
  hugging_face.refuse_pickle(folder)
  tensors = safetensors_file.read(folder)
  # The library's default is a bias.
  expected = {_KERNEL, _BIAS} if settings.get('bias', True) else {_KERNEL}
  if tensors.keys() != expected:
    raise UserError(
        f'{folder} holds the tensors {", ".join(sorted(tensors))}; expected'
        f' {", ".join(sorted(expected))}, as {config.name} says.'
    )
  bias = tensors.get(_BIAS)
  if bias is not None and bias.read().any():
    raise UserError(
        f'{bias.where} is not zero: the projection of this library has no bias.'
        ' Train a Dense without one.'
    )
  kernel = tensors[_KERNEL].transposed()
  return kernel, {} if bias is None else {_BIAS: 'zero'}


def read_length(transformer: pathlib.Path, task: str) -> int | None:
  """Maximum tokens of a text, EOS included; None where its file says none.

  Versions of the library since 5.4 leave it to the tokenizer's own file.
  The task is 'query' or 'document'.
  """
  file = transformer / TRANSFORMER_CONFIG
  settings = _read_settings(file, 'Transformer')
  for name, options in settings.items():
    if isinstance(options, dict) and (other := options.keys() & _OTHER_FILES):
      raise UserError(
          f'{file}: {name} has {min(other)}, which would open other files.'
          ' Remove it.'
      )
  lengths = {f'{task}_length?': int | None, 'max_seq_length?': int | None}
  options = {n: x for n in _LENGTH_OPTIONS if (x := settings.get(n))}
  inner = dict.fromkeys(options, {'model_max_length?': int | None})
  json_file.check(settings, lengths, file, _AGAIN)
  json_file.check(options, inner, file, _AGAIN)
  candidates = [
      settings.get(f'{task}_length'),
      *(given.get('model_max_length') for given in options.values()),
      settings.get('max_seq_length'),
  ]
  return next(filter(None, candidates), None)


def read_prompts(path: pathlib.Path) -> dict[str, Any]:
  """The prefixes and prompts of a folder, by the names of `Usage`.

  `encode_query` and `encode_document` take the prompts "query" and "document"
  alone: the library (versions 5 and 6) has both from the start, empty, and so
  comes neither to other names of passages' prompts nor to the default prompt. A
  warning names one that might have been meant.
  """
  file, config = path / CONFIG, _read_config(path)
  prompts = {n: text or '' for n, text in (config.get('prompts') or {}).items()}
  query, passage = prompts.pop(QUERY, ''), prompts.pop(DOCUMENT, '')
  every = {**prompts, QUERY: query, DOCUMENT: passage}
  default = config.get('default_prompt_name')
  if default is not None and default not in every:
    raise UserError(
        f'{file} has default_prompt_name {default!r}; expected one of its'
        f' prompts, {", ".join(every)}.'
    )
  meant = [n for n in _PASSAGE_ROUTES if every.get(n, '') not in ('', passage)]
  if default is not None and {query, passage} != {every[default]}:
    meant.append(default)
  for name in dict.fromkeys(meant):
    _LOG.warning(
        '%s has the prompt %s, %r, but `encode_query` and `encode_document` put'
        ' %r and %r in front of texts, and so does this library. If the model'
        ' was trained with the former, give --query_prefix or --passage_prefix'
        ' to `dualenc convert`.',
        file, name, every[name], query, passage,
    )
  is_implied = default == implied_default(query, passage)
  return {
      'query_prefix': query,
      'passage_prefix': passage,
      'prompts': prompts,
      'default_prompt': None if is_implied else default or '',
  }


def implied_default(query: str, passage: str) -> str | None:
  """The default prompt that is written where none is named."""
  return QUERY if query and query == passage else None


def _read_config(path: pathlib.Path) -> dict[str, Any]:
  file = path / CONFIG
  if not file.is_file():
    return {}
  types: dict[str, Any] = {
      'prompts?': dict | None,
      'default_prompt_name?': str | None,
      'similarity_fn_name?': str | None,
  }
  config = json_file.read(file, **types)
  prompts = config.get('prompts') or {}
  json_file.check(prompts, {str: str | None}, f'{file}: prompts', _AGAIN)
  return config
