/*-------------------------------------------------------------------------
 *
 * hba_match.c
 *		Which line of pg_hba.conf a client of the pool's port matches, host names
 *		included.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <netdb.h>
#include <netinet/in.h>

#include "common/ip.h"
#include "lib/stringinfo.h"
#include "utils/acl.h"
#include "utils/catcache.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/syscache.h"

#include "catalog_watch.h"
#include "database_access.h"
#include "hba_match.h"
#include "majors.h"
#include "pg_hba.h"

/* ----------------------------------------------------------------
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
 * ----------------------------------------------------------------
 */

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

/* ----------------------------------------------------------------
 *		Which line of pg_hba.conf a client of the pool's port matches.
 *
 * The server's own code matches (pg_hba.c).  What it does not say, and is
 * read from the files here, is
 *	- which lines ask the network before the one that matched: host names are
 *	  looked up by us, so that a slow name server does not hold up all logins
 *	 , and such an answer must not be kept;
 *	- which groups the rules name.  The server looks each of them up in a catalog
 *	  cache, and a row that is too long to be read without a database would be
 *	  the launcher's end (catalog_watch.c).  Then a backend is asked instead,
 *	  whose end it is on the server's own port, too.  So it is with a role of very
 *	  many memberships, which the server's code takes long to go through.
 *
 * Each file is read before and after the server reads it: what we have found is
 * of what it has found only if both are the same.
 *
 * Owner: the launcher, alone.
 * ----------------------------------------------------------------
 */

/* A file that changes all the time is read so often, and then not believed. */
#define READ_TRIES 5

/*
 * The cache of roles has an entry for each name that was asked about, be there
 * such a role or not, and clients choose the names.
 */
#define QUESTIONS_A_CACHE 1000

/* What the server's code has read, as we read it. */
typedef struct RuleFile
{
	bool		is_known;
	MemoryContext context;		/* of all below; NULL if there is nothing */
	StringInfoData text;		/* all of it, to be compared */
	List	   *lines;			/* of HbaLine *; pg_hba.conf only */
	List	   *groups;			/* of char *: roles whose members are meant */
	bool		names_same_role;	/* a database's name may be such a role's */
} RuleFile;

static RuleFile hba_file;
static RuleFile ident_file;

/* Have all groups been seen to be readable, and cached, since a role last changed? */
static bool groups_are_readable = false;

static void
forget_groups(Datum argument, int cache, uint32 hash)
{
	groups_are_readable = false;
}

void
baton_hba_init(void)
{
	CacheRegisterSyscacheCallback(AUTHNAME, forget_groups, (Datum) 0);
	ident_file.is_known = !baton_rules_have_maps();
}

static bool
is_same_role(const char *text)
{
	return strcmp(text, "samerole") == 0 || strcmp(text, "samegroup") == 0;
}

static void
read_token(RuleFile *file, const AuthToken *token)
{
	appendStringInfo(&file->text, "%c%s,", token->quoted ? '"' : ' ', token->string);
	if (token->quoted)
		return;
	if (token->string[0] == '+')
		file->groups = lappend(file->groups, pstrdup(token->string + 1));
	else if (is_same_role(token->string))
		file->names_same_role = true;
}

/* What is wrong with it is the server's to report. */
static void
read_file(RuleFile *file, const char *name, bool is_hba)
{
	MemoryContext outer_context = CurrentMemoryContext;
	MemoryContext token_context = AllocSetContextCreate(outer_context, "pg_baton tokens",
														ALLOCSET_SMALL_SIZES);
	FILE	   *stream;
	List	   *tokens;
	ListCell   *line_cell;

	memset(file, 0, sizeof(*file));
	file->context = AllocSetContextCreate(TopMemoryContext, "pg_baton rule file",
										  ALLOCSET_SMALL_SIZES);
	MemoryContextSwitchTo(token_context);
	stream = baton_auth_file_open(name, &tokens, DEBUG5);
	MemoryContextSwitchTo(file->context);
	initStringInfo(&file->text);
	foreach(line_cell, tokens)
	{
		TokenizedAuthLine *tokens_of_line = (TokenizedAuthLine *) lfirst(line_cell);
		HbaLine    *line = NULL;
		ListCell   *field_cell;

		if (tokens_of_line->err_msg != NULL)
			continue;
		appendStringInfo(&file->text, "\n%d:", tokens_of_line->line_num);
		foreach(field_cell, tokens_of_line->fields)
		{
			ListCell   *token_cell;

			foreach(token_cell, (List *) lfirst(field_cell))
				read_token(file, (const AuthToken *) lfirst(token_cell));
			appendStringInfoChar(&file->text, ';');
		}
		if (is_hba)
			line = parse_hba_line(tokens_of_line, DEBUG5);
		if (line != NULL)
			file->lines = lappend(file->lines, line);
	}
	MemoryContextSwitchTo(outer_context);
	baton_auth_file_close(stream);
	MemoryContextDelete(token_context);
}

static void
forget_file(RuleFile *file)
{
	if (file->context != NULL)
		MemoryContextDelete(file->context);
	memset(file, 0, sizeof(*file));
}

