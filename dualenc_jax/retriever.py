"""Encode, index, search and save, with texts and NumPy arrays.

  retriever = dualenc_jax.Retriever.from_dir('my_model')
  retriever.index(['a passage', 'another'])
  scores, ids = retriever.search(['a query'], k=10)
  retriever.save('my_retriever')

Shapes: n texts, Q queries, N passages, D embedding dim, k hits a query.
"""

from collections.abc import Iterable
import dataclasses
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from dualenc_jax.data.text.tokenizer import Tokenizer
from dualenc_jax.retrieval.compression import Coded, spec
from dualenc_jax.retrieval.compression.codec import with_candidates
from dualenc_jax.retrieval.encoding import artifact as artifact_lib
from dualenc_jax.retrieval.encoding.artifact import Artifact
from dualenc_jax.retrieval.encoding.towers import LoadedModel
from dualenc_jax.retrieval.index import Index, open_index, Passage
from dualenc_jax.retrieval.index.build import Corpus
from dualenc_jax.retrieval.index.index import (
  codec_provenance,
  tower_provenance,
)
from dualenc_jax.retrieval.search.exact_search import make_search
from dualenc_jax.retrieval.search.ranking import check_k, Ranking
from dualenc_jax.utils import finite, hub, input_checks
from dualenc_jax.utils.errors import UserError


class Hits(NamedTuple):
  """The best passages of each query, best first.

  Attributes:
    scores: float32 [Q, k], dot products: cosines of the model's embeddings.
    ids: str [Q, k], ids of the passages.
  """

  scores: np.ndarray
  ids: np.ndarray


class Hit(NamedTuple):
  """A passage found for a query.

  Attributes:
    score: dot product with the query.
    passage: id, text, name and location.
  """

  score: float
  passage: Passage


