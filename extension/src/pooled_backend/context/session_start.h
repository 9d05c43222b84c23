/*-------------------------------------------------------------------------
 *
 * session_start.h
 *		The start of a session: settings of its role and database, startup
 *		options, warnings.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SESSION_START_H
#define BATON_SESSION_START_H

#include "lib/stringinfo.h"
#include "nodes/pg_list.h"
#include "utils/guc.h"

/* ----------------------------------------------------------------
 *		What a backend was warned of while it started.
 * ----------------------------------------------------------------
 */

/* From emit_log_hook (pg_baton.c). */
extern void baton_opening_notices_log(ErrorData *edata);

/* The backend has attached: it is warned of nothing more. */
extern void baton_opening_notices_end(void);

/*
 * Was the backend warned of its database, which may be another by now?  Outside of a
 * transaction.
 */
extern bool baton_opening_notices_may_be_past(void);

/* Tells the client in place, and appends the messages as they were sent. */
extern void baton_opening_notices_send(StringInfo sent);

/* The body of an ErrorResponse or NoticeResponse, as send_message_to_frontend. */
extern void baton_error_body(StringInfo message, const ErrorData *edata,
							 const char *severity);

/* ----------------------------------------------------------------
 *		What ALTER ROLE SET and ALTER DATABASE SET say for a role.
 * ----------------------------------------------------------------
 */

/*
 * Before the settings of a role are read.  What is committed later raises a mark later
 * (catalog_watch.c).
 */
extern void baton_role_settings_note(void);

/*
 * Once, when the backend attaches.  Why it cannot serve other roles' sessions, if what it
 * has from its start is its role's; else NULL.
 */
extern const char *baton_role_settings_attach(void);

/*
 * Has the backend read settings no earlier than when the marks of this role and its
 * database were these (BatonSessionRecord)?
 */
extern bool baton_role_settings_are_of(Oid role, const uint32 *marks);

/* The same as a list, in the current memory context. */
extern List *baton_role_settings_read(Oid role);

/*
 * Are these other settings than the backend was started with, of what only a start takes
 * (libraries that are preloaded, temp_buffers)?
 */
extern bool baton_role_settings_need_start(const List *settings);

/*
 * The backend's own settings become these, which are the authenticated user's.  In a
 * transaction; no session's values may be in place.
 */
extern void baton_role_settings_apply(const List *settings);

#endif							/* BATON_SESSION_START_H */
