/*-------------------------------------------------------------------------
 *
 * taint_watch.h
 *		What the hooks of taint_watch.c note for baton_taint().
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_TAINT_WATCH_H
#define BATON_TAINT_WATCH_H

#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "fmgr.h"

#include "hooks.h"

/*
 * Set by the hooks, at any time; cleared by taint.c (what it has looked up)
 * and taint_clean.c (all of it).
 */
typedef struct BatonTaintNotes
{
	bool		active;			/* this process is a pooled backend; the hooks
								 * do nothing otherwise */

	/* facts that stay true until the backend is cleaned, or for ever */
	bool		loaded;			/* LOAD has brought a library in */
	bool		listed_object;	/* a listed function has been called */
	bool		seeded;			/* setseed() or SET seed */

	/* events after which something must be looked up */
	bool		load_tried;		/* LOAD; one that failed may have brought the
								 * library in before (its _PG_init failed) */
	bool		listening_changed;	/* LISTEN, UNLISTEN or DISCARD ALL */
	bool		slots_changed;	/* a replication slot created or dropped */
	bool		objects_made;	/* a committed transaction has made objects
								 * and not dropped all of them again */
	bool		objects_dropped;	/* one has dropped others */
	bool		temporary_used; /* a committed transaction touched the
								 * temporary namespace */
} BatonTaintNotes;

extern BatonTaintNotes baton_taint_notes;

/* From _PG_init, in the postmaster. */
extern void baton_taint_watch_init(void);

/*
 * From hooks.c: a utility statement begins, and has succeeded; an object is
 * made, dropped or executed; a function is looked up, and called; a transaction
 * is on its way to an end.
 */
extern void baton_taint_utility_begins(BatonUtility *utility);
extern void baton_taint_utility_done(const BatonUtility *utility);
extern void baton_taint_object_access(ObjectAccessType access, Oid class, Oid object, int sub);
extern void baton_taint_function(Oid function);
extern void baton_taint_call(FmgrHookEventType event, const FmgrInfo *function);
extern void baton_taint_transaction(XactEvent event);
extern void baton_taint_subtransaction(SubXactEvent event);

/* Has any LOAD that was tried brought a library in?  Clears load_tried. */
extern void baton_taint_look_at_loads(void);

/*
 * taint_listed.c: is this function, the extension it belongs to, or its
 * language on the list pg_baton.dedicated_objects?  In a transaction.  Tells
 * taint_library.c whose code it is.
 */
extern bool baton_function_is_listed(Oid function);

/*
 * Is it one of sslinfo's?  They ask the process for its connection's TLS
 * (MyProcPort->ssl), and a pooled backend has none.
 */
extern bool baton_function_reads_tls(Oid function);

#endif							/* BATON_TAINT_WATCH_H */
