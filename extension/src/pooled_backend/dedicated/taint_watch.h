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
 *		Which objects the transaction at hand has made and not dropped again.
 * ----------------------------------------------------------------
 */

/* What has come of the transaction, once it has committed. */
typedef struct BatonObjectsLeft
{
	bool		made;			/* it may have left objects that it has made */
	bool		dropped;		/* it has dropped some that were there before */
	bool		came_and_went;	/* it has made some, and dropped all of them */
} BatonObjectsLeft;

/* ----------------------------------------------------------------
 *		The hooks that notice what may tie a session to its backend.
 * ----------------------------------------------------------------
 */

/* From _PG_init, in the postmaster. */
extern void baton_taint_watch_init(void);

/*
 * From pg_baton.c: a utility statement begins, and has succeeded; an object is
 * made, dropped or executed; a function is looked up (true: its calls must be
 * seen), and called; a transaction is on its way to an end.
 */
extern void baton_taint_utility_begins(BatonUtility *utility);
extern void baton_taint_utility_done(const BatonUtility *utility);
extern void baton_taint_object_access(ObjectAccessType access, Oid class, Oid object, int sub);
extern bool baton_taint_function(Oid function);
extern void baton_taint_call(FmgrHookEventType event, FmgrInfo *function);
extern void baton_taint_transaction(XactEvent event);
extern void baton_taint_subtransaction(SubXactEvent event);

/* Has any LOAD that was tried brought a library in?  Clears load_tried. */
extern void baton_taint_look_at_loads(void);

/*
 * taint_watch.c: is this function, the extension it belongs to, or its
 * language on the list pg_baton.dedicated_objects?  And is it one of sslinfo's,
 * which one (NULL: none)?  In a transaction.  Tells taint_rules.c whose code it is.
 */
extern bool baton_function_is_listed(Oid function, const BatonTlsFunction **tls);

#endif							/* BATON_TAINT_WATCH_H */
