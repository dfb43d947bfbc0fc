"""The settings of a folder: its modules, prompts and lengths."""

from collections.abc import Sequence
import logging
import pathlib
from typing import Any, NamedTuple

from dualenc_jax.data.text.tokenizer import DOCUMENT, QUERY
from dualenc_jax.utils import json_file, untrusted
from dualenc_jax.utils.errors import UserError

MODULES = 'modules.json'
KINDS = ['Transformer', 'Pooling', 'Dense', 'Normalize']
ROUTER_CONFIG = 'router_config.json'
_ROUTERS = ('Router', 'Asym')
_PASSAGE_ROUTES = ('document', 'passage', 'doc', 'corpus')
CONFIG = 'config_sentence_transformers.json'
TRANSFORMER_CONFIG = 'sentence_bert_config.json'
# The prompts of `encode_query` and `encode_document`, and other names that
# models give to that of passages.
QUERY_PROMPT, PASSAGE_PROMPT = QUERY, DOCUMENT
_SIDES = QUERY_PROMPT, PASSAGE_PROMPT
PASSED_OVER = ('passage', 'corpus')
IDENTITIES = 'torch.nn.modules.linear.Identity', 'torch.nn.Identity'
_VECTORS: dict[str, Sequence[Any]] = dict.fromkeys(
    ('module_input_name', 'module_output_name'), ('sentence_embedding', None)
)
# By module, the settings that its vectors depend on, with the values that the
# towers of this library have; any other value is refused.
_COMPUTED: dict[str, dict[str, Sequence[Any]]] = {
    'Transformer': {
        'do_lower_case': (False,),
        'transformer_task': ('feature-extraction',),
        'module_output_name': ('token_embeddings',),
        'processing_kwargs': (None, {}),
        'query_expansion': (None,),
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
    },
    'Dense': {
        'activation_function': IDENTITIES, 'use_residual': (False,), **_VECTORS
    },
    'Normalize': _VECTORS,
}
# Settings of any module that are read elsewhere, or that no vector depends on.
_OTHERS = {
    'max_seq_length', 'query_length', 'document_length', 'modality_config',
    'unpad_inputs', 'backend', 'word_embedding_dimension',
    'embedding_dimension', 'in_features', 'out_features', 'bias',
    *(
        f'{what}_{kind}'
        for what in ('model', 'tokenizer', 'processor', 'config')
        for kind in ('args', 'kwargs')
    ),
}
# Options of transformers' loaders, in those, that have other files opened, or
# code.
_OTHER_FILES = (
    'gguf_file', 'subfolder', 'trust_remote_code', 'use_safetensors', 'variant',
    'weights_only',
)
_OPTIONS = 'processor_kwargs', 'tokenizer_args'
_AGAIN = 'Copy it again.'
_EXPECTED = 'Transformer, Pooling (mean), Dense, Normalize'
_LOG = logging.getLogger(__name__)


class Tower(NamedTuple):
  """The folders of a tower's modules, which need not exist, by what they do.

  Attributes:
    transformer: tokens to vectors.
    pooling: mean over tokens.
    dense: the projection.
    normalize: None where the vectors are left as long as they are.
  """

  transformer: pathlib.Path
  pooling: pathlib.Path
  dense: pathlib.Path
  normalize: pathlib.Path | None = None


# The kind of a module, the name of its class, and its folder.
_Module = tuple[str, pathlib.Path]


def read_towers(path: pathlib.Path) -> tuple[Tower, Tower]:
  """The query and the passage tower; the same where nothing routes.

  A module whose folder is the same in both is shared by them.
  """
  file = path / MODULES
  query: list[_Module] = []
  passage: list[_Module] = []
  entries = json_file.parse(json_file.read_text(file), file, kind=list)
  for entry in entries:
    types = {'path': str, 'type': str}
    json_file.check(entry, types, f'{file}: an entry', _AGAIN)
    kind, folder = module = _named(entry['type'], path, entry['path'], file)
    ways = _read_routes(folder) if kind in _ROUTERS else ([module], [module])
    query += ways[0]
    passage += ways[1]
  return _tower(query, file), _tower(passage, file)


def read_settings(file: pathlib.Path, module: str) -> dict[str, Any]:
  """The settings of a module, {} without a file.

  UserError if vectors may depend on one in a way that ours do not: where it is
  unknown, too.
  """
  settings = json_file.read(file) if file.is_file() else {}
  computed = _COMPUTED[module]
  for name, value in settings.items():
    if name not in computed and name not in _OTHERS:
      raise UserError(
          f'{file}: {name} is {value!r}, an unknown setting of {module}. Remove'
          ' it if it does not change the vectors.'
      )
    if name in computed and value not in computed[name]:
      raise UserError(
          f'{file}: {module} has {name} = {value!r}; expected'
          f' {" or ".join(map(repr, computed[name]))}, as the towers of this'
          ' library have.'
      )
  return settings


