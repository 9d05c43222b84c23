/*-------------------------------------------------------------------------
 *
 * baton_shared.h
 *		What the extension (C) and the dispatcher (Rust) share: the layout of
 *		the two shared memories and of the messages between the processes.
 *
 * There are two shared memories, each a memfd:
 *
 * CONTROL is created by the postmaster when the library is preloaded, is
 * mapped read-write by every process of the server (inherited by fork) and
 * by the dispatcher (whose launcher passes it the descriptor).  It lives as
 * long as the postmaster.  It holds words that both sides write: the backend
 * slots, the pool slots, the session slots and the statement counters.
 * Who may write a field is said at the field.
 *
 * ARENA is created by each dispatcher, is written by it alone, and is mapped
 * read-only by the backends that attach to it.  It holds a record a session
 * and the session contexts at rest.
 *
 * Everything here is plain fixed-width fields in native byte order: both ends
 * are on one machine.  Each structure's size and offsets are named by a
 * #define, and both languages assert their own structure against it when they
 * are built (extension: layout.c; dispatcher: layout.rs, which reads this
 * very file through build.rs).  Any change raises BATON_LAYOUT_VERSION, which
 * is compared whenever two processes meet.
 *
 * build.rs understands lines of the form "#define BATON_NAME <integer>" only.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SHARED_H
#define BATON_SHARED_H

#include <stdint.h>

#define BATON_SETTINGS_MARKS 256

/* Clients that may be on their way to a backend of their own at one time */
#define BATON_TICKETS 256

#define BATON_MAGIC 0x3130304E4F544142
#define BATON_LAYOUT_VERSION 29

/* ---------------------------------------------------------------------
 * CONTROL memory: header, then backend slots, pool slots, session slots,
 * statement counters; each region at the offset the header names.
 * ---------------------------------------------------------------------
 */
#define BATON_CONTROL_HEADER_SIZE 4096

typedef struct BatonControl
{
	uint64_t	magic;			/* BATON_MAGIC */
	uint32_t	layout_version; /* BATON_LAYOUT_VERSION */
	uint32_t	backend_slots;	/* number of backend slots */
	uint32_t	pool_slots;		/* number of pool slots */
	uint32_t	session_slots;	/* number of session slots (max_sessions) */
	uint32_t	counter_slots;	/* number of statement counters */
	uint32_t	postmaster_pid; /* written by the postmaster */
	uint64_t	backend_offset; /* bytes from the start of the memory */
	uint64_t	pool_offset;
	uint64_t	session_offset;
	uint64_t	counter_offset;
	uint64_t	total_size;		/* bytes */
	uint64_t	secret;			/* random; whoever speaks to the dispatcher as
								 * server process shows it */
	uint64_t	settings_generation;	/* atomic; raised by the transaction
										 * that commits ALTER ROLE/DATABASE
										 * SET, after settings_marks; written
										 * by backends */
	uint32_t	dispatcher_pid; /* 0 if none; written by the dispatcher */
	uint32_t	force_migration;	/* 0/1; written by the launcher */
	uint64_t	dispatcher_epoch;	/* raised by each new dispatcher */
	uint64_t	login_generation;	/* atomic; raised after anything has
									 * changed that a LOGIN_ANSWER depends on,
									 * and before whoever changed it is told;
									 * written by backends and the launcher */
	uint32_t	settings_marks[BATON_SETTINGS_MARKS];	/* atomic; whose
														 * settings have
														 * changed: one is
														 * raised, that of
														 * database and role
														 * (see below); written
														 * by backends */
	uint32_t	room_ticket;	/* atomic; not 0: of the backends whose
								 * `retire` is this number one shall go,
								 * whichever takes it first (exchanges it with
								 * BATON_TICKET_TAKEN and its slot's index).
								 * Set and taken back by the dispatcher */
	uint32_t	next_pid;		/* the process ID that the next session gets;
								 * begins somewhere, dispatcher */
	uint32_t	pid_entries;	/* number of entries in the directory of
								 * process IDs; a power of two, and several
								 * times the number of session slots */
	uint32_t	query_size;		/* bytes of a session's last query, its NUL
								 * counted (track_activity_query_size) */
	uint64_t	identity_offset;	/* of BatonIdentity, one a session slot */
	uint64_t	pid_offset;		/* of the directory: u32, index of a session
								 * slot plus 1.  A process ID's place is what
								 * is left of it divided by pid_entries */
	uint64_t	query_offset;	/* of the queries, query_size bytes each;
								 * backends only */
	uint32_t	identities_used;	/* no session has had a slot from here on:
									 * who looks for all need not go further;
									 * dispatcher */
	uint32_t	keeps_sessions; /* BATON_CAUSE_*; not 0: every session keeps
								 * its backend from its next transaction's end
								 * on, for this cause; dispatcher */
	uint64_t	tickets[BATON_TICKETS]; /* atomic; of clients whose own socket
										 * a starting backend shall take (0:
										 * none), each at its remainder by
										 * BATON_TICKETS; dispatcher */
	uint64_t	names_generation;	/* atomic; raised as login_generation is,
									 * after a name in a setting or startup
									 * option may have come to mean something
									 * else; written by backends */
} BatonControl;

