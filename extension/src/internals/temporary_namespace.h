/*-------------------------------------------------------------------------
 *
 * temporary_namespace.h
 *		Showing a backend's temporary namespace, and hiding it.
 *
 * See temporary_namespace.c.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_TEMPORARY_NAMESPACE_H
#define BATON_TEMPORARY_NAMESPACE_H

/*
 * Outside a transaction.  The first hides the one that is shown, the second
 * shows one that was hidden.  Both keep it from being taken for an orphan's.
 */
extern void baton_namespace_hide(Oid namespace);
extern void baton_namespace_show(Oid namespace, Oid toast_namespace);

/* A transaction commits: the exit callback is not to be registered again. */
extern void baton_namespace_commits(void);

/*
 * Once, in a backend that has none yet: is one shown and hidden as it should be?
 * NULL, or what is not.
 */
extern const char *baton_namespace_attach(void);

#endif							/* BATON_TEMPORARY_NAMESPACE_H */
