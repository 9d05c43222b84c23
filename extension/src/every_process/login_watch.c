/*-------------------------------------------------------------------------
 *
 * login_watch.c
 *		Noticing what may change who may log in, and how.
 *
 * The dispatcher keeps the launcher's answers (login.c) and gives them again
 * as long as control->login_generation stays as it was before it asked.  So
 * that number must be raised
 *	- by whoever commits a change of pg_authid, pg_auth_members, pg_database
 *	  or pg_parameter_acl, in whatever process of the server, and
 *	- by the launcher, when it has read its configuration files again.
 *
 * When, in a commit?  A client that asks after the raise must get the new
 * answer from the launcher, whose catalog caches are as new as the
 * invalidation messages it has received.  XACT_EVENT_COMMIT is too early:
 * CommitTransaction() in xact.c sends the messages after it, in
 * AtEOXact_Inval().  The resource owner's release after locks comes later
 * still, and before the client is told.  The launcher receives the messages
 * when it starts the transaction in which it answers (AtStart_Cache()).
 *
 * What has changed is read from the messages themselves, before the commit
 * (xactGetCommittedInvalidationMessages() in inval.c), which costs nothing in
 * a transaction that changed no catalog.  Callbacks for changed caches would
 * not do: a transaction's last command need not have run its own.
 *
 * A prepared transaction's messages are sent by whoever commits it, before
 * COMMIT PREPARED ends (FinishPreparedTransaction() in twophase.c); what they
 * are does not show, so each COMMIT PREPARED raises the number.
 *
 * On a standby nobody raises it; there the launcher lets nothing be kept.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_auth_members.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "nodes/parsenodes.h"
#include "storage/sinval.h"
#include "utils/resowner.h"
#include "utils/syscache.h"

#include "control.h"
#include "login_watch.h"

/* Does the commit under way change what a login depends on? */
static bool change_pending = false;

/* Has a change been made that stays even if this transaction fails? */
static bool change_made = false;

void
baton_login_changed(void)
{
	if (BatonControlMemory != NULL)
		pg_atomic_fetch_add_u64(baton_atomic_u64(BatonControlMemory->login_generation), 1);
}

static bool
matters(const SharedInvalidationMessage *message)
{
	switch (message->id)
	{
		case AUTHNAME:
		case AUTHOID:
		case AUTHMEMMEMROLE:
		case AUTHMEMROLEMEM:
		case DATABASEOID:
		case PARAMETERACLNAME:
		case PARAMETERACLOID:
			return true;
		case SHAREDINVALCATALOG_ID:
			return message->cat.catId == AuthIdRelationId ||
				message->cat.catId == AuthMemRelationId ||
				message->cat.catId == DatabaseRelationId;
		default:
			return false;
	}
}

static bool
transaction_matters(void)
{
	SharedInvalidationMessage *messages;
	bool		init_file;
	bool		found = false;
	int			count = xactGetCommittedInvalidationMessages(&messages, &init_file);

	for (int i = 0; i < count && !found; i++)
		found = matters(&messages[i]);
	if (messages != NULL)
		pfree(messages);
	return found;
}

void
baton_login_transaction(XactEvent event)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			change_pending = transaction_matters();
			break;
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_ABORT:
			change_pending = false;
			break;
		default:
			break;
	}
}

/* Called for each owner below the transaction's, too: the first one raises. */
void
baton_login_release(ResourceReleasePhase phase, bool is_commit, bool is_top)
{
	if (!is_top || phase != RESOURCE_RELEASE_AFTER_LOCKS)
		return;
	if (change_made || (change_pending && is_commit))
		baton_login_changed();
	change_pending = false;
	change_made = false;
}

void
baton_login_utility_begins(BatonUtility *utility)
{
	/*
	 * COMMIT PREPARED may fail after it has committed.  Likewise DROP
	 * DATABASE, which marks the database in place (dropdb()).
	 */
	if (IsA(utility->statement, DropdbStmt) ||
		(IsA(utility->statement, TransactionStmt) &&
		 ((const TransactionStmt *) utility->statement)->kind == TRANS_STMT_COMMIT_PREPARED))
		change_made = true;
}
