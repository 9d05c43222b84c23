/*-------------------------------------------------------------------------
 *
 * context_temporary.c
 *		Whether a session has a temporary namespace.
 *
 * Problem: namespace.c makes a backend's temporary namespace when a temporary
 * object is first made, and from then on it is there, empty or not: in
 * current_schemas(true), in pg_my_temp_schema(), in the search path, and in
 * which error a missing pg_temp.x gets.  A session that has had a temporary
 * object shall see one on every backend, and no other session shall.
 *
 * Objects in it are not dealt with here: a session that has any stays on its
 * backend (taint.c), so a namespace is empty whenever it is shown or hidden.
 *
 * Decision: that the session has one is an item of its context.  Where the
 * session has none, the backend's is hidden (temporary_namespace.c has how, and
 * by what that is kept from being noticed).  Where the session has one, the
 * backend's is shown again; or it is made, by a transaction of ours.
 *
 * At exit RemoveTempRelationsCallback() (namespace.c) finds nothing to do of a
 * hidden one, and there is nothing.  A session that makes its first temporary
 * object while it is hidden makes InitTempTableNamespace() set it up again, with
 * all that this means on a direct connection (privileges, what is left if it is
 * rolled back): the same namespace, as it is named after the backend's id.
 *
 * Invariants: `own` is the backend's namespace since it was first seen, shown
 * or not, outside a transaction: by then its exit callback is registered.
 * BatonPlaced has what the context of the session in place says.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "miscadmin.h"
#include "utils/snapmgr.h"

#include "arena.h"
#include "context_temporary.h"
#include "delta.h"
#include "own_transaction.h"
#include "pooled_state.h"
#include "temporary_namespace.h"

#define TEMPORARY_KEY "temporary"
#define TEMPORARY_KEY_LENGTH (sizeof(TEMPORARY_KEY) - 1)

static Oid	own = InvalidOid;
static Oid	own_toast = InvalidOid;

bool
baton_temporary_is_item(const BatonStored *entry)
{
	return entry->kind == BATON_KIND_OTHER &&
		entry->key_length == TEMPORARY_KEY_LENGTH &&
		memcmp(entry->key, TEMPORARY_KEY,
			   TEMPORARY_KEY_LENGTH) == 0;
}

/*
 * Is a namespace shown?  Learns of one that the session in place has made;
 * it cannot have made more than one, for it keeps the first.
 */
static bool
look(void)
{
	Oid			namespace;
	Oid			toast_namespace;

	GetTempNamespaceState(&namespace, &toast_namespace);
	if (!OidIsValid(namespace))
		return false;
	own = namespace;
	own_toast = toast_namespace;
	return true;
}

/*
 * As if the session had just made its first temporary object.  As the
 * superuser who will own it, since the session's role need not be allowed to
 * make temporary objects any more; and as an ordinary transaction, whatever
 * the session's default_transaction_* are.
 */
static void
make(void)
{
	MemoryContext caller = CurrentMemoryContext;
	Oid			user;
	int			security;

	baton_own_transaction_start();
	XactReadOnly = false;

	/* leftovers of a crashed backend are removed under it */
	PushActiveSnapshot(GetTransactionSnapshot());
	GetUserIdAndSecContext(&user, &security);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID,
						   security | SECURITY_LOCAL_USERID_CHANGE);
	(void) LookupCreationNamespace("pg_temp");
	SetUserIdAndSecContext(user, security);
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
}

void
baton_temporary_install(bool wanted)
{
	bool		shown = look();

	if (wanted && !shown)
	{
		if (OidIsValid(own))
			baton_namespace_show(own, own_toast);
		else
		{
			make();
			(void) look();
		}
	}
	else if (!wanted && shown)
		baton_namespace_hide(own);
	BatonPlaced.has_temporary_namespace = wanted;
}

bool
baton_temporary_capture(void)
{
	if (BatonPlaced.has_temporary_namespace || !look())
		return false;
	BatonPlaced.has_temporary_namespace = true;
	baton_delta_put(BATON_KIND_OTHER, TEMPORARY_KEY, TEMPORARY_KEY_LENGTH,
					"", 0, NULL, 0);
	return true;
}

void
baton_temporary_forget(void)
{
	BatonPlaced.has_temporary_namespace = look();	/* the next install hides
													 * it */
}

void
baton_temporary_commits(void)
{
	/* known since it was seen committed, hence registered */
	if (OidIsValid(own))
		baton_namespace_commits();
}
