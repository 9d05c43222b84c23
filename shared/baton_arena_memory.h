/*-------------------------------------------------------------------------
 *
 * baton_arena_memory.h
 *		ARENA, the memory that the dispatcher alone writes: what sessions
 *		are, and their contexts at rest.
 *
 * Part of baton_shared.h, which says what holds of all of it.
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
 * What the contexts of each role take of the heap: so many u64, from that offset
 * on, between the structure and the records.  An entry that several sessions hold
 * counts for the role that had it first.  Roles whose OIDs have the same hash share
 * one.
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
	uint64_t	heap_limit;		/* bytes: pg_baton.session_memory; beyond it
								 * the heap has room only for what several
								 * backends send at the same moment */
} BatonArenaHeader;

/*
 * Session record: what a backend must know to serve a session.  The
 * dispatcher changes it only while it owns the session.
 */
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
	uint64_t	start_settings; /* a hash of the settings of its role and
								 * database that only a starting backend
								 * takes, as of its greeting */
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
	uint32_t	authenticated;	/* heap offset of an AUTHENTICATED entry, 0 if
								 * the client did not have to prove anything */
	uint32_t	account;		/* of its role, below BATON_ARENA_ACCOUNTS */
	uint32_t	settings_marks[BATON_SETTINGS_MARKS_OF];	/* as they were at its
															 * login: control's, of
															 * all, of its database,
															 * of its role, of both */
	uint32_t	starts;			/* which configuration starting backends read
								 * at its login: see the backend slot */
	uint32_t	tenant;			/* index of its tenant slot */
	uint64_t	reserved[2];
} BatonSessionRecord;

/* record flags */
#define BATON_RECORD_GREET 1	/* not greeted yet: the backend applies the
								 * STARTUP items, then sends ParameterStatus,
								 * BackendKeyData and ReadyForQuery */

/*
 * One thing of a session's context: a reference to an entry.  A session's items
 * are sorted by kind, then by key as bytes (the shorter first of two that
 * agree); but STARTUP items stand in the order in which they are applied.
 */
typedef struct BatonItem
{
	uint32_t	entry;			/* heap offset of a BatonEntry */
	uint32_t	counter;		/* STATEMENT: index of its statement counter */
	int64_t		aux;			/* STATEMENT: prepare_time, TimestampTz us */
} BatonItem;

/* A u32 so many bytes before an entry: references to it. */
#define BATON_ENTRY_REFERENCES_BEFORE 8

/*
 * An entry: immutable, shared by all sessions that hold the same content.
 * Followed by key and value, without padding between them.
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
#define BATON_KIND_AUTHENTICATED 9	/* key: the method, as pg_hba.conf names
									 * it; value: as whom.  No item of a
									 * context: the record has it, written by
									 * the dispatcher */

#endif							/* BATON_ARENA_MEMORY_H */
