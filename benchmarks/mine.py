"""Mining hard negatives of many queries in a large corpus: time and memory.

  python benchmarks/mine.py --queries=100000 --passages=1000000 --dim=256

What `dualenc mine --model_dir=... --relative_margin=0.05` does once texts are
encoded: exact search on the devices of this host, rules, choice and files. The
vectors are those of the search benchmark, on disk as an index is; texts are
made up, and query i has passage i as its known positive, to which it is near.
"""

import argparse
import pathlib
import resource
import tempfile
import time
import types

import numpy as np
import vectors

from dualenc_jax.data.corpus import Corpus
from dualenc_jax.evaluation import evaluation
from dualenc_jax.evaluation.retrieval_set import RetrievalSet
from dualenc_jax.index import of_model
from dualenc_jax.mining import candidates, filters, negatives, output
from dualenc_jax.text.ragged import fingerprints, Ragged

_MARGIN = 0.05


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  vectors.add_flags(parser)
  parser.set_defaults(queries=100_000, dim=256)
  args = parser.parse_args()
  with tempfile.TemporaryDirectory() as folder:
    args.folder = args.folder or folder
    vectors.write(args)
    queries = np.load(vectors.queries_file(args))
    passages = np.load(vectors.passages_file(args), mmap_mode='r')
    queries += passages[: args.queries]
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    started = time.perf_counter()
    ranked = made_up(args.queries, args.passages)
    report('texts', started)
    # In place of towers.
    evaluation.encode_queries = lambda *_: queries
    of_model.corpus_embeddings = lambda *_: passages
    started = time.perf_counter()
    found = candidates.by_model(
        types.SimpleNamespace(embedder=None, params=None), ranked, args.k
    )
    seconds = report('search', started)
    print(f'{1e3 * seconds / args.queries:.2f} ms a query')
    rules = filters.Rules(last_rank=args.k, relative_margin=_MARGIN)
    started = time.perf_counter()
    kept = filters.apply(found, rules, ranked)
    report('rules', started)
    started = time.perf_counter()
    taken = list(negatives.choose([kept], ranked, 7))
    output.write(pathlib.Path(folder), ranked, [kept], taken, False, {})
    report('choice and files', started)
    print(kept.counts)


def made_up(queries: int, passages: int) -> RetrievalSet:
  """Texts of a few words; query i has passage i as its positive."""
  columns = {}
  for side, count in (('query', queries), ('passage', passages)):
    texts = Ragged.from_texts([f'{side} text {i}' for i in range(count)])
    columns[f'{side}_texts'] = texts
    columns[f'{side}_ids'] = Ragged.from_texts([f'{i}' for i in range(count)])
    columns[f'{side}_fingerprints'] = fingerprints(texts)
  columns['answers_offsets'] = np.zeros(max(queries, passages) + 1, np.int64)
  cache = types.SimpleNamespace(
      header={'task': 'made_up', 'split': 'train', 'source': ''}, **columns
  )
  return RetrievalSet(
      cache,
      np.arange(queries),
      [f'{i}' for i in range(queries)],
      Corpus(cache, np.arange(passages)),
      [{i: 1} for i in range(queries)],
      [[] for _ in range(queries)],
  )


def report(what: str, started: float) -> float:
  seconds = time.perf_counter() - started
  # Kilobytes; pages of the vectors' file that are in memory count, too.
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
  print(f'{what}: {seconds:.1f} s, peak {peak:.2f} GiB', flush=True)
  return seconds


if __name__ == '__main__':
  main()
