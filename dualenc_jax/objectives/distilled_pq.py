"""Training of a query tower and centroids on a teacher's margins of hits."""

from collections.abc import Callable
import dataclasses
import functools
import hashlib
import json
import logging
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.checkpoints import foreign_models, loading, released_models
from dualenc_jax.data.columns import TEACHER_SCORES
from dualenc_jax.data.text.ragged import (
  DistinctTexts,
  from_uint32_pairs,
  lengths_to_offsets,
  Pool,
  Ragged,
)
from dualenc_jax.data.text.template import PairPool
from dualenc_jax.data.text.tokenizer import Tokenizer
from dualenc_jax.losses.code_search import Hits
from dualenc_jax.losses.distill import margin_errors
from dualenc_jax.losses.loss import weighted_mean
from dualenc_jax.objectives.objective import Key, Result, Run
from dualenc_jax.objectives.product_codes import CodeObjective
from dualenc_jax.retrieval.encoding.teacher import (
  check_spread,
  PairScorer,
  PairScores,
  Teacher,
)
from dualenc_jax.utils import hub
from dualenc_jax.utils.errors import UserError

# The number of new pairs that a query had the teacher score.
_ASKED = 'asked'
_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class DistilledPQ(CodeObjective):
  """JPQ+GPL (Thakur et al. 2022): margins of a teacher over live hits.

  Before each step all codes are searched for the `depth` best by C and E as
  they are then, without dropout, and a cross-encoder scores those pairs of
  queries and hits that are new. With t its scores, s = R E(q) . c over the
  temperature, p the passage of q, and j its unlabelled hits,

    L_q = mean over j of ((s_p - s_j) - (t_p - t_j))^2.

  Attributes:
    teacher: the model_dir of a cross-encoder or split re-ranker, st:FOLDER, or
      a released ranker. It reads texts as this run cuts them; in tokens of its
      own, if they differ from the run's.
    teacher_form: form of a released ranker, 'monot5' or 'rankt5'.
    teacher_vocabulary: its SentencePiece file, if none is beside it.
    least_spread: standard deviation of the first batch's margins, below which
      they teach nothing.
    states_dir: keeps the teacher's scores, too; with it a killed run ends bit
      for bit as an uninterrupted one, without it except for rounding.
  """

  depth: int = 25
  temperature: float = 0.05
  teacher: str | None = None
  teacher_form: str | None = None
  teacher_vocabulary: str | None = None
  least_spread: float = 1.0

  @functools.cached_property
  def ranker(self) -> PairScorer:
    """The teacher, on the devices of this host; raises UserError."""
    if self.teacher is None:
      raise UserError(
          'TEACHER_DIR is None; expected the model_dir of a cross-encoder or'
          ' split re-ranker, st:FOLDER, or a released ranker with its'
          ' TEACHER_FORM.'
      )
    path = pathlib.Path(self.teacher).expanduser()
    try:
      if self.teacher_form is not None:
        return released_models.load_ranker(
            path, self.teacher_form, self.teacher_vocabulary
        )
      if hub.is_foreign(self.teacher):
        return foreign_models.load_teacher(self.teacher)
      return loading.load_teacher(path)
    except UserError as e:
      raise UserError(f'TEACHER_DIR: {e}') from e

  def check_batch(self, run: Run) -> None:
    super().check_batch(run)
    if not self._shares_tokens(run.tokenizer):
      _LOG.info(
          'The teacher reads the tokens of this run as text, in its own'
          ' tokens: %s.', self.teacher,
      )

  def _shares_tokens(self, tokenizer: Tokenizer) -> bool:
    """Whether the teacher joins this run's tokens as they are."""
    teacher = self.ranker
    return (
        isinstance(teacher, Teacher)
        and tokenizer.vocabulary.sha256 == teacher.tokenizer.vocabulary.sha256
        and tokenizer.prefixes == teacher.tokenizer.prefixes
        and tokenizer.query_length <= teacher.template.room
    )

  def abstract_batch(self, run: Run) -> Any:
    batch = super().abstract_batch(run)
    size, width = run.batch_size, self.frozen_passages.width
    relevant = batch['targets'].shape[1]

    def array(dtype: Any, *shape: int) -> Any:
      return jax.ShapeDtypeStruct((size, *shape), dtype)

    return {
        **batch,
        'hits': Hits(
            array(np.int32, self.depth), array(np.uint8, self.depth, width),
            array(np.uint8, relevant, width),
        ),
        TEACHER_SCORES.name: array(np.float32, 1 + self.depth),
        _ASKED: array(np.float32),
    }

  def make_completion(
      self, run: Run, params: Any
  ) -> Callable[[Any, Any], Any]:
    scores_of, passages = self._pair_scores(run), run.batches.all_passages
    add_codes: Any = super().make_completion(run, params)
    checked = False

    @jax.jit
    def search(params: Any, batch: Any) -> Hits:
      with run.partitioner.scope():
        query = self.queries(params, batch, None)
        return self.frozen_passages.search(params, batch, query, self.depth)

    def complete(params: Any, batch: Any) -> Any:
      nonlocal checked
      batch = add_codes(params, batch)
      hits = search(params, batch)
      rows = np.concatenate(
          [_local_rows(batch['targets'])[:, :1], _local_rows(hits.rows)], axis=1
      )
      there = rows < len(passages)
      queries = from_uint32_pairs(_local_rows(batch['query_ids']))
      queries = np.broadcast_to(queries[:, None], rows.shape)[there]
      pairs = np.stack([queries, passages.fingerprints[rows[there]]], axis=1)
      scores = np.full(rows.shape, np.nan, np.float32)
      asked = np.zeros(rows.shape, np.float32)
      scores[there], asked[there] = scores_of(pairs)
      more = {TEACHER_SCORES.name: scores, _ASKED: asked.sum(axis=1)}
      if not checked:
        margins = scores[:, :1] - scores[:, 1:]
        known = margins[~np.isnan(margins)]
        check_spread(known, scores[there], self.least_spread)
        checked = True
      return {**batch, 'hits': hits, **run.partitioner.to_device(more)}

    return complete

  def _pair_scores(self, run: Run) -> PairScores:
    """Returns the teacher's scores by fingerprints of queries and passages."""
    teacher, passages = self.ranker, run.batches.all_passages
    queries = DistinctTexts(
        [(c.query_tokens, c.query_fingerprints) for c in run.caches]
    )
    if isinstance(teacher, Teacher) and self._shares_tokens(run.tokenizer):
      joined = PairPool(teacher.template, queries.pool, passages.pool)
      of_tokens = functools.partial(teacher.of_tokens, joined)
    else:
      of_tokens = functools.partial(
          score_as_text, teacher, run.tokenizer, queries.pool, passages.pool
      )

    def score(pairs: np.ndarray) -> np.ndarray:
      rows = [
          texts.rows[texts.numbers(ids)]
          for texts, ids in zip((queries, passages), pairs.T)
      ]
      return of_tokens(np.stack(rows, axis=1))

    if self.states_dir is None:
      return PairScores(score)
    facts = json.dumps(teacher.provenance, sort_keys=True, default=str)
    name = hashlib.sha256(facts.encode()).hexdigest()[:16]
    if jax.process_count() > 1:
      name += f'-{jax.process_index()}-of-{jax.process_count()}'
    path = pathlib.Path(self.states_dir) / f'teacher-{name}.bin'
    return PairScores(score, path, 'another STATES_DIR')

  def __call__(self, params: Any, batch: Any, key: Key = None) -> Result:
    relevant, others, metrics = self.frozen_passages.rank(
        params, batch, self.queries(params, batch, key), batch['hits']
    )
    student = jnp.concatenate([relevant.scores[:, :1], others.scores], axis=1)
    teacher = jnp.nan_to_num(batch[TEACHER_SCORES.name])
    losses = margin_errors(student / self.temperature, teacher, others.valid)
    loss = weighted_mean(losses, batch.get('weights'))
    margins = teacher[:, :1] - teacher[:, 1:]
    count = jnp.maximum(jnp.sum(others.valid), 1)

    def over_hits(x: jax.Array) -> jax.Array:
      return jnp.sum(jnp.where(others.valid, x, 0.0)) / count

    return loss, {
        'loss': loss,
        **metrics,
        'teacher_margin': over_hits(margins),
        'better_hits': over_hits((margins < 0).astype(jnp.float32)),
        'asked': jnp.mean(batch[_ASKED]),
    }


