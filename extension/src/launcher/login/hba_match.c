/*-------------------------------------------------------------------------
 *
 * hba_match.c
 *		Which line of pg_hba.conf a client of the pool's port matches.
 *
 * The server parses the file, here as everywhere: tokenize_auth_file and
 * parse_hba_line in hba.c are exported.  What is not is the list that
 * load_hba keeps.  It lives in PostmasterContext, which a background worker
 * has deleted (do_start_bgworker in postmaster.c), so that hba.c's own list
 * dangles in the launcher: load_hba, hba_getauthmethod and check_usermap with
 * a map must never be called here.  We keep a list of our own and match it in
 * the way of check_hba, for connections that are not encrypted by GSSAPI:
 * hostgssenc lines never match, hostnogssenc behave as host.
 *
 * Owner: the launcher, alone.  parsed_lines lives in parsed_context and is
 * replaced as a whole.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "libpq/ifaddr.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "auth_file.h"
#include "hba_host.h"
#include "hba_match.h"
#include "shared_catalog.h"

static List *parsed_lines = NIL;	/* of HbaLine * */
static MemoryContext parsed_context = NULL;

/* What pg_foreach_ifaddr's callback works on. */
typedef struct InterfaceSearch
{
	const SockAddr *address;
	IPCompareMethod method;
	bool		found;
} InterfaceSearch;