static void
load_rules(RuleFile *in_force, const char *name, bool (*load) (void))
{
	RuleFile	before;
	RuleFile	after;

	for (int i = 0; i < READ_TRIES; i++)
	{
		bool		loaded;
		bool		same;

		read_file(&before, name, in_force == &hba_file);
		loaded = load();
		read_file(&after, name, in_force == &hba_file);
		same = strcmp(before.text.data, after.text.data) == 0;
		forget_file(&before);
		if (loaded && same)
		{
			forget_file(in_force);
			*in_force = after;
			in_force->is_known = true;
			return;
		}
		forget_file(&after);
		if (!loaded)
			return;				/* what was read before stays */
		forget_file(in_force);
	}
}

void
baton_hba_load(void)
{
	if (!baton_rules_kept())
		return;
	groups_are_readable = false;
	load_rules(&hba_file, HbaFileName, baton_rules_load_hba);
	load_rules(&ident_file, IdentFileName, baton_rules_load_ident);
}

static bool
is_readable(const char *role_name)
{
	BatonRole	role;

	if (!baton_role_by_name(role_name, &role))
		return true;
	baton_role_wipe(&role);
	return role.readable;
}

/*
 * And cached, by the same snapshot: so none is read again before an invalidation
 * has come, and with it forget_groups().
 */
static bool
are_readable(List *groups)
{
	ListCell   *cell;

	foreach(cell, groups)
	{
		const char *name = (const char *) lfirst(cell);

		if (!is_readable(name))
			return false;
		(void) get_role_oid(name, true);
	}
	return true;
}

static bool
asks_for_groups(void)
{
	return hba_file.groups != NIL || ident_file.groups != NIL || hba_file.names_same_role;
}

/* The server's code looks for a group in a list of all that the role is a member of. */
static bool
has_few_memberships(const char *role_name)
{
	BatonRole	role;

	if (!baton_role_by_name(role_name, &role))
		return true;
	baton_role_wipe(&role);
	return baton_has_few_memberships(role.oid, BATON_MEMBERSHIP_ROWS);
}

bool
baton_hba_can_answer(const BatonClient *client)
{
	static int	questions = 0;

	if (!baton_rules_kept() || !hba_file.is_known || !ident_file.is_known)
		return false;

	if (++questions >= QUESTIONS_A_CACHE)
	{
		questions = 0;
		groups_are_readable = false;
		ResetCatalogCaches();
	}

	if (!groups_are_readable)
		groups_are_readable = are_readable(hba_file.groups) && are_readable(ident_file.groups);
	if (!groups_are_readable || (hba_file.names_same_role && !is_readable(client->database)))
		return false;
	return !asks_for_groups() || has_few_memberships(client->user);
}

bool
baton_hba_wants_gss(void)
{
	ListCell   *cell;

	foreach(cell, hba_file.lines)
	{
		const HbaLine *line = (const HbaLine *) lfirst(cell);

		if (line->conntype == ctHostGSS && line->auth_method != uaReject)
			return true;
		if (line->conntype == ctHostNoGSS && line->auth_method == uaReject)
			return true;
	}
	return false;
}

/* Does the server's code look at the line's address for that client? */
static bool
address_counts(const BatonClient *client, const HbaLine *line)
{
	switch (line->conntype)
	{
		case ctHost:
		case ctHostNoGSS:
			return true;
		case ctHostSSL:
			return client->is_secure;
		case ctHostNoSSL:
			return !client->is_secure;
		case ctLocal:
		case ctHostGSS:
			break;
	}
	return false;
}

static bool
is_groups_token(const AuthToken *token)
{
	return !token->quoted &&
		(token->string[0] == '+' || is_same_role(token->string));
}

static bool
has_groups(List *tokens)
{
	ListCell   *cell;

	foreach(cell, tokens)
	{
		if (is_groups_token((const AuthToken *) lfirst(cell)))
			return true;
	}
	return false;
}

/* By what the lines decide, up to the one that matches without host names. */
typedef struct Reached
{
	bool		network;		/* interfaces or name servers count */
	bool		groups;			/* memberships do */
	const char *host;
} Reached;

static Reached
look_at_reached(const BatonClient *client, const HbaLine *match)
{
	Reached		reached = {false, false, NULL};
	bool		is_local = client->address.addr.ss_family == AF_UNIX;
	ListCell   *cell;

	if (match != NULL && match->usermap != NULL)
		reached.groups = ident_file.groups != NIL;
	foreach(cell, hba_file.lines)
	{
		const HbaLine *line = (const HbaLine *) lfirst(cell);

		reached.groups = reached.groups || has_groups(line->roles) || has_groups(line->databases);
		if (!is_local && address_counts(client, line))
		{
			if (line->ip_cmp_method == ipCmpSameHost || line->ip_cmp_method == ipCmpSameNet)
				reached.network = true;
			if (line->hostname != NULL)
			{
				reached.network = true;
				if (reached.host == NULL)
					reached.host = baton_host_name(line->hostname, &client->address);
			}
		}
		if (match != NULL && baton_rules_same_line(line, match))
			break;
	}
	return reached;
}

const HbaLine *
baton_hba_match(const BatonClient *client, bool *by_network, bool *by_groups)
{
	const HbaLine *match = baton_rules_match(client, NULL);
	Reached		reached = look_at_reached(client, match);

	*by_network = reached.network;
	*by_groups = reached.groups;
	return reached.host != NULL ? baton_rules_match(client, reached.host) : match;
}