/*
 * The mark of a database's and a role's OIDs as pg_db_role_setting has them
 * (0: all).  Several may share one: they are then taken as changed together.
 * A change of which it is not known whose it is raises that of 0 and 0.
 */
#define BATON_SETTINGS_MARK(database, role) \
	(((((uint32_t) (database)) * 0x9E3779B1U ^ ((uint32_t) (role)) * 0x85EBCA77U) >> 16) % \
	 BATON_SETTINGS_MARKS)

#define BATON_CONTROL_OFF_SECRET 72
#define BATON_CONTROL_OFF_SETTINGS_GENERATION 80
#define BATON_CONTROL_OFF_DISPATCHER_EPOCH 96
#define BATON_CONTROL_OFF_LOGIN_GENERATION 104
#define BATON_CONTROL_OFF_SETTINGS_MARKS 112
#define BATON_CONTROL_OFF_ROOM_TICKET 1136
#define BATON_CONTROL_OFF_NEXT_PID 1140
#define BATON_CONTROL_OFF_IDENTITY_OFFSET 1152
#define BATON_CONTROL_OFF_TICKETS 1184
#define BATON_CONTROL_OFF_NAMES_GENERATION 3232

/*
 * Backend slot: one pooled backend.  The dispatcher allots it before it opens
 * the connection, and frees it when the control socket is closed.
 */
#define BATON_BACKEND_SLOT_SIZE 128

typedef struct BatonBackendSlot
{
	uint32_t	state;			/* atomic, BATON_BACKEND_*; see there */
	uint32_t	pid;			/* written by the backend at attach */
	uint64_t	session;		/* session id it holds, 0 if none; backend */
	uint64_t	cancel;			/* atomic; session id that shall be cancelled,
								 * set by the dispatcher just before SIGUSR2,
								 * taken (exchanged with 0) by the backend's
								 * signal handler */
	uint64_t	attach_token;	/* one-time, written by the dispatcher, must
								 * be shown by the backend that attaches */
	uint64_t	transactions;	/* served to any session; backend */
	uint64_t	switches;		/* sessions put in place; backend */
	uint64_t	settings_generation;	/* as it was when it started; backend */
	int64_t		state_since_us; /* TimestampTz microseconds; backend */
	uint32_t	pool;			/* pool slot index; dispatcher */
	uint32_t	dedicated_cause;	/* BATON_CAUSE_* or 0; backend */
	uint32_t	xact_status;	/* 'I','T','E' at last boundary; backend */
	uint32_t	poked;			/* atomic; 1 from a POKE's sending, by the
								 * dispatcher, to its receipt, by the backend:
								 * one that is slow must not get hundreds */
	uint32_t	retire;			/* atomic; BATON_RETIRE_*, or the room_ticket
								 * that it may take; dispatcher, which then
								 * sends RETIRE to one that may sleep */
	uint32_t	served_last;	/* which of `served` is the session in place,
								 * or the last; backend */
	uint64_t	served[4];		/* atomic; sessions that it has served last:
								 * process ID << 32 | a local transaction ID
								 * that was none's, before all of theirs; 0:
								 * no session; backend */
	uint32_t	reserved[2];
} BatonBackendSlot;