def score_as_text(
    teacher: PairScorer, tokenizer: Tokenizer, queries: Pool, passages: Pool,
    rows: np.ndarray,
) -> np.ndarray:
  """Scores of rows [n, 2] of tokens, read as text without prefixes: [n].

  Each text that takes part is decoded once. Characters that the tokenizer has
  no piece for are lost.
  """
  vocabulary = tokenizer.vocabulary

  def decode(pool: Pool, used: np.ndarray, prefix: str) -> list[str]:
    offsets = lengths_to_offsets(pool.lengths(used))
    values = np.empty(offsets[-1], np.int32)
    pool.copy(used, values, offsets[:-1])
    tokens = Ragged(values, offsets)
    # As a text begins that has been normalised.
    start = vocabulary.decode(vocabulary.pieces(prefix))
    texts = (vocabulary.decode(tokens.row(i)) for i in range(len(used)))
    return [text.removeprefix(start).strip() for text in texts]

  of_query, query = np.unique(rows[:, 0], return_inverse=True)
  of_passage, passage = np.unique(rows[:, 1], return_inverse=True)
  return teacher.scores(
      decode(queries, of_query, tokenizer.query_prefix),
      decode(passages, of_passage, tokenizer.passage_prefix),
      np.stack([query, passage], axis=1),
  )


def _local_rows(array: jax.Array) -> np.ndarray:
  """Returns this host's rows of an array that is sharded by rows."""
  shards = {
      shard.index[0].indices(len(array))[0]: shard
      for shard in array.addressable_shards
  }
  return np.concatenate(
      [np.asarray(shards[start].data) for start in sorted(shards)]
  )
