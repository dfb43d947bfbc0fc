"""What the parser of every command makes of its flags."""

import pathlib

import pytest

from dualenc_jax.cli import flags
from dualenc_jax.utils.errors import UserError


@pytest.fixture
def parser():
  parser = flags.Parser('test', 'What it does.')
  parser.add_argument('--k', type=flags.whole())
  parser.add_argument('--seed', type=flags.whole(0))
  parser.add_argument('--memory', type=flags.gib)
  parser.add_argument('--names', type=flags.listed)
  parser.add_argument('--folder', type=flags.path)
  return parser


def test_values(parser):
  args = parser.parse_args(
      '--k=1 --seed=0 --memory=0.5 --names=a,b --folder=~/x'.split()
  )
  assert (args.k, args.seed, args.memory) == (1, 0, 2**29)
  assert args.names == ['a', 'b']
  assert args.folder == pathlib.Path.home() / 'x'


@pytest.mark.parametrize(
    'flag, expected',
    [
        ('--k=0', '--k is 0; expected at least 1'),
        ('--k=\u0661', '--k is \u0661; expected a whole number'),
        ('--memory=1_0', '--memory is 1_0; expected a number above 0'),
        ('--memory=nan', '--memory is nan; expected a number above 0'),
        ('--foldr=x', "arguments: --foldr=x. Did you mean '--folder'? `d"),
        ('--model', 'unrecognized arguments: --model. `dualenc'),
        ('--STEPS=3', "Did you mean '--gin.STEPS'?"),
        ('--folder=', '--folder is blank; expected a path'),
        ('word', 'arguments: word. `'),
    ],
)
def test_what_is_refused(parser, flag, expected):
  with pytest.raises(UserError) as error:
    parser.parse_args([flag])
  assert expected in str(error.value)
  assert '`dualenc test --help`' in str(error.value)
