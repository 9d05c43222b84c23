/*-------------------------------------------------------------------------
 *
 * context_params.h
 *		A session's own values of parameters (SET).
 *
 * See context_params.c.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CONTEXT_PARAMS_H
#define BATON_CONTEXT_PARAMS_H

#include "arena.h"

/* A list of entries of one kind, in the order of the session's items. */
typedef struct BatonEntryList
{
	BatonStored *entries;
	int			count;
	int			size;
} BatonEntryList;

extern const char *baton_params_attach(void);

/*
 * Exactly these values are put in place, in two steps: first what is not of
 * them goes, then what is not there comes.  The reset values are exchanged in
 * between, where no other session's values are seen by any check hook.
 */
extern void baton_params_make_room(const BatonEntryList *wanted);
extern void baton_params_install(const BatonEntryList *wanted);

/* Appends what is different from what was put in place; true if any was. */
extern bool baton_params_capture(void);

/* The session's own values are taken away, captured or not. */
extern void baton_params_forget(void);

#endif							/* BATON_CONTEXT_PARAMS_H */
