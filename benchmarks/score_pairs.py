"""Times a cross-encoder over pairs; see benchmarks/README.md.

Ours as `dualenc rerank` runs it, and sentence-transformers' CrossEncoder over a
BERT of the same sizes, and over a T5 as transformers classifies with one. Every
side is a process of its own, and they take turns. Weights are random.
"""

import argparse
import json
import pathlib
import tempfile

import harness
import numpy as np

LAYERS, WIDTH, HEADS, HIDDEN, ROWS = 6, 384, 12, 1536, 32128
OURS, PEERS = 'dualenc_jax', ('bert', 't5')


def main() -> None:
  parser = harness.parser(__doc__)
  add = parser.add_argument
  add('--data', required=True, help="a set in BEIR's layout with runs/")
  add('--run', required=True, help='TREC run of it whose hits are scored')
  add('--vocabulary', required=True, metavar='FILE', help="T5's SentencePiece")
  add('--queries', type=int, default=20)
  add('--depth', type=int, default=100)
  add('--length', type=int, default=256)
  add('--peer_batch', type=int, default=32, help="the peer's rows at once")
  args = parser.parse_args()
  if args.side is not None:
    harness.serve((Ours if args.side == OURS else Peer)(args))
    return
  peer = harness.peer_python(args.peer_python)
  commands = {OURS: harness.command(OURS)}
  commands |= harness.beside(peer, not args.plain_malloc, *PEERS)
  harness.compare(args, commands, len(_texts(args)[0]), 'pairs')


def _texts(args: argparse.Namespace) -> tuple[list[str], list[str]]:
  """Queries and passages of the pairs."""
  data = pathlib.Path(args.data)

  def read(name: str) -> dict[str, str]:
    rows = map(json.loads, (data / name).open(encoding='utf-8'))
    return {
        row['_id']: f'{row.get("title", "")} {row["text"]}'.strip()
        for row in rows
    }

  queries, corpus = read('queries.jsonl'), read('corpus.jsonl')
  hits: dict[str, list[str]] = {}
  for line in (data / args.run).open(encoding='utf-8'):
    query, _, passage, *_ = line.split()
    hits.setdefault(query, []).append(passage)
  chosen = [
      (queries[query], corpus[passage])
      for query in list(hits)[: args.queries]
      for passage in hits[query][: args.depth]
  ]
  return tuple(map(list, zip(*chosen)))


class Ours(harness.Timed):
  """Our cross-encoder."""

  def __init__(self, args: argparse.Namespace):
    from flax import linen as nn
    import jax
    import ours  # noqa: F401  Which sets JAX up.

    from dualenc_jax import models
    from dualenc_jax.data import Template, Tokenizer, Vocabulary
    from dualenc_jax.parallel.partitioning import HostPartitioner
    from dualenc_jax.retrieval.encoding.embedder import Scorer
    from dualenc_jax.retrieval.encoding.teacher import Teacher

    model = models.CrossEncoder(
        models.TokenEmbedder(ROWS, WIDTH),
        models.T5Encoder(LAYERS, HEADS, WIDTH // HEADS, HIDDEN, ('gelu',)),
        models.ScoreHead(),
    )
    boxed = jax.jit(model.init)(jax.random.key(0), np.ones((1, 8), np.int32))
    partitioner = HostPartitioner()
    shardings = partitioner.param_shardings(boxed['params'])
    params = jax.device_put(nn.unbox(boxed['params']), shardings)
    tokenizer = Tokenizer(Vocabulary(args.vocabulary), 64, args.length)
    around = Template(length=args.length).tokens(tokenizer)
    scorer = Scorer(model, partitioner, shardings, 256)
    self._teacher = Teacher(params, tokenizer, around, scorer, {})
    self._queries, self._passages = _texts(args)
    self._pairs = np.repeat(np.arange(len(self._queries))[:, None], 2, axis=1)

  def work(self) -> None:
    self._teacher.scores(self._queries, self._passages, self._pairs)


class Peer(harness.Timed):
  """CrossEncoder.predict."""

  def __init__(self, args: argparse.Namespace):
    import peer
    import sentence_transformers
    import transformers

    self._args = args
    self._pairs = list(zip(*_texts(args)))
    if args.side == 'bert':
      kind = transformers.BertForSequenceClassification
      config = transformers.BertConfig(
          vocab_size=ROWS,
          hidden_size=WIDTH,
          num_hidden_layers=LAYERS,
          num_attention_heads=HEADS,
          intermediate_size=HIDDEN,
          num_labels=1,
      )
    else:
      kind = transformers.T5ForSequenceClassification
      config = transformers.T5Config(
          vocab_size=ROWS,
          d_model=WIDTH,
          d_kv=WIDTH // HEADS,
          num_layers=LAYERS,
          num_heads=HEADS,
          d_ff=HIDDEN,
          feed_forward_proj='gelu_new',
          decoder_start_token_id=0,
          num_labels=1,
      )
    with tempfile.TemporaryDirectory() as folder:
      kind(config).save_pretrained(folder)
      peer.t5_tokenizer(args.vocabulary).save_pretrained(folder)
      self._model = sentence_transformers.CrossEncoder(
          folder, max_length=args.length, local_files_only=True
      )

  def work(self) -> None:
    self._model.predict(
        self._pairs,
        batch_size=self._args.peer_batch,
        show_progress_bar=False,
    )


if __name__ == '__main__':
  main()
