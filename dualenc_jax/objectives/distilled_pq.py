"""Training of a query tower and centroids on a teacher's margins of hits."""

from collections.abc import Callable
import dataclasses
import functools
import hashlib
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dualenc_jax.checkpoints import loading, released_models
from dualenc_jax.data.columns import TEACHER_SCORES
from dualenc_jax.data.text.ragged import DistinctTexts, from_uint32_pairs
from dualenc_jax.data.text.template import PairPool
from dualenc_jax.losses.code_search import Hits
from dualenc_jax.losses.distill import margin_errors
from dualenc_jax.losses.loss import weighted_mean
from dualenc_jax.objectives.objective import Key, Result, Run
from dualenc_jax.objectives.product_codes import CodeObjective
from dualenc_jax.retrieval.encoding.teacher import (
  check_spread,
  PairScores,
  Teacher,
)
from dualenc_jax.utils.errors import UserError

# The number of new pairs that a query had the teacher score.
_ASKED = 'asked'


@dataclasses.dataclass(frozen=True)
class DistilledPQ(CodeObjective):
  """JPQ+GPL (Thakur et al. 2022): margins of a teacher over live hits.

  Before each step all codes are searched for the `depth` best by C and E as
  they are then, without dropout, and a cross-encoder scores those pairs of
  queries and hits that are new. With t its scores, s = R E(q) . c over the
  temperature, p the passage of q, and j its unlabelled hits,

    L_q = mean over j of ((s_p - s_j) - (t_p - t_j))^2.

  Attributes:
    teacher: the model_dir of a cross-encoder of the same vocabulary, or a
      released ranker. It reads passages as this run cuts them.
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
  def cross_encoder(self) -> Teacher:
    """The teacher, on the devices of this host; raises UserError."""
    if self.teacher is None:
      raise UserError(
          'TEACHER_DIR is None; expected the model_dir of a cross-encoder, or'
          ' a released ranker with its TEACHER_FORM.'
      )
    path = pathlib.Path(self.teacher).expanduser()
    if self.teacher_form is None:
      found = loading.load_teacher(path)
      if not isinstance(found, Teacher):
        raise UserError(
            f'TEACHER_DIR: {path} is a split re-ranker; expected a'
            ' cross-encoder, --gin_file=architectures/cross_encoder.gin.'
        )
      return found
    return released_models.load_ranker(
        path, self.teacher_form, self.teacher_vocabulary
    )

  def check_batch(self, run: Run) -> None:
    super().check_batch(run)
    tokenizer, teacher = run.tokenizer, self.cross_encoder.tokenizer
    if tokenizer.vocabulary.sha256 != teacher.vocabulary.sha256:
      raise UserError(
          f'TEACHER_DIR is {self.teacher}, of another vocabulary than'
          f' {tokenizer.vocabulary.path}, whose tokens the run has.'
      )
    if tokenizer.prefixes != teacher.prefixes:
      raise UserError(
          f'TEACHER_DIR is {self.teacher}, with the prefixes'
          f' {teacher.prefixes}, and the run has {tokenizer.prefixes}. Expected'
          ' the same.'
      )
    room = self.cross_encoder.template.room
    if tokenizer.query_length > room:
      raise UserError(
          f'TEACHER_DIR is {self.teacher}, whose pairs leave room for queries'
          f' of {room} tokens, and QUERY_LENGTH is {tokenizer.query_length}.'
          ' Lower it to that.'
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
    teacher, passages = self.cross_encoder, run.batches.all_passages
    queries = DistinctTexts(
        [(c.query_tokens, c.query_fingerprints) for c in run.caches]
    )
    joined = PairPool(teacher.template, queries.pool, passages.pool)

    def score(pairs: np.ndarray) -> np.ndarray:
      rows = [
          texts.rows[texts.numbers(ids)]
          for texts, ids in zip((queries, passages), pairs.T)
      ]
      return teacher.of_tokens(joined, np.stack(rows, axis=1))

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


def _local_rows(array: jax.Array) -> np.ndarray:
  """Returns this host's rows of an array that is sharded by rows."""
  shards = {
      shard.index[0].indices(len(array))[0]: shard
      for shard in array.addressable_shards
  }
  return np.concatenate(
      [np.asarray(shards[start].data) for start in sorted(shards)]
  )
