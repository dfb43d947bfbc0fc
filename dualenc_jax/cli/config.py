"""Gin: finds files, parses flags, builds objects, explains errors.

Only the command-line modules use this. The library knows no config system.
"""

import argparse
import ast
from collections.abc import Callable, Iterator, Sequence
import io
import logging
import os
import pathlib
import re
import sys
import tokenize
from typing import IO, TypeVar

import gin

from dualenc_jax.cli import flags, kinds, recipe_macros
from dualenc_jax.utils.errors import did_you_mean, UserError

T = TypeVar('T')

# Names that a --gin flag may use although no gin file has imported them.
_OF_PACKAGE = 'data', 'losses', 'models', 'training'
_PRELUDE = '\n'.join([
    'from __gin__ import dynamic_registration',
    'import optax',
    'from dualenc_jax.data import readers',
    *(f'from dualenc_jax import {name}' for name in _OF_PACKAGE),
])

# Imports of older saved configs, and those of today.
_MOVED = {
    'from dualenc_jax import readers': 'from dualenc_jax.data import readers',
    'from dualenc_jax import recipes':
        'from dualenc_jax.pipelines import recipes',
    'from dualenc_jax import run': 'from dualenc_jax import training',
}
# Names of the past; grouped rows had the values of packed ones.
_RENAMED = {
    '@data.Grouped()': '@data.Packed()',
    'losses.Hashed.dense = ': 'losses.Hashed.loss = ',
    'objectives.TaughtPq': 'objectives.DistilledPQ',
}
# Members of PAIR's denominator: other passages, the positive, other queries.
_PAIR_FORMS = {
    'paper': (True, True, False), 'released': (False, True, True),
    'union': (True, True, True), 'without_positive': (True, False, False),
}
# Options that runs had, which are left out of their configs.
_REMOVED = (
    r'(LABEL_SMOOTHING|DISTANCE|MATRYOSHKA_WEIGHTS) = .*',
    r'(losses|objectives)\.\w+\.(label_smoothing|distance) = .*',
    r'losses\.Matryoshka\.weights = .*',
    r'data\.Grouped\..*', r'data\.Packed\.sample = .*',
    r'losses\.Hashed\.straight_through = .*',
    r'losses\.Similarity\.check_norms = .*',
    r'objectives\.JointPq\.refresh = .*',
    r'readers\.(MsMarco\.train_from|OpenNQ\.\w*(posi|nega)tives) = .*',
    r'readers\.MultiReQA\.context_separator = .*',
    r'readers\.OpenNQ\.title_separator = .*',
    r'readers\.(Beir|MsMarco|MultiReQA)\.tolerance = .*',
    r'(BEIR|MSMARCO|MULTIREQA)_TOLERANCE = .*',
    r'readers\.(Beir|MsMarco)\.(files|systems) = .*',
    r'(BEIR|MSMARCO)_(FILES|SYSTEMS) = .*',
    r'readers\.Pairs\.column_aliases = .*', r'COLUMN_ALIASES = .*',
    r'CHECKPOINT_EVERY_HOURS = .*',
    r'training\.Experiment\.checkpoint_every_hours = .*',
    r'training\.Experiment\.eval_(queries|passages) = .*',
    r'INITIAL_CHECKPOINT_OPTIMIZER = .*',
    r'training\.InitialCheckpoint\.keep_optimizer = .*',
    r'training\.UntilAligned\.(queries|k|least_rank) = .*',
    r'SKIP_NON_FINITE = .*', r'training\.Optimizer\.skip_non_finite = .*',
)


def gin_root() -> pathlib.Path:
  """The folder of the shipped gin files, in a wheel or in a clone."""
  package = pathlib.Path(__file__).resolve().parents[1]
  installed = package / 'gin'
  return installed if installed.is_dir() else package.parent / 'gin'


