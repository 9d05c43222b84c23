/*-------------------------------------------------------------------------
 *
 * temporary_namespace.c
 *		Showing a backend's temporary namespace, and hiding it.
 *
 * What is relied on of namespace.c, in 15 to 18, and, but for the last, checked by
 * baton_namespace_attach():
 *	- AtEOSubXact_Namespace() clears the namespace if the subtransaction that
 *	  made it aborts; outside a transaction myTempNamespaceSubID is
 *	  InvalidSubTransactionId, so that one is said to abort.
 *	- SetTempNamespaceState(), by which a parallel worker takes over its
 *	  leader's, asserts that none is there.
 *	- MyProc->tempNamespaceId is what autovacuum goes by (checkTempNamespaceStatus):
 *	  a namespace that is nobody's is an orphan, whose tables it drops.  It is
 *	  put back where the functions above take it away.
 *	- AtEOXact_Namespace() would register the exit callback at each commit of a
 *	  transaction that has set the namespace up, and ipc.c has room for 20 of all
 *	  kinds; "we only want to register the callback once".  It does so if
 *	  myTempNamespaceSubID, which is private, is the transaction's; so that is
 *	  taken away just before.  What does that, without a trace, is
 *	  AtEOSubXact_Namespace(), told that the transaction is a committed
 *	  subtransaction whose parent is none.  CommitTransaction() (xact.c) calls
 *	  the transaction callbacks before AtEOXact_Namespace(), and by then its
 *	  subtransactions have handed their mark up to TopSubTransactionId.  The rest
 *	  of that function ends overridden search paths, which AtEOXact_Namespace()
 *	  would (up to 16; later there are none).
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_namespace.h"
#include "storage/proc.h"

#include "temporary_namespace.h"

void
baton_namespace_hide(Oid namespace)
{
	AtEOSubXact_Namespace(false, InvalidSubTransactionId, InvalidSubTransactionId);
	MyProc->tempNamespaceId = namespace;
}

void
baton_namespace_show(Oid namespace, Oid toast_namespace)
{
	SetTempNamespaceState(namespace, toast_namespace);

	/* a set-up that was rolled back has taken this away */
	MyProc->tempNamespaceId = namespace;
}

void
baton_namespace_commits(void)
{
	AtEOSubXact_Namespace(true, TopSubTransactionId, InvalidSubTransactionId);
}

const char *
baton_namespace_attach(void)
{
	Oid			namespace;
	Oid			toast_namespace;

	GetTempNamespaceState(&namespace, &toast_namespace);
	if (OidIsValid(namespace) || OidIsValid(MyProc->tempNamespaceId))
		return "a new backend has a temporary namespace";

	/* any that is nobody's will do */
	baton_namespace_show(PG_CATALOG_NAMESPACE, PG_TOAST_NAMESPACE);
	GetTempNamespaceState(&namespace, &toast_namespace);
	baton_namespace_hide(InvalidOid);
	if (namespace != PG_CATALOG_NAMESPACE || toast_namespace != PG_TOAST_NAMESPACE)
		return "a temporary namespace cannot be shown";
	GetTempNamespaceState(&namespace, &toast_namespace);
	if (OidIsValid(namespace) || OidIsValid(MyProc->tempNamespaceId))
		return "a temporary namespace cannot be hidden";
	return NULL;
}
