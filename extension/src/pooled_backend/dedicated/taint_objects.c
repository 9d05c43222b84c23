/*-------------------------------------------------------------------------
 *
 * taint_objects.c
 *		Which objects the transaction at hand has made and not dropped again.
 *
 * Whether a session has temporary objects is looked up in pg_depend, in a
 * transaction of its own.  A transaction that drops all that it has made,
 * as CREATE TEMP TABLE ... ON COMMIT DROP does (PreCommit_on_commit_actions
 * in tablecmds.c), cannot have changed the answer, and shall not pay for that:
 * the look-up also meets the index entries of all the temporary tables that
 * have gone since the last VACUUM.
 *
 * What is relied on (15 to 18): all that creates an object calls the object
 * access hook with OAT_POST_CREATE, and each object that is dropped, whether
 * by itself, by a cascade or at commit, goes through deleteOneObject()
 * (dependency.c), which calls it with OAT_DROP before.  If an object were
 * dropped in another way it would seem to be left, and be looked for.
 *
 * Columns and the like (`sub`) come and go with what they belong to.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "taint_objects.h"

/* A table with a key, a serial column and a TOAST table is 12 objects. */
#define MADE_MAX 128

static struct
{
	Oid			class;
	Oid			object;
}			made[MADE_MAX];
static int	made_count = 0;
static bool too_many = false;	/* made ones that made[] has no room for */
static bool some_undone = false;	/* of those made, one was dropped */
static bool restored = false;	/* ... which may have been rolled back */
static bool others_dropped = false;

void
baton_objects_created(Oid class, Oid object, int sub)
{
	if (sub != 0)
		return;
	if (made_count == MADE_MAX)
	{
		too_many = true;
		return;
	}
	made[made_count].class = class;
	made[made_count].object = object;
	made_count++;
}

void
baton_objects_dropped(Oid class, Oid object, int sub)
{
	if (sub != 0)
		return;
	for (int i = made_count - 1; i >= 0; i--)
	{
		if (made[i].object == object && made[i].class == class)
		{
			made[i] = made[--made_count];
			some_undone = true;
			return;
		}
	}
	others_dropped = true;
}

void
baton_objects_restored(void)
{
	restored = some_undone;
}

BatonObjectsLeft
baton_objects_left(void)
{
	BatonObjectsLeft left;

	left.made = made_count > 0 || too_many || restored;
	left.dropped = others_dropped;
	left.came_and_went = some_undone && !left.made;
	return left;
}

void
baton_objects_forget(void)
{
	made_count = 0;
	too_many = some_undone = restored = others_dropped = false;
}
