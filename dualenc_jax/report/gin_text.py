"""A saved config as text: what it binds, without running gin."""

import re

from dualenc_jax.report.markup import Html, join, tag

_TOKEN = re.compile(
    r'(?P<comment>^\#.*$)'
    r"|(?P<string>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r'|(?P<reference>[@%][\w./]+(?:\(\))?)'
    r'|(?P<keyword>^(?:from|import|include)\b|\b(?:None|True|False)\b)'
    r'|(?P<number>(?<![\w.])-?\d[\d.]*(?:e[-+]?\d+)?\b)',
    re.MULTILINE,
)


def bindings(text: str) -> dict[str, str]:
  """Name to value, both as they stand there, of `NAME = VALUE` statements."""
  lines = re.sub(r'\\\n\s*', '', text).splitlines()
  # A value may span lines inside brackets; its continuations are indented.
  statements = re.sub(
      r'\n[ \t]+', ' ', '\n'.join(s for s in lines if not s.startswith('#'))
  ).splitlines()
  pairs = (s.partition(' = ') for s in statements if ' = ' in s)
  return {name.strip(): value.strip() for name, _, value in pairs}


def highlighted(text: str) -> Html:
  """The text with its comments and values in <span>s."""
  parts, end = [], 0
  for found in _TOKEN.finditer(text):
    parts += [
        text[end : found.start()],
        tag('span', found[0], class_=found.lastgroup),
    ]
    end = found.end()
  return join(*parts, text[end:])
