/*-------------------------------------------------------------------------
 *
 * role_settings.h
 *		What ALTER ROLE SET and ALTER DATABASE SET say for a role.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_ROLE_SETTINGS_H
#define BATON_ROLE_SETTINGS_H

#include "nodes/pg_list.h"
#include "utils/guc.h"

/*
 * The settings of a role in this database, in the order of process_settings()
 * (postinit.c): of several of one name the first that is good counts.  In a transaction.
 */
extern void baton_role_settings_each(Oid role, void (*each) (const char *name, const char *text,
															 GucSource source));

/*
 * Before the settings of a role are read.  What is committed later raises a mark later
 * (settings_watch.c).
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

#endif							/* BATON_ROLE_SETTINGS_H */