def shipped_files() -> list[str]:
  """Names of the shipped gin files, such as 'losses/samtone.gin'.

  Files in t5x/ are for T5X's own trainer, and left out.
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
    files: Sequence[str], bindings: Sequence[str] = (),
    search_paths: Sequence[str] = (), is_recipe: bool = False,
) -> None:
  """Replaces the current gin config by these files and bindings.

  Files are found by path, or by name in `search_paths`, the working directory
  and the shipped files; 'NAME = VALUE' strings are applied after them. Files of
  a recipe are for a caller that says `is_recipe`.

  Raises:
    UserError: a file or a binding cannot be read, macros are missing or unknown
      or a value is of another kind than what it is given to takes.
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
  source = ''
  try:
    for source in files:
      gin.parse_config_file(source)
    text = gin.config_str()
    # A flag may use any name that a file has imported.
    imports = sorted(statement.format() for statement in gin.config._IMPORTS)
    imports = [_PRELUDE, *(i for i in imports if '__gin__' not in i)]
    gin.parse_config(imports)
    for binding_text in bindings:
      source = f'--gin.{binding_text}'
      gin.parse_config([*imports, binding_text])
  except tokenize.TokenError as e:
    raise UserError(f'{source}: a bracket or a quote is not closed.') from e
  except (SyntaxError, UnicodeDecodeError) as e:
    raise UserError(f'{source}: gin cannot read it: {e}.') from e
  except Exception as e:
    raise UserError(_explain(e)) from e
  finally:
    logging.disable(logging.NOTSET)
  if is_recipe != ('recipes.Recipe.' in text):
    shown = ' '.join(f'--gin_file={file}' for file in files)
    raise UserError(
        f'{shown} has no recipe; give one, such as --gin_file=recipes/pair.gin.'
        if is_recipe else
        f'{shown} is a recipe: run it by `dualenc recipe`.'
    )
  problems = [*_missing_macros(), *_unknown_macros(bindings, text, is_recipe)]
  problems += kinds.misfits()
  if problems:
    raise UserError('\n'.join(problems))


def _open(path: str) -> IO[str]:
  """Opens a gin file; a run's config by `update_names`, with all encoders."""
  if not re.fullmatch(r'config(\.\d+)?\.gin', os.path.basename(path)):
    return open(path)
  text = update_names(pathlib.Path(path).read_text())
  file = io.StringIO(with_encoders(text))
  file.name = path  # For gin's errors.
  return file


def with_encoders(text: str) -> str:
  """A saved config with the macros of encoders that its run did not use.

  A file of an architecture that follows, as of another tower, may read them.
  """
  if 'from dualenc_jax import models' not in text:
    return text
  used = re.search(r'^\w*ENCODER = @(?:\w+/)?models\.(\w+)', text, re.MULTILINE)
  kind = used[1] if used else 'T5Encoder'
  for scope in ('', 'query/', 'passage/'):
    name = scope.upper().replace('/', '_') + 'ENCODER'
    if not re.search(rf'^{name} = ', text, re.MULTILINE):
      text += f'\n{name} = @{scope}models.{kind}()\n'
  return text


def update_names(text: str) -> str:
  """A saved config with the modules of today in place of older ones."""
  for old, new in _MOVED.items():
    text = re.sub(rf'^{old}$', new, text, flags=re.MULTILINE)
  for old, new in _RENAMED.items():
    text = text.replace(old, new)
  for form, values in _PAIR_FORMS.items():
    text = text.replace('\n'.join(
        f'losses.PAIR.{name}_in_denominator = {value}'
        for name, value in zip(('passages', 'positive', 'queries'), values)
    ), f"losses.PAIR.form = '{form}'")
  text = re.sub(r'\brun\.(?=Experiment\b|UntilAligned\b)', 'training.', text)
  for line in _REMOVED:
    text = re.sub(rf'^{line}\n', '', text, flags=re.MULTILINE)
  return text


def build(target: Callable[..., T]) -> T:
  """Calls a class or function, or what gin knows by a name, as it is bound."""
  try:
    return gin.get_configurable(target)()
  except UserError as e:
    raise UserError(_with_macro(_first_part(str(e)))) from e
  except Exception as e:
    raise UserError(_explain(e)) from e


