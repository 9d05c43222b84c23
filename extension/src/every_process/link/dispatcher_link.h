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

static inline void
baton_wire_u8(StringInfo out, uint8 value)
{
	appendStringInfoCharMacro(out, (char) value);
}

static inline void
baton_wire_u32(StringInfo out, uint32 value)
{
	appendBinaryStringInfo(out, (const char *) &value, sizeof(value));
}

static inline void
baton_wire_i32(StringInfo out, int32 value)
{
	appendBinaryStringInfo(out, (const char *) &value, sizeof(value));
}

static inline void
baton_wire_i64(StringInfo out, int64 value)
{
	appendBinaryStringInfo(out, (const char *) &value, sizeof(value));
}

static inline void
baton_wire_u64(StringInfo out, uint64 value)
{
	appendBinaryStringInfo(out, (const char *) &value, sizeof(value));
}

static inline void
baton_wire_string(StringInfo out, const char *value)
{
	uint32		length = value != NULL ? (uint32) strlen(value) : 0;

	baton_wire_u32(out, length);
	appendBinaryStringInfo(out, value != NULL ? value : "", length);
}

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

static inline uint8
baton_wire_read_u8(BatonWireReader *in)
{
	uint8		value;

	baton_wire_read(in, &value, sizeof(value));
	return value;
}

static inline uint16
baton_wire_read_u16(BatonWireReader *in)
{
	uint16		value;

	baton_wire_read(in, &value, sizeof(value));
	return value;
}

static inline uint32
baton_wire_read_u32(BatonWireReader *in)
{
	uint32		value;

	baton_wire_read(in, &value, sizeof(value));
	return value;
}

/*
 * A palloc'd string.  NULL if the sender said NULL; empty if it does not fit.
 * A zero byte within is refused like a length that does not fit: nothing of
 * ours can mean it, and what follows it would go unseen.
 */
static inline char *
baton_wire_read_string(BatonWireReader *in)
{
	uint32		length = baton_wire_read_u32(in);
	char	   *value;

	if (!in->bad && length == BATON_WIRE_NULL)
		return NULL;
	if (in->bad || length > (Size) (in->end - in->at) ||
		memchr(in->at, '\0', length) != NULL)
	{
		in->bad = true;
		return pstrdup("");
	}
	value = pnstrdup(in->at, length);
	in->at += length;
	return value;
}

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
