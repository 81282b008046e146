"""The verbs of the command line, one module each: `register(verbs)` adds its parser, `run(args)` returns the exit code.

Only these modules and `cli.py` print. What they do lives in the rooms below; here it becomes text, tables and JSON.
"""
