/*-------------------------------------------------------------------------
 *
 * statement_environment.h
 *		What analysis and planning of a statement take in beside its text.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_ENVIRONMENT_H
#define BATON_STATEMENT_ENVIRONMENT_H

#include "baton_shared.h"

/* The environment in force, as a number; equal number, equal environment. */
extern uint64 baton_statement_environment(void);

/*
 * Once: who must know before the environment changes, of plans that are still
 * what it was until then.  Cannot fail.
 */
extern void baton_environment_watch(void (*before) (void));

/*
 * A session is put in place, with that version of its context; the same as was
 * in place before?
 */
extern void baton_environment_install(uint64 context_version, bool same);

/* The environment is about to change, or may be. */
extern void baton_environment_changes(void);

/* Something is looked up, analysed or planned: by whom? */
extern void baton_environment_look_at_role(void);

/* It may change at any moment, until the client's command is complete. */
extern void baton_environment_is_volatile(void);
extern void baton_environment_is_stable(void);

/* From hooks.c: a transaction or subtransaction is on its way to an end. */
extern void baton_environment_transaction(void);

#endif							/* BATON_STATEMENT_ENVIRONMENT_H */
