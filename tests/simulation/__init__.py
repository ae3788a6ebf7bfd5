"""The simulator: virtual workers with the real driver on the real store functions, replayed from one seed.

One 64-bit seed fixes a run: the workload, the workers, the faults, and the order of everything. Time is
virtual, and so is the database's clock. Half of the seeds run on SQLite in memory, where each store call is
one step; half on PostgreSQL, where each statement is one, on connections that really wait for locks.
After each commit oracles compare what the database holds with what it held before.

    streams     random numbers addressed by what they are for
    clock       virtual time
    faults      which faults happen to whom, and the plan of a run
    workload    the jobs and what their handlers do
    database    SQLite in memory, or PostgreSQL: its clock, its connections, its contents
    world       the scheduler: events in virtual time, store calls step by step
    worker      a worker's process around the real driver; the host that starts it again
    people      clients, operators, strangers and supervisors
    oracles     what must hold after each commit, and at the end
    runs        a run from plan to result
    shrink      the smallest list of faults that still fails
    report      what to tell of it

`python -m tests.simulation --help` says how to run it.
"""
