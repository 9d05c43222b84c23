/*-------------------------------------------------------------------------
 *
 * dispatcher_link.h
 *		What the server's processes share with the dispatcher: the CONTROL
 *		memory, and frames over the control socket.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_DISPATCHER_LINK_H
#define BATON_DISPATCHER_LINK_H

#include <sys/socket.h>

#include "lib/stringinfo.h"
#include "port/atomics.h"

#include "baton_shared.h"
#include "majors.h"

/* ----------------------------------------------------------------
 *		The CONTROL memory, as the processes of the server see it.
 * ----------------------------------------------------------------
 */

/*
 * Mapped in every process of the server; NULL if the library was not
 * preloaded.
 */
extern BatonControlHeader *BatonControlMemory;

/*
 * Its header as the postmaster made it; private to the process.  Only the
 * members that never change are valid: counts, offsets, the secret.
 */
extern BatonControlHeader BatonControlMade;

/* The memfd behind it, or -1. */
extern int	BatonControlFd;

/* Postmaster only, called by _PG_init. */
extern void baton_control_create(int session_slots);

/*
 * Called when the server restarts after a crash, and before a dispatcher is
 * started.
 */
extern void baton_control_restore(void);

/*
 * The elements.  An index that is out of range ends the process (FATAL); so
 * does the name of a session that is not the one in its slot
 * (baton_session_slot).
 */
extern BatonBackendSlot *baton_backend_slot(uint32 index);
extern BatonPoolSlot *baton_pool_slot(uint32 index);
extern BatonTenantSlot *baton_tenant_slot(uint32 index);
extern BatonTotalsSlot *baton_totals_slot(uint32 index);
extern BatonTallySlot *baton_tally_slot(uint32 index);
extern BatonSessionSlot *baton_session_slot(uint64 session);
extern BatonStatementCounter *baton_counter(uint32 index);

/* The slot, whatever session is in it: for callers that only read it. */
extern BatonSessionSlot *baton_session_slot_at(uint32 index);

/* Is there a session of that name?  It may have ended when this returns. */
extern bool baton_session_is_named(uint64 session);

/* The identity of the session slot of that index. */
extern BatonIdentity *baton_identity(uint32 index);

/* No slot from this index on has held a session. */
extern uint32 baton_identities_used(void);
extern char *baton_query_text(uint32 index);

/* The entry for this process ID in the directory of process IDs. */
extern uint32 *baton_pid_entry(int pid);

/*
 * The words that two processes write concurrently are plain fields in the
 * shared layout; PostgreSQL's atomics have no other representation on the
 * supported machines (asserted in dispatcher_link.c).
 */
#define baton_atomic_u32(field) ((pg_atomic_uint32 *) (void *) &(field))
#define baton_atomic_u64(field) ((pg_atomic_uint64 *) (void *) &(field))

/* ----------------------------------------------------------------
 *		Payloads of the messages in baton_shared.h, field by field: native
 *		byte order, no alignment, strings preceded by their length.
 *
 * Writing cannot fail.  Reading is bounded: once a field does not fit, `bad`
 * is set and this and all later fields are zero or empty, so that a reader
 * checks once, at the end.
 */

/* length of a string that stands for NULL */
#define BATON_WIRE_NULL PG_UINT32_MAX

typedef struct BatonWireReader
{
	const char *at;
	const char *end;
	bool		bad;
} BatonWireReader;

static inline void
baton_wire_read(BatonWireReader *in, void *value, Size length)
{
	if (in->bad || length > (Size) (in->end - in->at))
	{
		in->bad = true;
		memset(value, 0, length);
		return;
	}
	memcpy(value, in->at, length);
	in->at += length;
}

/* The types of fields: baton_TYPE in C, baton_wire_TYPE writes it, baton_wire_read_TYPE reads it. */
#define BATON_WIRE_FIXED(type, c_type) \
	typedef c_type baton_##type; \
	static inline void \
	baton_wire_##type(StringInfo out, c_type value) \
	{ \
		appendBinaryStringInfo(out, (const char *) &value, sizeof(value)); \
	} \
	static inline c_type \
	baton_wire_read_##type(BatonWireReader *in) \
	{ \
		c_type		value; \
\
		baton_wire_read(in, &value, sizeof(value)); \
		return value; \
	} \
	struct BatonWireReader

typedef struct BatonAddress
{
	uint8		bytes[16];
} BatonAddress;

