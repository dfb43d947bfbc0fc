"""The settings of a folder: its modules, prompts and lengths."""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

from dualenc_jax.errors import UserError
from dualenc_jax.io import json_file

MODULES = 'modules.json'
KINDS = ['Transformer', 'Pooling', 'Dense', 'Normalize']
ROUTER_CONFIG = 'router_config.json'
_ROUTERS = ('Router', 'Asym')
_PASSAGE_ROUTES = ('document', 'passage', 'doc', 'corpus')
CONFIG = 'config_sentence_transformers.json'
TRANSFORMER_CONFIG = 'sentence_bert_config.json'
# Names of prompts, those that the library itself asks for first.
QUERY_PROMPTS = ('query',)
PASSAGE_PROMPTS = ('document', 'passage', 'corpus')
_TRANSFORMER_SETTINGS = {
    'max_seq_length': None,
    'query_length': None,
    'document_length': None,
    'do_lower_case': (False,),
    'transformer_task': ('feature-extraction',),
    'module_output_name': ('token_embeddings',),
    'processing_kwargs': (None, {}),
    'query_expansion': (None,),
    'modality_config': None,
    'unpad_inputs': None,
    'backend': None,
    **{
        f'{what}_{kind}': None
        for what in ('model', 'tokenizer', 'processor', 'config')
        for kind in ('args', 'kwargs')
    },
}
_EXPECTED = 'Transformer, Pooling (mean), Dense, Normalize'


@dataclasses.dataclass(frozen=True)
class Module:
  """A step of a model.

  Attributes:
    kind: the name of its class, such as 'Dense'.
    folder: its files; it need not exist where the class has none.
  """

  kind: str
  folder: pathlib.Path


@dataclasses.dataclass(frozen=True)
class Tower:
  """The modules of a tower, by what they do here.

  Attributes:
    transformer: tokens to vectors.
    pooling: mean over tokens.
    dense: the projection.
    normalize: None where the vectors are left as long as they are.
  """

  transformer: Module
  pooling: Module
  dense: Module
  normalize: Module | None = None


def read_towers(path: pathlib.Path) -> tuple[Tower, Tower]:
  """The query and the passage tower; the same where nothing routes.

  A module whose folder is the same in both is shared by them.

  Raises:
    UserError: modules.json or a router's file is damaged, or lists modules
      that are no T5 dual encoder.
  """
  file = path / MODULES
  query, passage = [], []
  entries = json_file.parse(json_file.read_text(file), file, kind=list)
  for entry in entries:
    module = _module(entry, path, file)
    if module.kind in _ROUTERS:
      for tower, routed in zip((query, passage), _read_routes(module)):
        tower += routed
    else:
      query.append(module)
      passage.append(module)
  return _tower(query, file), _tower(passage, file)


def check_settings(
    file: pathlib.Path,
    module: str,
    allowed: Mapping[str, Sequence[Any] | None],
) -> dict[str, Any]:
  """Reads a module's settings, and checks that they change nothing here.

  Args:
    file: JSON; no settings if it is not there.
    module: the module's kind, for messages.
    allowed: the values that each setting may have; None for any.

  Raises:
    UserError: a setting is unknown, or has a value that is not allowed.
  """
  settings = json_file.read(file) if file.is_file() else {}
  for name, value in settings.items():
    if name not in allowed:
      raise UserError(
          f'{file}: {name} is {value!r}, which is no setting of {module} that'
          ' is known here. Remove it if it does not change the vectors.'
      )
    if allowed[name] is not None and value not in allowed[name]:
      expected = ' or '.join(repr(v) for v in allowed[name])
      raise UserError(
          f'{file}: {module} has {name} = {value!r}; expected {expected}. This'
          ' library has no such towers, so the model cannot be taken over.'
      )
  return settings


def _module(entry: Any, path: pathlib.Path, file: pathlib.Path) -> Module:
  """From an entry of modules.json: {"path": "2_Dense", "type": "x.y.Dense"}."""
  try:
    return _named(entry['type'], path / entry['path'], file)
  except (KeyError, TypeError, AttributeError) as e:
    raise UserError(
        f'{file} has the entry {entry!r}; expected an object with "path" and'
        ' "type". Copy it again.'
    ) from e


