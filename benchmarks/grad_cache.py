"""Times training steps with gradient caching; see benchmarks/README.md.

train_step.py at several global batches, beside sentence-transformers' Cached
loss with mini-batches of the same size where --peer_python or this Python has
it.
"""

import argparse
import copy
import json
import subprocess
import sys
from typing import Any

import alternate
import sides
import workload


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--model', choices=workload.MODELS, default='base')
  parser.add_argument('--json', action='store_true', help='print JSON only')
  parser.add_argument(
      '--batches', type=int, nargs='+', default=[512, 4096, 32768]
  )
  workload.add_flags(parser)
  alternate.add_flags(parser)
  parser.set_defaults(micro_batch=64, steps=2, warmup=1, rounds=1)
  args = parser.parse_args()
  if args.micro_batch and any(b % args.micro_batch for b in args.batches):
    parser.error('--micro_batch must divide every batch')
  args.peer_python = alternate.peer_python(args.peer_python)
  results = {}
  for batch in args.batches:
    if not args.json:
      print(f'Batch {batch}, {args.micro_batch} at once', flush=True)
    one = copy.copy(args)
    one.batch, one.loss = batch, 'softmax'
    del one.batches
    try:
      results[batch] = alternate.run(one)
    except subprocess.CalledProcessError as e:
      # Out of memory, say; what is measured so far is kept.
      print(f'Batch {batch} failed: {e}', file=sys.stderr)
  if not args.json:
    print(table(results))
  print(json.dumps(results))


def table(results: dict[int, dict[str, Any]]) -> str:
  """Markdown, a row for every batch and side."""
  rows = []
  for batch, result in results.items():
    for side in result['rounds']:
      f = result[side]
      memory = map(
          f.get, ('peak_rss_bytes', 'device_peak_bytes', 'compiled_bytes')
      )
      rows.append(' | '.join([
          f'{batch} | {side} | {f["examples_per_second"]:.1f}',
          f'{f["step_core_seconds"]:.2f} | {f["mfu_on_real_tokens"]:.1%}',
          *(f'{size / 1e9:.2f} GB' if size else '' for size in memory),
          f'{f["ours_over_this_examples_per_second"]:.2f}',
          f'{f["ours_over_this_examples_per_core_second"]:.2f}',
      ]))
  return sides.table(
      'batch | side | examples/s | core seconds a step | MFU on real tokens'
      ' | resident | on the device | compiled plan | ours over this, clock'
      ' | by cores',
      rows,
  )


if __name__ == '__main__':
  main()