BATON_WIRE_FIXED(u8, uint8);
BATON_WIRE_FIXED(u16, uint16);
BATON_WIRE_FIXED(u32, uint32);
BATON_WIRE_FIXED(u64, uint64);
BATON_WIRE_FIXED(i32, int32);
BATON_WIRE_FIXED(i64, int64);
BATON_WIRE_FIXED(address, BatonAddress);

typedef bool baton_bool;

static inline void
baton_wire_bool(StringInfo out, bool value)
{
	baton_wire_u8(out, value ? 1 : 0);
}

static inline bool
baton_wire_read_bool(BatonWireReader *in)
{
	return baton_wire_read_u8(in) != 0;
}

/* Any bytes.  After reading, `data` points into the message. */
typedef struct BatonBytes
{
	const char *data;
	uint32		length;
} BatonBytes;

typedef BatonBytes baton_bytes;

static inline void
baton_wire_bytes(StringInfo out, BatonBytes value)
{
	baton_wire_u32(out, value.length);
	appendBinaryStringInfo(out, value.data, value.length);
}

static inline BatonBytes
baton_wire_read_bytes(BatonWireReader *in)
{
	BatonBytes	value = {.length = baton_wire_read_u32(in)};

	if (in->bad || value.length > (Size) (in->end - in->at))
	{
		in->bad = true;
		value.length = 0;
	}
	value.data = in->at;
	in->at += value.length;
	return value;
}

typedef const char *baton_string;

/* NULL is written as "". */
static inline void
baton_wire_string(StringInfo out, const char *value)
{
	BatonBytes	bytes = {.data = "",.length = 0};

	if (value != NULL)
	{
		bytes.data = value;
		bytes.length = strlen(value);
	}
	baton_wire_bytes(out, bytes);
}

/*
 * A palloc'd string; empty if it does not fit.  A zero byte within is refused
 * like a length that does not fit: pg_baton never sends one, and the text
 * behind it would be ignored.
 */
static inline char *
baton_wire_read_string(BatonWireReader *in)
{
	BatonBytes	value = baton_wire_read_bytes(in);

	if (!in->bad && memchr(value.data, '\0', value.length) != NULL)
	{
		in->bad = true;
		value.length = 0;
	}
	return pnstrdup(value.data, value.length);
}

/* The same, or NULL if the sender wrote NULL. */
static inline char *
baton_wire_read_nullable(BatonWireReader *in)
{
	BatonWireReader ahead = *in;

	if (baton_wire_read_u32(&ahead) != BATON_WIRE_NULL || ahead.bad)
		return baton_wire_read_string(in);
	*in = ahead;
	return NULL;
}

/*
 * For each list of fields in baton_messages.h: a structure, baton_read_NAME
 * and baton_write_NAME.
 */
#define BATON_FIELD_DECLARE(type, field) baton_##type field;
#define BATON_FIELD_READ(type, field) payload->field = baton_wire_read_##type(in);
#define BATON_FIELD_WRITE(type, field) baton_wire_##type(out, payload->field);
#define BATON_PAYLOAD(name, Name, FIELDS) \
	typedef struct Name \
	{ \
		FIELDS(BATON_FIELD_DECLARE) \
	} Name; \
	static inline void \
	baton_read_##name(BatonWireReader *in, Name *payload) \
	{ \
		FIELDS(BATON_FIELD_READ) \
	} \
	static inline void \
	baton_write_##name(StringInfo out, const Name *payload) \
	{ \
		FIELDS(BATON_FIELD_WRITE) \
	} \
	struct Name

BATON_PAYLOAD(hello_backend, BatonHelloBackend, BATON_HELLO_BACKEND_FIELDS);
BATON_PAYLOAD(welcome, BatonWelcome, BATON_WELCOME_FIELDS);
BATON_PAYLOAD(client, BatonClientMessage, BATON_CLIENT_FIELDS);
BATON_PAYLOAD(native_answer, BatonNativeAnswer, BATON_NATIVE_ANSWER_FIELDS);
BATON_PAYLOAD(authenticated, BatonAuthenticated, BATON_AUTHENTICATED_FIELDS);
BATON_PAYLOAD(native_in, BatonNativeIn, BATON_NATIVE_IN_FIELDS);
BATON_PAYLOAD(login_question, BatonLoginQuestion, BATON_LOGIN_QUESTION_FIELDS);
BATON_PAYLOAD(login_answer, BatonLoginAnswer, BATON_LOGIN_ANSWER_FIELDS);
BATON_PAYLOAD(server_answer, BatonServerAnswer, BATON_SERVER_ANSWER_FIELDS);
BATON_PAYLOAD(log_line, BatonLogLine, BATON_LOG_LINE_FIELDS);