#define BATON_BACKEND_OFF_CANCEL 16
#define BATON_BACKEND_OFF_STATE_SINCE 56
#define BATON_BACKEND_OFF_POOL 64
#define BATON_BACKEND_OFF_RETIRE 80
#define BATON_BACKEND_OFF_SERVED 88
#define BATON_BACKEND_SERVED 4

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
 * Shall a backend give back what it holds and exit, at its next boundary,
 * whoever waits?  It looks there, and not only when it has nothing to do: in a
 * pool that has too few backends none ever is idle.
 */
#define BATON_RETIRE_NOT 0
#define BATON_RETIRE_NOW 1
#define BATON_RETIRE_FIRST_TICKET 2 /* from here on: if it gets the ticket */
#define BATON_TICKET_TAKEN 0x80000000	/* up to here; from here on it is gone */

/*
 * Pool slot: what dispatcher and backends of one pool count together.  Every
 * backend looks at `queued` at every boundary; what every transaction raises
 * is in a cache line of its own.
 */
#define BATON_POOL_SLOT_SIZE 128

typedef struct BatonPoolSlot
{
	int32_t		queued;			/* atomic; messages in the pool's ready queue:
								 * raised by the dispatcher BEFORE it sends,
								 * lowered by the backend (or dispatcher) that
								 * took one */
	uint32_t	in_use;			/* dispatcher */
	uint32_t	keeps_sessions; /* BATON_CAUSE_*; as the header's, for this
								 * pool's sessions; dispatcher */
	uint32_t	reserved0;
	int64_t		memory_left;	/* atomic; bytes by which the contexts of its
								 * role's sessions in its database may still
								 * grow (pg_baton.pool_memory); less than 0:
								 * there is more already; INT64_MAX: no limit.
								 * A backend whose news take more keeps the
								 * session (BATON_CAUSE_POOL_MEMORY);
								 * dispatcher */
	uint32_t	reserved1[10];
	uint64_t	completed;		/* atomic; transactions completed; backends */
	uint64_t	reserved2[7];
} BatonPoolSlot;

#define BATON_POOL_OFF_MEMORY_LEFT 16
#define BATON_POOL_OFF_COMPLETED 64

/*
 * Session slot: what the owner of a session writes.  Index = low 32 bits of
 * the session id.
 */
#define BATON_SESSION_SLOT_SIZE 64

typedef struct BatonSessionSlot
{
	uint64_t	id;				/* session id (generation << 32 | index);
								 * dispatcher; generation is never 0 */
	uint32_t	owner;			/* 0: the dispatcher; n+1: backend slot n. The
								 * taker writes it; a backend writes 0 before
								 * it re-arms the socket */
	uint32_t	flags;			/* atomic, BATON_SESSION_*; owner, and the
								 * dispatcher for BATON_SESSION_CANCEL */
	uint32_t	last_backend;	/* n+1 of the backend slot that served it
								 * last, 0 if none; backend */
	uint32_t	dedicated_cause;	/* BATON_CAUSE_*; backend */
	uint32_t	state;			/* BATON_STATE_*; owner */
	uint32_t	idle_session_timeout_ms;	/* the session's value; backend */
	int64_t		state_since_us; /* TimestampTz microseconds; owner */
	uint64_t	transactions;	/* backend */
	uint64_t	migrations;		/* times it came to another backend than the
								 * last; backend */
	uint32_t	counter_version;	/* raised by a backend each time it writes
									 * statement counters of the session */
	uint32_t	unnamed_portals;	/* portals without a name that it has
									 * opened; backend */
} BatonSessionSlot;

/*
 * Who a session is, for SQL: every process of the server can read it, whoever
 * holds the session.  Index as the session slot's.  The owner writes it, with
 * `changes` odd meanwhile; a reader tries again if that is odd or has changed.
 */
#define BATON_IDENTITY_SIZE 512

/* What pg_stat_ssl shows of a session; texts with NUL at the end, cut as there */
#define BATON_TLS_SIZE 328

