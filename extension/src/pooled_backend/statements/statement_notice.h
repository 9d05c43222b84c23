/*-------------------------------------------------------------------------
 *
 * statement_notice.h
 *		Noticing what a session does to its prepared statements.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_STATEMENT_NOTICE_H
#define BATON_STATEMENT_NOTICE_H

#include "utility_statement.h"

/* A utility statement begins, and has succeeded (hooks.c). */
extern void baton_notice_utility_begins(BatonUtility *utility);
extern void baton_notice_utility_done(const BatonUtility *utility);

/* pg_prepared_statement() is about to run (taint_watch.c). */
extern void baton_notice_listing(void);

/*
 * A parameter or the role is set otherwise (taint_watch.c): by set_config(),
 * which will only do so now, or as a function begins or has ended.
 */
extern void baton_notice_set_config(void);
extern void baton_notice_settings(void);

/* NULL if all is well, else why nothing can be noticed; then, not before. */
extern const char *baton_notice_check(void);
extern void baton_notice_attach(void);

/* Every message to the client, as baton_context_note_message() has it. */
extern void baton_notice_message(char type);

/* Another session comes, or all is captured. */
extern void baton_notice_reset(void);

#endif							/* BATON_STATEMENT_NOTICE_H */
