/*-------------------------------------------------------------------------
 *
 * wire.h
 *		Payloads of the messages in baton_shared.h, field by field: native
 *		byte order, no alignment, strings with their length before them.
 *
 * Writing cannot fail.  Reading is of a bounded piece of memory: once a field
 * does not fit, `bad` is set and this and all later fields are zero or empty,
 * so that a reader checks once, at the end.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_WIRE_H
#define BATON_WIRE_H

#include "lib/stringinfo.h"

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

#endif							/* BATON_WIRE_H */