typedef struct BatonTls
{
	uint32_t	in_use;			/* 0: no TLS, and nothing of what follows */
	uint32_t	bits;
	uint8_t		version[16];
	uint8_t		cipher[64];
	uint8_t		client_dn[64];
	uint8_t		client_serial[64];
	uint8_t		issuer_dn[64];
	uint8_t		reserved[48];
} BatonTls;

typedef struct BatonIdentity
{
	uint64_t	id;				/* atomic; session id, 0: none.  The
								 * dispatcher writes it last when a session
								 * begins, and first when one ends */
	uint64_t	terminate;		/* atomic; session id that shall be ended by
								 * whoever owns it: looked at after `owner`
								 * has been written.  Any process of the
								 * server */
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
								 * that follows */
	int64_t		idle_since_us;	/* when its state became idle */
	uint64_t	query_id;		/* 0: none */
	uint32_t	is_tracked;		/* 0: track_activities was off */
	uint32_t	reserved0;
	uint8_t		application_name[64];	/* NUL at the end; dispatcher at first */
	uint64_t	cancel;			/* atomic; session id that shall be cancelled
								 * on the backend that holds it: set by any
								 * process of the server just before SIGUSR2,
								 * taken by the signal handler.  A backend
								 * that takes the session forgets it first */
	BatonTls	tls;			/* dispatcher */
	uint64_t	reserved[2];
} BatonIdentity;

#define BATON_IDENTITY_OFF_PID 20
#define BATON_IDENTITY_OFF_PEER_ADDRESS 48
#define BATON_IDENTITY_OFF_APPLICATION_NAME 96

/* No process ever has such a number: PID_MAX_LIMIT of Linux is 2^22. */
#define BATON_FIRST_PID 8388608

#define BATON_SESSION_OFF_STATE 24
#define BATON_SESSION_OFF_TRANSACTIONS 40

/* flags of a session slot */
#define BATON_SESSION_UNNAMED 1 /* the unnamed statement in its context is
								 * alive */
#define BATON_SESSION_CANCEL 2	/* cancel whatever it runs next (cancel came
								 * while it waited); set by the dispatcher,
								 * cleared by who acts on it */
#define BATON_SESSION_BEGUN 4	/* given back as its client has sent too
								 * little for a backend to read; set by the
								 * backend, cleared by the dispatcher */
#define BATON_SESSION_LOOKED_AT 8	/* enough is there by now, or the kernel
									 * may hold no more of it; cleared by the
									 * backend that reads it */
#define BATON_SESSION_SOCKET_SET 16 /* the kernel may have other keepalives or
									 * another timeout of its socket than it
									 * has of any; whoever set them */

/*
 * So many bytes of a message may begin to be read before it is whole.  The
 * kernel does not hold much more for a connection (a receive window of 64 kB,
 * by default), so that a larger one might never be seen whole.
 */
#define BATON_MESSAGE_MAY_BEGIN 32768

/* state of a session, as the views show it */
#define BATON_STATE_FREE 0
#define BATON_STATE_LOGIN 1
#define BATON_STATE_IDLE 2
#define BATON_STATE_WAITING 3
#define BATON_STATE_ACTIVE 4
#define BATON_STATE_IDLE_IN_TRANSACTION 5

/* why a session is dedicated */
#define BATON_CAUSE_NONE 0
#define BATON_CAUSE_ADVISORY_LOCK 1
#define BATON_CAUSE_HELD_CURSOR 2
#define BATON_CAUSE_TEMPORARY_OBJECT 3
#define BATON_CAUSE_LISTEN 4
#define BATON_CAUSE_LOAD 5
#define BATON_CAUSE_SETSEED 6
#define BATON_CAUSE_BACKUP 7
#define BATON_CAUSE_TEMPORARY_SLOT 8
#define BATON_CAUSE_REPLICATION_ORIGIN 9
#define BATON_CAUSE_LISTED_OBJECT 10
#define BATON_CAUSE_CONTEXT_MEMORY 11
#define BATON_CAUSE_DISPATCHER_GONE 12
#define BATON_CAUSE_OTHER 13
#define BATON_CAUSE_SELF_CHECK 14
#define BATON_CAUSE_POOL_MODE 15
#define BATON_CAUSE_FEW_SESSIONS 16
#define BATON_CAUSE_UNLISTED_LIBRARY 17
#define BATON_CAUSE_LISTED_PARAMETER 18
#define BATON_CAUSE_POOL_MEMORY 19
#define BATON_CAUSE_LAST 19

