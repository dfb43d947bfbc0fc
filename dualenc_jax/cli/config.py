"""Gin: finds files, parses flags, builds objects, explains errors.

Only the command-line modules use this. The library knows no config system.
"""

import argparse
import ast
from collections.abc import Callable, Iterator, Sequence
import difflib
import importlib
import inspect
import io
import logging
import os
import pathlib
import re
import tokenize
from typing import Any, IO, TypeVar

import gin

from dualenc_jax.cli import flags, kinds
from dualenc_jax.utils.errors import UserError
from dualenc_jax.utils.suggest import did_you_mean, did_you_mean_or_known

T = TypeVar('T')

# Names that a --gin flag may use although no gin file has imported them.
_OF_PACKAGE = 'data', 'losses', 'models', 'training'
_PRELUDE = '\n'.join([
    'from __gin__ import dynamic_registration',
    'import optax',
    'from dualenc_jax.data import readers',
    *(f'from dualenc_jax import {name}' for name in _OF_PACKAGE),
])

# What configs of runs had imported before modules moved.
_MOVED = {
    'from dualenc_jax import readers': 'from dualenc_jax.data import readers',
    'from dualenc_jax import recipes':
        'from dualenc_jax.pipelines import recipes',
    'from dualenc_jax import run': 'from dualenc_jax import training',
}
# Options that runs had, which are left out of their configs.
_REMOVED = (
    r'data\.Grouped\..*', r'losses\.Hashed\.straight_through = .*',
    r'losses\.Similarity\.check_norms = .*',
    r'readers\.(MsMarco\.train_from|OpenNQ\.\w*(posi|nega)tives) = .*',
    r'training\.Experiment\.eval_(queries|passages) = .*',
    r'training\.UntilAligned\.(queries|k|least_rank) = .*',
)


def gin_root() -> pathlib.Path:
  """The folder of the shipped gin files, in a wheel or in a clone."""
  package = pathlib.Path(__file__).resolve().parents[1]
  installed = package / 'gin'
  return installed if installed.is_dir() else package.parent / 'gin'


def shipped_files() -> list[str]:
  """Names of the shipped gin files, such as 'losses/samtone.gin'.

  Those in t5x/ are for T5X's own trainer.
  """
  root = gin_root()
  names = [p.relative_to(root) for p in root.rglob('*.gin')]
  return sorted(str(name) for name in names if name.parts[0] != 't5x')


def make_parser(command: str, doc: str) -> flags.Parser:
  """The parser of a command, with gin's flags; `parse_args` uses it."""
  parser = flags.Parser(command, doc)
  group = parser.add_argument_group('gin')
  group.add_argument(
      '--gin_file', action='append', default=[], metavar='FILE',
      help='gin file, shipped or your own; repeatable, later ones win',
  )
  group.add_argument(
      '--gin_search_paths', action='append', default=[], metavar='DIR[,DIR]',
      help='additional folders of gin files',
  )
  group.add_argument(
      '--gin.NAME=VALUE', dest='gin_help', action='store_true',
      help='gin binding, such as --gin.STEPS=100 or'
      ' --gin.LOSS=@losses.PAIR(); repeatable, wins over files',
  )
  return parser


def parse_args(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None
) -> argparse.Namespace:
  """Parses a command line; `.gin_bindings` holds the --gin.NAME=VALUE flags."""
  bindings, rest = [], []
  arguments = iter(argv or ())
  for argument in arguments:
    if not argument.startswith('--gin.'):
      rest.append(argument)
      continue
    if '=' not in argument:
      value = next(arguments, None)
      if value is None:
        raise UserError(f'{argument} has no value; write {argument}=VALUE.')
      argument += f'={value}'
    bindings.append(binding(argument))
  args = parser.parse_args(rest)
  args.gin_bindings = bindings
  args.gin_search_paths = ','.join(args.gin_search_paths).split(',')
  args.gin_search_paths = list(filter(None, args.gin_search_paths))
  return args


def binding(flag: str) -> str:
  """'NAME = VALUE' from a flag '--gin.NAME=VALUE'.

  A value that is no gin literal is a string, so quotes are optional; true and
  false are the booleans.
  """
  name, _, value = flag.removeprefix('--gin.').partition('=')
  # As a string either would be taken for True.
  value = {'true': 'True', 'false': 'False'}.get(value, value)
  if value[:1] not in ('@', '%', '(', '[', '{'):
    try:
      # Without brackets gin knows no tuple.
      is_text = isinstance(ast.literal_eval(value), tuple)
    except (ValueError, SyntaxError):
      is_text = True
    value = repr(value) if is_text else value
  return f'{name} = {value}'


