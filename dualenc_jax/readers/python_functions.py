"""Functions of a Python file, each cut into docstring and code."""

import ast
from collections.abc import Iterator
import dataclasses
import itertools
import pathlib
import tokenize
from typing import Any

from dualenc_jax.io import untrusted

_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (*_FUNCTION, ast.ClassDef)


@dataclasses.dataclass(frozen=True)
class Function:
  """One documented function or method.

  Attributes:
    query: first paragraph of the docstring, whitespace collapsed.
    passage: source from the first decorator on, without docstrings, dedented.
    id: 'json/encoder.py:161:JSONEncoder.default'.
    name: 'json.encoder.JSONEncoder.default'.
    location: 'json/encoder.py:161', the line of `def`.
    module: the top-level module or package, 'json'.
  """

  query: str
  passage: str
  id: str
  name: str
  location: str
  module: str


def find_functions(file: pathlib.Path, path: str) -> list[Function]:
  """Functions of `file` that have a docstring and more than that, by line.

  Nested ones too, and once more within their parents. `path` is relative to the
  file's root, with '/'.

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
    if not docstring or _is_trivial(node):
      continue
    location = f'{path}:{node.lineno}'
    functions.append(Function(
        query=first_paragraph(docstring),
        passage=_code(node, lines),
        id=f'{location}:{qualname}',
        name=f'{module}.{qualname}' if module else qualname,
        location=location,
        module=parts[0],
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


def _is_trivial(node: Any) -> bool:
  return all(
      isinstance(statement, ast.Pass)
      or isinstance(statement, ast.Expr)
      and isinstance(statement.value, ast.Constant)
      for statement in node.body[1:]
  )


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
