"""Times encoding passages; see benchmarks/README.md.

Ours from texts and from tokens, and sentence-transformers' `encode` with the
same weights where --peer_python or this Python has it, plain and with tuned
malloc. Passages are JSON objects, one a line, with a `text`. Weights are
random.
"""

import argparse
import itertools
import json
import os
import pathlib
import sys
import tempfile
from typing import Any

import harness
import numpy as np
import workload

OURS, PEER = 'dualenc_jax', 'sentence-transformers'
# The least cosine of the two embeddings of a passage whose tokens are equal;
# and the share of passages that may differ in tokens, as the peer's tokenizer
# normalises rare characters in another way.
ALIKE = {'float32': 0.9999, 'bfloat16': 0.99}
OTHER_TOKENS = 0.03
_WEIGHTS, _PIECES = 'weights.npz', 'pieces.json'
# Each of ours, below a layer, and the transposed weight of theirs.
_LAYER_KERNELS = {
    'attention/query': 'layer.0.SelfAttention.q',
    'attention/key': 'layer.0.SelfAttention.k',
    'attention/value': 'layer.0.SelfAttention.v',
    'attention/out': 'layer.0.SelfAttention.o',
    'mlp/wi_0': 'layer.1.DenseReluDense.wi_0',
    'mlp/wi_1': 'layer.1.DenseReluDense.wi_1',
    'mlp/wo': 'layer.1.DenseReluDense.wo',
}
_REL_BIAS = 'encoder.block.0.layer.0.SelfAttention.relative_attention_bias'
_WORK = (
    *('model', 'texts', 'passages', 'passage_length', 'dtype', 'batch'),
    *('peer_batch', 'vocabulary'),
)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  add = parser.add_argument
  add('--model', choices=workload.MODELS, default='small')
  add('--texts', required=True, metavar='FILE', help='JSONL of passages')
  add('--passages', type=int, default=5000)
  add('--passage_length', type=int, default=128)
  add('--dtype', choices=workload.DTYPES, default='float32')
  add('--batch', type=int, default=256, help='our most rows at once')
  add('--peer_batch', type=int, default=64, help="the peer's rows at once")
  add('--vocabulary', required=True, metavar='FILE', help='SentencePiece model')
  add('--side', choices=(OURS, PEER), help=argparse.SUPPRESS)
  harness.add_flags(parser)
  args = parser.parse_args()
  if args.side is not None:
    harness.serve((Ours if args.side == OURS else Peer)(args))
    return
  print(json.dumps({'flags': vars(args), **compare(args)}))


def compare(args: argparse.Namespace) -> dict[str, Any]:
  """Measures all sides in turns; prints each, then ratios.

  Returns:
    sides: descriptions; first: figures of the first run, in which ours compiles
    and the peer encodes two batches; saved: tokens and peak memory; rounds and
    medians, by side and method.
  """
  running = {
      name: harness.Side(command) for name, command in _commands(args).items()
  }
  described = {name: side.ask('describe') for name, side in running.items()}
  # (side, method), ours from texts first.
  turns = [(name, 'from_texts') for name in running] + [(OURS, 'from_tokens')]
  with tempfile.TemporaryDirectory() as folder:
    running[OURS].ask('write', folder)
    for name, side in running.items():
      if name != OURS:
        side.ask('read', folder)
    first = {name: side.ask('first') for name, side in running.items()}
  rounds: dict[str, list[harness.Figures]] = {}
  for _ in range(args.rounds):
    for name, method in turns:
      label = f'{name}, {method}'
      rounds.setdefault(label, []).append(running[name].ask(method))
      if not args.json:
        _show(args, label, rounds[label][-1])
  saved = _save_and_check(args, running)
  for side in running.values():
    side.close()
  ours = rounds[f'{OURS}, from_texts']
  medians = {
      label: harness.medians(each) | {
          f'ours_over_this_by_{key}': harness.ratio(ours, each, key)
          for key in ('seconds', 'core_seconds')
      }
      for label, each in rounds.items()
  }
  if not args.json:
    print(f'Medians of {args.rounds} rounds:')
    for label, figures in medians.items():
      _show(args, label, figures)
      print(
          '  ours from texts over this:'
          f' {figures["ours_over_this_by_seconds"]:.2f} by the clock,'
          f' {figures["ours_over_this_by_core_seconds"]:.2f} by core seconds'
      )
    print(f'First run: {first}\n{saved}')
  return {
      'sides': described,
      'first': first,
      'saved': saved,
      'rounds': rounds,
      'medians': medians,
  }