def load(
    files: Sequence[str],
    bindings: Sequence[str] = (),
    search_paths: Sequence[str] = (), needs: str = '',
) -> None:
  """Replaces the current gin config by these files and bindings.

  Files are found by path, or by name in `search_paths`, the working directory
  and the shipped files; 'NAME = VALUE' strings are applied after them. They
  must bind something of what is called `needs`.
  """
  for path in search_paths:
    if not os.path.isdir(path):
      raise UserError(f'--gin_search_paths: {path} is not a folder.')
  gin.clear_config()
  # Set, not added to: gin would keep the paths of earlier calls, and would
  # first look for 'models/mini.gin' in whatever Python package is importable
  # as `models`.
  places = '.', *search_paths, str(gin_root())
  gin.config._LOCATION_PREFIXES[:] = map(os.path.abspath, places)
  gin.config._FILE_READERS[:] = [(_open, os.path.isfile)]
  # Gin logs an error for every folder that a file is not in.
  logging.disable(logging.ERROR)
  parsed: list[Any] = []
  try:
    for file in files:
      try:
        parsed.append(gin.parse_config_file(file))
      except tokenize.TokenError as e:
        raise UserError(
            f'{file}, or a file that it includes, ends inside a bracket or a'
            ' string that is not closed.'
        ) from e
      except (SyntaxError, UnicodeDecodeError) as e:
        raise UserError(
            f'{file}, or a file that it includes, is no gin file: {e}.'
        ) from e
    text = gin.config_str()
    known = {*re.findall(r'^(\w+) = ', text, re.M)}
    known |= {*re.findall(r'%(\w+)\b(?!\.)', text)}
    # Whatever name a file has imported, a flag may use.
    imports = sorted(statement.format() for statement in gin.config._IMPORTS)
    imports = [_PRELUDE, *(i for i in imports if '__gin__' not in i)]
    gin.parse_config(imports)
    for text in bindings:
      try:
        gin.parse_config([*imports, text])
      except (SyntaxError, tokenize.TokenError) as e:
        name, _, value = text.partition(' = ')
        raise UserError(
            f'--gin.{name} is {value!r}, which gin cannot read: a bracket or a'
            ' quote may be missing.'
        ) from e
  except UserError:
    raise
  except Exception as e:
    raise UserError(_explain(e)) from e
  finally:
    logging.disable(logging.NOTSET)
  bound = rf'^(\S*[./])?{needs}\b'
  if needs and not re.search(bound, gin.config_str(), re.M):
    root = gin_root()
    have = [f for f in shipped_files() if needs in (root / f).read_text()]
    raise UserError(
        f'{", ".join(files)}: no {needs} is in it. Expected a file that has'
        f' one: {", ".join(have)}, or your own.'
    )
  problems = [*_required()]
  for name in _names(bindings):
    if '.' not in name and name not in known:
      # A recipe's own macros are of no other command, and so are not named.
      of = [
          file for file in shipped_files()
          if not file.startswith('recipes/')
          and re.search(rf'^{name} = ', (gin_root() / file).read_text(), re.M)
      ]
      hint = f' It is of --gin_file={" or ".join(of[:3])}.' if of else ''
      near = did_you_mean if of else did_you_mean_or_known
      problems.append(
          f'--gin.{name}: no gin file given uses the macro'
          f' {name}.{hint}{near(name, known)}'
      )
  for name, value, expected in kinds.misfits():
    place = _place(name, bindings, parsed)
    problems.append(f'{name} is {value!r}{place}; expected {expected}.')
  if problems:
    raise UserError('\n'.join(problems))


def _open(path: str) -> IO[str]:
  """Opens a gin file; of a run's config, `with_moved_modules`."""
  if not re.fullmatch(r'config(\.\d+)?\.gin', os.path.basename(path)):
    return open(path)
  file = io.StringIO(with_moved_modules(pathlib.Path(path).read_text()))
  file.name = path  # For gin's errors.
  return file


def with_moved_modules(text: str) -> str:
  """A saved config with the modules of today in place of older ones."""
  for old, new in _MOVED.items():
    text = re.sub(rf'^{old}$', new, text, flags=re.MULTILINE)
  text = text.replace('losses.Hashed.dense = ', 'losses.Hashed.loss = ')
  # A layout of the past, with the same values as the one of today.
  text = text.replace('@data.Grouped()', '@data.Packed()')
  text = re.sub(r'\brun\.(?=Experiment\b|UntilAligned\b)', 'training.', text)
  for line in _REMOVED:
    text = re.sub(rf'^{line}\n', '', text, flags=re.MULTILINE)
  return text