def _named(
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
  files = [router / name for name in (ROUTER_CONFIG, 'config.json')]
  file = files[0] if files[0].is_file() else files[1]
  config = json_file.read(file)
  types = {'types': {str: str}, 'structure': {str: [str]}}
  json_file.check(config, types | {'parameters?': dict}, file, _AGAIN)
  mappings = config.get('parameters', {}).get('route_mappings')
  if mappings:
    raise UserError(
        f'{file}: the router has route_mappings ({untrusted.shown(mappings)});'
        ' expected none, and the two routes "query" and "document".'
    )
  kinds, structure = config['types'], config['structure']
  absent = set().union(*structure.values()) - kinds.keys()
  if absent:
    raise UserError(
        f'{file}: "types" lacks {", ".join(sorted(absent))}, which "structure"'
        f' names. {_AGAIN}'
    )
  routes = {
      route: [_named(kinds[name], router, name, file) for name in names]
      for route, names in structure.items()
  }
  passage = [route for route in routes if route in _PASSAGE_ROUTES]
  if len(routes) != 2 or 'query' not in routes or not passage:
    raise UserError(
        f'{file} has the routes {", ".join(routes)}; expected "query" and'
        ' "document".'
    )
  return routes['query'], routes[passage[0]]


def _tower(modules: Sequence[_Module], file: pathlib.Path) -> Tower:
  """Checks that modules are those of a tower, in their order."""
  kinds = [kind for kind, _ in modules]
  if kinds in (KINDS, KINDS[:-1]):
    return Tower(*(folder for _, folder in modules))
  unknown = ', '.join(sorted(set(kinds) - set(KINDS)))
  if unknown:
    problem = f'the module {unknown}, which the towers of this library lack'
  elif 'Dense' not in kinds:
    problem = (
        'no Dense: the projection is missing. To start from its encoder alone,'
        ' give the file model.safetensors of its Transformer'
    )
  else:
    problem = f'the modules {", ".join(kinds)}, in this order'
  raise UserError(
      f'{file} names {problem}. Expected {_EXPECTED}, in this order, each once.'
  )


def read_length(transformer: pathlib.Path, task: str) -> int | None:
  """Most tokens of a text, EOS included; None where its file says none.

  Versions of the library since 5.4 leave it to the tokenizer's own file.
  The task is 'query' or 'document'.
  """
  file = transformer / TRANSFORMER_CONFIG
  settings = read_settings(file, 'Transformer')
  for name, given in settings.items():
    if isinstance(given, dict):
      if other := sorted(given.keys() & set(_OTHER_FILES)):
        raise UserError(
            f'{file}: {name} has {other[0]}, which would open other files.'
            ' Remove it.'
        )
  inner = {'model_max_length?': int | None}
  options = {n: x for n in _OPTIONS if (x := settings.get(n)) is not None}
  lengths = {f'{task}_length?': int | None, 'max_seq_length?': int | None}
  json_file.check(settings, lengths, file, _AGAIN)
  json_file.check(options, {f'{n}?': inner for n in _OPTIONS}, file, _AGAIN)
  found = [
      settings.get(f'{task}_length'),
      *(options.get(n, {}).get('model_max_length') for n in _OPTIONS),
      settings.get('max_seq_length'),
  ]
  return next(filter(None, found), None)


def read_prompts(path: pathlib.Path) -> dict[str, Any]:
  """What `encode_query` and `encode_document` put in front of texts, for Usage.

  They ask for the prompts "query" and "document" alone: the library (versions
  5 and 6) has both from the start, empty, and so comes neither to the other
  names of passages' prompts nor to the default prompt. A warning says which it
  passes over.
  """
  file, config = path / CONFIG, _config(path)
  saved = {n: text or '' for n, text in (config.get('prompts') or {}).items()}
  prompts = {QUERY_PROMPT: '', PASSAGE_PROMPT: '', **saved}
  sides = prompts[QUERY_PROMPT], prompts[PASSAGE_PROMPT]
  default = config.get('default_prompt_name')
  if default is not None and default not in prompts:
    raise UserError(
        f'{file} has default_prompt_name {default!r}; expected one of its'
        f' prompts, {", ".join(prompts)}. sentence-transformers does not open'
        ' it either. Remove default_prompt_name.'
    )
  for name in PASSED_OVER:
    if prompts.get(name, '') not in ('', prompts[PASSAGE_PROMPT]):
      _LOG.warning(
          '%s: the prompt %s, %r, is not put in front of passages, as'
          ' `encode_document` takes the prompt "%s" alone. If the model was'
          ' trained with it, give --passage_prefix to `dualenc convert`.',
          file, name, prompts[name], PASSAGE_PROMPT,
      )
  if default is not None and set(sides) != {prompts[default]}:
    _LOG.warning(
        '%s: the default prompt, %s, %r, is that of `encode`, but'
        ' `encode_query` and `encode_document` put %r and %r in front, and so'
        ' it is done here. If the model was trained with it, give'
        ' --query_prefix and --passage_prefix to `dualenc convert`.',
        file, default, prompts[default], *sides,
    )
  named = {n: x for n, x in saved.items() if n not in _SIDES}
  # What `write` adds, for other programs, is no prompt of its own.
  if named.get(PASSED_OVER[0]) in ('', prompts[PASSAGE_PROMPT]):
    del named[PASSED_OVER[0]]
    if default == PASSED_OVER[0]:
      default = PASSAGE_PROMPT if prompts[default] else ''
  said = default == implied_default(*sides)
  return {
      'query_prefix': prompts[QUERY_PROMPT],
      'passage_prefix': prompts[PASSAGE_PROMPT],
      'prompts': named,
      'default_prompt': None if said else default or '',
  }


def implied_default(query: str, passage: str) -> str | None:
  """The default prompt that is written where none is named."""
  return QUERY_PROMPT if query and query == passage else None


def similarity(path: pathlib.Path) -> str:
  """How vectors are to be compared; the library's default is the cosine."""
  return _config(path).get('similarity_fn_name') or 'cosine'


def _config(path: pathlib.Path) -> dict[str, Any]:
  """What a folder says of prompts and of the similarity; {} without a file."""
  file = path / CONFIG
  if not file.is_file():
    return {}
  found = json_file.read(file)
  if found.get('prompts') is None:
    found['prompts'] = {}
  types = {
      'prompts': {str: str | None},
      'default_prompt_name?': str | None,
      'similarity_fn_name?': str | None,
  }
  json_file.check(found, types, file, _AGAIN)
  return found