def _save_and_check(
    args: argparse.Namespace, running: dict[str, harness.Side]
) -> dict[str, harness.Figures]:
  """Figures of the last run; raises ValueError if embeddings differ."""
  saved, embeddings = {}, {}
  with tempfile.TemporaryDirectory() as folder:
    for i, (name, side) in enumerate(running.items()):
      file = f'{folder}/{i}.npy'
      saved[name] = side.ask('save', file)
      embeddings[name] = np.load(file)
  for name, theirs in embeddings.items():
    cosine = np.sum(embeddings[OURS] * theirs, axis=1)
    other = float(np.mean(cosine < ALIKE[args.dtype]))
    if other > OTHER_TOKENS:
      raise ValueError(f'{name} and ours differ on {other:.0%} of passages.')
    saved[name]['share_of_other_embeddings'] = other
  return saved


def _commands(args: argparse.Namespace) -> dict[str, list[str]]:
  flags = harness.flags(args, _WORK)
  commands = {OURS: [sys.executable, __file__, *flags, f'--side={OURS}']}
  python = harness.peer_python(args.peer_python)
  if python:
    commands[PEER] = [python, __file__, *flags, f'--side={PEER}']
    if not args.plain_malloc:
      commands[f'{PEER}, tuned malloc'] = harness.tuned(commands[PEER])
  return commands


def _show(args: argparse.Namespace, name: str, f: harness.Figures) -> None:
  print(
      f'{name}: {args.passages / f["seconds"]:.1f} passages/s,'
      f' {args.passages / f["core_seconds"]:.1f} a core second,'
      f' {f["cores_busy_elsewhere"]:.1f} cores busy elsewhere',
      flush=True,
  )


def read_texts(args: argparse.Namespace) -> list[str]:
  """The first passages of the file."""
  with pathlib.Path(args.texts).open(encoding='utf-8') as f:
    rows = itertools.islice(f, args.passages)
    return [json.loads(line)['text'] for line in rows]


class Ours:
  """The computation of `dualenc encode`, without reading and writing files."""

  def __init__(self, args: argparse.Namespace):
    from flax import linen as nn
    import jax
    import train_step

    from dualenc_jax import training
    from dualenc_jax.commands import runtime
    from dualenc_jax.data import Tokenizer, Vocabulary
    from dualenc_jax.inference.embedder import Embedder

    if jax.default_backend() == 'cpu':
      runtime.keep_freed_memory()  # As every command does.
    self._args, self._jax = args, jax
    self._texts = read_texts(args)
    self._tokenizer = Tokenizer(
        Vocabulary(args.vocabulary), passage_length=args.passage_length
    )
    model, _ = train_step.build(
        argparse.Namespace(**vars(args), dropout_rate=0.0, optimizer='adamw')
    )
    partitioner = training.Partitioner()
    tokens = np.ones((1, 8), np.int32)
    boxed = jax.jit(model.init)(jax.random.key(0), tokens, tokens)['params']
    shardings = partitioner.param_shardings(boxed)
    self._params = jax.device_put(nn.unbox(boxed), shardings)
    self._embedder = Embedder(model, partitioner, shardings, args.batch)
    self._tokens: Any = None
    self._embeddings: Any = None

  def describe(self) -> dict[str, Any]:
    device = self._jax.devices()[0]
    return {'device': device.device_kind, 'jax': self._jax.__version__}

  def write(self, folder: str) -> None:
    """Writes the weights and the vocabulary for the peer."""
    from flax import traverse_util
    import sentencepiece

    out = pathlib.Path(folder)
    flat = traverse_util.flatten_dict(self._params, sep='/')
    np.savez(out / _WEIGHTS, **self._jax.device_get(flat))
    processor = sentencepiece.SentencePieceProcessor(
        model_file=self._args.vocabulary
    )
    pieces = [
        (processor.id_to_piece(i), processor.get_score(i))
        for i in range(processor.get_piece_size())
    ]
    (out / _PIECES).write_text(json.dumps(pieces))

  def first(self) -> harness.Figures:
    """The first run, which compiles."""
    return self.from_texts()

  def from_texts(self) -> harness.Figures:
    return harness.turn(self._tokenise_and_encode)

  def from_tokens(self) -> harness.Figures:
    return harness.turn(self._encode)

  def save(self, file: str) -> harness.Figures:
    """Writes the last embeddings; returns the tokens and the peak memory."""
    np.save(file, self._embeddings)
    return {
        'tokens': int(self._tokens.lengths.sum()),
        'peak_bytes': harness.peak_resident_bytes(),
    }

  def _tokenise_and_encode(self) -> None:
    self._tokens = self._tokenizer.encode_passages(self._texts)
    self._encode()

  def _encode(self) -> None:
    self._embeddings = self._embedder.passages(self._params, self._tokens)


