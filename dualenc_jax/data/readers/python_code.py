"""Docstring -> code over installed Python.

A query is the first paragraph of a function's docstring, a passage the
function's source without docstrings. Nothing is downloaded or executed.
"""

import ast
from collections.abc import Iterator, Sequence
import dataclasses
import functools
import hashlib
import itertools
import logging
import os
import pathlib
import re
import sys
import sysconfig
import tokenize
from typing import Any

from dualenc_jax.data.dataset import Dataset, example
from dualenc_jax.utils import untrusted
from dualenc_jax.utils.errors import UserError

# Tests describe themselves, and vendored copies repeat other packages.
EXCLUDED_FOLDERS = frozenset((
    '__pycache__', '_bundled', '_vendor', 'dist-packages', 'idle_test',
    'site-packages', 'test', 'tests',
))
MIN_QUERY_WORDS = 3
# Modules differ greatly in size. With this salt both held-out splits of the
# standard library hold near a tenth of its functions, from twenty modules.
SALT = 'python_code:36'
_SPLITS = ('train', 'validation', 'test')
_ROOTS = {'stdlib': ('stdlib',), 'site-packages': ('purelib', 'platlib')}
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (*_FUNCTION, ast.ClassDef)


@dataclasses.dataclass(frozen=True)
class PythonCode(Dataset):
  """Pairs of docstring and code from every Python file below some folders.

  Left out: folders named in `EXCLUDED_FOLDERS`; files that do not parse;
  functions whose query has fewer than `MIN_QUERY_WORDS` words or is a doctest;
  functions with nothing but `pass` or `...` after the docstring; exact repeats.

  Splits are by top-level module or package of a root, by hash of its name:
  about 80% train, 10% validation, 10% test. A function is dropped from
  validation and train where its docstring or its code is that of one in test;
  from train for validation's, too. The split `all` is every function, for a
  corpus to search.

  Attributes:
    roots: folders, 'stdlib' (this Python's standard library) or
      'site-packages' (the packages installed beside it).
  """

  task_name = 'python_code'

  roots: Sequence[str] = ('stdlib',)

  def splits(self) -> tuple[str, ...]:
    return (*_SPLITS, 'all')

  def examples(self, split: str) -> Iterator[dict]:
    """Yields the examples of a split, in order of root, path and line."""
    self.check_split(split)
    yield from self._functions if split == 'all' else self._by_split[split]

  def fingerprint(self, split: str) -> str:
    """Hash of Python's version and of the paths and sizes of the files."""
    self.check_split(split)
    digest = hashlib.sha256(f'{SALT}\0{sys.version}'.encode())
    for root in self._folders:
      for path in _python_files(root):
        size = (root / path).stat().st_size
        digest.update(f'\0{path}\0{size}'.encode('utf-8', 'surrogateescape'))
    return digest.hexdigest()

  @property
  def _folders(self) -> list[pathlib.Path]:
    folders = []
    # gin users write 'stdlib' as readily as ('stdlib',).
    roots = [self.roots] if isinstance(self.roots, str) else self.roots
    for root in roots:
      paths = [sysconfig.get_path(name) for name in _ROOTS.get(root, ())]
      folders += [pathlib.Path(p).expanduser() for p in paths or [root]]
    for folder in folders:
      if not folder.is_dir():
        raise UserError(
            f'PythonCode.roots: {folder} is not a folder. Expected folders,'
            " 'stdlib' or 'site-packages'."
        )
    return list(dict.fromkeys(folders))

  @functools.cached_property
  def _functions(self) -> list[dict[str, Any]]:
    found, seen, ids, skipped = [], set(), set(), []
    for root in self._folders:
      for path in _python_files(root):
        try:
          functions = find_functions(root / path, path)
        except (SyntaxError, ValueError, RecursionError, OSError) as error:
          skipped.append(f'{path} ({type(error).__name__})')
          continue
        for function in functions:
          query = function['query']
          pair = query, function['passage']
          is_short = len(query.split()) < MIN_QUERY_WORDS
          if pair in seen or is_short or query.startswith('>>>'):
            continue
          seen.add(pair)
          # Two roots may hold different files of one relative path.
          unique, count = function['passage_id'], 1
          while unique in ids:
            count += 1
            unique = f'{function["passage_id"]}~{count}'
          ids.add(unique)
          own = {'query_id': f'{unique}#query', 'passage_id': unique}
          found.append(function | own)
    if skipped:
      logging.getLogger(__name__).warning(
          'python_code: skipped %d files that do not parse, such as %s.',
          len(skipped), ', '.join(skipped[:3]),
      )
    return found

  @functools.cached_property
  def _by_split(self) -> dict[str, list[dict[str, Any]]]:
    splits: dict[str, list[dict[str, Any]]] = {split: [] for split in _SPLITS}
    for function in self._functions:
      # The top-level module or package, 'json' of 'json/encoder.py:161'.
      module = re.split('[/:]', function['location'])[0].removesuffix('.py')
      splits[split_of(module)].append(function)
    held_out: set[str] = set()
    for split in reversed(_SPLITS):
      splits[split] = [
          function for function in splits[split]
          if held_out.isdisjoint((function['query'], function['passage']))
      ]
      held_out.update(*((f['query'], f['passage']) for f in splits[split]))
    return splits


