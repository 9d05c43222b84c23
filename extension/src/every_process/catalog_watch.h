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
 *		What the watchers of a utility statement share (pg_baton.c calls them).
 * ----------------------------------------------------------------
 */

/*
 * A utility statement on its way.  What a watcher has to know again when it
 * has succeeded it notes here as it begins: the tree may be gone by then
 * (ROLLBACK and DISCARD drop plans).
 */
typedef struct BatonUtility
{
	const Node *statement;		/* NULL once it has run */
	bool		top_level;		/* a client's own, of no function's or DO's */

	bool		loads;			/* taint_watch.c: LOAD */
	bool		prepares;		/* statement_tracking.c: PREPARE */
	bool		discards_plans; /* statement_tracking.c: DISCARD PLANS or ALL */
	uint64	   *settings_before;	/* catalog_watch.c: to compare with; NULL:
									 * not */
} BatonUtility;

/* ----------------------------------------------------------------
 *		Roles and databases by name, for a process without a database.
 * ----------------------------------------------------------------
 */

/* What pg_authid says of a role. */
typedef struct BatonRole
{
	Oid			oid;
	char		name[NAMEDATALEN];
	bool		superuser;
	bool		can_login;
	int32		connection_limit;	/* -1: none */
	bool		expires;
	TimestampTz valid_until;	/* if it expires */
	bool		readable;		/* false: its row is too long to be read
								 * without a database */
	char	   *verifier;		/* NULL: no password, or not readable */
} BatonRole;

/*
 * All of these within a transaction.  From here to its end roles and memberships
 * are what they are now, also for the catalog caches.
 */
extern void baton_roles_hold(void);

/* False if there is no such role. */
extern bool baton_role_by_name(const char *name, BatonRole *role);
extern bool baton_role_by_oid(Oid oid, BatonRole *role);

/* The first there is, if it may; NULL: none may. */
extern char *baton_superuser_who_may_log_in(void);

/* Overwrites the verifier: nobody needs it any more. */
extern void baton_role_wipe(BatonRole *role);

/*
 * Scans a shared catalog for rows with that value, by the index if the process
 * has come far enough to use one.  `equal` is the type's equality function.
 */
extern SysScanDesc baton_shared_scan(Relation catalog, Oid index, AttrNumber attribute,
									 RegProcedure equal, Datum value);

/* The row of pg_database; NULL if there is no such database. */
extern HeapTuple baton_database_row(const char *name);

/* ----------------------------------------------------------------
 *		Noticing ALTER ROLE/DATABASE ... SET.
 * ----------------------------------------------------------------
 */

/* From the hooks on object access and transactions (pg_baton.c). */
extern void baton_settings_object_access(ObjectAccessType access, Oid class, Oid object,
										 void *argument);
extern void baton_settings_transaction(XactEvent event);

/* A utility statement begins, which may fail; it has succeeded. */
extern void baton_settings_utility_begins(BatonUtility *utility);
extern void baton_settings_utility_done(const BatonUtility *utility);

/*
 * Backends from before this moment must not serve clients who come later, of
 * this role and this database (InvalidOid: of all).
 */
extern void baton_role_settings_changed(Oid database, Oid role);

/*
 * One number for a row of pg_db_role_setting: where it stands, and which
 * transaction put it there.  Their sum tells whether any has changed.
 */
extern uint64 baton_settings_row_hash(HeapTuple tuple);

/* ----------------------------------------------------------------
 *		Noticing what may change who may log in, and how.
 * ----------------------------------------------------------------
 */

/* From pg_baton.c: a utility statement begins; a transaction is on its way. */
extern void baton_login_utility_begins(BatonUtility *utility);
extern void baton_login_transaction(XactEvent event);
extern void baton_login_release(ResourceReleasePhase phase, bool is_commit, bool is_top);

/* What a LOGIN_ANSWER depends on has changed: none kept is good any more. */
extern void baton_login_changed(void);

#endif							/* BATON_CATALOG_WATCH_H */
