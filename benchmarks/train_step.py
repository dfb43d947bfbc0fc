"""Times a training step on synthetic tokens; see benchmarks/README.md.

Alone it measures our step, in each of --layouts. With --peer_python, the Python
of an environment that has sentence-transformers, or with --batches, the two
take turns, each turn in a process of its own.
"""

import argparse
import json
import statistics
import sys
from typing import Any

import harness
import workload

OURS, PEER = 'dualenc_jax', 'sentence-transformers'
_HEADER = (
    'batch | side | examples/s | real tokens/s | step, s | from, to'
    ' | core s a step | examples a core s | cores busy elsewhere | GFLOP a step'
    ' | real tokens | MFU | on real tokens | resident | on the device'
    ' | compiled plan | compiled in, s | ours over this, clock | by cores'
)


def main() -> None:
  parser = harness.parser(__doc__)
  add = parser.add_argument
  add('--loss', choices=workload.NUM_BLOCKS, default='softmax')
  add('--layout', choices=workload.LAYOUTS, default='padded')
  add('--layouts', nargs='+', choices=workload.LAYOUTS, help='in turns')
  add('--batches', type=int, nargs='+', help='several sizes of --batch')
  workload.add_flags(parser)
  args = parser.parse_args()
  if args.side == OURS:
    import ours

    harness.serve(ours.TrainStep(args))
  elif args.side == PEER:
    import peer

    harness.serve(peer.TrainStep(args))
  else:
    found = {b: compare(args, b) for b in args.batches or [args.batch]}
    if not args.json:
      lines = [line for sides in found.values() for line in _rows(sides)]
      print(harness.table(_HEADER, lines))
    print(json.dumps({'flags': vars(args), 'batches': found}))


def compare(args: argparse.Namespace, batch: int) -> dict[str, Any]:
  """Medians and rounds of each side; what fails, for memory, is left out."""
  peer = args.peer_python
  if args.batches:
    peer = harness.peer_python(peer)
  size = f'--batch={batch}'
  sides = {
      f'{OURS}, {layout}': [*harness.command(OURS), size, f'--layout={layout}']
      for layout in args.layouts or [args.layout]
  }
  if peer:
    sides[PEER] = [*harness.command(PEER, peer), size]
    if not args.plain_malloc:
      sides |= {
          f'{name}, tuned malloc': harness.tuned(command)
          for name, command in sides.items()
      }
  rounds: dict[str, list[harness.Figures]] = {name: [] for name in sides}
  for _ in range(args.rounds):
    for name in list(rounds):
      side = harness.Side(sides[name])
      try:
        rounds[name].append({'batch': batch, **side.ask('measure')})
      except harness.SideError as e:
        print(f'{name}, batch {batch}: left out: {e}', file=sys.stderr)
        del rounds[name]
      side.close()
  # The machine has one ceiling: that of the faster library.
  key = 'ceiling_flops_per_second'
  ceiling = max([f[key] for each in rounds.values() for f in each], default=0)
  medians = {}
  for name, each in rounds.items():
    ours = next(iter(rounds.values()))
    medians[name] = harness.medians(each) | {key: ceiling}
    for share in ('mfu', 'mfu_on_real_tokens'):
      medians[name][share] = statistics.median(
          f[share] * f[key] / ceiling for f in each
      )
    for time in ('step_seconds', 'step_core_seconds'):
      medians[name][f'ours_over_this_{time}'] = harness.ratio(ours, each, time)
  return {'medians': medians, 'rounds': rounds}


def _rows(sides: dict[str, Any]) -> list[str]:
  return [
      f'{f["batch"]} | {name} | {f["examples_per_second"]:.1f}'
      f' | {f["real_tokens_per_second"]:.0f} | {f["step_seconds"]:.3f}'
      f' | {f["step_seconds_min"]:.3f}, {f["step_seconds_max"]:.3f}'
      f' | {f["step_core_seconds"]:.2f} | {f["examples_per_core_second"]:.1f}'
      f' | {f["cores_busy_elsewhere"]:.1f} | {f["step_flops"] / 1e9:.1f}'
      f' | {f["real_token_share"]:.0%} | {f["mfu"]:.1%}'
      f' | {f["mfu_on_real_tokens"]:.1%} | {harness.mib(f["peak_rss_bytes"])}'
      f' | {harness.mib(f["device_peak_bytes"])}'
      f' | {harness.mib(f.get("compiled_bytes"))}'
      f' | {f.get("compile_seconds", 0):.0f}'
      f' | {f["ours_over_this_step_seconds"]:.2f}'
      f' | {f["ours_over_this_step_core_seconds"]:.2f}'
      for name, f in sides['medians'].items()
  ]


if __name__ == '__main__':
  main()
