"""Gin, in one place: finding files, parsing flags, building, explaining errors.

Only the command-line modules use this. The library knows no config system.
"""

import argparse
import ast
from collections.abc import Callable, Sequence
import difflib
import inspect
import logging
import os
import pathlib
import re
import tokenize
from typing import TypeVar

import gin

from dualenc_jax.commands import flags
from dualenc_jax.commands.shipped import gin_root, shipped_files, with_macro
from dualenc_jax.errors import UserError
from dualenc_jax.suggest import did_you_mean, did_you_mean_or_known

T = TypeVar('T')

# Macros that a task may read after it was built.
_READ_LATER = frozenset(['DATA_ROOT'])

# Names that a --gin flag may use although no gin file has imported them.
_PRELUDE = """
from __gin__ import dynamic_registration
import optax
from dualenc_jax import data
from dualenc_jax import losses
from dualenc_jax import models
from dualenc_jax import readers
from dualenc_jax import run
from dualenc_jax import training
"""


def make_parser(command: str, doc: str) -> flags.Parser:
  """The parser of a command, with gin's flags; `parse_args` uses it."""
  parser = flags.Parser(command, doc)
  group = parser.add_argument_group('gin')
  group.add_argument(
      '--gin_file', action='append', default=[], metavar='FILE',
      help='a gin file, shipped or your own; repeatable, later ones win',
  )
  group.add_argument(
      '--gin_search_paths', action='append', default=[], metavar='DIR[,DIR]',
      help='more folders to find gin files in',
  )
  group.add_argument(
      '--gin.NAME=VALUE', dest='gin_help', action='store_true',
      help='a binding, such as --gin.STEPS=100 or'
      ' --gin.LOSS=@losses.PAIR(); repeatable, wins over files',
  )
  return parser


def parse_args(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> argparse.Namespace:
  """Parses a command line; `.gin_bindings` holds the --gin.NAME=VALUE flags."""
  bindings, rest = [], []
  arguments = iter(argv)
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
  args.gin_search_paths = [
      path for paths in args.gin_search_paths for path in paths.split(',')
  ]
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
    search_paths: Sequence[str] = (),
) -> None:
  """Replaces the current gin config by these files and bindings.

  Args:
    files: gin files, by path or by their name under a search path.
    bindings: 'NAME = VALUE' strings, applied after the files.
    search_paths: folders to search besides the working directory and the
      shipped files.

  Raises:
    UserError: a file, name or value is wrong; says what may have been meant.
  """
  for path in search_paths:
    if not os.path.isdir(path):
      raise UserError(f'--gin_search_paths: {path} is not a folder.')
  gin.clear_config()
  # Set, not added to: gin would keep the paths of earlier calls, and would
  # first look for 'models/mini.gin' in whatever Python package is importable
  # as `models`.
  gin.config._LOCATION_PREFIXES[:] = map(
      os.path.abspath, ['.', *search_paths, gin_root()]
  )
  # Gin logs an error for every folder that a file is not in.
  logging.disable(logging.ERROR)
  try:
    for file in files:
      try:
        gin.parse_config_file(file)
      except tokenize.TokenError as e:
        raise UserError(
            f'{file}, or a file that it includes, ends inside of a bracket or a'
            ' text: one is not closed.'
        ) from e
    known = _macro_names()
    # Whatever name a file has imported, a flag may use.
    imports = sorted(statement.format() for statement in gin.config._IMPORTS)
    imports = [i for i in imports if '__gin__' not in i]
    gin.parse_config([_PRELUDE, *imports])
    for text in bindings:
      try:
        gin.parse_config([_PRELUDE, *imports, text])
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
  _check_macros(known, bindings)


def build(target: Callable[..., T]) -> T:
  """Calls a class or function with its gin bindings.

  Args:
    target: what gin knows, or its name.

  Raises:
    UserError: a required value is missing, or an object refuses its values.
  """
  missing = re.findall(
      r'^(\w+) = %gin\.REQUIRED$', gin.config_str(), flags=re.MULTILINE
  )
  if missing:
    raise UserError(
        ' and '.join(missing)
        + f' must be given; for example --gin.{missing[0]}=VALUE.'
    )
  try:
    return gin.get_configurable(target)()
  except UserError as e:
    # Gin appends where in the config tree it was; the message stands alone.
    raise UserError(_with_macro(_first_part(str(e)))) from e
  except Exception as e:
    raise UserError(_explain(e)) from e


