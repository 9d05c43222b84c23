/*-------------------------------------------------------------------------
 *
 * baton_control_memory.h
 *		CONTROL, the memory that all processes write: words in slots.
 *
 * Part of baton_shared.h, which has the rules for all of it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CONTROL_MEMORY_H
#define BATON_CONTROL_MEMORY_H

#include <stdint.h>

#define BATON_SETTINGS_MARKS 256

/*
 * Number of marks that concern a role in a database: see BATON_SETTINGS_MARK
 */
#define BATON_SETTINGS_MARKS_OF 4

/* Number of recently served sessions that a backend slot names */
#define BATON_BACKEND_SERVED 4

/*
 * Clients that may be on their way to a backend of their own at the same time
 */
#define BATON_TICKETS 256

/* Number of recent changes that raised login_generation */
#define BATON_LOGIN_CHANGES 512

/* A program file: which one it is, and what its notes say (program.c) */
typedef struct BatonProgramFile
{
	uint64_t	device;
	uint64_t	inode;
	uint64_t	size;
	int64_t		changed_ns;		/* st_ctim */
	uint32_t	layout_version; /* 0: unknown */
	uint32_t	is_there;		/* 0: no file, and the rest is not valid */
	uint8_t		version[32];	/* NUL-terminated, empty: unknown */
	uint8_t		build[48];		/* its build ID in hexadecimal, likewise */
} BatonProgramFile;

/* ---------------------------------------------------------------------
 * CONTROL memory: header, then backend slots, pool slots, tenant slots, session
 * slots, statement counters, and the regions after these; each region at the
 * offset the header names.
 * ---------------------------------------------------------------------
 */
typedef struct BatonControlHeader
{
	uint64_t	magic;			/* BATON_MAGIC */
	uint32_t	layout_version; /* BATON_LAYOUT_VERSION */
	uint32_t	backend_slots;	/* number of backend slots */
	uint32_t	pool_slots;		/* number of pool slots, and of tenant slots */
	uint32_t	session_slots;	/* number of session slots (max_sessions) */
	uint32_t	counter_slots;	/* number of statement counters */
	uint32_t	postmaster_pid; /* written by the postmaster */
	uint64_t	backend_offset; /* bytes from the start of the memory */
	uint64_t	pool_offset;
	uint64_t	session_offset;
	uint64_t	counter_offset;
	uint64_t	total_size;		/* bytes */
	uint64_t	secret;			/* random; a server process that connects to
								 * the dispatcher must present it */
	uint64_t	settings_generation;	/* atomic; raised by the transaction
										 * that commits ALTER ROLE/DATABASE
										 * SET, after settings_marks; written
										 * by backends */
	uint32_t	dispatcher_pid; /* 0 if none; written by the dispatcher */
	uint32_t	force_migration;	/* 0/1; written by the launcher */
	uint64_t	dispatcher_epoch;	/* raised by each new dispatcher */
	uint64_t	login_generation;	/* atomic; raised after a change of
									 * anything that a LOGIN_ANSWER depends
									 * on, and before the client that made the
									 * change is told; written by backends and
									 * the launcher */
	uint32_t	settings_marks[BATON_SETTINGS_MARKS];	/* atomic; a change of
														 * settings raises the
														 * mark of its database
														 * and role (see below);
														 * written by backends */
	uint32_t	room_ticket;	/* atomic; if not 0: one of the backends whose
								 * `retire` has this number shall retire, the
								 * first that takes the ticket (exchanges it
								 * with BATON_TICKET_TAKEN and its slot's
								 * index). Set and withdrawn by the dispatcher */
	uint32_t	next_pid;		/* the process ID that the next session gets;
								 * its start value is arbitrary; dispatcher */
	uint32_t	pid_entries;	/* number of entries in the directory of
								 * process IDs; a power of two, and several
								 * times the number of session slots */
	uint32_t	query_size;		/* bytes of a session's last query, including
								 * its NUL (track_activity_query_size) */
	uint64_t	identity_offset;	/* of BatonIdentity, one per session slot */
	uint64_t	pid_offset;		/* of the directory: u32, index of a session
								 * slot plus 1. A process ID's first place is
								 * its remainder by pid_entries */
	uint64_t	query_offset;	/* of the queries, query_size bytes each;
								 * backends only */
	uint64_t	batch_until_us; /* backends have the policy SCHED_BATCH until
								 * the monotonic clock shows this time; 0:
								 * they do not; dispatcher */
	uint32_t	identities_used;	/* no session has had a slot from here on:
									 * a search may stop here; dispatcher */
	uint32_t	keeps_sessions; /* BATON_CAUSE_*; if not 0, every session
								 * keeps its backend from the end of its next
								 * transaction on, for this cause; dispatcher */
	uint64_t	tickets[BATON_TICKETS]; /* atomic; tickets of clients whose
										 * own socket a starting backend shall
										 * take (0: none), each at its
										 * remainder by BATON_TICKETS;
										 * dispatcher */
	uint64_t	names_generation;	/* atomic; raised as login_generation is,
									 * after the meaning of a name in a
									 * setting or startup option may have
									 * changed; written by backends */
	uint64_t	login_changes[BATON_LOGIN_CHANGES]; /* atomic; the change that
													 * raised login_generation
													 * to a number, at the
													 * number's remainder by
													 * BATON_LOGIN_CHANGES:
													 * see below. Written
													 * after the raise */
	uint64_t	tenant_offset;
	uint64_t	totals_offset;	/* of BatonTotalsSlot, one per tenant slot */
	uint64_t	tally_offset;	/* of BatonTallySlot, one per backend slot */
	uint64_t	beat_us;		/* CLOCK_MONOTONIC, microseconds, of the event
								 * loop's last tick, 0: it has not begun;
								 * dispatcher, and the launcher before it
								 * starts one */
	uint32_t	launcher_pid;	/* launcher, as all that follows but
								 * restarts_wanted */
	uint32_t	dispatcher_starts;	/* since the server started */
	int64_t		dispatcher_started_at;	/* TimestampTz */
	uint32_t	restarts_wanted;	/* atomic; raised by a process that asks
									 * for another dispatcher */
	uint32_t	restarts_done;	/* the request after which a dispatcher was
								 * last started */
	uint32_t	end_reason;		/* BATON_ENDED_*, of the last dispatcher that
								 * has ended */
	uint32_t	end_status;		/* as wait() gives it */
	int64_t		ended_at;		/* TimestampTz */
	BatonProgramFile program;	/* of the last dispatcher started */
} BatonControlHeader;