class Retriever:
  """A dual encoder and, from `index` on, passages to search.

  The search is exact: every passage is scored against every query.
  """

  def __init__(
      self, towers: LoadedModel, index: Index | None = None,
      candidates: int | None = None, prompt: str | None = None,
  ):
    """Wraps a loaded model and optionally an index; see `from_dir`."""
    self.towers = towers
    towers.tokenizer.prompted(prompt)  # Raises for an unknown prompt.
    self._prompt = prompt
    self._corpus: Corpus | None = None
    self._search: Any = None  # The result of `make_search` for the corpus.
    # A `retrieval.search.hybrid.Hybrid` of the corpus, made when first needed.
    self._hybrid: Any = None
    if index is not None:
      corpus = Corpus.from_index(index)
      if candidates is not None:
        searched = with_candidates(corpus.embeddings, candidates)
        corpus = dataclasses.replace(corpus, embeddings=searched)
      self._set(corpus)

  @classmethod
  def from_dir(
      cls, path: str | os.PathLike[str], *,
      index: str | os.PathLike[str] | None = None,
      vocabulary: str | os.PathLike[str] | None = None,
      query_length: int | None = None, passage_length: int | None = None,
      dim: int | None = None, candidates: int | None = None,
      prompt: str | None = None,
  ) -> 'Retriever':
    """Opens a model.

    Args:
      path: a folder of `save`, opened with its index, all of it read once for
        its checksums; the model_dir of a training run, at its best or newest
        checkpoint; or any other checkpoint of a dual encoder that `dualenc
        convert` reads, also as hf://org/name. A query tower alone, of
        `dualenc convert --to=jax_export --tower=query`, encodes queries.
      index: the folder of an index that `dualenc encode` wrote, with this model
        or another one of the same passage tower; None for that of `save`.
      vocabulary: a SentencePiece file, for a checkpoint without one.
      query_length: most tokens of a query, EOS included, for such a checkpoint.
      passage_length: most tokens of a passage, likewise.
      dim: cuts embeddings to their first components, of length one again, best
        to a dim that it was trained for (`losses.Matryoshka`); None for all. A
        folder of `save` is compiled for one dim.
      candidates: l, passages of an index of `binary` codes that are scored
        again by the float query; None for the number of its codec.
      prompt: name of one of the model's prompts, which is put in front of
        queries; None for its query prefix.

    Raises:
      UserError: the model or the index cannot be read; the model has no such
        dim; the index is of another passage tower; or the index is not searched
        in two steps and has no `candidates`.
    """
    folder = pathlib.Path(path := hub.model(os.fspath(path))).expanduser()
    given: dict[str, Any] = {
        'vocabulary': vocabulary,
        'query_length': query_length,
        'passage_length': passage_length,
    }
    given = {name: v for name, v in given.items() if v is not None}
    towers: LoadedModel
    if (folder / artifact_lib.FILE).exists():
      if given:
        raise UserError(
            f'{folder} has its own vocabulary and lengths: leave out'
            f' {", ".join(given)}.'
        )
      artifact = Artifact.open(folder)
      if dim not in (None, artifact.dim):
        raise UserError(
            f'{folder} is compiled for embeddings of {artifact.dim} components,'
            f' and dim is {dim}. Leave it out, or cut the model: `dualenc'
            f' convert {folder} --dim={dim} --to=jax_export --output_dir=...`.'
        )
      towers, found = artifact, None if index else _index_of(artifact)
    else:
      # Other forms need Flax, which a saved retriever does not.
      from dualenc_jax.checkpoints import formats

      towers, found = formats.load(path, dim, **given), None
    if index is not None:
      found = open_index(towers, pathlib.Path(index).expanduser())
    return cls(towers, found, candidates, prompt)

  @property
  def dim(self) -> int:
    """D, the number of components of the embeddings."""
    return self.towers.dim

  @property
  def tokenizer(self) -> Tokenizer:
    """Vocabulary, lengths and prefixes, with its prompt before queries."""
    return self.towers.tokenizer.prompted(self._prompt)

  def __repr__(self) -> str:
    return f'Retriever(dim={self.dim}, passages={len(self)})'

  def __len__(self) -> int:
    """N, passages in the index; 0 before there is one."""
    return 0 if self._corpus is None else len(self._corpus.ids)

  def encode_queries(
      self, texts: Iterable[str], prompt: str | None = None
  ) -> np.ndarray:
    """Embeds queries, with the model's query prefix if it has one.

    Args:
      texts: n strings, which may be empty.
      prompt: name of one of the model's prompts; None for the retriever's own.

    Returns:
      float32 [n, D], of length one.

    Raises:
      UserError: not a list of strings, no such prompt, or an embedding is not
        finite.
    """
    texts = input_checks.check_texts('queries', texts)
    tokenizer = self.towers.tokenizer.prompted(prompt or self._prompt)
    found = self.towers.queries(tokenizer.encode_queries(texts))
    return _finite('queries', found)

  def encode_passages(
      self, texts: Iterable[str], prompt: str | None = None
  ) -> np.ndarray:
    """Embeds passages; see `encode_queries`."""
    texts = input_checks.check_texts('passages', texts)
    tokenizer = self.towers.tokenizer.prompted(passage=prompt)
    tokens = tokenizer.encode_passages(texts)
    return _finite('passages', self.towers.passages(tokens))

  def index(
      self, passages: Iterable[str] | np.ndarray,
      ids: Iterable[str] | None = None, codec: str | None = None,
  ) -> None:
    """Makes passages searchable, in place of earlier ones.

    Args:
      passages: N texts, or their embeddings, float [N, D]: an array or memory
        map, or the `embeddings` of an `index.Index`.
      ids: N different strings; None for '0', '1' and so on.
      codec: such as 'int8' or 'pq:96' (`retrieval.compression.specs`): only the
        codes of the embeddings are kept. None keeps the embeddings (given ones
        as they are, not copied), or codes of texts if the model has a codec.

    Raises:
      UserError: no passages; embeddings of another dim, or that are not finite;
        ids that are not N different strings of one line; or a codec that cannot
        be trained on these.
    """
    chosen = None if codec is None else spec(codec)
    is_array = input_checks.is_array(passages)
    if is_array:
      given = input_checks.check_embeddings('passages', passages, self.dim)
    else:
      given = input_checks.check_texts('passages', passages)
    count = len(given)
    if not count:
      raise UserError('passages is empty; expected at least one to index.')
    # Before hours of encoding.
    names = [*map(str, range(count))]
    if ids is not None:
      names = input_checks.check_ids(ids, count)
    if chosen is not None:
      chosen.check(self.dim, count)
    if is_array:
      embeddings = _finite('passages', given)
    else:
      embeddings = self.encode_passages(given)
    trained = None if is_array else self.towers.codec
    if chosen is not None:
      trained = chosen.fit(embeddings)
    if trained is not None:
      embeddings = Coded(trained, trained.encode(embeddings[:]))

    def passage(row: int) -> Passage:
      return Passage(names[row], '', '', '' if is_array else given[row])

    self._set(Corpus(embeddings, names, passage, not is_array))

  def search(
      self, queries: Iterable[str] | np.ndarray, k: int = 10,
      hybrid: float | str | None = None,
  ) -> Hits:
    """Ranks all passages for each query.

    Args:
      queries: Q texts, or their embeddings, float [Q, D].
      k: hits a query.
      hybrid: fuses the scores with those of BM25: 0 to 1, such as 0.5, is the
        share of the dense ones; 'rrf' fuses the ranks, see
        `retrieval.search.hybrid`. It takes texts of queries and passages. None
        searches by the embeddings alone.

    Returns:
      (scores, ids), [Q, k] each, best first; equal scores in trec_eval's order,
      greatest id first. An index of N < k passages gives N hits. Where the
      words alone find fewer (hybrid=0), scores are -inf and ids '' behind them.

    Raises:
      UserError: nothing is indexed, k below 1, queries that are empty or not as
        expected, or no texts for a hybrid search.
    """
    corpus, ranking = self._rank(queries, k, hybrid)
    rows, shape = ranking.indices.ravel().tolist(), ranking.indices.shape
    names = [corpus.ids[row] if row >= 0 else '' for row in rows]
    return Hits(ranking.scores, np.array(names, np.str_).reshape(shape))

  def find(
      self, queries: Iterable[str] | np.ndarray, k: int = 10,
      hybrid: float | str | None = None,
  ) -> list[list[Hit]]:
    """Searches, and returns for each query its hits with their passages."""
    corpus, (scores, rows) = self._rank(queries, k, hybrid)
    return [
        [Hit(score, corpus.passage(row)) for score, row in own if row >= 0]
        for own in map(zip, scores.tolist(), rows.tolist())
    ]

  def index_words(
      self, k1: float = 1.5, b: float = 0.75, language: str | None = 'english'
  ) -> None:
    """Counts the words of the passages for hybrid search.

    The first hybrid search does so by itself, with these defaults.

    Args:
      k1: see `retrieval.search.bm25.BM25`, as for b.
      language: language of stop words and stems; None for neither.

    Raises:
      UserError: nothing is indexed, or the texts are missing.
    """
    # An artifact alone is read without the stemmer.
    from dualenc_jax.retrieval.search.bm25 import BM25
    from dualenc_jax.retrieval.search.hybrid import Hybrid

    corpus = self._indexed()
    texts = [corpus.passage(row).text for row in range(len(self))]
    if not any(texts):
      raise UserError(
          'The passages were indexed without their texts, which hybrid search'
          ' needs. Index texts, or leave out hybrid.'
      )
    words = BM25(texts, k1, b, language)
    self._hybrid = Hybrid(words, corpus.embeddings, corpus.ids)

  def _indexed(self) -> Corpus:
    if self._corpus is None:
      raise UserError('Nothing is indexed. Call retriever.index(passages).')
    return self._corpus

  def _rank(
      self, queries: Iterable[str] | np.ndarray, k: int,
      hybrid: float | str | None,
  ) -> tuple[Corpus, Ranking]:
    corpus = self._indexed()
    check_k(k)
    texts: list[str] = []
    if input_checks.is_array(queries):
      if hybrid is not None:
        raise UserError(
            'hybrid search needs texts of queries, not embeddings: give texts,'
            ' or leave out hybrid.'
        )
      embeddings = input_checks.check_embeddings('queries', queries, self.dim)
    else:
      texts = input_checks.check_texts('queries', queries)
      for i, query in enumerate(texts):
        if not query.strip():
          raise UserError(
              f'queries[{i}] is empty; give some words to search for.'
          )
      embeddings = self.encode_queries(texts)
    if not len(embeddings):
      shape = 0, min(k, len(self))
      none = np.empty(shape, np.float32), np.empty(shape, np.int64)
      return corpus, Ranking(*none)
    if hybrid is None:
      return corpus, self._search.top_k(embeddings, int(k))
    if self._hybrid is None:
      self.index_words()
    return corpus, self._hybrid.rank(texts, embeddings, int(k), hybrid)

  def save(self, folder: str | os.PathLike[str]) -> None:
    """Writes model and index; `from_dir` opens them again.

    The folder is an artifact of `retrieval.encoding.artifact`, which needs
    neither the training run nor Flax, with the index in `index/`. It appears
    when it is complete, in place of a retriever saved there before.
    artifact.json has the SHA-256 of every other file.

    Raises:
      UserError: the folder holds something else, or cannot be written; or this
        retriever was opened from a folder that now holds another one.
    """
    with artifact_lib.new_artifact(folder) as new:
      written = artifact_lib.fill(self.towers, new)
      if (corpus := self._corpus) is not None:
        digest = written.files[artifact_lib.WEIGHTS]['sha256']
        corpus.write(
            new / artifact_lib.INDEX,
            self.dim,
            self.towers.tokenizer.passage_length,
            {**self._encoded_by(corpus), 'weights': digest},
        )
        written = written.with_index(new)
      written.write(new)

  def _set(self, corpus: Corpus) -> None:
    self._corpus, self._hybrid = corpus, None
    self._search = make_search(corpus.embeddings, corpus.ids)

  def _encoded_by(self, corpus: Corpus) -> dict[str, Any]:
    """The provenance of the index: the tower that encoded it, if known."""
    if corpus.header is not None:
      return dict(corpus.header.provenance)
    if not corpus.normalised:
      return {}  # Embeddings that were given may be of anything.
    found = tower_provenance(self.towers, 'passage')
    own = getattr(corpus.embeddings, 'codec', None)
    if own is self.towers.codec and own is not None:
      found |= codec_provenance(own)
    return found


def _index_of(artifact: Artifact) -> Index | None:
  """Opens the index that was saved with an artifact; None without one."""
  folder = artifact.folder / artifact_lib.INDEX
  if not artifact.manifest.index_files:
    if not folder.exists():
      return None
    raise UserError(
        f'{folder} was not saved with the retriever {artifact.folder}:'
        f' {artifact_lib.FILE} has none of its files. Remove it, and index the'
        ' passages again.'
    )
  weights = artifact.manifest.files[artifact_lib.WEIGHTS]['sha256']
  expect = {'dim': artifact.dim, 'tower': 'passage', 'weights': weights}
  try:
    artifact_lib.check_files(
        artifact.folder, artifact.manifest.index_files
    )
    return Index.open(folder, expect)
  except UserError as e:
    raise UserError(
        f'The index of the saved retriever {artifact.folder} cannot be'
        f' opened: {e} Or save the retriever again.'
    ) from e


def _finite(side: str, embeddings: Any) -> Any:
  """Returns the embeddings; raises UserError if one is not finite."""
  finite.check_rows('embeddings', embeddings, f'{side}[{{}}]'.format)
  return embeddings
