/*-------------------------------------------------------------------------
 *
 * database_watch.c
 *		Leaving a database that somebody wants for himself.
 *
 * Problem: DROP DATABASE, its renaming, its move to another tablespace and its
 * use as a template want nobody else to be connected to it.  A pool's backend
 * stays connected when the last client has left, and would be in the way for
 * backend_idle_timeout.
 *
 * What PostgreSQL guarantees: each of these commands waits up to five seconds
 * for others to leave (CountOtherDBBackends() in procarray.c).
 *
 * Decision: before the command runs, the dispatcher is told.  It ends the
 * database's backends as soon as the database has no session, and for some
 * seconds from then on.  Nobody waits for an answer: if there is none, the
 * command is refused as it is for any other connection.  Sessions are left
 * alone; they are connections, and may be in the way.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "commands/defrem.h"
#include "nodes/parsenodes.h"

#include "channel.h"
#include "control.h"
#include "database_watch.h"
#include "wire.h"

static const char *
option_text(List *options, const char *name)
{
	ListCell   *cell;

	foreach(cell, options)
	{
		DefElem    *option = lfirst_node(DefElem, cell);

		if (strcmp(option->defname, name) == 0 && option->arg != NULL)
			return defGetString(option);
	}
	return NULL;
}

/* The database that nobody else may be connected to, if the statement wants one. */
static const char *
wanted_database(const Node *statement)
{
	switch (nodeTag(statement))
	{
		case T_DropdbStmt:
			return ((const DropdbStmt *) statement)->dbname;
		case T_RenameStmt:
			if (((const RenameStmt *) statement)->renameType == OBJECT_DATABASE)
				return ((const RenameStmt *) statement)->subname;
			return NULL;
		case T_CreatedbStmt:
			{
				const char *template = option_text(((const CreatedbStmt *) statement)->options,
												   "template");

				return template != NULL ? template : "template1";
			}
		case T_AlterDatabaseStmt:
			if (option_text(((const AlterDatabaseStmt *) statement)->options, "tablespace") != NULL)
				return ((const AlterDatabaseStmt *) statement)->dbname;
			return NULL;
		default:
			return NULL;
	}
}

static void
leave(const char *database)
{
	StringInfoData message;
	int			fd;

	if (BatonControlMemory == NULL || BatonControlMemory->dispatcher_pid == 0)
		return;
	fd = baton_channel_connect();
	if (fd < 0)
		return;
	initStringInfo(&message);
	baton_wire_u32(&message, BATON_LAYOUT_VERSION);
	baton_wire_u64(&message, BatonControlMemory->secret);
	baton_wire_u32(&message, BATON_QUERY_LEAVE_DATABASE);
	baton_wire_string(&message, database);
	(void) baton_channel_send(fd, BATON_MSG_HELLO_QUERY, 0, message.data, message.len);
	pfree(message.data);
	close(fd);
}

void
baton_database_utility_begins(const BatonUtility *utility)
{
	const char *database = wanted_database(utility->statement);

	if (database != NULL)
		leave(database);
}
