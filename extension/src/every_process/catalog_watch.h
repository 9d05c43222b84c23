/*-------------------------------------------------------------------------
 *
 * catalog_watch.h
 *		Roles, databases and their settings: reading them without a database,
 *		and noticing their changes.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CATALOG_WATCH_H
#define BATON_CATALOG_WATCH_H

#include "access/genam.h"
#include "access/htup.h"
#include "access/xact.h"
#include "catalog/objectaccess.h"
#include "datatype/timestamp.h"
#include "nodes/nodes.h"
#include "utils/resowner.h"

/* ----------------------------------------------------------------
 *		The state of a utility statement that its watchers share (pg_baton.c
 *		calls them).
 */

/*
 * A utility statement in execution.  A watcher stores here, before the
 * statement runs, what it needs after success: the parse tree may be freed by
 * then (ROLLBACK and DISCARD drop plans).
 */
typedef struct BatonUtility
{
	const Node *statement;		/* NULL once it has run */
	bool		top_level;		/* sent by the client, not run by a function
								 * or DO */

	bool		loads;			/* taint_watch.c: LOAD */
	bool		prepares;		/* statement_tracking.c: PREPARE */
	bool		discards_plans; /* statement_tracking.c: DISCARD PLANS or ALL */
	uint64	   *settings_before;	/* catalog_watch.c: fingerprints to
									 * compare with, or NULL */
} BatonUtility;

/* ----------------------------------------------------------------
 *		Roles and databases by name, for a process without a database.
 * ----------------------------------------------------------------
 */

/* A role's row of pg_authid. */
typedef struct BatonRole
{
	Oid			oid;
	char		name[NAMEDATALEN];
	bool		superuser;
	bool		can_login;
	int32		connection_limit;	/* -1: none */
	bool		expires;
	TimestampTz valid_until;	/* valid if expires is set */
	bool		readable;		/* false: the row is too long to be read
								 * without a database */
	char	   *verifier;		/* NULL: no password, or not readable */
} BatonRole;

/*
 * These functions run within a transaction.  From this call to its end, roles
 * and memberships stay as they are, also for the catalog caches.
 */
extern void baton_roles_hold(void);

/* Returns false if there is no such role. */
extern bool baton_role_by_name(const char *name, BatonRole *role);
extern bool baton_role_by_oid(Oid oid, BatonRole *role);

/*
 * The bootstrap superuser's name if it may log in, else another superuser's;
 * NULL if none may.
 */
extern char *baton_first_login_superuser(void);

/* Overwrites the verifier, which is no longer needed. */
extern void baton_role_wipe(BatonRole *role);

/*
 * Scans a shared catalog for rows with that value, by the index if the process
 * can use indexes already.  `equal` is the type's equality function.
 */
extern SysScanDesc baton_shared_scan(Relation catalog, Oid index, AttrNumber attribute,
									 RegProcedure equal, Datum value);

/* Returns the row of pg_database, or NULL if there is no such database. */
extern HeapTuple baton_database_row(const char *name);

/* ----------------------------------------------------------------
 *		Noticing ALTER ROLE SET and ALTER DATABASE SET.
 */

/* Called by the hooks on object access and transactions (pg_baton.c). */
extern void baton_settings_object_access(ObjectAccessType access, Oid class, Oid object,
										 void *argument);
extern void baton_settings_transaction(XactEvent event);

/*
 * Called before a utility statement, which may fail, and after its success.
 */
extern void baton_settings_utility_begins(BatonUtility *utility);
extern void baton_settings_utility_done(const BatonUtility *utility);

/*
 * From now on, backends that started before this call must not serve new
 * clients of this role and database (InvalidOid: all) without reading the
 * settings again.
 */
extern void baton_role_settings_changed(Oid database, Oid role);

/*
 * A hash of a row's place in pg_db_role_setting and of the transaction that
 * inserted it.  The sum over all rows tells whether any row has changed.
 */
extern uint64 baton_settings_row_hash(HeapTuple tuple);

/* ----------------------------------------------------------------
 *		Noticing changes of what a login depends on.
 */

/*
 * Called by pg_baton.c: before a utility statement; at transaction events; at
 * the release of resources.
 */
extern void baton_login_utility_begins(BatonUtility *utility);
extern void baton_login_transaction(XactEvent event);
extern void baton_login_release(ResourceReleasePhase phase, bool is_commit, bool is_top);

/*
 * Invalidates all kept LOGIN_ANSWERs: something that they depend on has
 * changed.
 */
extern void baton_login_changed(void);

/* The same, but what sessions begin with stays as it was. */
extern void baton_login_rules_changed(void);

#endif							/* BATON_CATALOG_WATCH_H */
