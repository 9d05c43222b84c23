/*-------------------------------------------------------------------------
 *
 * catalog_age.h
 *		When catalogs changed that PostgreSQL's caches do not follow.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CATALOG_AGE_H
#define BATON_CATALOG_AGE_H

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
 * Raised with each change of one of these catalogs that this backend hears of,
 * but for functions.  It hears of what others have committed at the latest as
 * its next transaction begins (AtStart_Cache, xact.c).
 */
extern uint64 baton_catalog_age(void);

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

#endif							/* BATON_CATALOG_AGE_H */
