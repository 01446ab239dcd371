"""The commands of `octavo-engine`: a module for each, with its name. `serve` is server/run.py; cli.py parses flags."""