/* why a dispatcher has ended */
#define BATON_ENDED_NONE 0		/* no dispatcher has ended */
#define BATON_ENDED_BY_ITSELF 1 /* or by a signal: end_status */
#define BATON_ENDED_UNKNOWN 2	/* likewise, and only its parent got the
								 * status */
#define BATON_ENDED_ASKED 3		/* a process asked for another dispatcher */
#define BATON_ENDED_HUNG 4		/* it made no progress, and was killed */

/*
 * A login change: kind << 61 | the low 29 bits of the number << 32 | hash. If
 * a reader does not find its number, because the change has not been written
 * yet or a later change has its place, it assumes BATON_LOGIN_CHANGE_ALL.
 */
#define BATON_LOGIN_CHANGE_ALL 0
#define BATON_LOGIN_CHANGE_ROLE 1	/* only the row of the role whose name has
									 * this hash (AUTHNAME) */
#define BATON_LOGIN_CHANGE_DATABASE 2	/* only the row of the database whose
										 * OID has this hash (DATABASEOID) */
#define BATON_LOGIN_CHANGE_MEMBERSHIPS 3	/* memberships, or names of
											 * groups; hash is 0 */
#define BATON_LOGIN_CHANGE_RULES 4	/* who may log in, and how (pg_hba.conf);
									 * not what sessions begin with; hash is 0 */

/*
 * The mark of a database's and a role's OIDs as pg_db_role_setting has them
 * (0: all). Several pairs may share a mark: they then count as changed
 * together, which costs a look at pg_db_role_setting at the next login. A
 * change whose database or role is unknown raises the mark of 0 and 0, which
 * no other pair has.
 */
#define BATON_SETTINGS_MARK_DATABASE 0x9E3779B1
#define BATON_SETTINGS_MARK_ROLE 0x85EBCA77
#define BATON_SETTINGS_MARK(database, role) \
	((database) == 0 && (role) == 0 ? 0U : \
	 1 + (((uint32_t) (database) * BATON_SETTINGS_MARK_DATABASE ^ \
		   (uint32_t) (role) * BATON_SETTINGS_MARK_ROLE) >> 16) % (BATON_SETTINGS_MARKS - 1))

