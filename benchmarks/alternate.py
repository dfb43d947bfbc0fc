"""Runs our step and the peer's in turns, each in a process of its own.

Machines drift and are shared, so that only what ran side by side compares.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
from typing import Any

import sides as sides_lib
import workload

HERE = pathlib.Path(__file__).parent
# glibc hands large buffers back to the kernel after every step and faults them
# in again, page by page. PyTorch gains when it is told to keep them, XLA when
# the pages are huge; both sides are given both.
TUNED_MALLOC = {
    'MALLOC_MMAP_MAX_': '0',
    'MALLOC_TRIM_THRESHOLD_': str(2**34),
    'MALLOC_TOP_PAD_': str(2**28),
    'GLIBC_TUNABLES': 'glibc.malloc.hugetlb=1',
}


def add_flags(parser: argparse.ArgumentParser) -> None:
  """Adds --peer_python, --rounds and --plain_malloc."""
  parser.add_argument(
      '--peer_python',
      metavar='FILE',
      help='Python that has sentence-transformers: run it in turns with ours',
  )
  parser.add_argument(
      '--rounds', type=int, default=3, help='turns of each with --peer_python'
  )
  parser.add_argument(
      '--plain_malloc',
      action='store_true',
      help='leave out the sides with tuned malloc, which is for CPUs',
  )


def peer_python(given: str | None) -> str | None:
  """The Python that was given, or this one if it has what the peer needs."""
  if given is None and importlib.util.find_spec('sentence_transformers'):
    return sys.executable
  return given


def run(args: argparse.Namespace) -> dict[str, Any]:
  """Measures all sides `rounds` times; prints each, then ratios.

  Returns:
    The flags, all rounds, and medians by side, for JSON.
  """
  ours_only = (
      'loss',
      'layout',
      'json',
      'peer_python',
      'rounds',
      'plain_malloc',
  )
  flags = [
      f'--{name}={value}'
      for name, value in vars(args).items()
      if name not in ours_only and value is not None
  ]
  ours = [
      sys.executable,
      str(HERE / 'train_step.py'),
      '--json',
      f'--loss={args.loss}',
      f'--layout={getattr(args, "layout", "padded")}',
      *flags,
  ]
  sides = {'dualenc_jax': (ours, {})}
  if args.peer_python:
    peer = [args.peer_python, str(HERE / 'train_step_peer.py'), *flags]
    sides['sentence-transformers'] = peer, {}
  if not args.plain_malloc:
    sides |= {
        f'{name}, tuned malloc': (command, TUNED_MALLOC)
        for name, (command, _) in sides.items()
    }
  results = {name: [] for name in sides}
  for _ in range(args.rounds):
    for name, (command, environment) in list(sides.items()):
      try:
        results[name].append(_figures(command, environment))
      except subprocess.CalledProcessError as e:
        if name == 'dualenc_jax':
          raise
        # Out of memory, say; the others go on.
        print(f'{name} failed and is left out: {e}', file=sys.stderr)
        del sides[name], results[name]
        continue
      if not args.json:
        workload.show(name, results[name][-1])

  # The machine has one ceiling: what the faster of the two libraries reaches.
  ceiling = max(
      figures['ceiling_flops_per_second']
      for rounds in results.values()
      for figures in rounds
  )
  summary = {}
  for name, rounds in results.items():
    summary[name] = sides_lib.medians(rounds)
    for key in ('mfu', 'mfu_on_real_tokens'):
      summary[name][key] = statistics.median(
          figures[key] * figures['ceiling_flops_per_second'] / ceiling
          for figures in rounds
      )
    summary[name]['ceiling_flops_per_second'] = ceiling
    for key in ('examples_per_second', 'examples_per_core_second'):
      summary[name][f'ours_over_this_{key}'] = statistics.median(
          mine[key] / theirs[key]
          for mine, theirs in zip(results['dualenc_jax'], rounds)
      )
  if not args.json:
    print(f'Medians of {args.rounds} rounds:')
    for name, figures in summary.items():
      workload.show(name, figures)
      print(
          '  ours over this:'
          f' {figures["ours_over_this_examples_per_second"]:.2f} by the clock,'
          f' {figures["ours_over_this_examples_per_core_second"]:.2f} by core'
          ' seconds'
      )
  return {'flags': vars(args), 'rounds': results, **summary}


def _figures(command: list[str], environment: dict[str, str]) -> dict:
  """The JSON on the last line that a side prints."""
  done = subprocess.run(
      command,
      env=os.environ | environment,
      stdout=subprocess.PIPE,
      text=True,
      check=True,
  )
  return json.loads(done.stdout.splitlines()[-1])
