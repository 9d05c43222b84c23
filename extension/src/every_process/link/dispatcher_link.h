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

/* ----------------------------------------------------------------
 *		The CONTROL memory, as the processes of the server see it.
 * ----------------------------------------------------------------
 */

/* Mapped in every process of the server; NULL if the library was not preloaded. */
extern BatonControlHeader *BatonControlMemory;

/*
 * Its header as the postmaster made it, of which only what never changes means
 * anything: counts, offsets, the secret.  Private to the process.
 */
extern BatonControlHeader BatonControlMade;

/* The memfd behind it; -1 if there is none. */
extern int	BatonControlFd;

/* Postmaster only, from _PG_init. */
extern void baton_control_create(int session_slots);

/* The server starts again after a crash; or a dispatcher is to be started. */
extern void baton_control_restore(void);

/*
 * The parts.  An index that is out of range ends the process (FATAL); so does the
 * name of a session whose slot another has, or none (baton_session_slot).
 */
extern BatonBackendSlot *baton_backend_slot(uint32 index);
extern BatonPoolSlot *baton_pool_slot(uint32 index);
extern BatonTenantSlot *baton_tenant_slot(uint32 index);
extern BatonSessionSlot *baton_session_slot(uint64 session);
extern BatonStatementCounter *baton_counter(uint32 index);

/* Whoever has it: for those who only look at it. */
extern BatonSessionSlot *baton_session_slot_at(uint32 index);

/* Is there a session of that name?  It may have ended when this returns. */
extern bool baton_session_is_named(uint64 session);

/* Of the session slot of that index. */
extern BatonIdentity *baton_identity(uint32 index);

/* No session has had one from here on. */
extern uint32 baton_identities_used(void);
extern char *baton_query_text(uint32 index);

/* Where the directory of process IDs has the holder of this one. */
extern uint32 *baton_pid_entry(int pid);

/*
 * The words that two processes write at once are plain fields in the shared
 * layout; PostgreSQL's atomics have no other representation on the machines
 * we support (asserted in dispatcher_link.c).
 */
#define baton_atomic_u32(field) ((pg_atomic_uint32 *) (void *) &(field))
#define baton_atomic_u64(field) ((pg_atomic_uint64 *) (void *) &(field))

/* ----------------------------------------------------------------
 *		Payloads of the messages in baton_shared.h, field by field: native
 *		byte order, no alignment, strings with their length before them.
 *
 * Writing cannot fail.  Reading is of a bounded piece of memory: once a field
 * does not fit, `bad` is set and this and all later fields are zero or empty,
 * so that a reader checks once, at the end.
 * ----------------------------------------------------------------
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

/* Any bytes.  As read they stay where they are. */
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

/* NULL is written as "" is. */
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
 * A palloc'd string; empty if it does not fit.  A zero byte within is refused like a
 * length that does not fit: nothing of ours can mean it, and what follows it would go
 * unseen.
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

/* The same, or NULL if the sender said NULL. */
static inline char *
baton_wire_read_nullable(BatonWireReader *in)
{
	BatonWireReader ahead = *in;

	if (baton_wire_read_u32(&ahead) != BATON_WIRE_NULL || ahead.bad)
		return baton_wire_read_string(in);
	*in = ahead;
	return NULL;
}

/* Of each list of fields in baton_messages.h: a structure, baton_read_NAME and baton_write_NAME. */
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

/* ----------------------------------------------------------------
 *		Frames between a backend and the dispatcher.
 * ----------------------------------------------------------------
 */

/*
 * The dispatcher's control socket, in the data directory (our cwd).  pg_rewind reads all that is there, and fails at a
 * socket, but for what a server leaves behind for nobody: such as PG_STAT_TMP_DIR
 * (excludeDirContents in filemap.c and basebackup.c; 15 to 18).
 */
#define BATON_CONTROL_SOCKET "pg_stat_tmp/pg_baton.ctl"

#define BATON_FRAME_DESCRIPTORS (2 + BATON_SESSION_THREADS_MAX)

typedef enum BatonReceived
{
	BATON_RECEIVED_FRAME,
	BATON_RECEIVED_NOTHING,		/* not yet */
	BATON_RECEIVED_CLOSED		/* the other end is gone */
} BatonReceived;

/* One frame as received; payload is valid until the next receive. */
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
 * Connects to the dispatcher; -1 and errno if that fails.  While more wait to
 * be accepted than may, it waits, ten seconds at most; an interrupt ends that.
 */
extern int	baton_channel_connect(void);

/*
 * Sends a message, in as many frames as it needs.  Waits while the socket's
 * buffer is full, and serves interrupts meanwhile, which may end the process.
 * False if the other end is gone, or has taken nothing for as long as the
 * socket's SO_SNDTIMEO says.
 */
extern bool baton_channel_send(int fd, uint16 type, uint64 session,
							   const char *payload, Size length);

/* Receives one frame; never blocks. */
extern BatonReceived baton_channel_receive(int fd, BatonIncoming *incoming);

/*
 * Closes what came with a frame, and forgets it: whoever has received a frame that
 * is to carry no descriptors, or too many, does so.
 */
extern void baton_incoming_close(BatonIncoming *incoming);

/*
 * The descriptors of a message that was received: `most` at most, or none if there
 * were more, or some that this process had no number for.  What is not returned
 * is closed.
 */
extern int	baton_descriptors_take(struct msghdr *message, int *descriptors, int most);

/*
 * Whoever waits here looks for what is no interrupt of the server's, too, each time
 * his latch is set.
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
 * The next frame of the answer; waits for it, open to interrupts.
 * BATON_RECEIVED_NOTHING: none has come in time.
 */
extern BatonReceived baton_answer_next(int fd, int timeout_ms, BatonIncoming *incoming);

#endif							/* BATON_DISPATCHER_LINK_H */
