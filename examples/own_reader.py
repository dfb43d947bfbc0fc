"""A reader of your own: python examples/own_reader.py FAQ.txt MODEL_DIR.

The file has blocks of two lines, a question and its answer, and an empty line
after each.
"""

from collections.abc import Iterator
import dataclasses
import hashlib
import pathlib
import sys

from train_in_python import experiment

import dualenc_jax as dj


@dataclasses.dataclass(frozen=True)
class Faq(dj.data.Dataset):
  """Questions and answers of a text file."""

  path: str
  task_name = 'faq'

  def splits(self) -> tuple[str, ...]:
    return ('train',)

  def examples(self, split: str) -> Iterator[dict]:
    blocks = pathlib.Path(self.path).read_text().split('\n\n')
    for number, block in enumerate(filter(str.strip, blocks), 1):
      question, answer = block.strip().split('\n', 1)
      yield dj.data.example(
          query=question, passage=answer, location=f'{self.path}:{number}'
      )

  def fingerprint(self, split: str) -> str:
    """Of the content: when it changes, tokens are made anew."""
    return hashlib.sha256(pathlib.Path(self.path).read_bytes()).hexdigest()


if __name__ == '__main__':
  faq, model_dir = sys.argv[1:]
  dj.training.train(experiment(Faq(faq), model_dir, dj.losses.SamToNe()))
