/*-------------------------------------------------------------------------
 *
 * portal_counter.c
 *		Finding the static variable of CreateNewPortal() in portalmem.c.
 *
 * A cursor that a function opens without a name is called <unnamed portal N>,
 * and N is counted by
 *
 *		static unsigned int unnamed_portal_count;
 *
 * in 15 to 18.  Programs write such names down, so a session's own count goes
 * from backend to backend with it.
 *
 * How it is found, once for each backend, at attach: it is the one word of the
 * server program's data that has the number in the name of each of several
 * portals when that was just made.  At last, what is put there must be what the
 * next portal's name follows.  If not, the backend refuses to pool.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/portal.h"

#include "portal_counter.h"
#include "program_data.h"

/* A word must have gone along with as many portals to be the one. */
#define PORTALS_FOLLOWED 4

/* Nothing that could be there by chance, and far from wrapping around. */
#define PROBE 0x5eed0000

static volatile uint32 *count_variable = NULL;

void
baton_portal_discard(Portal portal)
{
	/* the newest minor releases do not drop a portal that was never started */
	MarkPortalFailed(portal);
	PortalDrop(portal, false);
}

/* The number that CreateNewPortal() gives next; 0 if its name is another. */
static uint32
make_portal(void)
{
	Portal		portal = CreateNewPortal();
	unsigned int number;

	if (sscanf(portal->name, "<unnamed portal %u>", &number) != 1)
		number = 0;
	baton_portal_discard(portal);
	return number;
}

/* The words of the program's data that have this value; *count gets how many. */
static volatile uint32 **
find_words(const BatonProgramData *range, uint32 value, int *count)
{
	volatile uint32 **words;
	int			room = 0;

	for (uintptr_t word = range->start; word < range->end; word += sizeof(uint32))
		room += *(volatile uint32 *) word == value;
	words = palloc((room + 1) * sizeof(*words));
	*count = 0;
	for (uintptr_t word = range->start; word < range->end && *count < room; word += sizeof(uint32))
	{
		if (*(volatile uint32 *) word == value)
			words[(*count)++] = (volatile uint32 *) word;
	}
	return words;
}

const char *
baton_portal_counter_attach(void)
{
	BatonProgramData range;
	volatile uint32 **words;
	uint32		number;
	int			count;

	if (!baton_program_data(&range))
		return "the server program's data was not found";
	words = find_words(&range, make_portal(), &count);
	for (int followed = 1; followed < PORTALS_FOLLOWED; followed++)
	{
		int			kept = 0;

		number = make_portal();
		for (int i = 0; i < count; i++)
		{
			if (*words[i] == number)
				words[kept++] = words[i];
		}
		count = kept;
	}
	count_variable = count == 1 ? words[0] : NULL;
	pfree(words);
	if (count_variable == NULL)
		return "the count of unnamed portals was not found";

	number = *count_variable;
	*count_variable = PROBE;
	if (make_portal() != PROBE + 1)
	{
		*count_variable = number;
		return "portals are not named by the count of unnamed portals";
	}
	*count_variable = 0;
	return NULL;
}

uint32
baton_portal_counter(void)
{
	return *count_variable;
}

void
baton_portal_counter_set(uint32 count)
{
	*count_variable = count;
}
