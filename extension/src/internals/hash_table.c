/*-------------------------------------------------------------------------
 *
 * hash_table.c
 *		Finding hash tables that other files of the server keep to themselves.
 *
 * hash_create() (dynahash.c) makes a memory context named "dynahash" for a
 * table, whose identifier is the table's name, and this name lies directly
 * behind the HTAB.  Hence identifier minus sizeof(HTAB) is the table; the size
 * is the same distance in a table of our own.
 *
 * A struct HTAB holds nothing but values and pointers (dynahash.c, 15 to 18): all
 * else lies in the memory context that its hcxt names, and nothing there points
 * back to it.  So one may be copied over another, which is that table from then on.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "nodes/memnodes.h"
#include "utils/memutils.h"

#include "hash_table.h"

/* The one context of a table of that name below parent; NULL if not just one. */
static MemoryContext
find_context(MemoryContext parent, const char *name)
{
	MemoryContext found = NULL;

	for (MemoryContext child = parent->firstchild; child != NULL;
		 child = child->nextchild)
	{
		if (child->ident == NULL || strcmp(child->name, "dynahash") != 0 ||
			strcmp(child->ident, name) != 0)
			continue;
		if (found != NULL)
			return NULL;
		found = child;
	}
	return found;
}

Size
baton_hash_header_size(void)
{
	static Size size = 0;
	MemoryContext parent;
	MemoryContext context;
	HASHCTL		control;
	HTAB	   *table;

	if (size != 0)
		return size;
	parent = AllocSetContextCreate(CurrentMemoryContext, "pg_baton probe",
								   ALLOCSET_SMALL_SIZES);
	control.keysize = sizeof(Oid);
	control.entrysize = sizeof(Oid);
	control.hcxt = parent;
	table = hash_create("pg_baton probe", 16, &control,
						HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	context = find_context(parent, "pg_baton probe");
	if (context != NULL && context->ident > (const char *) table &&
		context->ident - (const char *) table <= 1024 &&
		(context->ident - (const char *) table) % sizeof(void *) == 0)
		size = context->ident - (const char *) table;
	MemoryContextDelete(parent);
	return size;
}

HTAB *
baton_hash_find(const char *name)
{
	return baton_hash_find_below(TopMemoryContext, name);
}

HTAB *
baton_hash_find_below(MemoryContext parent, const char *name)
{
	MemoryContext context = find_context(parent, name);
	Size		size = baton_hash_header_size();
	HTAB	   *table;

	if (context == NULL || size == 0)
		return NULL;
	table = (HTAB *) (context->ident - size);
	return GetMemoryChunkContext(table) == context ? table : NULL;
}

bool
baton_hash_same_form(const HTAB *one, const HTAB *other, int own_words)
{
	const uintptr_t *a = (const uintptr_t *) one;
	const uintptr_t *b = (const uintptr_t *) other;
	int			different = 0;

	for (Size i = 0; i < baton_hash_header_size() / sizeof(uintptr_t); i++)
		if (a[i] != b[i])
			different++;
	return different <= own_words;
}

HTAB *
baton_hash_make_room(MemoryContext context)
{
	return MemoryContextAllocZero(context, baton_hash_header_size());
}

void
baton_hash_exchange(HTAB *place, HTAB *room, const HTAB *other)
{
	memcpy(room, place, baton_hash_header_size());
	memcpy(place, other, baton_hash_header_size());
}