/*
 * Backend slot: one pooled backend. The dispatcher allocates it before it
 * opens the connection, and frees it when the control socket is closed.
 */
typedef struct BatonBackendSlot
{
	uint32_t	state;			/* atomic, BATON_BACKEND_*; see there */
	uint32_t	pid;			/* written by the backend at attach */
	uint64_t	session;		/* session id it holds, 0 if none; backend */
	uint64_t	cancel;			/* atomic; the session id to be cancelled, set
								 * by the dispatcher just before SIGUSR2,
								 * taken (exchanged with 0) by the backend's
								 * signal handler */
	uint64_t	attach_token;	/* one-time token, written by the dispatcher;
								 * the attaching backend must present it. Once
								 * attached: process ID of the dispatcher that
								 * has adopted this backend, which another had
								 * started, 0 if none */
	uint64_t	transactions;	/* completed for any session; backend */
	uint64_t	switches;		/* sessions put in place; backend */
	uint32_t	starts;			/* how often the configuration for starting
								 * backends had changed when this one was
								 * started; dispatcher */
	uint32_t	tenant;			/* n+1 of the tenant that it served last, 0 if
								 * none; backend */
	int64_t		state_since_us; /* of CLOCK_MONOTONIC, microseconds; backend */
	uint32_t	pool;			/* pool slot index; dispatcher */
	uint32_t	dedicated_cause;	/* BATON_CAUSE_* or 0; backend */
	uint32_t	xact_status;	/* 'I','T','E' at last boundary; backend */
	uint32_t	poked;			/* atomic; 1 from the sending of a POKE
								 * (dispatcher) to its receipt (backend), so
								 * that a slow backend does not get hundreds */
	uint32_t	retire;			/* atomic; BATON_RETIRE_*, or the room_ticket
								 * that it may take; dispatcher, which then
								 * sends RETIRE to a backend that may be
								 * asleep */
	uint32_t	served_last;	/* index in `served` of the session in place,
								 * or of the last one; backend */
	uint64_t	served[BATON_BACKEND_SERVED];	/* atomic; the sessions served
												 * last: process ID << 32 | a
												 * local transaction ID that
												 * no session had, before all
												 * of the session's own; 0: no
												 * session; backend */
	uint64_t	claimant;		/* the session for which it has last claimed
								 * room, 0 if none; see `claimed` of the
								 * session slot; backend */
} BatonBackendSlot;

/*
 * State of a backend slot.  Transitions:
 *   FREE -> STARTING               dispatcher, before it connects
 *   STARTING -> IDLE               backend, at attach
 *   IDLE|LINGER -> ASSIGNED        dispatcher, by compare-and-swap, and it
 *                                  then sends ASSIGN on the control socket
 *   IDLE|LINGER -> BUSY            backend, by compare-and-swap (its own
 *                                  client spoke, or it took from the queue)
 *   ASSIGNED -> BUSY               backend, when it has received ASSIGN (it
 *                                  first gives back the session it held)
 *   BUSY -> LINGER|IDLE            backend, at a transaction's end, without
 *                                  taint.  After it, a full barrier, then it
 *                                  looks at the pool's queued counter again.
 *   any -> RETIRING                backend, when it will take no more
 *   any -> FREE                    dispatcher, when the control socket closed
 */
#define BATON_BACKEND_FREE 0
#define BATON_BACKEND_STARTING 1
#define BATON_BACKEND_IDLE 2
#define BATON_BACKEND_LINGER 3
#define BATON_BACKEND_ASSIGNED 4
#define BATON_BACKEND_BUSY 5
#define BATON_BACKEND_RETIRING 6

/*
 * Must a backend give back its session and exit at its next boundary, whatever
 * sessions wait? It checks that at each boundary and not only when it is idle:
 * in a pool with too few backends none is ever idle.
 */
#define BATON_RETIRE_NOT 0
#define BATON_RETIRE_NOW 1
#define BATON_RETIRE_FIRST_TICKET 2 /* from here on: if the backend gets the
									 * ticket */
#define BATON_TICKET_TAKEN 0x80000000	/* end of the tickets; from here on
										 * the ticket has been taken */