/*
 * Statement counters of one prepared statement of one session; written by
 * the backend that owns the session, allotted and zeroed by the dispatcher.
 * The same four numbers that CachedPlanSource keeps (plancache.h).
 */
#define BATON_COUNTER_SLOT_SIZE 32

typedef struct BatonStatementCounter
{
	double		generic_cost;	/* -1 if not known yet */
	double		total_custom_cost;
	int64_t		num_custom_plans;
	int64_t		num_generic_plans;
} BatonStatementCounter;

/* ---------------------------------------------------------------------
 * ARENA memory: header, then session records, then a heap of entries and
 * item arrays.  Heap offsets are in units of 8 bytes from the arena's start.
 * ---------------------------------------------------------------------
 */
#define BATON_ARENA_HEADER_SIZE 4096

typedef struct BatonArena
{
	uint64_t	magic;
	uint32_t	layout_version;
	uint32_t	session_slots;
	uint64_t	total_size;		/* bytes */
	uint64_t	session_offset; /* bytes; records, BATON_RECORD_SIZE each */
	uint64_t	heap_offset;	/* bytes */
	uint64_t	heap_used;		/* bytes in use by contexts; a backend whose
								 * news would raise it above heap_limit keeps
								 * the session (BATON_CAUSE_CONTEXT_MEMORY) */
	uint64_t	heap_limit;		/* bytes: pg_baton.session_memory; beyond it
								 * the heap has room only for what several
								 * backends send at the same moment */
} BatonArena;

/*
 * Session record: what a backend must know to serve a session.  The
 * dispatcher changes it only while it owns the session.
 */
#define BATON_RECORD_SIZE 192

typedef struct BatonSessionRecord
{
	uint64_t	id;				/* session id */
	uint64_t	context_version;	/* unique over all sessions and times:
									 * equal number, equal context.  0: never
									 * stored */
	uint32_t	items;			/* heap offset of the item array, 0 if none */
	uint32_t	item_count;
	uint32_t	record_flags;	/* BATON_RECORD_* */
	uint32_t	protocol;		/* protocol version that is spoken */
	int32_t		cancel_pid;		/* as sent in BackendKeyData */
	uint32_t	cancel_key_length;	/* 4; 32 with protocol 3.2 */
	int64_t		login_time_us;	/* TimestampTz microseconds: backend_start */
	uint64_t	settings_generation;	/* control's value at login */
	uint16_t	peer_family;	/* AF_INET, AF_INET6, AF_UNIX */
	uint16_t	peer_port;		/* host byte order */
	uint16_t	local_port;		/* host byte order */
	uint16_t	reserved0;
	uint8_t		peer_address[16];	/* network byte order; IPv4: first 4 */
	uint8_t		local_address[16];
	uint32_t	peer_scope;		/* IPv6 scope id */
	uint32_t	is_relayed;		/* 1: TLS; the socket is one end of a pair,
								 * and has no settings of TCP */
	uint32_t	first_statement;	/* the STATEMENT items among `items`,
									 * sorted by key: from here ... */
	uint32_t	statement_count;	/* ... so many */
	uint8_t		cancel_key[32];
	uint64_t	reserved[6];
} BatonSessionRecord;

#define BATON_RECORD_OFF_CANCEL_PID 32
#define BATON_RECORD_OFF_LOGIN_TIME 40
#define BATON_RECORD_OFF_PEER_FAMILY 56
#define BATON_RECORD_OFF_PEER_ADDRESS 64
#define BATON_RECORD_OFF_PEER_SCOPE 96
#define BATON_RECORD_OFF_FIRST_STATEMENT 104
#define BATON_RECORD_OFF_CANCEL_KEY 112

/* record flags */
#define BATON_RECORD_GREET 1	/* not greeted yet: the backend applies the
								 * STARTUP items, then sends ParameterStatus,
								 * BackendKeyData and ReadyForQuery */

