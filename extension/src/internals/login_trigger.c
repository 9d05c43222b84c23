/*-------------------------------------------------------------------------
 *
 * login_trigger.c
 *		Event triggers on login, which came with PostgreSQL 17.
 *
 * PostgresMain() calls EventTriggerOnLogin() (event_trigger.c) between
 * BackendKeyData and its loop.  That looks at MyDatabaseHasLoginEventTriggers,
 * which InitPostgres() has read from pg_database, where the flag is set when
 * such a trigger is made or enabled (SetDatabaseHasLoginEventTriggers).  So a
 * pooled backend clears it before, and sets it for a session that has logged
 * in.  baton_login_triggers_attach() checks that nobody has set it again since:
 * that the server reads it before BackendKeyData, once.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_event_trigger.h"
#include "commands/event_trigger.h"
#include "miscadmin.h"
#include "utils/syscache.h"

#include "login_trigger.h"

void
baton_login_triggers_hold(void)
{
#if PG_VERSION_NUM >= 170000
	MyDatabaseHasLoginEventTriggers = false;
#endif
}

const char *
baton_login_triggers_attach(void)
{
#if PG_VERSION_NUM >= 170000
	if (MyDatabaseHasLoginEventTriggers)
		return "login event triggers cannot be held back";
#endif
	return NULL;
}

bool
baton_login_triggers_marked(Form_pg_database database)
{
#if PG_VERSION_NUM >= 170000
	return database->dathasloginevt;
#else
	return false;
#endif
}

bool
baton_login_triggers_exist(void)
{
#if PG_VERSION_NUM >= 170000
	HeapTuple	tuple = SearchSysCache1(DATABASEOID, ObjectIdGetDatum(MyDatabaseId));
	bool		exist = HeapTupleIsValid(tuple) &&
	baton_login_triggers_marked((Form_pg_database) GETSTRUCT(tuple));

	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return exist;
#else
	return false;
#endif
}

void
baton_login_triggers_fire(void)
{
#if PG_VERSION_NUM >= 170000
	MyDatabaseHasLoginEventTriggers = true;
	PG_TRY();
	{
		EventTriggerOnLogin();
	}
	PG_FINALLY();
	{
		MyDatabaseHasLoginEventTriggers = false;
	}
	PG_END_TRY();
#endif
}

bool
baton_may_be_login_trigger(Oid catalog)
{
#if PG_VERSION_NUM >= 170000
	return catalog == EventTriggerRelationId;
#else
	return false;
#endif
}
