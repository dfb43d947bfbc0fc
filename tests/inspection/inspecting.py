"""Inspects tasks in tests, with the shipped vocabulary."""

from dualenc_jax.data import Tokenizer, Vocabulary
from dualenc_jax.inspection.findings import findings
from dualenc_jax.inspection.task import inspect_task
from dualenc_jax.readers import Pairs

VOCABULARY = Vocabulary('python_code_8k')


def inspect(task, query_length=16, passage_length=32, **options):
  tokenizer = Tokenizer(VOCABULARY, query_length, passage_length)
  return inspect_task(task, tokenizer, **options)


def pairs(query='query', passage='passage', **options):
  return Pairs(query=query, passage=passage, **options)


def found(inspection, level):
  return [(f.where, f.what) for f in findings(inspection) if f.level is level]