/*
 * One thing of a session's context: a reference to an entry.  A session's items
 * are sorted by kind, then by key as bytes (the shorter first of two that
 * agree); but STARTUP items stand in the order in which they are applied.
 */
#define BATON_ITEM_SIZE 16

typedef struct BatonItem
{
	uint32_t	entry;			/* heap offset of a BatonEntry */
	uint32_t	counter;		/* STATEMENT: index of its statement counter */
	int64_t		aux;			/* STATEMENT: prepare_time, TimestampTz us */
} BatonItem;

/*
 * An entry: immutable, shared by all sessions that hold the same content.
 * Followed by key and value, without padding between them.
 */
#define BATON_ENTRY_HEADER_SIZE 16

typedef struct BatonEntry
{
	uint64_t	serial;			/* never used twice: equal serial, equal
								 * content */
	uint16_t	kind;			/* BATON_KIND_* */
	uint16_t	key_length;		/* bytes */
	uint32_t	value_length;	/* bytes */
	/* key bytes, then value bytes */
} BatonEntry;

/*
 * Kinds of entry.  Keys are unique within a session and kind, but for STARTUP,
 * whose items stand in the order in which they are applied.  Only the
 * extension knows what is in a value, except STARTUP (written by the
 * dispatcher) and GREETING (read by it).
 */
#define BATON_KIND_STARTUP 1	/* key: parameter name (as in the startup
								 * packet; "options" is already split by the
								 * dispatcher into name and value); value:
								 * text without NUL.  Present only until the
								 * session is greeted */
#define BATON_KIND_RESET 2		/* key: parameter name; value: u8 GucSource,
								 * u8 GucContext, text: what RESET goes back
								 * to, where it differs from a fresh backend */
#define BATON_KIND_PARAMETER 3	/* key: parameter name; value: the session's
								 * own value (SET) */
#define BATON_KIND_REPORTED 4	/* key empty; value: name NUL value NUL ...:
								 * ParameterStatus as the client last saw it */
#define BATON_KIND_STATEMENT 5	/* key: statement name; value: how to make it */
#define BATON_KIND_UNNAMED 6	/* key empty; value: the unnamed statement */
#define BATON_KIND_SEQUENCE 7	/* key: u32 relation oid */
#define BATON_KIND_OTHER 8		/* key: what, value: state (lastval, ...) */

/* ---------------------------------------------------------------------
 * Messages on the control socket (AF_UNIX, SOCK_SEQPACKET, path
 * "pg_baton.ctl" in the data directory), on the launcher's channel, and on
 * the pools' ready queues.  One frame a packet, at most BATON_FRAME_MAX bytes.
 * Frame = BatonFrame, then `length` bytes.  Strings within a payload are
 * u32 length + bytes; there is no alignment inside payloads.
 * ---------------------------------------------------------------------
 */
#define BATON_SESSION_THREADS_MAX 8

#define BATON_FRAME_MAX 65536
#define BATON_FRAME_HEADER_SIZE 16

typedef struct BatonFrame
{
	uint16_t	type;			/* BATON_MSG_* */
	uint16_t	flags;			/* BATON_FRAME_* */
	uint32_t	length;			/* bytes of payload in this frame */
	uint64_t	session;		/* session id the message is about, or 0 */
} BatonFrame;

#define BATON_FRAME_MORE 1		/* the payload goes on in the next frame of
								 * the same type and session */

/* anyone -> dispatcher, first message on a control connection */
#define BATON_MSG_HELLO_BACKEND 1	/* u32 layout_version, u32 slot, u64
									 * attach_token, u32 pid, u32 role_oid,
									 * u32 database_oid, u8 superuser: as whom
									 * and where it has logged in */
#define BATON_MSG_HELLO_LAUNCHER 2	/* u32 layout_version, u64 secret, u32 pid */
#define BATON_MSG_HELLO_QUERY 3 /* u32 layout_version, u64 secret, u32 what
								 * (BATON_QUERY_*), then see there */
#define BATON_MSG_HELLO_TICKET 4	/* u32 layout_version, u64 ticket, u32
									 * pid: a starting backend asks for the
									 * client of that ticket.  The connection
									 * stays open as long as the backend */

