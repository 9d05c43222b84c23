/*-------------------------------------------------------------------------
 *
 * opening_notices.h
 *		What a backend was warned of while it started.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_OPENING_NOTICES_H
#define BATON_OPENING_NOTICES_H

#include "lib/stringinfo.h"

/* From emit_log_hook (hooks.c). */
extern void baton_opening_notices_log(ErrorData *edata);

/* The backend has attached: it is warned of nothing more. */
extern void baton_opening_notices_end(void);

/*
 * Was the backend warned of its database, which may be another by now?  Outside of a
 * transaction.
 */
extern bool baton_opening_notices_may_be_past(void);

/*
 * While the backend takes another role's settings, what it is warned of takes the place
 * of the warnings about the settings before.  After an error in between it must end.
 */
extern void baton_opening_notices_begin_role(void);
extern void baton_opening_notices_end_role(void);

/* Tells the client in place, and appends the messages as they were sent. */
extern void baton_opening_notices_send(StringInfo sent);

/* The body of an ErrorResponse or NoticeResponse, as send_message_to_frontend. */
extern void baton_error_body(StringInfo message, const ErrorData *edata,
							 const char *severity);

#endif							/* BATON_OPENING_NOTICES_H */