/*
 * Pool slot: the counters that dispatcher and backends of one pool share.
 * Every backend looks at `queued` at every boundary.
 */
typedef struct BatonPoolSlot
{
	int32_t		queued;			/* atomic; messages in the pool's ready queue:
								 * raised by the dispatcher BEFORE it sends,
								 * lowered by the process (backend or
								 * dispatcher) that took a message */
	uint32_t	is_held_back;	/* atomic; 1: the dispatcher holds other
								 * sessions back. A backend that takes the
								 * queue's last session, or is free and finds
								 * the queue empty, reports that (RELEASE of
								 * no session) and sets this to 0. The
								 * dispatcher writes 1 before it looks at
								 * `queued` and at the backends' states */
	uint32_t	reserved[14];
} BatonPoolSlot;

/*
 * Tenant slot: what dispatcher and backends share about the sessions of one
 * role in one pool. Each session's record has its index.
 */
#define BATON_TENANT_NAME_SIZE 64

typedef struct BatonTenantSlot
{
	uint32_t	keeps_sessions; /* BATON_CAUSE_*; as the header's, for the
								 * tenant's sessions; dispatcher */
	uint32_t	is_counted;		/* 1: a backend keeps none of these sessions
								 * between two transactions, and reports each
								 * that it gives back; dispatcher */
	int64_t		memory_left;	/* atomic; bytes by which the contexts of the
								 * role's sessions in its database may still
								 * grow (pg_baton.pool_memory); negative: the
								 * limit is exceeded; INT64_MAX: no limit. A
								 * backend whose news take more keeps the
								 * session (BATON_CAUSE_POOL_MEMORY);
								 * dispatcher */
	uint32_t	superuser;		/* 0/1: was the role a superuser when its
								 * sessions logged in; dispatcher */
	uint32_t	is_paused;		/* atomic; 1: a backend that keeps one of
								 * these sessions holds its next request;
								 * dispatcher */
	uint32_t	serial;			/* another for each tenant that has the slot;
								 * dispatcher */
	uint32_t	tallies;		/* atomic; number of backends whose tally is
								 * the tenant's; backends */
	uint32_t	reserved1[8];
	uint64_t	folds_begun;	/* atomic; how often a backend has begun to
								 * add its tally to the tenant's totals;
								 * backends */
	uint64_t	folds_ended;	/* atomic; how often one has ended that */
	uint64_t	reserved2[6];
	uint8_t		user_name[BATON_TENANT_NAME_SIZE];	/* the user name of their
													 * login, NUL-terminated;
													 * dispatcher */
} BatonTenantSlot;

/*
 * What is counted of the sessions of a tenant, by index in `counts`. From
 * BATON_COUNT_ERROR_CLASS on: errors, by the classes of error_classes.inc.
 * Times are in microseconds.
 */
#define BATON_COUNTS 64
#define BATON_COUNT_TRANSACTIONS 0	/* completed */
#define BATON_COUNT_REQUESTS 1	/* answered with ReadyForQuery */
#define BATON_COUNT_STATEMENTS 2	/* that ran to their end, or to the end of
									 * the rows that were asked for */
#define BATON_COUNT_ERRORS 3	/* sent to the client */
#define BATON_COUNT_SENT 4		/* bytes of messages to the client */
#define BATON_COUNT_TRANSACTION_TIME 5
#define BATON_COUNT_REQUEST_TIME 6
#define BATON_COUNT_DIRECT 7	/* sessions put in place that the dispatcher
								 * has given to this backend */
#define BATON_COUNT_QUEUED 8	/* that the backend took from the ready queue */
#define BATON_COUNT_WAITS 9		/* of these two: that had to wait */
#define BATON_COUNT_WAIT_TIME 10
#define BATON_COUNT_HAND_OVER_TIME 11	/* of sessions put in place: since the
										 * dispatcher gave them */
#define BATON_COUNT_ERROR_CLASS 16

/*
 * Number of buckets of a histogram of times. A time in microseconds below 16
 * has the bucket of its number. Above, each power of two has 16 buckets of
 * equal width, 3 to 6 percent of the time. The last bucket counts all that is
 * longer than 4.7 hours, too.
 */
#define BATON_BUCKETS 496

