"""The base of the tests: private clusters, a wire client, comparisons.

account.py   running server programs as an unprivileged user
stage.py     where the extension and the dispatcher under test come from
cluster.py   one private PostgreSQL cluster, with or without the pool
patroni.py   two nodes that Patroni runs, with etcd and HAProxy
processes.py the processes of a cluster: their kinds, and where they hang
debugger.py  stopping a process at a function
control_memory.py the memory that server and dispatcher share, by the layout's own header
wire.py      a small client of the protocol that can send any bytes
compare.py   the same script through the pool and directly
doctor.py    the report of `baton doctor` on a cluster
bystanders.py well-behaved clients beside an attack, whose progress is counted
other_roles.py sessions of other roles beside a suite, on the backends that serve it
health.py    checks that a cluster is well, and a load that checks its own answers
"""
