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

#endif							/* BATON_NAME_HASH_H */
