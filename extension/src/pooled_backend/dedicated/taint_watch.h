/*-------------------------------------------------------------------------
 *
 * taint_watch.h
 *		The hooks that notice what may tie a session to its backend.
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

#include "catalog_watch.h"
#include "session_tls.h"

/* ----------------------------------------------------------------
 *		The objects that the present transaction has made and not dropped again.
 * ----------------------------------------------------------------
 */

/* The outcome of the transaction, once it has committed. */
typedef struct BatonObjectsLeft
{
	bool		made;			/* it may have left objects that it made */
	bool		dropped;		/* it has dropped objects that existed before */
	bool		came_and_went;	/* it has made objects, and dropped all of
								 * them */
} BatonObjectsLeft;

/* ----------------------------------------------------------------
 *		The hooks that notice what may tie a session to its backend.
 * ----------------------------------------------------------------
 */

/* Called from _PG_init, in the postmaster. */
extern void baton_taint_watch_init(void);

/*
 * Called from pg_baton.c: a utility statement begins, and has succeeded; an
 * object is made, dropped or executed; a function is looked up (true: its
 * calls must be seen), and called; a transaction ends.
 */
extern void baton_taint_utility_begins(BatonUtility *utility);
extern void baton_taint_utility_done(const BatonUtility *utility);
extern void baton_taint_object_access(ObjectAccessType access, Oid class, Oid object, int sub);
extern bool baton_taint_function(Oid function);
extern void baton_taint_call(FmgrHookEventType event, FmgrInfo *function);
extern void baton_taint_transaction(XactEvent event);
extern void baton_taint_subtransaction(SubXactEvent event);

/* Has any attempted LOAD loaded a library? Clears load_tried. */
extern void baton_taint_look_at_loads(void);

/*
 * Is this function, its extension, or its language on the list
 * pg_baton.dedicated_objects? Sets *tls to sslinfo's function (NULL: it is
 * none). Must be called in a transaction. Tells taint_rules.c the function's
 * library.
 */
extern bool baton_function_is_listed(Oid function, const BatonTlsFunction **tls);

#endif							/* BATON_TAINT_WATCH_H */
