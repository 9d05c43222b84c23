"""The differential fuzzer of session state.

Random scripts over everything a session can hold run on several sessions at
once, in one global order, in two worlds: through the pool under forced
migration, and on direct connections to a stock server laid out alike.  Every
message of the server is compared.  A difference is a bug of the pool, and is
printed with its seed, its step, and a script made as short as can be.

    python -m tests.fuzz --seed 7 --steps 400     replays one episode
    python -m tests.fuzz --seconds 3600           goes on for an hour
    python -m tests.fuzz --ddl 0.7               DDL beside sessions, too
    python -m tests.fuzz --roles 0.7             sessions of many roles on few backends
    python -m tests.fuzz --against direct         checks the fuzzer: no difference
    python -m tests.fuzz --against broken         checks the fuzzer: must differ

vocabulary.py says what a script may say, generator.py makes it up; ddl_words.py
and ddl.py do so for DDL beside sessions, role_words.py and roles.py for sessions of
many roles and changes of these, and history.py says of what the pool may
differ after it.  world.py speaks to a server, episode.py compares two,
shrink.py shortens.
"""
