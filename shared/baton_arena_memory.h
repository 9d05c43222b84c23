/*-------------------------------------------------------------------------
 *
 * baton_arena_memory.h
 *		ARENA, the memory that only the dispatcher writes: session records, and
 *		the contexts of sessions at rest.
 *
 * Part of baton_shared.h, which has the rules for all of it.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_ARENA_MEMORY_H
#define BATON_ARENA_MEMORY_H

#include <stdint.h>

/* ---------------------------------------------------------------------
 * ARENA memory: header, then session records, then a heap of entries and
 * item arrays.  Heap offsets are in units of 8 bytes from the arena's start.
 * ---------------------------------------------------------------------
 */

/*
 * The heap usage of each role's contexts: an array of u64 at that offset,
 * between the structure and the records. An entry that several sessions hold
 * counts for the role that had it first. Roles whose OIDs have the same hash
 * share an account.
 */
#define BATON_ARENA_ACCOUNTS 4096
#define BATON_ARENA_ACCOUNTS_OFFSET 4096
#define BATON_ARENA_HEADER_SIZE (BATON_ARENA_ACCOUNTS_OFFSET + 8 * BATON_ARENA_ACCOUNTS)

typedef struct BatonArenaHeader
{
	uint64_t	magic;
	uint32_t	layout_version;
	uint32_t	session_slots;
	uint64_t	total_size;		/* bytes */
	uint64_t	session_offset; /* bytes; of the session records */
	uint64_t	heap_offset;	/* bytes */
	uint64_t	heap_used;		/* bytes in use by contexts; a backend whose
								 * news would raise it above heap_limit keeps
								 * the session (BATON_CAUSE_CONTEXT_MEMORY) */
	uint64_t	heap_limit;		/* bytes: pg_baton.session_memory; the heap
								 * beyond it is only for what several backends
								 * send at the same moment */
} BatonArenaHeader;

/*
 * Session record: what a backend must know to serve a session. The dispatcher
 * changes it only while it owns the session.
 */
typedef struct BatonSessionRecord
{
	uint64_t	id;				/* session id */
	uint64_t	context_version;	/* unique over all sessions and times:
									 * equal number, equal context. 0: never
									 * stored */
	uint32_t	items;			/* heap offset of the item array, 0 if none */
	uint32_t	item_count;
	uint32_t	record_flags;	/* BATON_RECORD_* */
	uint32_t	protocol;		/* protocol version in use */
	int32_t		cancel_pid;		/* as sent in BackendKeyData */
	uint32_t	cancel_key_length;	/* 4; 32 with protocol 3.2 */
	int64_t		login_time_us;	/* TimestampTz microseconds: backend_start */
	uint64_t	start_settings; /* a hash of the settings of its role and
								 * database that only a starting backend
								 * applies, as of its greeting */
	uint16_t	peer_family;	/* AF_INET, AF_INET6, AF_UNIX */
	uint16_t	peer_port;		/* host byte order */
	uint16_t	local_port;		/* host byte order */
	uint16_t	reserved0;
	uint8_t		peer_address[16];	/* network byte order; IPv4: first 4 bytes */
	uint8_t		local_address[16];
	uint32_t	peer_scope;		/* IPv6 scope id */
	uint32_t	is_relayed;		/* 1: TLS; the socket is one end of a pair and
								 * has no TCP settings */
	uint32_t	first_statement;	/* the STATEMENT items among `items`,
									 * sorted by key: index of the first */
	uint32_t	statement_count;	/* their number */
	uint8_t		cancel_key[32];
	uint32_t	authenticated;	/* heap offset of an AUTHENTICATED entry, 0 if
								 * the client did not have to prove anything */
	uint32_t	account;		/* its role's account, below
								 * BATON_ARENA_ACCOUNTS */
	uint32_t	settings_marks[BATON_SETTINGS_MARKS_OF];	/* as of its login:
															 * control's, for all,
															 * its database, its
															 * role, both */
	uint32_t	starts;			/* the configuration that starting backends
								 * read at its login: see the backend slot */
	uint32_t	tenant;			/* index of its tenant slot */
	uint32_t	tenant_entry;	/* heap offset of a TENANT entry */
	uint32_t	reserved1;
	uint64_t	reserved2;
} BatonSessionRecord;

/* record flags */
#define BATON_RECORD_GREET 1	/* not greeted yet: the backend applies the
								 * STARTUP items, then sends ParameterStatus,
								 * BackendKeyData and ReadyForQuery */

/*
 * One item of a session's context: a reference to an entry. A session's items
 * are sorted by kind, then by key as bytes (the shorter first of two that
 * agree); STARTUP items keep the order in which they are applied.
 */
typedef struct BatonItem
{
	uint32_t	entry;			/* heap offset of a BatonEntry */
	uint32_t	counter;		/* STATEMENT: index of its statement counter */
	int64_t		aux;			/* STATEMENT: prepare_time, TimestampTz us */
} BatonItem;

/* The u32 reference count of an entry precedes it by this many bytes. */
#define BATON_ENTRY_REFERENCES_BEFORE 8

/*
 * An entry: immutable, shared by all sessions that hold the same content. Key
 * and value follow without padding.
 */
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
 * Kinds of entry. Keys are unique within a session and kind, except for
 * STARTUP, whose items keep the order in which they are applied. Only the
 * extension interprets values, except STARTUP (written by the dispatcher) and
 * REPORTED (read by it).
 */
#define BATON_KIND_STARTUP 1	/* key: parameter name (as in the startup
								 * packet; the dispatcher has already split
								 * "options" into name and value); value: text
								 * without NUL. Present only until the session
								 * is greeted */
#define BATON_KIND_RESET 2		/* key: parameter name; value: u8 GucSource,
								 * u8 GucContext, text: the value that RESET
								 * returns to, if it differs from a fresh
								 * backend's */
#define BATON_KIND_PARAMETER 3	/* key: parameter name; value: the session's
								 * own value (SET) */
#define BATON_KIND_REPORTED 4	/* key empty; value: name NUL value NUL ...:
								 * ParameterStatus as the client last saw it */
#define BATON_KIND_STATEMENT 5	/* key: statement name; value: how to make the
								 * statement */
#define BATON_KIND_UNNAMED 6	/* key empty; value: the unnamed statement */
#define BATON_KIND_SEQUENCE 7	/* key: u32 relation oid */
#define BATON_KIND_OTHER 8		/* key: what, value: state (lastval, ...) */
#define BATON_KIND_AUTHENTICATED 9	/* key: the method, as pg_hba.conf names
									 * it; value: the proven identity. Not an
									 * item of a context: the record refers to
									 * it; the dispatcher writes it */
#define BATON_KIND_TENANT 10	/* key empty; value: u32 role OID, u32
								 * database OID, u8 superuser, u8 whether its
								 * backends serve no other role, then strings
								 * (u32 length, bytes): user, database, and
								 * name and value of each option of its pool.
								 * Likewise: a later dispatcher reads it */

#endif							/* BATON_ARENA_MEMORY_H */
