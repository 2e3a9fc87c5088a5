"""The README's table of the run spec is the generated one."""

from eagle3.pipeline.spec_table import spec_table


def test_readme_has_the_current_table(repo_root):
    assert spec_table() in (repo_root / "README.md").read_text(), "run `python -m eagle3.pipeline.spec_table`"