/*
 * Totals slot: the tenant's counts so far, without what the backends have in
 * their tallies. Index as the tenant slot's. Atomics; backends add.
 */
typedef struct BatonTotalsSlot
{
	uint64_t	counts[BATON_COUNTS];
} BatonTotalsSlot;

/*
 * Tally slot: what one backend has counted. Index as the backend slot's. The
 * backend alone writes it, and the dispatcher when the backend has gone.
 * `counts` are those of one tenant; before the backend serves a session of
 * another, it adds them to the tenant's totals. The histograms are of the
 * backend's whole life, and so of one pool.
 */
typedef struct BatonTallySlot
{
	uint32_t	tenant;			/* n+1 of the tenant; 0: none */
	uint32_t	serial;			/* the tenant slot's, as of its first session
								 * here; if it is another by now, the counts
								 * are void */
	uint64_t	hands_over;		/* atomic; 1: the backend may be about to take
								 * or give back a session, and has seen before
								 * that its dispatcher was there */
	uint64_t	reserved[6];
	uint64_t	counts[BATON_COUNTS];
	uint32_t	waits[BATON_BUCKETS];
	uint32_t	transactions[BATON_BUCKETS];
} BatonTallySlot;

/*
 * Session slot: what the owner of a session writes. Index = low 32 bits of the
 * session id.
 */
typedef struct BatonSessionSlot
{
	uint64_t	id;				/* session id (generation << 32 | index);
								 * dispatcher; generation is never 0 */
	uint32_t	owner;			/* 0: the dispatcher; n+1: backend slot n. The
								 * process that takes the session writes it; a
								 * backend writes 0 before it re-arms the
								 * socket */
	uint32_t	flags;			/* atomic, BATON_SESSION_*; owner, and the
								 * dispatcher for BATON_SESSION_CANCEL and
								 * BATON_SESSION_EXEMPT */
	uint32_t	last_backend;	/* n+1 of the backend slot that served it
								 * last, 0 if none; backend */
	uint32_t	dedicated_cause;	/* BATON_CAUSE_*; backend */
	uint32_t	state;			/* BATON_STATE_*; owner */
	uint32_t	idle_session_timeout_ms;	/* the session's value; backend */
	int64_t		state_since_us; /* of CLOCK_MONOTONIC, microseconds; owner */
	uint64_t	transactions;	/* backend */
	uint64_t	migrations;		/* times it came to another backend than its
								 * last; backend */
	uint32_t	counter_version;	/* raised by a backend each time it writes
									 * statement counters of the session */
	uint32_t	claimed;		/* atomic; room in the ARENA, in units of
								 * BATON_CLAIM_UNIT, that its backend has
								 * claimed for changes on their way to the
								 * dispatcher, which sets 0 once it has stored
								 * them; backend, dispatcher */
} BatonSessionSlot;

#define BATON_CLAIM_UNIT 4096

/*
 * What pg_stat_ssl shows of a session; texts are NUL-terminated and truncated
 * as there
 */
typedef struct BatonTls
{
	uint32_t	in_use;			/* 0: no TLS, and the rest is not valid */
	uint32_t	bits;
	uint8_t		version[16];
	uint8_t		cipher[64];
	uint8_t		client_dn[64];
	uint8_t		client_serial[64];
	uint8_t		issuer_dn[64];
} BatonTls;

/*
 * A session's identity for SQL: every process of the server can read it,
 * whichever process owns the session. Index as the session slot's. The owner
 * writes it, with `changes` odd meanwhile; a reader retries if that is odd or
 * has changed.
 */