def check_macros_effect(bindings: Sequence[str]) -> None:
  """Refuses macros that nothing built by `build` has read.

  It is for commands that build all they use at once; others read some later.

  Raises:
    UserError: names the macro.
  """
  used = _bindings(operative_config())
  for name in (text.partition(' = ')[0] for text in bindings):
    if name.isidentifier() and name not in used and name not in _READ_LATER:
      raise UserError(
          f'--gin.{name} has no effect: nothing that was built reads it. It'
          ' is for another objective or loss, or a binding in a file or a flag'
          ' has taken its place.'
      )


def check_files_effect(files: Sequence[str]) -> None:
  """Refuses files of macros of which nothing built by `build` has read any.

  Args:
    files: as `load` was given them; what they include does not count.

  Raises:
    UserError: names the file.
  """
  used = _bindings(operative_config()).keys()
  for file in files:
    places = (pathlib.Path(p, file) for p in gin.config._LOCATION_PREFIXES)
    text = next(place for place in places if place.is_file()).read_text()
    own = re.findall(r'^([A-Z]\w*) = ', text, flags=re.MULTILINE)
    if own and used.isdisjoint(own):
      raise UserError(
          f'--gin_file={file} has no effect: nothing that was built reads'
          f' {" or ".join(dict.fromkeys(own))}. It is for another objective,'
          ' or another file has taken its place. Leave it out.'
      )


def check_effect(bindings: Sequence[str]) -> None:
  """Refuses bindings of parameters that `build` has not used.

  Raises:
    UserError: a binding sets a parameter of something that is not part of what
      was built, as of a loss that is not the chosen one.
  """
  used = _bindings(operative_config())
  for text in bindings:
    name = text.partition(' = ')[0]
    if '.' not in name:
      continue  # A macro; see `load` and `check_macros_effect`.
    if not any(u == name or u.endswith(('/' + name, '.' + name)) for u in used):
      parameter = name.rpartition('.')[2]
      same = [u for u in used if u.rpartition('.')[2] == parameter]
      hint = f' Did you mean {" or ".join(same)}?' if same else ''
      raise UserError(
          f'--gin.{name} has no effect: nothing that was built takes it.{hint}'
      )


def operative_config() -> str:
  """Everything that took part in `build`, defaults too, as a gin file.

  Gin writes what a macro built under the macro's scope, LOSS/losses.PAIR.alpha,
  where no later binding of losses.PAIR.alpha would reach it. The scope goes,
  unless two macros built the same thing with different values.
  """
  text = gin.operative_config_str()
  scoped = re.compile(r'^((?:[A-Z0-9_]+/)+)([\w./]+ = .*)$', re.MULTILINE)
  values = {}
  for _, statement in scoped.findall(text):
    name, _, value = statement.partition(' = ')
    values.setdefault(name, set()).add(value)

  def without_scope(found: re.Match) -> str:
    name = found[2].partition(' = ')[0]
    return found[2] if len(values[name]) == 1 else found[0]

  return scoped.sub(without_scope, text)


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
  """Makes nothing of the names in a config."""

  def configurable_reference(self, scoped_configurable_name, evaluate):
    return None

  def macro(self, macro_name):
    return None


def statements(text: str, but: str) -> list[str]:
  """The bindings of a config, one a line, without that of a name."""
  return [f'{a} = {b}' for a, b in _bindings(text).items() if a != but]


def _bindings(text: str) -> dict[str, str]:
  joined = re.sub(r'\\\n\s*', '', text)
  lines = [line for line in joined.splitlines() if not line.startswith('#')]
  # A value may span lines inside brackets; its continuations are indented.
  statements = re.sub(r'\n[ \t]+', ' ', '\n'.join(lines)).splitlines()
  pairs = (s.partition(' = ') for s in statements if ' = ' in s)
  return {name.strip(): value.strip() for name, _, value in pairs}


