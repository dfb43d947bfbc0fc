"""Times encoding passages; see benchmarks/README.md.

Ours from texts and from tokens, and sentence-transformers' `encode` with the
same weights where --peer_python or this Python has it, plain and with tuned
malloc. Every side is a process of its own, and they take turns in every round.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
from typing import Any

import alternate
import encode_work
import numpy as np
import sides

HERE = pathlib.Path(__file__).parent
OURS = 'dualenc_jax'
PEER = 'sentence-transformers'
# The least cosine of the two embeddings of a passage whose tokens are equal;
# and the share of passages that may differ in tokens, as the peer's tokenizer
# normalises rare characters in another way.
ALIKE = {'float32': 0.9999, 'bfloat16': 0.99}
OTHER_TOKENS = 0.03


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  encode_work.add_flags(parser)
  alternate.add_flags(parser)
  parser.add_argument('--json', action='store_true', help='print JSON only')
  args = parser.parse_args()
  print(json.dumps({'flags': vars(args), **compare(args)}))


def compare(args: argparse.Namespace) -> dict[str, Any]:
  """Measures all sides in turns; prints each, then ratios.

  Returns:
    sides: what runs there; first: of the first run, in which ours compiles and
    the peer encodes two batches; saved: tokens and peak memory; rounds and
    medians, by side and method.
  """
  running = {
      name: sides.Side(command) for name, command in _commands(args).items()
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
  rounds = {turn: [] for turn in turns}
  for _ in range(args.rounds):
    for name, method in turns:
      rounds[name, method].append(running[name].ask(method))
      if not args.json:
        _show(args, f'{name}, {method}', rounds[name, method][-1])
  saved = _save_and_check(args, running)
  for side in running.values():
    side.close()
  medians = {turn: sides.medians(each) for turn, each in rounds.items()}
  ours = rounds[OURS, 'from_texts']
  for turn, each in rounds.items():
    for key in ('seconds', 'core_seconds'):
      medians[turn][f'ours_over_this_by_{key}'] = statistics.median(
          theirs[key] / mine[key] for mine, theirs in zip(ours, each)
      )
  if not args.json:
    print(f'Medians of {args.rounds} rounds:')
    for turn, figures in medians.items():
      _show(args, ', '.join(turn), figures)
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
      'rounds': {', '.join(turn): each for turn, each in rounds.items()},
      'medians': {', '.join(turn): each for turn, each in medians.items()},
  }


def _save_and_check(
    args: argparse.Namespace, running: dict[str, sides.Side]
) -> dict[str, Any]:
  """What the sides say of their last run; raises if embeddings differ."""
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
  """What runs each side."""
  not_theirs = ('peer_python', 'rounds', 'plain_malloc', 'json')
  flags = [
      f'--{name}={value}'
      for name, value in vars(args).items()
      if name not in not_theirs
  ]
  commands = {OURS: [sys.executable, str(HERE / 'encode_ours.py'), *flags]}
  peer_python = alternate.peer_python(args.peer_python)
  if peer_python:
    peer = [peer_python, str(HERE / 'encode_peer.py'), *flags]
    commands[PEER] = peer
    if not args.plain_malloc:
      settings = [f'{k}={v}' for k, v in alternate.TUNED_MALLOC.items()]
      commands[f'{PEER}, tuned malloc'] = ['env', *settings, *peer]
  return commands


def _show(
    args: argparse.Namespace, name: str, figures: dict[str, float]
) -> None:
  print(
      f'{name}: {args.passages / figures["seconds"]:.1f} passages/s,'
      f' {args.passages / figures["core_seconds"]:.1f} a core second,'
      f' {figures["cores_busy_elsewhere"]:.1f} cores busy elsewhere',
      flush=True,
  )


if __name__ == '__main__':
  main()
