"""Times the loss and its gradient; see benchmarks/README.md.

Dense and ring, and sentence-transformers' MultipleNegativesRankingLoss and its
Cached form (st, st_cached), where --peer_python or this Python has them. B
pairs of D dims; the loss is the in-batch softmax of both directions, or SamToNe
on both towers, its gradient with respect to the embeddings.
"""

import argparse
import json
from typing import Any

import harness

LOSSES = ('softmax', 'samtone_both')
# Products of [B, D] by [D, B], or of that size, 2 B^2 D operations each. Where
# every score is kept, a matrix of queries by passages takes one, and one for
# the gradient of either tower. One tower by itself is symmetric: half a product
# is enough for its scores, and one for their gradient.
NEEDED = {'softmax': 3.0, 'samtone_both': 3.0 + 2 * 1.5}
# The ring computes scores again for the gradient, and tiles on the diagonal of
# a symmetric matrix whole, which is not counted; sentence-transformers takes
# each direction apart: two for the scores, four for the gradients.
EXECUTED = {
    'ring': {'softmax': 4.0, 'samtone_both': 4.0 + 2 * 2.0},
    'dense': {'softmax': 3.0, 'samtone_both': 3.0 + 2 * 3.0},
    'st': {'softmax': 6.0},
    'st_cached': {'softmax': 6.0},
}
_MAX_CALLS = 50
_HEADER = (
    'B | side | ms | core ms | executed, of the ceiling | times the floor'
    ' | the same by cores | compiled plan | peak | cores busy elsewhere'
)


def main() -> None:
  parser = harness.parser(__doc__, malloc=False)
  add = parser.add_argument
  add(
      '--batches',
      type=int,
      nargs='+',
      default=[2**i for i in range(10, 18)],
      help='B of each size, in ascending order',
  )
  add('--sides', nargs='+', choices=EXECUTED, default=list(EXECUTED))
  add('--min_seconds', type=float, default=0.5, help='of a turn, about')
  add(
      '--limit_gib',
      type=float,
      help='a side that needs more is left out; default 80%% of what is free',
  )
  add('--loss', choices=LOSSES, default='softmax')
  add('--dim', type=int, default=768, help='D')
  add('--temperature', type=float, default=0.05)
  add(
      '--no_mask',
      action='store_true',
      help='ours without duplicate masking, which the peers do not do',
  )
  add('--tile', type=int, help="the ring's tile; by default its own choice")
  add(
      '--mini_batch',
      type=int,
      default=1024,
      help="rows of scores that sentence-transformers' Cached loss has at once",
  )
  args = parser.parse_args()
  if args.side is not None:
    import loss_sides

    harness.serve(loss_sides.make(args))
    return
  if args.batches != sorted(args.batches):
    parser.error('--batches must ascend: a side knows its largest peak only')
  print(json.dumps({'flags': vars(args), **compare(args)}))


def compare(args: argparse.Namespace) -> dict[str, Any]:
  """Measures all sides at all sizes and prints a table.

  Returns:
    ceiling: best rates of a large product, of whichever library is faster.
    sides: descriptions by name.
    results: a list, one for each size and side.
  """
  peer = harness.peer_python(args.peer_python)
  with_peer = peer and args.loss == 'softmax'
  commands = {
      name: harness.command(name, peer if name.startswith('st') else None)
      for name in args.sides
      if with_peer or not name.startswith('st')
  }
  # One of each library.
  first = {name.startswith('st'): each for name, each in commands.items()}
  rates = harness.ceiling(first.values())
  running = {name: harness.Side(each) for name, each in commands.items()}
  sides = {name: side.ask('describe') for name, side in running.items()}
  results: list[harness.Figures] = []
  for batch in args.batches:
    found = _one_size(args, batch, running)
    for name, figures in found.items():
      if 'seconds' in figures:
        _add_shares(args, figures, rates)
      else:
        # What does not fit will not at a larger size.
        running.pop(name).close()
    results += found.values()
  for side in running.values():
    side.close()
  if not args.json:
    print(json.dumps({'ceiling': rates, **sides}))
    print(harness.table(_HEADER, [_row(figures) for figures in results]))
  return {'ceiling': rates, 'sides': sides, 'results': results}


def _one_size(
    args: argparse.Namespace, batch: int, running: dict[str, harness.Side]
) -> dict[str, harness.Figures]:
  """Figures of each side, or why it has none."""
  limit = args.limit_gib and args.limit_gib * 2**30
  found = {name: {'batch': batch, 'side': name} for name in running}
  rounds: dict[str, list[harness.Figures]] = {}

  def ask(name, *order):
    try:
      return running[name].ask(*order)
    except harness.SideError as e:
      found[name]['left_out'] = str(e)
      rounds.pop(name, None)
      return None

  for name in running:
    if prepared := ask(name, 'prepare', batch, limit):
      calls = int(args.min_seconds / prepared.pop('seconds'))
      rounds[name] = []
      found[name] |= prepared | {'calls': min(max(calls, 1), _MAX_CALLS)}
  for _ in range(args.rounds):
    for name in list(rounds):
      if times := ask(name, 'time', found[name]['calls']):
        rounds[name].append(times)
  for name, turns in list(rounds.items()):
    found[name] |= {'rounds': turns, **harness.medians(turns)}
    found[name]['peak_bytes'] = ask(name, 'peak_bytes')
    ask(name, 'release')
  values = [found[name]['value'] for name in rounds]
  if values and max(values) > min(values) * 1.0001:
    raise ValueError(f'The sides do not compute the same loss: {found}')
  return found


def _add_shares(
    args: argparse.Namespace,
    figures: harness.Figures,
    ceiling: dict[str, float],
) -> None:
  """Adds the figures beside the ceiling."""
  product = 2.0 * figures['batch'] ** 2 * args.dim
  needed = NEEDED[args.loss] * product
  executed = EXECUTED[figures['side']][args.loss] * product
  seconds, cores = figures['seconds'], figures['core_seconds']
  rate, core_rate = (
      ceiling[key] for key in ('flops_per_second', 'flops_per_core_second')
  )
  figures |= {
      'executed_share': executed / seconds / rate,
      'times_the_floor': seconds * rate / needed,
      'times_the_floor_by_cores': cores * core_rate / needed,
  }


def _row(f: harness.Figures) -> str:
  if 'seconds' not in f:
    return f'{f["batch"]} | {f["side"]} | left out: {f["left_out"]}'
  return (
      f'{f["batch"]} | {f["side"]}'
      f' | {f["seconds"] * 1e3:.1f} | {f["core_seconds"] * 1e3:.1f}'
      f' | {f["executed_share"]:.0%} | {f["times_the_floor"]:.2f}'
      f' | {f["times_the_floor_by_cores"]:.2f}'
      f' | {harness.mib(f.get("compiled_bytes"))}'
      f' | {harness.mib(f["peak_bytes"])} | {f["cores_busy_elsewhere"]:.1f}'
  )


if __name__ == '__main__':
  main()
