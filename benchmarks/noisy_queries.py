"""Gives a share of generated queries to passages that they are not of.

  python benchmarks/noisy_queries.py --queries=adapted/queries --share=0.5 \
    --seed=0 --output_dir=noisy

--queries is a folder of `dualenc generate`: corpus.jsonl, qgen-queries.jsonl
and qgen-qrels/train.tsv. So is the output, in which that share of the lines of
the qrels has another passage, drawn by chance of the whole corpus; queries and
corpus are the same. Of one seed, what a share replaces a larger one does, too,
by the same passages.
"""

import argparse
import json
import pathlib
import shutil

import numpy as np


def main() -> None:
  parser = argparse.ArgumentParser(
      description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  add = parser.add_argument
  add('--queries', type=pathlib.Path, required=True)
  add('--share', type=float, required=True)
  add('--seed', type=int, default=0)
  add('--prefix', default='qgen')
  add('--output_dir', type=pathlib.Path, required=True)
  args = parser.parse_args()
  if not 0.0 <= args.share <= 1.0:
    parser.error(f'--share is {args.share}; expected 0 to 1')
  if args.output_dir.resolve() == args.queries.resolve():
    parser.error('--output_dir is --queries; give another folder')
  with open(args.queries / 'corpus.jsonl', encoding='utf-8') as corpus:
    ids = [json.loads(line)['_id'] for line in corpus]
  qrels = pathlib.Path(f'{args.prefix}-qrels', 'train.tsv')
  text = (args.queries / qrels).read_text(encoding='utf-8')
  header, *lines = text.splitlines()
  replaced = replace([line.split('\t') for line in lines], ids, args)
  for name in ('corpus.jsonl', f'{args.prefix}-queries.jsonl'):
    args.output_dir.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(args.queries / name, args.output_dir / name)
  path = args.output_dir / qrels
  path.parent.mkdir(exist_ok=True)
  lines = [header, *('\t'.join(row) for row in replaced)]
  path.write_text('\n'.join(lines) + '\n', encoding='utf-8')
  count = round(args.share * len(replaced))
  print(f'{count:,} of {len(replaced):,} queries have another passage: {path}.')


def replace(
    rows: list[list[str]], ids: list[str], args: argparse.Namespace
) -> list[list[str]]:
  """The rows of qrels, a share of them with another of the ids."""
  rng = np.random.default_rng(args.seed)
  places = {name: place for place, name in enumerate(ids)}
  order = rng.permutation(len(rows))
  # One less than there are, and past a query's own.
  drawn = rng.integers(len(ids) - 1, size=len(rows))
  out = list(rows)
  for row in order[: round(args.share * len(rows))].tolist():
    query, passage, *grade = rows[row]
    other = int(drawn[row])
    other += other >= places[passage]
    out[row] = [query, ids[other], *grade]
  return out


if __name__ == '__main__':
  main()
