"""A task of made-up examples, and a process that is killed preparing it.

  python cache_words.py CACHE_DIR COUNT FUNCTION CALL

kills itself at the CALL-th call of FUNCTION: 'fsync', 'replace' or 'rename' of
`os`, or 'example', which is reading one. 'hold' waits there instead, until
there is a file CACHE_DIR/go, and leaves a file CACHE_DIR/holding.
"""

import dataclasses
import os
import pathlib
import random
import signal
import sys
import time

from dualenc_jax.data import cache as cache_lib
from dualenc_jax.data.cache import prepare
from dualenc_jax.data.dataset import Dataset, example
from dualenc_jax.data.text.tokenizer import Tokenizer, Vocabulary

TOKENIZER = Tokenizer(Vocabulary('python_code_8k'), 8, 16)


@dataclasses.dataclass(frozen=True)
class Words(Dataset):
  """Made-up examples.

  Attributes:
    count: of the examples; the first of them are alike whatever it is.
    source: the fingerprint of its data.
  """

  count: int
  source: str = 'source'
  task_name = 'words'

  def splits(self):
    return ('train', 'test')

  def identity(self, split):
    return {}

  def fingerprint(self, split):
    return f'{self.source} {split} {self.count}'

  def examples(self, split):
    for number in range(self.count):
      yield self.example(number)

  def example(self, number):
    """From 20 on with negatives, from 30 on with grades and answers."""
    rng = random.Random(number)

    def text():
      return ' '.join(rng.choices('array byte cache date error'.split(), k=9))

    return example(
        query=text() if number % 3 else '',
        passage=text(),
        negatives=[text() for _ in range(number % 4 if number >= 20 else 0)],
        passage_id=f'p{number}',
        relevance=number % 2 if number >= 30 else 1,
        answers=[text()] * (number % 3) if number >= 30 else [],
    )


def main() -> None:
  cache_dir, count, function, call = sys.argv[1:]
  cache_dir = pathlib.Path(cache_dir)
  calls = 0

  def counted(function, stop):
    def wrapper(*args, **kwargs):
      nonlocal calls
      calls += 1
      if calls == int(call):
        stop()
      return function(*args, **kwargs)

    return wrapper

  def kill():
    os.kill(os.getpid(), signal.SIGKILL)

  def hold():
    (cache_dir / 'holding').touch()
    while not (cache_dir / 'go').exists():
      time.sleep(0.01)

  if function == 'example':
    Words.example = counted(Words.example, kill)
  elif function == 'hold':
    Words.example = counted(Words.example, hold)
  else:
    setattr(os, function, counted(getattr(os, function), kill))
  cache_lib.CHUNK = 7
  prepare(Words(int(count)), 'train', TOKENIZER, cache_dir)


if __name__ == '__main__':
  main()
