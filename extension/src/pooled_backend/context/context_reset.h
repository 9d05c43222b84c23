/*-------------------------------------------------------------------------
 *
 * context_reset.h
 *		What RESET goes back to in a session: startup options and the settings
 *		of its role and database as they were when it logged in.
 *
 * See context_reset.c.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CONTEXT_RESET_H
#define BATON_CONTEXT_RESET_H

#include "baton_shared.h"
#include "context_params.h"

extern const char *baton_reset_attach(void);

/* The session's reset values are put in place; none: the backend's own. */
extern void baton_reset_install(const BatonEntryList *wanted);

/* The backend's own reset values are put in place. */
extern void baton_reset_neutralise(void);

/*
 * Startup options come before the settings of role and database (InitPostgres
 * in postinit.c), so those give way until they are applied.
 */
extern void baton_reset_prepare_greeting(void);

/*
 * Applies startup options as process_startup_options (postinit.c) does, in a
 * transaction of the caller's, and puts the RESET items into the delta.  The
 * backend's own reset values must be in place.  Returns BATON_GREETING_*: how
 * long others of this kind may be told the same.
 */
extern uint32 baton_reset_greet(const BatonEntryList *startup);

/* Reads the configuration files again, as the backend itself must see them. */
extern void baton_reset_reload(void);

/* The same if the server has done it by itself meanwhile. */
extern void baton_reset_follow_reload(void);

#endif							/* BATON_CONTEXT_RESET_H */