def split_of(module: str) -> str:
  """The split of a top-level module, a pure function of its name."""
  digest = hashlib.sha256(f'{SALT}:{module}'.encode()).digest()
  fraction = int.from_bytes(digest[:8], 'big') / 2**64
  if fraction < 0.1:
    return 'test'
  return 'validation' if fraction < 0.2 else 'train'


def _python_files(root: pathlib.Path) -> list[str]:
  """Paths of the files below a root, relative to it, with '/', sorted."""
  paths = []
  for folder, subfolders, files in os.walk(root):
    subfolders[:] = [
        name for name in subfolders
        if name not in EXCLUDED_FOLDERS and not name.startswith('.')
    ]
    relative = pathlib.Path(folder).relative_to(root)
    found = (relative / name for name in files if name.endswith('.py'))
    paths += [path.as_posix() for path in found]
  return sorted(paths)


def find_functions(file: pathlib.Path, path: str) -> list[dict[str, Any]]:
  """Functions of `file` that have a docstring and more than that, by line.

  Nested ones too, and once more within their parents. They are examples,
  without a query_id: a query is the first paragraph of a docstring on one line,
  a passage the source from the first decorator on, without docstrings,
  dedented. `path` is relative to the file's root: of JSONEncoder.default the
  location is 'json/encoder.py:161', the name json.encoder.JSONEncoder.default.

  Raises:
    SyntaxError, ValueError, RecursionError: the file does not parse.
  """
  # A pipe of that name would wait for who writes to it.
  untrusted.open_file(file).close()
  with tokenize.open(file) as stream:
    source = stream.read()
  tree = ast.parse(source)
  # `ast` counts columns in UTF-8 bytes, and knows no line end but '\n'.
  lines = source.encode('utf-8').split(b'\n')
  parts = path.removesuffix('.py').split('/')
  module = '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)
  functions = []
  for node, qualname in _walk(tree, ''):
    docstring = ast.get_docstring(node)
    if not docstring or all(
        isinstance(statement, ast.Pass)
        or isinstance(getattr(statement, 'value', None), ast.Constant)
        and isinstance(statement, ast.Expr)
        for statement in node.body[1:]
    ):
      continue
    location = f'{path}:{node.lineno}'
    functions.append(example(
        query=first_paragraph(docstring),
        passage=_code(node, lines),
        passage_id=f'{location}:{qualname}',
        name=f'{module}.{qualname}' if module else qualname,
        location=location,
    ))
  return functions


def first_paragraph(docstring: str) -> str:
  """Text before the first blank line, on one line."""
  lines = docstring.strip().splitlines()
  return ' '.join(' '.join(itertools.takewhile(str.strip, lines)).split())


def _walk(node: ast.AST, prefix: str) -> Iterator[tuple[Any, str]]:
  """Yields every function below a node, with its qualified name, by line."""
  for child in ast.iter_child_nodes(node):
    if not isinstance(child, _DOCUMENTED):
      yield from _walk(child, prefix)
      continue
    qualname = prefix + child.name
    if isinstance(child, _FUNCTION):
      yield child, qualname
    yield from _walk(child, f'{qualname}.')


def _code(node: Any, lines: list[bytes]) -> str:
  """Source of a function without its docstring and those nested in it."""
  first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
  kept = list(lines[first - 1 : node.end_lineno])
  docstrings = [
      child.body[0]
      for child in ast.walk(node)
      if isinstance(child, _DOCUMENTED) and ast.get_docstring(child, False)
  ]
  # From the last to the first, so that line numbers before a cut still hold.
  for docstring in sorted(docstrings, key=lambda n: n.lineno, reverse=True):
    _cut(kept, docstring, first)
  indent = kept[0][: len(kept[0]) - len(kept[0].lstrip())]
  dedented = [line.removeprefix(indent).rstrip() for line in kept]
  return b'\n'.join(dedented).decode('utf-8').strip()


def _cut(lines: list[bytes], docstring: Any, first: int) -> None:
  """Removes a docstring, and the lines that are blank without it, in place."""
  start, end = docstring.lineno - first, docstring.end_lineno - first
  before = lines[start][: docstring.col_offset]
  after = lines[end][docstring.end_col_offset :].lstrip(b' \t;')
  left = [before + after] if (before + after).strip() else []
  rest = end + 1
  while not left and rest < len(lines) and not lines[rest].strip():
    rest += 1
  lines[start:rest] = left
