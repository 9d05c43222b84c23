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
 * The process that raises it also writes what has changed into
 * control->login_changes, and raises it once for each entry: a role that changes
 * its own password, or creates roles, in a loop must not empty the answers kept
 * for all others.
 *	- A changed row of pg_authid concerns the answers for that role's name.  What
 *	  other roles may do depends on their memberships in it and on its name, not
 *	  on its attributes.  Up to 15 rolinherit is an exception, see login.c.
 *	- A changed row of pg_auth_members concerns the answers that depend on
 *	  memberships at all: few do, and which roles are members of which through
 *	  others is costly to find out.  A rename concerns them, too, for lines of
 *	  pg_hba.conf have groups by name.  So does a commit that changes several
 *	  roles, in which one may have taken the name of another.
 *	- A changed row of pg_database concerns the answers for that database.
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

/* Of a commit that changes more rows of a catalog than this, all answers are old. */
#define MOST_ROWS 32

/* The rows with messages of one catalog cache. */
typedef struct Rows
{
	int			count;			/* more than MOST_ROWS: not all are here */
	uint32		hashes[MOST_ROWS];
} Rows;

/* What a login depends on. */
typedef struct Changes
{
	bool		logins;			/* login_generation is for */
	bool		names;			/* names_generation is for */
	bool		others;			/* of what logins depend on, more than what is
								 * below */
	bool		memberships;
	Rows		role_names;
	Rows		role_oids;
	Rows		databases;
} Changes;

/* Of the commit under way. */
static Changes change_pending = {0};

/* Has a change been made that stays even if this transaction fails? */
static struct
{
	bool		logins;
	bool		names;
}			change_made = {0};

/* Most transactions have none, and this is costly beside the rest of theirs. */
static void
forget_pending(void)
{
	if (change_pending.logins || change_pending.names)
		memset(&change_pending, 0, sizeof(change_pending));
}

static void
logins_changed(uint64 kind, uint32 hash)
{
	uint64		generation;

	if (BatonControlMemory == NULL)
		return;
	generation = pg_atomic_fetch_add_u64(baton_atomic_u64(BatonControlMemory->login_generation), 1) + 1;
	pg_atomic_write_u64(baton_atomic_u64(BatonControlMemory->login_changes[generation % BATON_LOGIN_CHANGES]),
						kind << 62 | (generation & 0x3FFFFFFF) << 32 | hash);
}

void
baton_login_changed(void)
{
	logins_changed(BATON_LOGIN_CHANGE_ALL, 0);
}

static void
tell_rows(uint64 kind, const Rows *rows)
{
	for (int i = 0; i < rows->count; i++)
		logins_changed(kind, rows->hashes[i]);
}

static void
tell_changes(const Changes *changes)
{
	const Rows *names = &changes->role_names;
	const Rows *databases = &changes->databases;

	/* each changed row of pg_authid has messages of both caches */
	if (changes->others || names->count > MOST_ROWS || databases->count > MOST_ROWS ||
		(names->count == 0) != (changes->role_oids.count == 0))
	{
		baton_login_changed();
		return;
	}
	tell_rows(BATON_LOGIN_CHANGE_ROLE, names);
	tell_rows(BATON_LOGIN_CHANGE_DATABASE, databases);
	if (changes->memberships || names->count > 1)
		logins_changed(BATON_LOGIN_CHANGE_MEMBERSHIPS, 0);
}

static void
names_changed(void)
{
	if (BatonControlMemory != NULL)
		pg_atomic_fetch_add_u64(baton_atomic_u64(BatonControlMemory->names_generation), 1);
}

static void
add_row(Rows *rows, uint32 hash)
{
	if (rows->count > MOST_ROWS)
		return;
	for (int i = 0; i < rows->count; i++)
		if (rows->hashes[i] == hash)
			return;
	if (rows->count < MOST_ROWS)
		rows->hashes[rows->count] = hash;
	rows->count++;
}

static void
look_at_catalog(Oid catalog, Changes *changes)
{
	switch (catalog)
	{
		case AuthIdRelationId:
		case AuthMemRelationId:
		case DatabaseRelationId:
			changes->logins = changes->others = true;
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
			changes->logins = true;
			add_row(&changes->role_names, message->cc.hashValue);
			break;
		case AUTHOID:
			changes->logins = true;
			add_row(&changes->role_oids, message->cc.hashValue);
			break;
		case DATABASEOID:
			changes->logins = true;
			add_row(&changes->databases, message->cc.hashValue);
			break;
		case AUTHMEMMEMROLE:
		case AUTHMEMROLEMEM:
			changes->logins = changes->memberships = true;
			break;
		case PARAMETERACLNAME:
		case PARAMETERACLOID:
			changes->logins = changes->others = true;
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

static void
look_at_transaction(Changes *found)
{
	SharedInvalidationMessage *messages;
	bool		init_file;
	int			count = xactGetCommittedInvalidationMessages(&messages, &init_file);

	for (int i = 0; i < count && !(found->others && found->names); i++)
		look_at(&messages[i], found);
	if (messages != NULL)
		pfree(messages);
}

void
baton_login_transaction(XactEvent event)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			forget_pending();
			look_at_transaction(&change_pending);
			break;
		case XACT_EVENT_PREPARE:
		case XACT_EVENT_ABORT:
			forget_pending();
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
	if (change_made.logins)
		baton_login_changed();
	else if (change_pending.logins && is_commit)
		tell_changes(&change_pending);
	if (change_made.names || (change_pending.names && is_commit))
		names_changed();
	forget_pending();
	change_made.logins = change_made.names = false;
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
		change_made.logins = change_made.names = true;
}
