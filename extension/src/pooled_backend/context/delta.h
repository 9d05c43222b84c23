/*-------------------------------------------------------------------------
 *
 * delta.h
 *		Changes of the session's context on their way to the dispatcher, and what
 *		the client has been told by ParameterStatus.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_DELTA_H
#define BATON_DELTA_H

#include "lib/stringinfo.h"

#include "arena.h"
#include "baton_shared.h"

/* ----------------------------------------------------------------
 *		Changes of the held session's context on their way to the dispatcher.
 * ----------------------------------------------------------------
 */

/* More than there can be room for, but not so much that sums wrap around. */
#define DELTA_TOO_LARGE (SIZE_MAX / 4)

/*
 * Collects a PUT or DELETE for the session at hand.
 * Called during baton_context_capture and baton_context_greet only.
 */
extern void baton_delta_put(uint16 kind, const char *key, Size key_length,
							const char *value, Size value_length,
							const BatonStatementCounter *counters, int64 aux);
extern void baton_delta_delete(uint16 kind, const char *key, Size key_length);

/* Likewise: what would have to be put is too large. */
extern void baton_delta_give_up(void);

/*
 * Bytes collected and not sent; 0 if there is no news, DELTA_TOO_LARGE if
 * something was too large to be collected.
 */
extern Size baton_delta_size(void);

/*
 * By how many bytes the session's context would grow at most, as context_bytes in
 * the views counts them.  Exactly, since baton_delta_settle.
 */
extern int64 baton_delta_growth(void);

/*
 * Does what is collected free as much memory as it takes?  Known once it has been
 * settled.
 */
extern bool baton_delta_shrinks(void);

/*
 * Changes that later ones have made void go.  Those are what a session collects
 * that has to stay, and changes the same things again, or takes them away.
 */
extern void baton_delta_settle(const BatonSessionRecord *record);

/* Sends what was collected as changes of `session`, and forgets it. */
extern void baton_delta_send(int fd, uint64 session);

/* The session they belonged to has ended. */
extern void baton_delta_drop(void);

/* ----------------------------------------------------------------
 *		ParameterStatus: what each client has been told.
 * ----------------------------------------------------------------
 */

extern const char *baton_report_attach(void);

/*
 * The client has been told what the entry says (NULL: nothing); what differs
 * it is told with the next ReadyForQuery.  Parameters must be in place.
 */
extern void baton_report_install(const BatonStored *entry);

/* A ParameterStatus came before its time, and was thrown away. */
extern void baton_report_withhold(void);

/* The session's own message is about to be read. */
extern void baton_report_arm(void);

/* Tells a new client everything, and appends what it was told. */
extern void baton_report_greet(StringInfo reported);

/* Puts the REPORTED item if the client was told something; true if so. */
extern bool baton_report_capture(void);

/* A message of this type goes to the client. */
extern void baton_report_note_message(char type);

#endif							/* BATON_DELTA_H */