/* dispatcher -> backend */
#define BATON_MSG_WELCOME 10	/* u32 layout_version, u32 client_fd_number,
								 * u64 arena size; descriptors: ready queue
								 * (read end), arena, and the epolls of
								 * sessions (BATON_SESSION_THREADS_MAX at
								 * most): a session's is that of its index,
								 * modulo their number */
#define BATON_MSG_REFUSED 11	/* string: why; the backend exits with it */
#define BATON_MSG_ASSIGN 12		/* session; descriptor: the client's socket.
								 * The same frame is what the ready queue
								 * carries */
#define BATON_MSG_POKE 13		/* look at the ready queue again */
#define BATON_MSG_RETIRE 14		/* look at `retire` in your slot */
#define BATON_MSG_RECALL 15		/* session: give it back if it is idle */
#define BATON_MSG_EVICT 16		/* session: end it if it is idle and
								 * dedicated; there are too many such */

#define BATON_MSG_CLIENT 17		/* descriptor: the client's socket.  u32
								 * BATON_TICKET_*, u16 family, u16 port, u32
								 * scope, u8[16] address, u16 local port,
								 * u8[16] local address, u8 secure (1: by TLS,
								 * whose other end a relay has), u8
								 * has_certificate (1: it was checked), string
								 * common_name, string distinguished_name, u32
								 * length and the server's certificate that
								 * the client was shown (DER; empty: none),
								 * u32 bits, string version, string cipher,
								 * string client_dn, string client_serial,
								 * string issuer_dn: as BatonTls has them */
#define BATON_MSG_NATIVE_ANSWER 18	/* string: why there may be no such
									 * session (53300), "" if it is welcome;
									 * string: detail */

#define BATON_TICKET_NATIVE 0	/* an ordinary connection for life */
#define BATON_TICKET_LOGIN 1	/* authenticate it, say so, and exit */

/* backend -> dispatcher */
#define BATON_MSG_PUT 20		/* session; u16 kind, u16 key_length, key, u32
								 * counter use, i64 aux; if counter use is 1 a
								 * BatonStatementCounter, to be kept in a slot
								 * allotted to the item; value: what remains.
								 * It puts or replaces an item, and takes
								 * effect at the next RELEASE, GREETED or KEEP */
#define BATON_MSG_DELETE 21		/* session; u16 kind, u16 key_length, key */
#define BATON_MSG_RELEASE 22	/* session given back; the DISPATCHER re-arms
								 * its socket.  Follows PUT/DELETE.  (A
								 * backend with nothing to tell re-arms the
								 * socket itself and sends nothing, unless it
								 * has greeted the session: see
								 * baton_session_release) */
#define BATON_MSG_GREETED 23	/* session; u32 BATON_GREETING_*; u32 length,
								 * so many bytes of NoticeResponses, REPORTED
								 * value, as above: what was sent.  The
								 * backend keeps the session */
#define BATON_MSG_END 24		/* session has ended (client gone or FATAL);
								 * payload: u32 BATON_END_*.  The dispatcher
								 * closes its socket and forgets it */
#define BATON_MSG_DEDICATED 25	/* session; u32 cause (BATON_CAUSE_*); 0 means
								 * shared again */
#define BATON_MSG_RETIRING 26	/* string: why, empty if it was asked to;
								 * nothing more may be assigned */

#define BATON_MSG_AUTHENTICATED 27	/* BATON_TICKET_LOGIN: the server has let
									 * the client in */

#define BATON_MSG_NATIVE_IN 28	/* BATON_TICKET_NATIVE: the server has let the
								 * client in.  u32 role_oid, u8 superuser */

/* For how long others of the session's kind may be told the same. */
#define BATON_GREETING_NEVER 0
#define BATON_GREETING_ALWAYS 1 /* while login_generation and settings stay */
#define BATON_GREETING_NAMES 2	/* and names_generation */

#define BATON_END_CLIENT_CLOSED 1
#define BATON_END_CLIENT_TERMINATED 2	/* 'X' */
#define BATON_END_ERROR 3