def _named(kind: str, folder: pathlib.Path, file: pathlib.Path) -> Module:
  package, _, name = kind.rpartition('.')
  if package.partition('.')[0] != 'sentence_transformers':
    raise UserError(
        f'{file} names the module {kind}, whose code is not part of'
        f' sentence-transformers. Expected {_EXPECTED} of that library.'
    )
  return Module(name, folder)


def _read_routes(router: Module) -> tuple[list[Module], list[Module]]:
  """The modules that a router sends queries and passages through."""
  files = [router.folder / name for name in (ROUTER_CONFIG, 'config.json')]
  file = files[0] if files[0].is_file() else files[1]
  config = json_file.read(file)
  mappings = config.get('parameters', {}).get('route_mappings')
  if mappings:
    raise UserError(
        f'{file}: the router has route_mappings ({mappings}); expected none,'
        ' and the two routes "query" and "document".'
    )
  try:
    routes = {
        route: [
            _named(config['types'][name], router.folder / name, file)
            for name in names
        ]
        for route, names in config['structure'].items()
    }
  except (KeyError, TypeError, AttributeError) as e:
    raise UserError(
        f'{file} is no configuration of a router: expected "types" and'
        ' "structure". Copy it again.'
    ) from e
  passage = [route for route in routes if route in _PASSAGE_ROUTES]
  if len(routes) != 2 or 'query' not in routes or not passage:
    raise UserError(
        f'{file} has the routes {", ".join(routes)}; expected "query" and'
        ' "document".'
    )
  return routes['query'], routes[passage[0]]


def _tower(modules: Sequence[Module], file: pathlib.Path) -> Tower:
  """Checks that modules are those of a tower, in their order."""
  kinds = [module.kind for module in modules]
  if kinds in (KINDS, KINDS[:-1]):
    return Tower(*modules)
  unknown = set(kinds) - set(KINDS)
  if unknown:
    raise UserError(
        f'{file} names the module {", ".join(sorted(unknown))}, which the'
        f' towers of this library do not have. Expected {_EXPECTED}.'
    )
  if 'Dense' not in kinds:
    raise UserError(
        f'{file} names no Dense: the projection is missing. Expected'
        f' {_EXPECTED}. To start from its encoder alone, give the file'
        ' model.safetensors of its Transformer.'
    )
  raise UserError(
      f'{file} names the modules {", ".join(kinds)}, in this order; expected'
      f' {_EXPECTED}, each once.'
  )


def read_length(transformer: Module, task: str) -> int | None:
  """Most tokens of a text, EOS included; None where its file says none.

  Versions of the library since 5.4 leave it to the tokenizer's own file.

  Args:
    transformer: the module that tokenises.
    task: 'query' or 'document'.

  Raises:
    UserError: it prepares texts in a way that is not known here.
  """
  file = transformer.folder / TRANSFORMER_CONFIG
  settings = check_settings(file, 'Transformer', _TRANSFORMER_SETTINGS)
  lengths = (
      settings.get(f'{task}_length'),
      *(
          (settings.get(name) or {}).get('model_max_length')
          for name in ('processor_kwargs', 'tokenizer_args')
      ),
      settings.get('max_seq_length'),
  )
  return next(filter(None, lengths), None)


def read_prompts(path: pathlib.Path) -> tuple[str, str]:
  """What is put in front of queries and of passages.

  The default prompt is that of a side without one of its own.

  Raises:
    UserError: the names of a side have different prompts.
  """
  file = path / CONFIG
  config = json_file.read(file) if file.is_file() else {}
  prompts = config.get('prompts') or {}
  default = prompts.get(config.get('default_prompt_name')) or ''
  return (
      _prompt(prompts, QUERY_PROMPTS, default, file),
      _prompt(prompts, PASSAGE_PROMPTS, default, file),
  )


def similarity(path: pathlib.Path) -> str:
  """How vectors are to be compared; the library's default is the cosine."""
  file = path / CONFIG
  config = json_file.read(file) if file.is_file() else {}
  return config.get('similarity_fn_name') or 'cosine'


def _prompt(
    prompts: Mapping[str, Any],
    names: Sequence[str],
    default: str,
    file: pathlib.Path,
) -> str:
  given = {name: prompts[name] or '' for name in names if name in prompts}
  if len(set(given.values())) > 1:
    listed = ', '.join(f'{name} = {text!r}' for name, text in given.items())
    raise UserError(
        f'{file} has different prompts for passages: {listed}. Keep the one'
        ' that the model was trained with.'
    )
  return next(iter(given.values()), default)
