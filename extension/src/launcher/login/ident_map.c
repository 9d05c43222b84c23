/*-------------------------------------------------------------------------
 *
 * ident_map.c
 *		pg_ident.conf: which operating system user may be which role.
 *
 * check_usermap in hba.c looks into a list that dangles in a background
 * worker (see hba_match.c), so we keep our own.  The server's
 * parse_ident_line parses it, regular expressions included.
 *
 * A compiled expression lives outside our memory context (pg_regcomp in 15
 * uses malloc; from 16 on the current context) and is freed one by one.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "libpq/hba.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "regex/regex.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "auth_file.h"
#include "ident_map.h"
#include "shared_catalog.h"

static List *parsed_lines = NIL;	/* of IdentLine * */
static MemoryContext parsed_context = NULL;

static void
free_lines(List *lines, MemoryContext context)
{
	ListCell   *cell;

	foreach(cell, lines)
		baton_ident_line_free((IdentLine *) lfirst(cell));
	if (context != NULL)
		MemoryContextDelete(context);
}

void
baton_ident_load(void)
{
	MemoryContext context;
	MemoryContext token_context;
	MemoryContext old_context;
	FILE	   *file;
	List	   *tokens;
	List	   *lines = NIL;
	ListCell   *cell;
	bool		good = true;

	token_context = AllocSetContextCreate(CurrentMemoryContext,
										  "pg_baton ident tokens", ALLOCSET_SMALL_SIZES);
	old_context = MemoryContextSwitchTo(token_context);
	file = baton_auth_file_open(IdentFileName, &tokens);
	if (file == NULL)
	{
		/* as in load_ident: no maps then, or the old ones */
		MemoryContextSwitchTo(old_context);
		MemoryContextDelete(token_context);
		return;
	}

	context = AllocSetContextCreate(TopMemoryContext,
									"pg_baton ident lines", ALLOCSET_SMALL_SIZES);
	MemoryContextSwitchTo(context);
	foreach(cell, tokens)
	{
		TokenizedAuthLine *token_line = (TokenizedAuthLine *) lfirst(cell);
		IdentLine  *line = NULL;

		if (token_line->err_msg == NULL)
			line = parse_ident_line(token_line, LOG);
		if (line == NULL)
			good = false;
		else
			lines = lappend(lines, line);
	}
	MemoryContextSwitchTo(old_context);
	baton_auth_file_close(file);
	MemoryContextDelete(token_context);

	if (!good)
	{
		free_lines(lines, context);
		return;
	}
	free_lines(parsed_lines, parsed_context);
	parsed_context = context;
	parsed_lines = lines;
}

/*
 * The role that a line with a regular expression gives that user: its text,
 * with what the first parenthesis matched in place of \1.  NULL if the
 * expression does not match.  A failure is no match and ends the search.
 */
static char *
role_by_regex(IdentLine *line, const char *system_user, bool *failed)
{
	pg_wchar   *wide = palloc((strlen(system_user) + 1) * sizeof(pg_wchar));
	int			length = pg_mb2wchar_with_len(system_user, wide, strlen(system_user));
	regmatch_t	matches[2];
	const char *place;
	int			result;

	result = pg_regexec(baton_ident_regex(line), wide, length, 0, NULL, 2, matches, 0);
	pfree(wide);
	if (result == REG_NOMATCH)
		return NULL;
	if (result != REG_OKAY)
	{
		char		why[100];

		pg_regerror(result, baton_ident_regex(line), why, sizeof(why));
		ereport(LOG,
				(errcode(ERRCODE_INVALID_REGULAR_EXPRESSION),
				 errmsg("regular expression match for \"%s\" failed: %s",
						baton_ident_system_user(line) + 1, why)));
		*failed = true;
		return NULL;
	}

	place = strstr(baton_ident_role(line), "\\1");
	if (place == NULL)
		return pstrdup(baton_ident_role(line));
	if (matches[1].rm_so < 0)
	{
		ereport(LOG,
				(errcode(ERRCODE_INVALID_REGULAR_EXPRESSION),
				 errmsg("regular expression \"%s\" has no subexpressions as requested by backreference in \"%s\"",
						baton_ident_system_user(line) + 1, baton_ident_role(line))));
		*failed = true;
		return NULL;
	}
	/* offsets count characters as bytes here, exactly as hba.c does */
	return psprintf("%.*s%.*s%s",
					(int) (place - baton_ident_role(line)), baton_ident_role(line),
					(int) (matches[1].rm_eo - matches[1].rm_so), system_user + matches[1].rm_so,
					place + 2);
}

/* From 16 on the role of a line may be all, a group or an expression. */
static bool
role_token_matches(AuthToken *token, const char *role, Oid role_oid)
{
	if (!token->quoted && token->string[0] == '+')
	{
		Oid			group = baton_role_oid(token->string + 1);

		return OidIsValid(group) && OidIsValid(role_oid) &&
			is_member_of_role_nosuper(role_oid, group);
	}
	if (!token->quoted && strcmp(token->string, "all") == 0)
		return true;
	return baton_auth_token_matches(token, role);
}

bool
baton_ident_matches(const char *map, const char *role, Oid role_oid, const char *system_user)
{
	ListCell   *cell;
	bool		failed = false;

	if (map == NULL || map[0] == '\0')
		return strcmp(role, system_user) == 0;

	foreach(cell, parsed_lines)
	{
		IdentLine  *line = (IdentLine *) lfirst(cell);
		const char *mapped;

		if (strcmp(line->usermap, map) != 0)
			continue;
		if (baton_ident_regex(line) != NULL)
			mapped = role_by_regex(line, system_user, &failed);
		else
			mapped = strcmp(baton_ident_system_user(line), system_user) == 0 ? baton_ident_role(line) : NULL;
		if (failed)
			return false;
		if (mapped == NULL)
			continue;
		/* an expression's own text, put in for \1, is taken literally */
		if (baton_ident_role_token(line) != NULL && strcmp(mapped, baton_ident_role(line)) == 0)
		{
			if (role_token_matches(baton_ident_role_token(line), role, role_oid))
				return true;
			continue;
		}
		if (strcmp(mapped, role) == 0)
			return true;
	}
	return false;
}
