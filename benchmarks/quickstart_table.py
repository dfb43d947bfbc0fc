"""The quickstart's quality by loss and architecture, mean and spread by seed.

  python benchmarks/quickstart_table.py --work_dir=table --seeds 0 1 2

Trains every row of `RUNS` with the shipped quickstart config, evaluates the
last checkpoint on the held-out test split and prints a Markdown table. Runs
that are done are not done again, so an interrupted table goes on.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

RUNS = {
    'SDE, softmax': ['losses/softmax.gin'],
    'SDE, SamToNe': ['losses/samtone.gin'],
    'SDE, SamToNe both': ['losses/samtone_both.gin'],
    'SDE, PAIR': ['losses/pair.gin'],
    'ADE, SamToNe': ['losses/samtone.gin', 'architectures/ade.gin'],
    'ADE-SPL, SamToNe': ['losses/samtone.gin', 'architectures/ade_spl.gin'],
}
METRICS = ('P@1', 'MRR', 'MRR@10', 'nDCG@10', 'Recall@10', 'Recall@100')


def run(folder: pathlib.Path, files: list[str], seed: int) -> dict[str, float]:
  """Trains and evaluates once, unless that was done before."""
  result = folder / 'evaluation' / 'python_code-test' / 'metrics.json'
  if not result.exists():
    flags = [f'--gin_file={f}' for f in ['runs/quickstart.gin', *files]]
    dualenc = [sys.executable, '-m', 'dualenc_jax']
    started = time.perf_counter()
    subprocess.run(
        [
            *dualenc,
            'train',
            *flags,
            f'--gin.SEED={seed}',
            '--gin.EVAL_EVERY=0',
            f'--model_dir={folder}',
        ],
        check=True,
    )
    seconds = time.perf_counter() - started
    print(f'{folder.name}: trained in {seconds:.0f} s', file=sys.stderr)
    subprocess.run([*dualenc, 'evaluate', f'--model_dir={folder}'], check=True)
  return json.loads(result.read_text())['metrics']


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('--work_dir', type=pathlib.Path, required=True)
  parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1, 2])
  args = parser.parse_args()
  rows = {name: [] for name in RUNS}
  # Seed by seed, so that what is there after an interruption compares.
  for seed in args.seeds:
    for name, files in RUNS.items():
      slug = name.replace(', ', '-').replace(' ', '_').lower()
      rows[name].append(run(args.work_dir / f'{slug}-{seed}', files, seed))
  print(f'| run | {" | ".join(METRICS)} |')
  print('|---' * (len(METRICS) + 1) + '|')
  for name, results in rows.items():
    cells = []
    for metric in METRICS:
      values = [100 * r[metric] for r in results]
      spread = statistics.stdev(values) if len(values) > 1 else 0.0
      cells.append(f'{statistics.mean(values):.1f} ± {spread:.1f}')
    print(f'| {name} | {" | ".join(cells)} |')


if __name__ == '__main__':
  main()
