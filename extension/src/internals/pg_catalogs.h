/*-------------------------------------------------------------------------
 *
 * pg_catalogs.h
 *		PostgreSQL's catalog caches and namespaces (inval.c, syscache.c,
 *		namespace.c, detoast.c): the changes that a process is not told of.
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
 *		How invalidations identify an object: the hash of its name and schema.
 */

/*
 * In a transaction, before the other functions: compares the computed hashes
 * with the server's.
 */
extern void baton_name_hash_check(void);

/*
 * The hash in a cache with a name and an OID as keys (RELNAMENSP,
 * TYPENAMENSP).
 */
extern uint32 baton_name_hash(int cache, const char *name, Oid schema);

/*
 * The hash in a cache with an OID as key, and the OID of such a hash.  Returns
 * false if the server hashes in another way, or if that is not known yet.
 */
extern uint32 baton_name_hash_of_oid(Oid object);
extern bool baton_name_hash_oid(uint32 hash, Oid *object);

/*
 * The part of a (name, OID) hash that comes from the name, and that part
 * computed from a name.  Returns false if the server hashes in another way.
 */
extern bool baton_name_hash_parts(uint32 hash, Oid schema, uint32 *name_hash);
extern uint32 baton_name_hash_alone(const char *name);

/* ----------------------------------------------------------------
 *		Changes of catalogs that PostgreSQL's caches do not follow.
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

/* Called once in a backend, before it keeps anything that has an age. */
extern void baton_catalog_age_attach(void);

/*
 * The age at which this catalog last changed; 0: not since the backend
 * attached.  Functions have a count of their own.
 */
extern uint64 baton_catalog_changed(BatonCatalog catalog);

/* May the function have changed since the count of functions was `since`? */
extern bool baton_catalog_function_changed(Oid function, uint64 since);

/*
 * Called when another session is put in place: what was looked up by an
 * earlier session's search path is looked up anew, and constraints of domains
 * that contain a user's function's result or body are planned anew.
 */
extern void baton_catalog_session_changes(void);

/*
 * Has the function called at each later change, of functions, too, with the
 * invalidation's hash.  It runs while invalidations are received, so it may
 * only mark.
 */
extern void baton_catalog_age_watch(void (*changes) (BatonCatalog catalog, uint32 hash));

/*
 * Called when a function is looked up to be executed, or to be copied into its
 * caller.
 */
extern void baton_catalog_age_function(Oid function);

/* ----------------------------------------------------------------
 *		A toasted value of a shared catalog, for a process without a database.
 * ----------------------------------------------------------------
 */

/*
 * Returns the value that an external datum on disk points to, as if it were
 * inline (still compressed if it is), or NULL if parts of it are missing.  In
 * a transaction, with a snapshot registered that is as old as the datum.
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
 * Outside a transaction.  The first hides the namespace that is shown, the
 * second shows one that was hidden.  Both keep autovacuum from treating it as
 * an orphan.
 */
extern void baton_namespace_hide(Oid namespace);
extern void baton_namespace_show(Oid namespace, Oid toast_namespace);

/*
 * Called when a transaction commits: keeps the exit callback from being
 * registered again.
 */
extern void baton_namespace_commits(void);

/*
 * Called once, in a backend without a temporary namespace: checks that showing
 * and hiding work.  Returns NULL, or what does not.
 */
extern const char *baton_namespace_attach(void);

#endif							/* BATON_PG_CATALOGS_H */
