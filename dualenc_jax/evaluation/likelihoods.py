"""The likelihood by a generator of a set's queries, given their passages."""

from collections.abc import Callable
import dataclasses

import numpy as np

from dualenc_jax.data.text.ragged import Ragged
from dualenc_jax.evaluation.evaluation import Evaluation
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.retrieval.search.ranking import Ranking

# Its metrics; of the perplexity a lower one is better.
LOG_LIKELIHOOD, ACCURACY = 'log_likelihood', 'token_accuracy'
PERPLEXITY = 'perplexity'


@dataclasses.dataclass(frozen=True, eq=False)
class Likelihoods(Evaluation):
  """Means over the tokens of each query; nothing is ranked.

  Attributes:
    tokens: int64 [A], tokens of each query in `answered`, counted once for each
      of its relevant passages.
  """

  tokens: np.ndarray

  @property
  def metrics(self) -> dict[str, float]:
    """Means over all tokens, by name."""
    found = {
        name: float(np.average(values, weights=self.tokens))
        for name, values in self.matches.items()
    }
    return found | {PERPLEXITY: float(np.exp(-found[LOG_LIKELIHOOD]))}


def evaluate(
    measure: Callable[
        [Ragged, Ragged, np.ndarray], tuple[np.ndarray, np.ndarray]
    ],
    retrieval_set: RetrievalSet,
) -> Likelihoods:
  """The likelihood of each token, given the passage and the tokens before it.

  An `retrieval.encoding.likelihood.Likelihood` measures it with its parameters.
  """
  gold, corpus = retrieval_set.gold, retrieval_set.corpus
  of_pair = np.repeat(np.arange(len(gold)), [len(found) for found in gold])
  passages = np.concatenate([np.array(found, np.int64) for found in gold])
  queries, cache = retrieval_set.query_rows[of_pair], retrieval_set.cache
  logs, correct = measure(
      cache.query_tokens,
      corpus.cache.passage_tokens,
      np.stack([queries, corpus.rows[passages]], axis=1),
  )
  answered, position = np.unique(of_pair, return_inverse=True)
  tokens = np.bincount(position, cache.query_tokens.lengths[queries])
  return Likelihoods(
      Ranking(*(np.zeros((len(gold), 0), t) for t in (np.float32, np.int64))),
      None,
      {
          name: np.bincount(position, values.astype(np.float64)) / tokens
          for name, values in ((LOG_LIKELIHOOD, logs), (ACCURACY, correct))
      },
      answered,
      tokens.astype(np.int64),
  )
