/*-------------------------------------------------------------------------
 *
 * login_watch.c
 *		Noticing what may change who may log in, and how, and with what.
 *
 * The dispatcher keeps the launcher's answers (login.c) and gives them again
 * as long as control->login_generation stays as it was before it asked.  So
 * that number must be raised
 *	- by whoever commits a change of pg_authid, pg_auth_members, pg_database
 *	  or pg_parameter_acl, in whatever process of the server, and
 *	- by the launcher, when it has read its configuration files again.
 *
 * Likewise what clients are greeted with follows from what names in settings and
 * startup options mean (reset_greet.c): of text search configurations, of the
 * schemas that they are looked for in, of tablespaces and access methods.
 * control->names_generation is raised by whoever commits a change of those.  It
 * is a number of its own, for schemas come and go (those of temporary tables,
 * too), and should cost nobody the launcher's answers.
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
 * are does not show, so each COMMIT PREPARED raises both numbers.
 *
 * On a standby nobody raises them; there launcher and backends let nothing be
 * kept that depends on them.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/pg_am.h"
#include "catalog/pg_auth_members.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_database.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_tablespace.h"
#include "catalog/pg_ts_config.h"
#include "nodes/parsenodes.h"
#include "storage/sinval.h"
#include "utils/resowner.h"
#include "utils/syscache.h"

#include "control.h"
#include "login_watch.h"

/* What a login depends on. */
typedef struct Changes
{
	bool		logins;			/* login_generation is for */
	bool		names;			/* names_generation is for */
} Changes;

/* Of the commit under way. */
static Changes change_pending = {false, false};

/* Has a change been made that stays even if this transaction fails? */
static Changes change_made = {false, false};

void
baton_login_changed(void)
{
	if (BatonControlMemory != NULL)
		pg_atomic_fetch_add_u64(baton_atomic_u64(BatonControlMemory->login_generation), 1);
}

static void
names_changed(void)
{
	if (BatonControlMemory != NULL)
		pg_atomic_fetch_add_u64(baton_atomic_u64(BatonControlMemory->names_generation), 1);
}

static void
look_at_catalog(Oid catalog, Changes *changes)
{
	switch (catalog)
	{
		case AuthIdRelationId:
		case AuthMemRelationId:
		case DatabaseRelationId:
			changes->logins = true;
			break;
		case TSConfigRelationId:
		case NamespaceRelationId:
		case TableSpaceRelationId:
		case AccessMethodRelationId:
			changes->names = true;
			break;
		default:
			break;
	}
}

static void
look_at(const SharedInvalidationMessage *message, Changes *changes)
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
			changes->logins = true;
			break;
		case TSCONFIGNAMENSP:
		case TSCONFIGOID:
		case NAMESPACENAME:
		case NAMESPACEOID:
		case TABLESPACEOID:
		case AMNAME:
		case AMOID:
			changes->names = true;
			break;
		case SHAREDINVALCATALOG_ID:
			look_at_catalog(message->cat.catId, changes);
			break;
		default:
			break;
	}
}

static Changes
transaction_changes(void)
{
	SharedInvalidationMessage *messages;
	bool		init_file;
	Changes		found = {false, false};
	int			count = xactGetCommittedInvalidationMessages(&messages, &init_file);

	for (int i = 0; i < count && !(found.logins && found.names); i++)
		look_at(&messages[i], &found);
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
			change_pending = transaction_changes();
			break;
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_ABORT:
			change_pending = (Changes)
			{
				false, false
			};
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
	if (change_made.logins || (change_pending.logins && is_commit))
		baton_login_changed();
	if (change_made.names || (change_pending.names && is_commit))
		names_changed();
	change_pending = (Changes)
	{
		false, false
	};
	change_made = (Changes)
	{
		false, false
	};
}

void
baton_login_utility_begins(BatonUtility *utility)
{
	/*
	 * COMMIT PREPARED may fail after it has committed.  Likewise DROP
	 * DATABASE, which marks the database in place (dropdb()).
	 */
	if (IsA(utility->statement, DropdbStmt))
		change_made.logins = true;
	else if (IsA(utility->statement, TransactionStmt) &&
			 ((const TransactionStmt *) utility->statement)->kind == TRANS_STMT_COMMIT_PREPARED)
		change_made = (Changes)
	{
		true, true
	};
}
