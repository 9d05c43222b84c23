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

/*
 * An environment.  The role is compared itself: settings that give a wanted number can be
 * found, and must not give the rights of another.
 */
typedef struct StatementEnvironment
{
	uint64		number;			/* equal number, equal settings */
	Oid			role;
} StatementEnvironment;

static inline bool
baton_same_environment(StatementEnvironment one, StatementEnvironment other)
{
	return one.number == other.number && one.role == other.role;
}

/* The environment in force. */
extern StatementEnvironment baton_statement_environment(void);

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
