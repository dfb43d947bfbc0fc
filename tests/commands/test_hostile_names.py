"""Names of models that a terminal or matplotlib would take for commands."""

import xml.etree.ElementTree

from test_compare import FIGURE, two_models

from dualenc_jax.commands import compare


def test_names_are_no_formulas_and_a_terminal_does_not_obey_them(
    tmp_path, capsys
):
  output = tmp_path / 'out'
  names = r'a$\frac$', 'b\x1b[2J\u202egpj.exe$c$'
  compare.main([
      *two_models(tmp_path),
      f'--names={",".join(names)}',
      f'--output_dir={output}',
  ])
  printed = capsys.readouterr().out
  assert r'b\x1b[2J\u202egpj.exe$c$ against a$\frac$' in printed
  drawing = (output / f'{FIGURE}.svg').read_text()
  xml.etree.ElementTree.fromstring(drawing)
  assert not {'\x1b', '\u202e'} & {*printed + drawing}
