"""Chaos on real processes: workers and clients under faults, and afterwards a checker that compares.

    python -m tests.chaos --database postgres --seconds 60 --seed 7

`run` puts a run together, `stage` has the database, `fleet` the workers and clients, `monkey` the faults.
`client` and `handlers` run in processes of their own and write `journals`; `evidence` collects what all of
them left behind, `checker` says what must not be, and `figures` what there was. `soak` is a long run without
faults, which looks at memory and connections.
"""
