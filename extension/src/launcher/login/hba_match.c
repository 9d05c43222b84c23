/*-------------------------------------------------------------------------
 *
 * hba_match.c
 *		Which line of pg_hba.conf a client of the pool's port matches.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

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
 *		Which line of pg_hba.conf a client of the pool's port matches.
 *
 * The server's own code finds the matching line (pg_hba.c).  This code reads
 * the files for what the server's code does not report:
 * - which lines before the matching one need the network.  If a line with a
 *   host name may match, a backend of the server authenticates the client: a
 *   slow name server must not delay all logins.  An answer that depends on
 *   the machine's interfaces is not kept;
 * - which groups the rules name.  The server looks each group up in a catalog
 *   cache, and a row that is too long to be read without a database would end
 *   the launcher (catalog_watch.c).  In that case a backend is asked instead,
 *   which such a row would also end on the server's own port.  The same
 *   applies to a role with very many memberships, which the server's code
 *   takes long to follow.
 *
 * Each file is read before and after the server reads it: the two results
 * describe the same contents only if both readings are equal.
 *
 * Only the launcher uses this.
 */

/*
 * The number of attempts to read a file that keeps changing; then the file is
 * not used.
 */
#define READ_TRIES 5

/*
 * The cache of roles gets an entry for each name asked for, existing or not,
 * and clients choose the names.
 */
#define QUESTIONS_A_CACHE 1000

/* A file that the server's code has read, as parsed here. */
typedef struct RuleFile
{
	bool		is_known;
	MemoryContext context;		/* holds all below; NULL if empty */
	StringInfoData text;		/* the whole text, for comparison */
	List	   *lines;			/* of HbaLine *; pg_hba.conf only */
	List	   *groups;			/* of char *: roles named as groups */
	bool		names_same_role;	/* a database's name may be a group's name
									 * (samerole) */
} RuleFile;

static RuleFile hba_file;
static RuleFile ident_file;

/*
 * Have all groups been found readable, and cached, since a role last changed?
 */
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

/* Errors in the file are left to the server to report. */
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
			return;				/* what was read before stays in force */
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
 * Finds groups readable and caches them, by the same snapshot: so none is read
 * again before an invalidation has come, and with it forget_groups().
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

/*
 * The server's code looks for a group in a list of all memberships of the
 * role.
 */
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

/* Does the server's code check the line's address for that client? */
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

/* The line that matches if the client's address has such a name. */
static const HbaLine *
would_match(const BatonClient *client, const char *pattern)
{
	char	   *name = psprintf("%s%s", pattern[0] == '.' ? "x" : "", pattern);
	const HbaLine *line = baton_rules_match(client, name);

	pfree(name);
	return line;
}

/* What the lines depend on, up to the one that matches without host names. */
typedef struct Reached
{
	bool		host_name;		/* a name server */
	bool		network;		/* this machine's interfaces */
	bool		groups;			/* memberships */
} Reached;

static Reached
look_at_reached(const BatonClient *client, const HbaLine *match)
{
	Reached		reached = {false, false, false};
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
			if (line->hostname != NULL && would_match(client, line->hostname) != match)
				reached.host_name = true;
		}
		if (match != NULL && baton_rules_same_line(line, match))
			break;
	}
	return reached;
}

const HbaLine *
baton_hba_match(const BatonClient *client, bool *by_host_name, bool *by_network, bool *by_groups)
{
	const HbaLine *match = baton_rules_match(client, NULL);
	Reached		reached = look_at_reached(client, match);

	*by_host_name = reached.host_name;
	*by_network = reached.network;
	*by_groups = reached.groups;
	return match;
}
