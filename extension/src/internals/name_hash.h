/*-------------------------------------------------------------------------
 *
 * name_hash.h
 *		What invalidations call an object by: the hash of its name and schema.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_NAME_HASH_H
#define BATON_NAME_HASH_H

#include "utils/syscache.h"

/* In a transaction, before the other: compares it with the server's own. */
extern void baton_name_hash_check(void);

/*
 * That of a cache whose keys are a name and an OID (RELNAMENSP, TYPENAMENSP).
 */
extern uint32 baton_name_hash(int cache, const char *name, Oid schema);

#endif							/* BATON_NAME_HASH_H */