void
baton_hba_load(void)
{
	MemoryContext context = AllocSetContextCreate(TopMemoryContext,
												  "pg_baton hba lines",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext old_context;
	MemoryContext token_context = AllocSetContextCreate(CurrentMemoryContext,
														"pg_baton hba tokens",
														ALLOCSET_SMALL_SIZES);
	FILE	   *file;
	List	   *tokens;
	List	   *lines = NIL;
	ListCell   *cell;
	bool		good = true;

	old_context = MemoryContextSwitchTo(token_context);
	file = baton_auth_file_open(HbaFileName, &tokens);
	MemoryContextSwitchTo(context);
	foreach(cell, tokens)
	{
		TokenizedAuthLine *token_line = (TokenizedAuthLine *) lfirst(cell);
		HbaLine    *line = NULL;

		if (token_line->err_msg == NULL)
			line = parse_hba_line(token_line, LOG);
		if (line == NULL)
			good = false;		/* logged already; go on, to log them all */
		else
			lines = lappend(lines, line);
	}
	MemoryContextSwitchTo(old_context);
	baton_auth_file_close(file);
	MemoryContextDelete(token_context);

	if (!good || lines == NIL)
	{
		ereport(LOG,
				(errcode(ERRCODE_CONFIG_FILE_ERROR),
				 errmsg("pg_baton could not load \"%s\"", HbaFileName),
				 parsed_context != NULL ?
				 errdetail("The lines read before remain in force.") : 0));
		MemoryContextDelete(context);
		return;
	}

	if (parsed_context != NULL)
		MemoryContextDelete(parsed_context);
	parsed_context = context;
	parsed_lines = lines;
}

bool
baton_hba_loaded(void)
{
	return parsed_context != NULL;
}

static bool
token_is(const AuthToken *token, const char *keyword)
{
	return !token->quoted && strcmp(token->string, keyword) == 0;
}

/* As is_member in hba.c: explicit membership counts, being superuser does not. */
static bool
role_is_member(Oid role, const char *group)
{
	Oid			group_role;

	if (!OidIsValid(role))
		return false;
	group_role = baton_role_oid(group);
	return OidIsValid(group_role) && is_member_of_role_nosuper(role, group_role);
}

static bool
database_matches(const BatonClient *client, List *tokens)
{
	ListCell   *cell;

	foreach(cell, tokens)
	{
		AuthToken  *token = (AuthToken *) lfirst(cell);

		if (token_is(token, "all"))
			return true;
		else if (token_is(token, "sameuser"))
		{
			if (strcmp(client->database, client->user) == 0)
				return true;
		}
		else if (token_is(token, "samegroup") || token_is(token, "samerole"))
		{
			if (role_is_member(client->role, client->database))
				return true;
		}
		else if (token_is(token, "replication"))
			continue;			/* a session of the pool never is */
		else if (baton_auth_token_matches(token, client->database))
			return true;
	}
	return false;
}

static bool
role_matches(const BatonClient *client, List *tokens)
{
	ListCell   *cell;

	foreach(cell, tokens)
	{
		AuthToken  *token = (AuthToken *) lfirst(cell);

		if (!token->quoted && token->string[0] == '+')
		{
			if (role_is_member(client->role, token->string + 1))
				return true;
		}
		else if (token_is(token, "all") || baton_auth_token_matches(token, client->user))
			return true;
	}
	return false;
}

static bool
in_range(const SockAddr *address, const struct sockaddr *network, const struct sockaddr *mask)
{
	return address->addr.ss_family == network->sa_family &&
		pg_range_sockaddr(&address->addr,
						  (const struct sockaddr_storage *) network,
						  (const struct sockaddr_storage *) mask);
}

static void
compare_interface(struct sockaddr *address, struct sockaddr *mask, void *argument)
{
	InterfaceSearch *search = (InterfaceSearch *) argument;
	struct sockaddr_storage host_mask;

	if (search->found)
		return;
	if (search->method == ipCmpSameHost)
	{
		pg_sockaddr_cidr_mask(&host_mask, NULL, address->sa_family);
		mask = (struct sockaddr *) &host_mask;
	}
	search->found = in_range(search->address, address, mask);
}

static bool
on_own_interface(const SockAddr *address, IPCompareMethod method)
{
	InterfaceSearch search = {.address = address,.method = method,.found = false};

	errno = 0;
	if (pg_foreach_ifaddr(compare_interface, &search) < 0)
	{
		ereport(LOG,
				(errmsg("error enumerating network interfaces: %m")));
		return false;
	}
	return search.found;
}

static bool
address_matches(const BatonClient *client, HbaLine *line, bool *by_network)
{
	if (line->ip_cmp_method == ipCmpSameHost || line->ip_cmp_method == ipCmpSameNet ||
		(line->ip_cmp_method == ipCmpMask && line->hostname != NULL))
		*by_network = true;

	switch (line->ip_cmp_method)
	{
		case ipCmpAll:
			return true;
		case ipCmpSameHost:
		case ipCmpSameNet:
			return on_own_interface(&client->address, line->ip_cmp_method);
		case ipCmpMask:
			if (line->hostname != NULL)
				return baton_host_matches(line->hostname, &client->address);
			return in_range(&client->address, (struct sockaddr *) &line->addr,
							(struct sockaddr *) &line->mask);
	}
	return false;
}

static bool
connection_matches(const BatonClient *client, HbaLine *line, bool *by_network)
{
	bool		local = client->address.addr.ss_family == AF_UNIX;

	switch (line->conntype)
	{
		case ctLocal:
			return local;
		case ctHost:
		case ctHostNoGSS:
			return !local && address_matches(client, line, by_network);
		case ctHostNoSSL:
			return !local && !client->is_secure && address_matches(client, line, by_network);
		case ctHostSSL:
			return client->is_secure && address_matches(client, line, by_network);
		case ctHostGSS:
			return false;
	}
	return false;
}

HbaLine *
baton_hba_match(const BatonClient *client, bool *by_network)
{
	ListCell   *cell;

	*by_network = false;
	foreach(cell, parsed_lines)
	{
		HbaLine    *line = (HbaLine *) lfirst(cell);

		/* in check_hba's order: a name server may have to be asked */
		if (connection_matches(client, line, by_network) &&
			database_matches(client, line->databases) &&
			role_matches(client, line->roles))
			return line;
	}
	return NULL;
}