typedef struct BatonIdentity
{
	uint64_t	id;				/* atomic; session id, 0: none. The dispatcher
								 * writes it last when a session begins, and
								 * first when a session ends */
	uint64_t	terminate;		/* atomic; session id to be terminated by its
								 * owner, which looks after it has written
								 * `owner`. Any process of the server */
	uint32_t	changes;		/* atomic */
	int32_t		pid;			/* as in BackendKeyData; dispatcher */
	uint32_t	role_oid;		/* dispatcher, as the next ones */
	uint32_t	database_oid;
	int64_t		login_time_us;	/* TimestampTz microseconds */
	uint16_t	peer_family;	/* as in the session's record */
	uint16_t	peer_port;
	uint32_t	peer_scope;
	uint8_t		peer_address[16];
	int64_t		query_start_us; /* of its last query, 0: none; backend, as all
								 * that follow */
	int64_t		idle_since_us;	/* when its state became idle; dispatcher:
								 * when its wait for a backend began */
	uint64_t	query_id;		/* 0: none */
	uint32_t	is_tracked;		/* 0: track_activities was off */
	uint32_t	gss_authenticated;	/* 1: by GSSAPI; dispatcher */
	uint8_t		application_name[64];	/* NUL-terminated; dispatcher at first */
	uint64_t	cancel;			/* atomic; session id to be cancelled on the
								 * backend that holds it: set by any process
								 * of the server just before SIGUSR2, taken by
								 * the signal handler. A backend that takes
								 * the session clears it first */
	BatonTls	tls;			/* dispatcher */
	uint8_t		gss_principal[64];	/* the principal, as pg_stat_gssapi shows
									 * it, truncated as there; dispatcher */
	uint32_t	told;			/* messages about the session that its context
								 * or its end depends on (GREETED, RELEASE,
								 * END): raised before the first frame of
								 * each; backend */
	uint32_t	heard;			/* of these, the ones whose effects stand in
								 * the ARENA; if it is not `told`, the stored
								 * context is not the session's, and a backend
								 * keeps what is missing; dispatcher */
} BatonIdentity;

/* No process ever has such an ID: PID_MAX_LIMIT of Linux is 2^22. */
#define BATON_FIRST_PID 8388608

/* flags of a session slot */
#define BATON_SESSION_UNNAMED 1 /* the unnamed statement in its context is
								 * alive */
#define BATON_SESSION_CANCEL 2	/* cancel the next command (a cancel came
								 * while the session waited); set by the
								 * dispatcher, cleared by the process that
								 * acts on it */
#define BATON_SESSION_BEGUN 4	/* given back because its client has sent too
								 * little for a backend to read; set by the
								 * backend, cleared by the dispatcher */
#define BATON_SESSION_LOOKED_AT 8	/* enough has arrived by now, or the
									 * kernel may hold no more of it; cleared
									 * by the backend that reads it */
#define BATON_SESSION_SOCKET_SET 16 /* the kernel's keepalive settings or user
									 * timeout of its socket may differ from
									 * the defaults, whichever process set
									 * them */
#define BATON_SESSION_LATE 32	/* with LOOKED_AT: statement_timeout is over */
#define BATON_SESSION_EXEMPT 64 /* no pause concerns it; dispatcher */
#define BATON_SESSION_PAUSE 0xffffff00	/* with BEGUN: the session's
										 * statement_timeout in ms, 0 if it
										 * has none (or one of hours); with
										 * LOOKED_AT: what is left of it; with
										 * LATE: the number of messages that
										 * had come when it was over */
#define BATON_SESSION_PAUSE_SHIFT 8
#define BATON_SESSION_PAUSE_MAX 0xffffff

/*
 * From this many bytes on, a backend may begin to read a message before it is
 * whole. The kernel does not hold much more for a connection (a receive window
 * of 64 kB by default), so that a larger message might never be seen whole.
 */
#define BATON_MESSAGE_MAY_BEGIN 32768

/* state of a session, as the views show it */
#define BATON_STATE_FREE 0
#define BATON_STATE_LOGIN 1
#define BATON_STATE_IDLE 2
#define BATON_STATE_WAITING 3
#define BATON_STATE_ACTIVE 4
#define BATON_STATE_IDLE_IN_TRANSACTION 5

/* why a session is dedicated: BATON_CAUSE_<name>, from 1 on */
enum BatonCause
{
	BATON_CAUSE_NONE,
#define BATON_CAUSE(name, text) BATON_CAUSE_##name,
#include "causes.inc"
#undef BATON_CAUSE
	BATON_CAUSE_COUNT
};

/*
 * Statement counters of one prepared statement of one session; written by the
 * backend that owns the session, allocated and zeroed by the dispatcher. The
 * four numbers that CachedPlanSource keeps (plancache.h).
 */
typedef struct BatonStatementCounter
{
	double		generic_cost;	/* -1 if unknown */
	double		total_custom_cost;
	int64_t		num_custom_plans;
	int64_t		num_generic_plans;
} BatonStatementCounter;

#endif							/* BATON_CONTROL_MEMORY_H */
