/*-------------------------------------------------------------------------
 *
 * pg_catalogs.h
 *		PostgreSQL's catalog caches and namespaces (inval.c, syscache.c,
 *		namespace.c, detoast.c): what a process is not told of their changes.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PG_CATALOGS_H
#define BATON_PG_CATALOGS_H

#include "catalog/namespace.h"
#include "utils/syscache.h"

/* ----------------------------------------------------------------
 *		What invalidations call an object by: the hash of its name and schema.
 * ----------------------------------------------------------------
 */

/* In a transaction, before the other: compares it with the server's own. */
extern void baton_name_hash_check(void);

/*
 * That of a cache whose keys are a name and an OID (RELNAMENSP, TYPENAMENSP).
 */
extern uint32 baton_name_hash(int cache, const char *name, Oid schema);

/*
 * That of a cache whose key is an OID, and the OID of such a hash; false if the server's
 * hashes are others, or not known yet.
 */
extern uint32 baton_name_hash_of_oid(Oid object);
extern bool baton_name_hash_oid(uint32 hash, Oid *object);

/*
 * That of a name and an OID taken apart: what of such a hash is the name's, and that of a name.
 * False if the server's hashes are others.
 */
extern bool baton_name_hash_parts(uint32 hash, Oid schema, uint32 *name_hash);
extern uint32 baton_name_hash_alone(const char *name);

/* ----------------------------------------------------------------
 *		When catalogs changed that PostgreSQL's caches do not follow.
 * ----------------------------------------------------------------
 */

typedef enum
{
	BATON_CATALOG_ROLES,		/* pg_authid, pg_auth_members, and the owner
								 * of this database */
	BATON_CATALOG_CASTS,		/* pg_cast */
	BATON_CATALOG_ENUMS,		/* pg_enum */
	BATON_CATALOG_OPCLASSES,	/* pg_opclass */
	BATON_CATALOG_TEXT_SEARCH,	/* pg_ts_config, pg_ts_config_map, pg_ts_dict */
	BATON_CATALOG_COLLATIONS,	/* pg_collation */
	BATON_CATALOG_FUNCTIONS		/* pg_proc */
} BatonCatalog;

#define BATON_CATALOGS (BATON_CATALOG_FUNCTIONS + 1)

/* Once in a backend, before it keeps anything that has an age. */
extern void baton_catalog_age_attach(void);

/*
 * What the age was raised to when this catalog last changed; 0: not since the
 * backend attached.  Functions have an age of their own.
 */
extern uint64 baton_catalog_changed(BatonCatalog catalog);

/*
 * Another session comes: what was looked up by the search path of one before is
 * looked up anew.
 */
extern void baton_catalog_session_changes(void);

/*
 * Calls this at each change from now on, of functions too, with the invalidation's
 * hash; while invalidations are taken in, so it must do no more than mark.
 */
extern void baton_catalog_age_watch(void (*changes) (BatonCatalog catalog, uint32 hash));

/* A function is looked up to be executed, or to be copied into its caller. */
extern void baton_catalog_age_function(Oid function);

/* Domains' constraints that hold what a function has returned, or one's body, are planned anew. */
extern void baton_catalog_forget_domains(void);

/* ----------------------------------------------------------------
 *		A toasted value of a shared catalog, for a process without a database.
 * ----------------------------------------------------------------
 */

/*
 * The value that an external datum on disk points to, as it would be inline (still
 * compressed if it is); NULL if it is not there as a whole.  In a transaction, with
 * a snapshot registered that is as old as the datum.
 */
extern struct varlena *baton_shared_toast_fetch(const struct varlena *external,
												Oid toast, Oid index);

/* ----------------------------------------------------------------
 *		The search path that a plan was analysed with.
 *
 * namespace.h calls it OverrideSearchPath up to 16 and SearchPathMatcher from
 * 17 on; the fields and what it compares are the same.
 * ----------------------------------------------------------------
 */

#if PG_VERSION_NUM >= 170000
typedef SearchPathMatcher BatonSearchPath;

#define baton_search_path_matches(path) SearchPathMatchesCurrentEnvironment(path)
#define baton_search_path_get(context) GetSearchPathMatcher(context)
#else
typedef OverrideSearchPath BatonSearchPath;

#define baton_search_path_matches(path) OverrideSearchPathMatchesCurrent(path)
#define baton_search_path_get(context) GetOverrideSearchPath(context)
#endif

/* ----------------------------------------------------------------
 *		Showing a backend's temporary namespace, and hiding it.
 * ----------------------------------------------------------------
 */

/*
 * Outside a transaction.  The first hides the one that is shown, the second
 * shows one that was hidden.  Both keep it from being taken for an orphan's.
 */
extern void baton_namespace_hide(Oid namespace);
extern void baton_namespace_show(Oid namespace, Oid toast_namespace);

/* A transaction commits: the exit callback is not to be registered again. */
extern void baton_namespace_commits(void);

/*
 * Once, in a backend that has none yet: is one shown and hidden as it should be?
 * NULL, or what is not.
 */
extern const char *baton_namespace_attach(void);

#endif							/* BATON_PG_CATALOGS_H */
