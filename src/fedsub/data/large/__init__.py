"""Data larger than memory, to a saved `Clients`: the very directory that reading in memory and `save` write.

    source       files, frames, LEAF's JSON, object stores: all become local Parquet files (`sources`, `remote`)
    pieces       some rows at a time are read and checked (`fedsub.data.pieces`), sorted by client, and written: a *run*
    vocabulary   the distinct ids of all runs are merged: clients and table rows get their numbers
    parts        stretches of clients are gathered from all runs, numbered, and appended (`fedsub.data.stream`)

That is an external merge sort with one pass over the data. All that is done is kept in a folder beside the target, so
that a process that was killed goes on where it was.
"""
