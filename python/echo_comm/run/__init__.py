"""The command `echo-comm run`: a language model split over ranks, with Echo and without, and what the difference is.

cli.py        the command line; checks what can be checked before anything starts (imports no torch)
launch.py     starts the ranks, watches them, ends them
rank.py       what one rank does: load, split, generate, evaluate
source.py     where the model comes from, whether it fits
model.py      converts, loads and splits it
generate.py   greedy generation and time to first token
evaluate.py   both runs on text: KL, top-1 agreement, perplexity, divergence of the ranks, bytes
report.py     the table and the JSON file
"""
