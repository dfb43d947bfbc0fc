"""Comments and docstrings keep the rules of docs/contributing.md."""

import ast
from collections.abc import Iterator
import io
import pathlib
import re
import tokenize

import dualenc_jax

ROOT = pathlib.Path(dualenc_jax.__file__).parent
START = re.compile(r'(Of|What|That|Those|Such|Which|Who|Whose|Else)\b')


def comments(text: str) -> Iterator[tuple[int, str]]:
  """The line and text of each comment, those of adjacent lines as one."""
  start, parts, before = 0, [], (0, 0)
  for token in tokenize.generate_tokens(io.StringIO(text).readline):
    if token.type != tokenize.COMMENT:
      continue
    line, column = token.start
    if before != (line - 1, column):
      if parts:
        yield start, ' '.join(parts)
      start, parts = line, []
    parts.append(token.string.strip('# '))
    before = line, column
  if parts:
    yield start, ' '.join(parts)


def docstrings(text: str) -> Iterator[tuple[int, str]]:
  kinds = ast.Module, ast.ClassDef, ast.FunctionDef
  for node in ast.walk(ast.parse(text)):
    if isinstance(node, kinds) and (doc := ast.get_docstring(node)):
      yield node.body[0].lineno, ' '.join(doc.split())


def test_sentences_begin_with_their_subject():
  wrong = []
  for path in sorted(ROOT.rglob('*.py')):
    text = path.read_text()
    for line, prose in (*comments(text), *docstrings(text)):
      wrong += [
          f'{path.relative_to(ROOT)}, line {line}: {sentence[:60]}'
          for sentence in re.split(r'(?<=[.?!]) +', prose)
          if START.match(sentence) or re.search(r'\bbut for\b', sentence)
      ]
  assert not wrong, '\n'.join([f'{len(wrong)} sentences', *wrong])