/* ----------------------------------------------------------------
 *		Frames between a backend and the dispatcher.
 * ----------------------------------------------------------------
 */

/*
 * The dispatcher's control socket, in the data directory, which is the working
 * directory. pg_rewind reads all files there, and fails at a socket, except in
 * directories that it skips, such as PG_STAT_TMP_DIR (excludeDirContents in
 * filemap.c and basebackup.c; 15 to 18).
 */
#define BATON_CONTROL_SOCKET "pg_stat_tmp/pg_baton.ctl"

#define BATON_FRAME_DESCRIPTORS (2 + BATON_SESSION_THREADS_MAX)

typedef enum BatonReceived
{
	BATON_RECEIVED_FRAME,
	BATON_RECEIVED_NOTHING,		/* not yet */
	BATON_RECEIVED_CLOSED		/* the other end is gone */
} BatonReceived;

/* A received frame; payload is valid until the next receive. */
typedef struct BatonIncoming
{
	BatonFrameHeader frame;
	const char *payload;
	int			descriptors[BATON_FRAME_DESCRIPTORS];
	int			descriptor_count;
} BatonIncoming;

static inline BatonWireReader
baton_incoming_reader(const BatonIncoming *incoming)
{
	return (BatonWireReader)
	{
		.at = incoming->payload,.end = incoming->payload + incoming->frame.length
	};
}

/*
 * Connects to the dispatcher; returns -1 with errno if that fails, EAGAIN if
 * its backlog is full.
 */
extern int	baton_channel_try(void);

/*
 * Connects to the dispatcher; returns -1 with errno if that fails.  While the
 * dispatcher's backlog is full it waits, ten seconds at most; an interrupt
 * ends the wait.
 */
extern int	baton_channel_connect(void);

/*
 * Sends a message, in as many frames as it needs.  Waits while the socket's
 * buffer is full, and serves interrupts meanwhile, which may end the process.
 * Returns false if the other end is gone, or has accepted nothing for the
 * socket's SO_SNDTIMEO.
 */
extern bool baton_channel_send(int fd, uint16 type, uint64 session,
							   const char *payload, Size length);

/* Receives a frame; never blocks. */
extern BatonReceived baton_channel_receive(int fd, BatonIncoming *incoming);

/*
 * Closes the descriptors that came with a frame, and forgets them: for
 * receivers of a frame that may carry no descriptors, or has too many.
 */
extern void baton_incoming_close(BatonIncoming *incoming);

/*
 * The descriptors of a received message: at most `most`, or none if there were
 * more, or if this process had no number for some.  Those not returned are
 * closed.
 */
extern int	baton_descriptors_take(struct msghdr *message, int *descriptors, int most);

/*
 * Registers a function that waits here call each time the latch is set, for
 * events that are no interrupts of the server.
 */
extern void baton_channel_look_also(void (*look) (void));

/* Waits for a frame, or the end, and serves interrupts meanwhile. */
extern BatonReceived baton_channel_await(int fd, BatonIncoming *incoming);

/* ----------------------------------------------------------------
 *		A question to the dispatcher (HELLO_QUERY), and its answer.
 * ----------------------------------------------------------------
 */

/* Begins the message of a question, BATON_QUERY_*. */
extern void baton_question_init(StringInfo message, uint32 what);

/*
 * Waits for the next frame of the answer, and serves interrupts meanwhile.
 * BATON_RECEIVED_NOTHING: none has come in time.
 */
extern BatonReceived baton_answer_next(int fd, int timeout_ms, BatonIncoming *incoming);

/* BATON_CAUSE_*, as shown in pg_baton_sessions.dedicated_cause. */
extern const char *const baton_cause_names[BATON_CAUSE_COUNT];

/* Raises an error if the library is not preloaded. */
extern void baton_require_control(void);

/*
 * For SQL functions, which raise an error if the dispatcher does not answer:
 * opens the connection for a question, closes it, and waits for the next frame
 * of the answer.
 */
extern int	baton_question_open(void);
extern void baton_question_close(int fd);
extern void baton_answer_require(int fd, BatonIncoming *incoming);

pg_noreturn extern void baton_dispatcher_not_available(const char *why);

#endif							/* BATON_DISPATCHER_LINK_H */
