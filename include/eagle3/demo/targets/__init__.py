"""Small targets and their prompts for the demonstration. Runs on the GPU host, in the host's environment.

By hand: `python -m eagle3.demo.targets NAME --work-dir DIR`. Each target is a module with `make(model_dir)` and
`prompts()`, named in `__main__.TARGETS`.
"""
