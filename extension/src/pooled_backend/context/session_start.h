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
 *		The warnings that a backend got while it started.
 * ----------------------------------------------------------------
 */

/* The backend is authenticated: CheckMyDatabase (postinit.c) runs after that. */
extern void baton_opening_notices_begin(void);

/* Called from emit_log_hook (pg_baton.c). */
extern void baton_opening_notices_log(ErrorData *edata);

/* The backend has attached: later warnings are not kept. */
extern void baton_opening_notices_end(void);

/*
 * Was the backend warned about its database, and may the warning be out of
 * date? Must be called outside of a transaction.
 */
extern bool baton_opening_notices_may_be_past(void);

/*
 * Sends the warnings to the client in place, and appends the messages as they
 * were sent.
 */
extern void baton_opening_notices_send(StringInfo sent);

/*
 * Builds the body of an ErrorResponse or NoticeResponse, as
 * send_message_to_frontend does.
 */
extern void baton_error_body(StringInfo message, const ErrorData *edata,
							 const char *severity);

/* ----------------------------------------------------------------
 *		The settings of ALTER ROLE SET and ALTER DATABASE SET for a role.
 * ----------------------------------------------------------------
 */

/*
 * Called before the settings of a role are read. Changes committed later raise
 * a mark later (catalog_watch.c).
 */
extern void baton_role_settings_note(void);

/*
 * Called once, when the backend attaches. If its start gave the backend
 * settings of its role only, returns the reason why it cannot serve other
 * roles' sessions; else NULL.
 */
extern const char *baton_role_settings_attach(void);

/*
 * Has the backend read its settings since the marks of this role and its
 * database had these values (BatonSessionRecord)?
 */
extern bool baton_role_settings_are_of(Oid role, const uint32 *marks);

/* Returns them as a list, in the current memory context. */
extern List *baton_role_settings_read(Oid role);

/*
 * Do these settings differ from those of the backend's start in a parameter
 * that only a start reads (preloaded libraries, temp_buffers)?
 */
extern bool baton_role_settings_need_start(const List *settings);

/*
 * Replaces the backend's own settings by these, which are the authenticated
 * user's. Must be called in a transaction; no session's values may be in
 * place.
 */
extern void baton_role_settings_apply(const List *settings);

#endif							/* BATON_SESSION_START_H */
