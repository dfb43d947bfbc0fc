"""Trains a vocabulary for source code, as the shipped python_code_8k is one.

  python benchmarks/code_vocabulary.py python_code --output_file=my.model

The flags are those of `dualenc data vocabulary`. The normaliser, which is part
of the file and works in any SentencePiece runtime, splits identifiers into
words, `parse_iso_date` into 'parse iso date' and `HTTPServer` into 'http
server', so that identifiers in passages and words in queries share pieces. It
also lower-cases ASCII letters and puts a space before a letter that follows
punctuation, so that `self.parse(` has the same piece as ' parse'. Forms of
Unicode are not unified: give it NFC.
"""

import functools
import itertools
import string
import sys

from dualenc_jax.cli import data_vocabulary, main as cli

_LOWER, _UPPER = string.ascii_lowercase, string.ascii_uppercase


def rules() -> dict[str, str]:
  """Texts that the normaliser replaces; from the left, the longest wins."""
  found = {char: ' ' for char in '\t\n\r\f\v_\u00a0\ufeff'}
  found |= {char: char.lower() for char in _UPPER}
  # parseDate -> parse date
  for a, b in itertools.product(_LOWER, _UPPER):
    found[a + b] = f'{a} {b.lower()}'
  # HTTPServer -> http server: the last capital belongs to what follows.
  for a, b, c in itertools.product(_UPPER, _UPPER, _LOWER):
    found[a + b + c] = f'{a} {b}{c}'.lower()
  # x.parse -> x. parse
  for a, b in itertools.product(string.punctuation, string.ascii_letters):
    found[a + b] = f'{" " if a == "_" else a + " "}{b.lower()}'
  return found


if __name__ == '__main__':
  sys.exit(cli.run(functools.partial(data_vocabulary.main, rules=rules())))