def build(target: Callable[..., T]) -> T:
  """Calls a class or function, or what gin knows by a name, as it is bound."""
  try:
    return gin.get_configurable(target)()
  except UserError as e:
    # Gin appends where in the config tree it was; the message stands alone.
    raise UserError(_with_macro(_first_part(str(e)))) from e
  except Exception as e:
    raise UserError(_explain(e)) from e


def check_effect(
    bindings: Sequence[str], files: Sequence[str] = (), macros: bool = False
) -> None:
  """Refuses bindings and files of which nothing built by `build` has read any.

  What files include does not count. Macros count only in a command that builds
  all it uses at once; others read some later.
  """
  used = _bindings(operative_config()).keys()
  for name in _names(bindings):
    if '.' in name:
      ends = f'/{name}', f'.{name}'
      if name not in used and not any(u.endswith(ends) for u in used):
        parameter = name.rpartition('.')[2]
        same = [u for u in used if u.rpartition('.')[2] == parameter]
        hint = f' Did you mean {" or ".join(same)}?' if same else ''
        raise UserError(f'--gin.{name} has no effect: nothing takes it.{hint}')
    # A task may read DATA_ROOT after it was built.
    elif macros and name not in used and name != 'DATA_ROOT':
      raise UserError(
          f'--gin.{name} has no effect: nothing in this run reads it. It'
          ' belongs to another objective or loss, or another binding overrides'
          ' it.'
      )
  for file in files:
    own = re.findall(r'^([A-Z]\w*) = ', _find(file).read_text(), re.M)
    if own and used.isdisjoint(own):
      raise UserError(
          f'--gin_file={file} has no effect: nothing in this run reads'
          f" {' or '.join(dict.fromkeys(own))}. It belongs to another"
          ' objective, or another file overrides it. Leave it out.'
      )


def operative_config() -> str:
  """Everything that took part in `build`, defaults too, as a gin file.

  Gin writes what a macro built under the macro's scope, LOSS/losses.PAIR.alpha,
  where no later binding of losses.PAIR.alpha would reach it. The scope goes,
  unless two macros built the same thing with different values.
  """
  text = gin.operative_config_str()
  scoped = re.compile(r'^((?:[A-Z0-9_]+/)+)(([\w./]+) = .*)$', re.M)
  values: dict[str, set[str]] = {}
  for _, statement, name in scoped.findall(text):
    values.setdefault(name, set()).add(statement)
  return scoped.sub(lambda m: m[2] if len(values[m[3]]) == 1 else m[0], text)


def differences(old: str, new: str) -> list[str]:
  """Bindings in which two configs differ, 'name: old value -> new value'.

  MODEL_DIR is left out: a run may be moved.
  """
  a, b = _bindings(old), _bindings(new)
  return [
      f'{name}: {a.get(name, "not set")} -> {b.get(name, "not set")}'
      for name in sorted(a.keys() | b.keys())
      if a.get(name) != b.get(name) and name != 'MODEL_DIR'
  ]


def check_syntax(text: str) -> None:
  """Raises SyntaxError where a config is no gin; nothing of it is run."""
  for _ in gin.config_parser.ConfigParser(text, _NoObjects()):
    pass


class _NoObjects(gin.config_parser.ParserDelegate):

  def configurable_reference(self, scoped_configurable_name, evaluate):
    return None

  def macro(self, macro_name):
    return None


def statements(text: str, but: str) -> list[str]:
  """The bindings of a config, one a line, without that of a name."""
  return [f'{a} = {b}' for a, b in _bindings(text).items() if a != but]


def _required() -> Iterator[str]:
  """A sentence on macros without a value, if there are any."""
  missing = re.findall(r'^(\w+) = %gin\.REQUIRED$', gin.config_str(), re.M)
  if missing:
    yield (
        f'{" and ".join(missing)} must be given; for example'
        f' --gin.{missing[0]}=VALUE.'
    )


def _place(name: str, bindings: Sequence[str], parsed: Sequence[Any]) -> str:
  """' (--gin.NAME)' or ' (FILE, line N)', where a value is from; or ''."""
  if name in _names(bindings):
    return f' (--gin.{name})'
  found = ''
  for each in parsed:
    # What a file includes comes before it, as shipped files do.
    text = _find(each.filename).read_text()
    line = re.search(rf'^(?:.*[./])?{re.escape(name)} = ', text, re.M)
    here = line and text.count('\n', 0, line.start()) + 1
    own = f' ({each.filename}, line {here})' if here else ''
    found = own or _place(name, (), each.includes) or found
  return found


