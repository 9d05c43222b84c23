/*-------------------------------------------------------------------------
 *
 * name_hash.c
 *		What invalidations call an object by: the hash of its name and schema.
 *
 * A prepared statement is looked up outside transactions (Bind, Close; postgres.c),
 * where GetSysCacheHashValue() may not be asked: it would do once the cache is
 * ready, but 18 asserts otherwise (ConditionalCatalogCacheInitializeCache,
 * catcache.c).  So the hash is computed as CatalogCacheComputeHashValue(),
 * namehashfast() and int4hashfast() do (catcache.c, 15 to 18), and compared with
 * the server's once, in a transaction.  Were it another one day, the server's is
 * asked after all.
 *
 * Of a cache whose key is an OID the hash is murmurhash32() of it, which is a
 * bijection: so the hash tells the OID.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "port/pg_bitutils.h"
#include "utils/fmgroids.h"

#include "name_hash.h"

static bool is_the_servers = false;
static bool oid_is_the_servers = false;

static uint32
compute(const char *name, Oid schema)
{
	return pg_rotate_left32(murmurhash32(schema), 8) ^
		DatumGetUInt32(hash_any((const unsigned char *) name, strlen(name)));
}

static uint32
ask(int cache, const char *name, Oid schema)
{
	return GetSysCacheHashValue2(cache, CStringGetDatum(name), ObjectIdGetDatum(schema));
}

void
baton_name_hash_check(void)
{
	static const char *const names[] = {"", "pg_class", "a name with more than one word in it"};

	is_the_servers = true;
	for (int i = 0; i < (int) lengthof(names); i++)
		if (compute(names[i], 11 + i) != ask(RELNAMENSP, names[i], 11 + i) ||
			compute(names[i], 70000 + i) != ask(TYPENAMENSP, names[i], 70000 + i))
			is_the_servers = false;
	oid_is_the_servers = GetSysCacheHashValue1(PROCOID, ObjectIdGetDatum(F_NOW)) ==
		baton_name_hash_of_oid(F_NOW);
}

uint32
baton_name_hash_of_oid(Oid object)
{
	return murmurhash32(object);
}

/* The steps of murmurhash32() backwards, with the inverse factors. */
bool
baton_name_hash_oid(uint32 hash, Oid *object)
{
	hash ^= hash >> 16;
	hash *= 0x7ed1b41d;
	hash ^= (hash >> 13) ^ (hash >> 26);
	hash *= 0xa5cb9243;
	hash ^= hash >> 16;
	*object = hash;
	return oid_is_the_servers;
}

uint32
baton_name_hash(int cache, const char *name, Oid schema)
{
	return is_the_servers ? compute(name, schema) : ask(cache, name, schema);
}

bool
baton_name_hash_parts(uint32 hash, Oid schema, uint32 *name_hash)
{
	*name_hash = hash ^ pg_rotate_left32(murmurhash32(schema), 8);
	return is_the_servers;
}

uint32
baton_name_hash_alone(const char *name)
{
	return DatumGetUInt32(hash_any((const unsigned char *) name, strlen(name)));
}