def check_effect(
    bindings: Sequence[str], files: Sequence[str] = (), macros: bool = False
) -> None:
  """Raises UserError for bindings and files that `build` has not read.

  Files that others include do not count. Macros count only in a command that
  builds all that it uses at once; others read some later.
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
          f'--gin.{name} has no effect: nothing in this run reads it. Leave it'
          ' out.'
      )
  for file in files:
    places = (pathlib.Path(p, file) for p in gin.config._LOCATION_PREFIXES)
    text = next(place for place in places if place.is_file()).read_text()
    own = re.findall(r'^([A-Z]\w*) = ', text, re.M)
    if own and used.isdisjoint(own):
      raise UserError(
          f'--gin_file={file} has no effect: nothing in this run reads'
          f" {' or '.join(dict.fromkeys(own))}. Leave it out."
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


def statements(text: str, but: str) -> list[str]:
  """The bindings of a config, one a line, without that of a name."""
  return [f'{a} = {b}' for a, b in _bindings(text).items() if a != but]


def macros(text: str | None = None) -> set[str]:
  """Names of the macros of a config, by default the current one."""
  text = gin.config_str() if text is None else text
  found = re.findall(r'^(\w+) = |%(\w+)\b(?!\.)', text, re.M)
  return {name for pair in found for name in pair if name}


def _missing_macros() -> Iterator[str]:
  """A sentence on macros without a value, if there are any."""
  missing = re.findall(r'^(\w+) = %gin\.REQUIRED$', gin.config_str(), re.M)
  if missing:
    yield (
        f'{" and ".join(missing)} must be given; for example'
        f' --gin.{missing[0]}=VALUE.'
    )


def _unknown_macros(
    bindings: Sequence[str], text: str, is_recipe: bool
) -> Iterator[str]:
  """A sentence on each macro of a flag that the config of the files lacks."""
  names = macros(text)
  for name in _names(bindings):
    if '.' in name or name in names:
      continue
    # A recipe's own macros are of no other command.
    having = [
        file for file in shipped_files()
        if not file.startswith('recipes/')
        and re.search(rf'^{name} = ', (gin_root() / file).read_text(), re.M)
    ]
    hint = did_you_mean(name, names)
    if having and is_recipe:
      hint = recipe_macros.hint(name, text)
    elif having:
      hint = f' It is of --gin_file={" or ".join(having[:3])}.'
    yield f'--gin.{name}: no gin file given uses the macro {name}.{hint}'


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
  """Gin's error in one line, with its place and the name that may be meant."""
  message = str(error)
  first = _first_part(message)
  at = re.search(r'In file "([^"]+)", line (\d+)', message)
  where = f' ({at[1]}, line {at[2]})' if at else ''
  if first.startswith('No configurable matching'):
    return (
        f'{first}{where} A gin file that imports modules begins with: from'
        ' __gin__ import dynamic_registration'
    )
  if re.search(r'missing .*argument.*: ', first):
    return f'{first} Set it in a gin file or by --gin.'
  if found := _NO_PARAMETER.match(first):
    return f'{first}{where}{kinds.parameter_hint(*found.groups())}'
  if found := _NO_ATTRIBUTE.search(first):
    selector, module, name = found.groups()
    known = [n for n, x in vars(sys.modules[module]).items() if callable(x)]
    return f'There is no {selector}{where}.{did_you_mean(name, known)}'
  if re.search(r"No module named '(?!dualenc_jax\b)", first):
    return (
        f'{first}{where} A module of your own is found in the working directory'
        ' and in PYTHONPATH.'
    )
  if names := _WRONG_NAME.findall(first):
    shipped = _shipped_names()
    end = '.gin' if names[-1].endswith('.gin') else f'.{names[-1]}'
    whole = {known for known in shipped if known.endswith(end)}
    return f'{first}{where}{did_you_mean(names[-1], whole or shipped)}'
  return f'{type(error).__name__}: {first}{where}'


_NO_PARAMETER = re.compile(r"Configurable '(.+)' doesn't .* named '(.+)'")
_NO_ATTRIBUTE = re.compile(
    r"resolve selector (\S+); <module '([\w.]+)'.* has no attribute (\w+)"
)
# The last of them in a sentence of gin's is the name that it does not know.
_WRONG_NAME = re.compile(r"(?:open file: |named '|^')([\w./]*\w)")


def _shipped_names() -> set[str]:
  """Shipped gin files, and all names in them."""
  files = shipped_files()
  text = '\n'.join((gin_root() / file).read_text() for file in files)
  return {*files, *re.findall(r'(?:[a-z]+\.)?\w+', text)}


def _with_macro(message: str) -> str:
  """A message on 'Class.parameter', with the macro that is its value."""
  if found := re.match(r'(\w+)\.(\w+) (?=is )', message):
    bound = rf'^(?:[\w/.]*\.)?{found[1]}\.{found[2]} = (?:\\\s+)?%(\w+)$'
    for macro in re.findall(bound, gin.config_str(), re.M)[-1:]:
      return f'{found[0]}({macro}) {message[found.end():]}'
  return message


def _first_part(message: str) -> str:
  """A message without what gin appends on calls, files and search paths."""
  parts = re.split(r'\n\s*(?:In |No values)| Searched config paths', message)
  return parts[0].strip()
