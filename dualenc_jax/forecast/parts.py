"""The part of a program that an operation belongs to, by its origin."""

import re

from dualenc_jax.forecast.schedule import Operation

# The first match counts.
_RULES = (
    ('dropout', r'/Dropout(_\d+|\.__call__)?/'),
    ('attention', r'/attention/(?!(query|key|value|out)/)|/relpos_bias/'),
    ('products of queries, keys, values, outputs', r'/attention/'),
    ('MLP', r'/mlp/'),
    ('norms', r'norm/'),
    ('projection, pooling', r'/projection/|rls,rle->rse'),
    ('other parts of towers', r'/(encoder|passage_encoder|token_embedder|'
                              r'passage_token_embedder)/|encode_(query|passage)'),
    ('scores', r'^jit\(search_block\)/shard_map/dot_general'),
    ('maxima of groups', r'^jit\(search_block\)/shard_map/(reduce_|gt)'),
    ('best hits', r'^jit\(search_block\)'),
    ('loss', r'jvp\('),
    ('optimizer, metrics', r'.'),
)
_COMPILED = [(name, re.compile(rule)) for name, rule in _RULES]
COPIES = 'copies'
UNKNOWN = 'unknown'


def part_of(operation: Operation) -> str:
  """'attention', 'MLP', 'copies'."""
  if operation.kind.startswith(('copy', 'slice', 'dynamic-slice', 'transpose')):
    return COPIES
  for name, rule in _COMPILED:
    if rule.search(operation.place):
      return name
  return UNKNOWN