def _find(file: str) -> pathlib.Path:
  """Where a gin file is that `load` has read."""
  places = (pathlib.Path(p, file) for p in gin.config._LOCATION_PREFIXES)
  return next(place for place in places if place.is_file())


def _names(bindings: Sequence[str]) -> Iterator[str]:
  return (text.partition(' = ')[0] for text in bindings)


def _bindings(text: str) -> dict[str, str]:
  joined = re.sub(r'\\\n\s*', '', text)
  lines = [line for line in joined.splitlines() if not line.startswith('#')]
  # A value may span lines inside brackets; its continuations are indented.
  statements = re.sub(r'\n[ \t]+', ' ', '\n'.join(lines)).splitlines()
  pairs = (s.partition(' = ') for s in statements if ' = ' in s)
  return {name.strip(): value.strip() for name, _, value in pairs}


def _explain(error: Exception) -> str:
  """One message from a gin error, with what may have been meant."""
  message = str(error)
  at = re.search(r'In file "([^"]+)", line (\d+)', message)
  where = f' ({at[1]}, line {at[2]})' if at else ''
  if found := re.search(r'Unable to open file: (\S+?)\.? ', message):
    shipped = shipped_files()
    stems = {pathlib.PurePath(file).stem: file for file in shipped}
    near = difflib.get_close_matches(pathlib.PurePath(found[1]).stem, stems)
    meant = ' or '.join(stems[n] for n in near)
    hint = f'Did you mean {meant}?' if meant else f'Shipped: {shipped}.'
    return f'There is no gin file {found[1]!r}. {hint}'
  if found := re.search(r"<class '[\w.]*\.(\w+)'> in the Gin reg", message):
    return (
        f'The gin files have no {found[1]}. Expected one that imports it and'
        ' says what it is.'
    )
  if found := re.search(r'selector (\S+); .* has no attribute (\w+)', message):
    owner = found[1].split('.' + found[2])[0]
    names: Sequence[str] = ()
    if owner in _OF_PACKAGE:
      module = importlib.import_module(f'dualenc_jax.{owner}')
      names = getattr(module, '__all__', dir(module))
    hint = did_you_mean_or_known(found[2], names)
    return f'There is no {found[1]!r}.{hint}{where}'
  if found := re.search(r"'(\w+)' was not provided by an import", message):
    hint = did_you_mean_or_known(found[1], ['optax', *_OF_PACKAGE])
    return f'No module {found[1]!r} is imported in this config.{hint}{where}'
  if found := re.search(
      r"Configurable '([\w.]+)' doesn't have a parameter named '(\w+)'", message
  ):
    target: Any = gin.get_configurable(found[1])
    # Gin stands a subclass with a signature of its own in for a class.
    target = target.__base__ if inspect.isclass(target) else target
    known = [*inspect.signature(target).parameters]
    hint = did_you_mean_or_known(found[2], known)
    return f'{found[1]} has no parameter {found[2]!r}.{hint}{where}'
  if found := re.search(r"No configurable matching .* '@([\w./]+)", message):
    return (
        f'Nothing is called {found[1]!r}{where}. A gin file that imports'
        ' modules begins with: from __gin__ import dynamic_registration'
    )
  if re.search(r'missing .*argument.*: ', message):
    return f'{_first_part(message)} Set it in a gin file or by --gin.'
  if found := re.search(r"In call to configurable '(\w+)'", message):
    values = _bindings(gin.config_str())
    given = ', '.join(
        f'{parameter} = {macro} = {values.get(macro)}'
        for parameter, macro in _macros_of(found[1]).items()
    )
    message = f'{found[1]}({given}): {_first_part(message)}'
  return f'{type(error).__name__}: {message.strip()}'


def _with_macro(message: str) -> str:
  """A message on 'Class.parameter', with the macro that is its value."""
  if found := re.match(r'(\w+)\.(\w+) (?=is )', message):
    if macro := _macros_of(found[1]).get(found[2]):
      return f'{found[0]}({macro}) {message[found.end():]}'
  return message


def _macros_of(configurable: str) -> dict[str, str]:
  """By parameter the macro that it is bound to."""
  bound = rf'^(?:[\w/.]*\.)?{configurable}\.(\w+) = (?:\\\s+)?%(\w+)$'
  return dict(re.findall(bound, gin.config_str(), re.M))


def _first_part(message: str) -> str:
  return re.split(r'\n\s*In (?:call|file|bindings)', message)[0].strip()
