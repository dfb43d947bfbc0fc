"""The modules of a folder: what a query and a passage run through."""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

from dualenc_jax.errors import UserError
from dualenc_jax.io import json_file

MODULES = 'modules.json'
ROUTER_CONFIG = 'router_config.json'
_ROUTERS = ('Router', 'Asym')
_PASSAGE_ROUTES = ('document', 'passage', 'doc', 'corpus')
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
  normalize: Module | None


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
  if kinds == ['Transformer', 'Pooling', 'Dense', 'Normalize']:
    return Tower(*modules)
  if kinds == ['Transformer', 'Pooling', 'Dense']:
    return Tower(*modules, normalize=None)
  unknown = set(kinds) - {'Transformer', 'Pooling', 'Dense', 'Normalize'}
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