class Peer:
  """SentenceTransformer.encode with our weights, vocabulary and passages."""

  def __init__(self, args: argparse.Namespace):
    import torch

    # PyTorch counts cores of the machine, not those that it may use.
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    self._args = args
    self._texts = read_texts(args)
    self._model: Any = None
    self._embeddings: Any = None

  def describe(self) -> dict[str, Any]:
    import sentence_transformers
    import torch
    import transformers

    return {
        'torch': torch.__version__,
        'transformers': transformers.__version__,
        'sentence_transformers': sentence_transformers.__version__,
        'threads': torch.get_num_threads(),
    }

  def read(self, folder: str) -> None:
    """Makes the model from the files of our side."""
    import torch
    import train_step_peer
    import transformers

    given = pathlib.Path(folder)
    weights = dict(np.load(given / _WEIGHTS))
    pieces = json.loads((given / _PIECES).read_text())
    sizes = workload.MODELS[self._args.model]
    encoder = train_step_peer.make_encoder(sizes)
    state = {
        name: torch.from_numpy(x.copy())
        for name, x in _to_hf(weights, sizes.num_layers).items()
    }
    encoder.load_state_dict(state, strict=False)
    vocabulary = [tuple(piece) for piece in pieces]
    model = train_step_peer.make_model(
        sizes,
        encoder,
        self._args.passage_length,
        transformers.T5Tokenizer(vocab=vocabulary, extra_ids=0),
    )
    projection = weights['projection/kernel'].T.copy()
    model[-1].linear.weight.data = torch.from_numpy(projection)
    dtype = getattr(torch, self._args.dtype)
    self._model = model.to(train_step_peer.DEVICE, dtype)

  def first(self) -> harness.Figures:
    """Two batches to warm up."""
    texts = self._texts[: 2 * self._args.peer_batch]
    return harness.turn(lambda: self._encode(texts))

  def from_texts(self) -> harness.Figures:
    return harness.turn(lambda: self._encode(self._texts))

  def save(self, file: str) -> harness.Figures:
    """Writes the last embeddings; returns the peak memory."""
    np.save(file, self._embeddings)
    return {'peak_bytes': harness.peak_resident_bytes()}

  def _encode(self, texts: list[str]) -> None:
    # The library sorts the texts by length.
    self._embeddings = self._model.encode(
        texts,
        batch_size=self._args.peer_batch,
        show_progress_bar=False,
        normalize_embeddings=True,
    )


def _to_hf(
    weights: dict[str, np.ndarray], num_layers: int
) -> dict[str, np.ndarray]:
  """Our parameters by the encoder's names of theirs."""
  embedding = weights['token_embedder/embedding']
  result = {
      'shared.weight': embedding,
      'encoder.embed_tokens.weight': embedding,
      'encoder.final_layer_norm.weight': weights['encoder/encoder_norm/scale'],
      f'{_REL_BIAS}.weight': weights['encoder/relpos_bias/rel_embedding'].T,
  }
  for i in range(num_layers):
    ours, theirs = f'encoder/layers_{i}/', f'encoder.block.{i}.'
    for name, hf_name in _LAYER_KERNELS.items():
      result[f'{theirs}{hf_name}.weight'] = weights[f'{ours}{name}/kernel'].T
    for j, name in enumerate(['attention', 'mlp']):
      scale = weights[f'{ours}pre_{name}_layer_norm/scale']
      result[f'{theirs}layer.{j}.layer_norm.weight'] = scale
  return result


if __name__ == '__main__':
  main()
