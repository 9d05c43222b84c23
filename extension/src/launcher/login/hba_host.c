/*-------------------------------------------------------------------------
 *
 * hba_host.c
 *		Host names in pg_hba.conf.
 *
 * Problem: the server asks the name server in each backend (check_hostname in
 * hba.c); the launcher would have all other logins wait meanwhile.  So the name
 * is looked up here, and given to the server's code with the question.
 *
 * A line matches if the client's address has that name (reverse look-up) and
 * that name has the client's address (forward look-up).  Both must hold, so
 * they may be asked in either order.  For a whole name we ask forward first:
 * that is about names which the administrator wrote, so a stranger cannot
 * slow us down by a reverse zone of his own that does not answer.  For an
 * ending (".example.com") there is no way but to ask reverse first.
 * Answers are kept for a short while, refusals too.
 *
 * Known limit, stated in docs/parameters.md: a name server that does not
 * answer delays logins on the pool's port while such a line is tried.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <netdb.h>
#include <netinet/in.h>

#include "common/ip.h"
#include "utils/memutils.h"

#include "hba_host.h"
#include "monotonic.h"

#define CACHE_ENTRIES 64
#define CACHE_LIFETIME_US (60 * INT64CONST(1000000))

/* A name and the addresses it has. */
typedef struct ForwardEntry
{
	char	   *name;			/* NULL: not in use */
	int64		asked_us;
	int			count;
	SockAddr   *addresses;
} ForwardEntry;

/* An address and the name it has. */
typedef struct ReverseEntry
{
	SockAddr	address;
	int64		asked_us;		/* 0: not in use */
	char	   *name;			/* NULL: none */
} ReverseEntry;

/* Rings: the oldest entry is replaced. */
static ForwardEntry forward_cache[CACHE_ENTRIES];
static int	forward_next = 0;
static ReverseEntry reverse_cache[CACHE_ENTRIES];
static int	reverse_next = 0;

static bool
same_host(const SockAddr *a, const SockAddr *b)
{
	if (a->addr.ss_family != b->addr.ss_family)
		return false;
	if (a->addr.ss_family == AF_INET)
		return ((const struct sockaddr_in *) &a->addr)->sin_addr.s_addr ==
			((const struct sockaddr_in *) &b->addr)->sin_addr.s_addr;
	if (a->addr.ss_family == AF_INET6)
		return memcmp(&((const struct sockaddr_in6 *) &a->addr)->sin6_addr,
					  &((const struct sockaddr_in6 *) &b->addr)->sin6_addr,
					  sizeof(struct in6_addr)) == 0;
	return false;
}

static bool
fresh(int64 asked_us)
{
	return asked_us != 0 && baton_monotonic_us() - asked_us < CACHE_LIFETIME_US;
}

/* Blocks while the name server is asked. */
static void
ask_forward(ForwardEntry *entry, const char *name)
{
	struct addrinfo hints;
	struct addrinfo *answer = NULL;
	int			count = 0;

	if (entry->name != NULL)
	{
		pfree(entry->name);
		pfree(entry->addresses);
		entry->name = NULL;		/* what follows may fail */
	}
	memset(&hints, 0, sizeof(hints));
	hints.ai_socktype = SOCK_STREAM;	/* each address once */
	if (getaddrinfo(name, NULL, &hints, &answer) != 0)
		answer = NULL;
	for (struct addrinfo *at = answer; at != NULL; at = at->ai_next)
		count++;

	entry->addresses = MemoryContextAllocZero(TopMemoryContext,
											  Max(count, 1) * sizeof(SockAddr));
	entry->name = MemoryContextStrdup(TopMemoryContext, name);
	entry->count = 0;
	for (struct addrinfo *at = answer; at != NULL; at = at->ai_next)
	{
		SockAddr   *address = &entry->addresses[entry->count++];

		address->salen = Min(at->ai_addrlen, sizeof(address->addr));
		memcpy(&address->addr, at->ai_addr, address->salen);
	}
	if (answer != NULL)
		freeaddrinfo(answer);
	entry->asked_us = baton_monotonic_us();
}

static bool
name_has_address(const char *name, const SockAddr *client)
{
	ForwardEntry *entry = NULL;

	for (int i = 0; i < CACHE_ENTRIES; i++)
		if (forward_cache[i].name != NULL && pg_strcasecmp(forward_cache[i].name, name) == 0)
			entry = &forward_cache[i];
	if (entry == NULL)
	{
		entry = &forward_cache[forward_next];
		forward_next = (forward_next + 1) % CACHE_ENTRIES;
		ask_forward(entry, name);
	}
	else if (!fresh(entry->asked_us))
		ask_forward(entry, name);

	for (int i = 0; i < entry->count; i++)
		if (same_host(&entry->addresses[i], client))
			return true;
	return false;
}

/* NULL if it has none.  Blocks while the name server is asked. */
static const char *
name_of_address(const SockAddr *client)
{
	ReverseEntry *entry = NULL;
	char		name[NI_MAXHOST];

	for (int i = 0; i < CACHE_ENTRIES; i++)
		if (reverse_cache[i].asked_us != 0 && same_host(&reverse_cache[i].address, client))
			entry = &reverse_cache[i];
	if (entry != NULL && fresh(entry->asked_us))
		return entry->name;
	if (entry == NULL)
	{
		entry = &reverse_cache[reverse_next];
		reverse_next = (reverse_next + 1) % CACHE_ENTRIES;
	}

	if (entry->name != NULL)
		pfree(entry->name);
	entry->name = NULL;
	entry->address = *client;
	if (pg_getnameinfo_all(&client->addr, client->salen, name, sizeof(name),
						   NULL, 0, NI_NAMEREQD) == 0)
		entry->name = MemoryContextStrdup(TopMemoryContext, name);
	entry->asked_us = baton_monotonic_us();
	return entry->name;
}

const char *
baton_host_name(const char *pattern, const SockAddr *client)
{
	const char *name;

	if (pattern[0] == '.')
	{
		Size		ending = strlen(pattern);
		Size		length;

		name = name_of_address(client);
		if (name == NULL)
			return NULL;
		length = strlen(name);
		if (length < ending || pg_strcasecmp(name + (length - ending), pattern) != 0)
			return NULL;
		return name_has_address(name, client) ? name : NULL;
	}

	if (!name_has_address(pattern, client))
		return NULL;
	name = name_of_address(client);
	return name != NULL && pg_strcasecmp(name, pattern) == 0 ? name : NULL;
}
