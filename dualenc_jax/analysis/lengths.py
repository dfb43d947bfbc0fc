"""How many tokens the texts of a sample have, and how many are cut off."""

from collections.abc import Iterable, Sequence
import dataclasses
from typing import Any

import numpy as np

from dualenc_jax.analysis.sample import Sample, Setting
from dualenc_jax.data import Tokenizer
from dualenc_jax.figures import drawing
from dualenc_jax.figures.figure import Figure

# No text has more tokens.
_UNLIMITED = 2**30


@dataclasses.dataclass(frozen=True)
class Lengths:
  """Lengths of one side's texts.

  Attributes:
    side: 'queries' or 'passages'.
    models: the names of the models that tokenise them so.
    tokens: int64 [n], EOS included, nothing cut.
    limit: tokens that the tower takes.
  """

  side: str
  models: tuple[str, ...]
  tokens: np.ndarray
  limit: int

  @property
  def cut(self) -> float:
    """The share of texts that are longer than the limit."""
    return float(np.mean(self.tokens > self.limit))


def count_tokens(
    tokenizer: Tokenizer, sample: Sample, model: str
) -> list[Lengths]:
  """Tokenises the texts of a sample as a model does, but without a limit."""
  encode = tokenizer.vocabulary.encode
  retrieval_set = sample.retrieval_set
  texts = retrieval_set.cache.query_texts
  queries = encode(
      [tokenizer.query_prefix + texts.text(row) for row in sample.query_rows()],
      _UNLIMITED,
  )
  texts = retrieval_set.corpus.cache.passage_texts
  passages = encode(
      [
          tokenizer.passage_prefix + texts.text(row)
          for row in sample.passage_rows()
      ],
      _UNLIMITED,
  )
  return [
      Lengths('queries', (model,), queries.lengths, tokenizer.query_length),
      Lengths('passages', (model,), passages.lengths, tokenizer.passage_length),
  ]


def merge(sides: Iterable[Lengths]) -> list[Lengths]:
  """Those of models that tokenise alike become one; queries come first."""
  merged: dict[tuple, Lengths] = {}
  for side in sides:
    key = (side.side, side.limit, side.tokens.tobytes())
    known = merged.get(key)
    models = (known.models if known else ()) + side.models
    merged[key] = dataclasses.replace(side, models=models)
  return sorted(merged.values(), key=lambda side: side.side != 'queries')


def length_figure(sides: Sequence[Lengths], setting: Setting) -> Figure:
  """Histograms of token counts, one below the other."""
  columns = {'models': [], 'side': [], 'tokens': [], 'texts': []}
  for side in sides:
    tokens, texts = np.unique(side.tokens, return_counts=True)
    columns['models'] += [' '.join(side.models)] * len(tokens)
    columns['side'] += [side.side] * len(tokens)
    columns['tokens'] += tokens.tolist()
    columns['texts'] += texts.tolist()
  return Figure(
      name='lengths',
      title='Tokens of queries and passages',
      caption=(
          f'{setting.drawn()}. EOS is counted; the dashed line is how much'
          ' the tower takes, the rest of a text is cut off. The longest 1% may'
          f' lie beyond the axis. {setting.where}'
      ),
      columns=columns,
      inches=(5.0, 2.3 * len(sides)),
      draw=lambda canvas: _draw(canvas, sides, setting),
  )


def _draw(canvas: Any, sides: Sequence[Lengths], setting: Setting) -> None:
  axes = canvas.subplots(len(sides), 1, squeeze=False)[:, 0]
  for axis, side in zip(axes, sides):
    of_all = len(side.models) == len(setting.steps)
    of = '' if of_all else f' ({", ".join(side.models)})'
    title = (
        f'{side.side}{of}: median {np.median(side.tokens):,.0f},'
        f' {side.cut:.1%} cut'
    )
    counts = np.unique(side.tokens, return_counts=True)
    colour = {'queries': drawing.QUERY, 'passages': drawing.PASSAGE}[side.side]
    drawing.draw_lengths(axis, *counts, side.limit, title, colour)
  axes[-1].set_xlabel('tokens')