def _macro_names() -> set[str]:
  """Macros that the config sets or refers to."""
  text = gin.config_str()
  return set(re.findall(r'^(\w+) = ', text, flags=re.MULTILINE)) | set(
      re.findall(r'%(\w+)\b(?!\.)', text)
  )


def _check_macros(known: set[str], bindings: Sequence[str]) -> None:
  for binding in bindings:
    name = binding.partition(' = ')[0]
    if '.' not in name and name not in known:
      found = with_macro(name)
      near = did_you_mean if found else did_you_mean_or_known
      raise UserError(
          f'--gin.{name}: no gin file given uses the macro'
          f' {name}.{found}{near(name, known)}'
      )


def _explain(error: Exception) -> str:
  """One message from a gin error, with what may have been meant."""
  message = str(error)
  if found := re.search(r'Unable to open file: (\S+?)\.? ', message):
    name = found[1]
    shipped = shipped_files()
    by_stem = {pathlib.PurePath(f).stem: f for f in shipped}
    near = difflib.get_close_matches(pathlib.PurePath(name).stem, by_stem, n=3)
    hint = ' or '.join(by_stem[n] for n in near)
    known = f' Shipped: {", ".join(shipped)}.'
    return f'There is no gin file {name!r}.' + (
        f' Did you mean {hint}?' if hint else known
    )
  if found := re.search(
      r"Could not find <class '[\w.]*\.(\w+)'> in the Gin reg", message
  ):
    return (
        f'The gin files have no {found[1]}. Expected one that imports it and'
        ' says what it is.'
    )
  if found := re.search(
      r"resolve selector (\S+); .* has no attribute (\w+)", message
  ):
    owner = found[1].split('.' + found[2])[0]
    return (
        f'There is no {found[1]!r}.'
        + did_you_mean_or_known(found[2], _public_names(owner))
        + _where(message)
    )
  if found := re.search(r"'(\w+)' was not provided by an import", message):
    modules = re.findall(r'import (\w+)$', _PRELUDE, flags=re.MULTILINE)
    return (
        f'No module {found[1]!r} is imported in this config.'
        + did_you_mean_or_known(found[1], modules)
        + _where(message)
    )
  if found := re.search(
      r"Configurable '([\w.]+)' doesn't have a parameter named '(\w+)'", message
  ):
    return (
        f'{found[1]} has no parameter {found[2]!r}.'
        + did_you_mean_or_known(found[2], _parameters(found[1]))
        + _where(message)
    )
  if found := re.search(
      r"No configurable matching reference '@([\w./]+)", message
  ):
    return (
        f'Nothing is called {found[1]!r}{_where(message)}. A gin file that'
        ' imports modules begins with: from __gin__ import dynamic_registration'
    )
  if found := re.search(r"missing .*argument.*: (.*)", message):
    return f'{_first_part(message)} Set it in a gin file or by --gin.'
  if found := re.search(r"In call to configurable '(\w+)'", message):
    values = _bindings(gin.config_str())
    given = [
        f'{parameter} = {macro} = {values.get(macro)}'
        for parameter, macro in _macros_of(found[1]).items()
    ]
    message = f'{found[1]}({", ".join(given)}): {_first_part(message)}'
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
  return dict(re.findall(bound, gin.config_str(), flags=re.MULTILINE))


def _first_part(message: str) -> str:
  return re.split(r'\n\s*In (?:call|file|bindings)', message)[0].strip()


def _where(message: str) -> str:
  found = re.search(r'In file "([^"]+)", line (\d+)', message)
  return f' ({found[1]}, line {found[2]})' if found else ''


def _public_names(owner: str) -> list[str]:
  module = __import__('dualenc_jax.' + owner, fromlist=['']) if owner in (
      'data', 'losses', 'models', 'readers', 'run', 'training'
  ) else None
  return getattr(module, '__all__', dir(module)) if module else []


def _parameters(selector: str) -> list[str]:
  target = gin.get_configurable(selector)
  # Gin stands a subclass with a signature of its own in for a class.
  target = target.__base__ if inspect.isclass(target) else target
  return list(inspect.signature(target).parameters)