/* launcher -> dispatcher */
#define BATON_MSG_PARAMETERS 30 /* u32 count, then pairs of strings: the whole
								 * configuration, at start and at each reload */
#define BATON_MSG_LOGIN_ANSWER 31	/* see login.c and questions.rs */
#define BATON_MSG_SHUTDOWN 32	/* u32: the server is stopping */
#define BATON_MSG_POOL_SETTINGS 33	/* u32 role, u32 database, i32
									 * max_backends, i32 min_backends, i32
									 * max_sessions (-1: not set), i32 mode
									 * (BATON_MODE_*), i32 weight, i32
									 * reserve, i32 memory (kB; -1: not set):
									 * pool_settings.c */

/* pg_baton.pool_mode */
#define BATON_MODE_SHARED 0
#define BATON_MODE_DEDICATED 1
#define BATON_MODE_NATIVE 2

/* dispatcher -> launcher */
#define BATON_MSG_LOGIN_QUESTION 40
#define BATON_MSG_POOL_QUESTION 41	/* u32 role, u32 database; answered by
									 * POOL_SETTINGS */

/*
 * LOGIN_QUESTION: u32 request, u8 connection (0 local, 1 host), u8 address
 *	family (as peer_family, low byte), u8[16] address, u16 port, string user,
 *	string database, string os_user ("" if not known; the peer's user name on
 *	a Unix socket), u8 secure (1: by TLS), u8 has_ca (1: its certificate would
 *	have been checked), u8 has_certificate (1: it was), string common_name,
 *	string distinguished_name (RFC 2253)
 * LOGIN_ANSWER: u32 request, u32 method (BATON_AUTH_*), string method_name,
 *	string verifier (rolpassword; "" if there is none), u8 password_expired,
 *	u32 role_oid, u32 database_oid, u8 superuser, i32 role_limit,
 *	i32 database_limit (-1: none), i32 role_backends (the server's own count
 *	of connections of that role that are no pool backends), i32
 *	database_backends, string refusal_sqlstate ("" if welcome), string
 *	refusal_message, string refusal_detail, string refusal_hint,
 *	u8 refuse_before_authentication (1: send the refusal at once, as for
 *	reject and no matching line; 0: only after the client has proved itself;
 *	2: then, in place of AuthenticationOk),
 *	string peer_role_match ("" or "1": for peer, whether os_user may log in),
 *	i64 good_until (TimestampTz: up to then the same question gets the same
 *	answer, request and counts of connections apart, unless login_generation
 *	is raised; 0: never again),
 *	u8 ask_backend (1: whether the role may connect to the database only a
 *	backend there can say, which greets the session itself then), u8 is_native
 *	(1: pg_baton.pool_mode says so)
 */
#define BATON_AUTH_TRUST 1
#define BATON_AUTH_REJECT 2
#define BATON_AUTH_SCRAM 3
#define BATON_AUTH_MD5 4
#define BATON_AUTH_PASSWORD 5
#define BATON_AUTH_PEER 6
#define BATON_AUTH_BY_SERVER 7	/* a backend does it, on the client's socket */

/*
 * HELLO_QUERY answers: frames BATON_MSG_ROW, each u32 columns, then strings
 * (length 0xFFFFFFFF is NULL), then BATON_MSG_DONE.
 */
#define BATON_MSG_ROW 50
#define BATON_MSG_DONE 51
#define BATON_QUERY_SESSIONS 1
#define BATON_QUERY_BACKENDS 2
#define BATON_QUERY_POOLS 3
#define BATON_QUERY_DISPATCHERS 4

/*
 * The pool shall leave a database (database_leave.c).  Follows: u8 forced (1:
 * its sessions are ended, too), string database; the frame's session is the
 * one that asks, 0 if none.  A ROW a user that has sessions there: user,
 * number.  The connection stays open, and the database is held as long; the
 * same frame may be sent again.
 */
#define BATON_QUERY_LEAVE_DATABASE 5

/*
 * The session that the frame names shall be cancelled, or ended, if no backend
 * holds it; a backend that does is signalled.  No rows.
 */
#define BATON_QUERY_CANCEL 6
#define BATON_QUERY_TERMINATE 7

#endif							/* BATON_SHARED_H */
