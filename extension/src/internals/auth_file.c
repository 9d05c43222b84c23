/*-------------------------------------------------------------------------
 *
 * auth_file.c
 *		Reading pg_hba.conf and pg_ident.conf.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "libpq/hba.h"
#include "mb/pg_wchar.h"
#include "storage/fd.h"

#include "auth_file.h"

FILE *
baton_auth_file_open(const char *name, List **lines)
{
	FILE	   *file;

	*lines = NIL;
#if PG_VERSION_NUM >= 160000
	file = open_auth_file(name, LOG, 0, NULL);
	if (file != NULL)
		tokenize_auth_file(name, file, lines, LOG, 0);
#else
	file = AllocateFile(name, "r");
	if (file == NULL)
		ereport(LOG,
				(errcode_for_file_access(),
				 errmsg("could not open configuration file \"%s\": %m", name)));
	else
		(void) tokenize_auth_file(name, file, lines, LOG);
#endif
	return file;
}

void
baton_auth_file_close(FILE *file)
{
	if (file == NULL)
		return;
#if PG_VERSION_NUM >= 160000
	free_auth_file(file, 0);	/* and the lines with it */
#else
	FreeFile(file);
#endif
}

bool
baton_auth_token_matches(AuthToken *token, const char *name)
{
#if PG_VERSION_NUM >= 160000
	if (token->regex != NULL)
	{
		pg_wchar   *wide = palloc((strlen(name) + 1) * sizeof(pg_wchar));
		int			length = pg_mb2wchar_with_len(name, wide, strlen(name));
		bool		match;

		match = pg_regexec(token->regex, wide, length, 0, NULL, 0, NULL, 0) == REG_OKAY;
		pfree(wide);
		return match;
	}
#endif
	return strcmp(token->string, name) == 0;
}

#if PG_VERSION_NUM >= 160000

const char *
baton_ident_system_user(IdentLine *line)
{
	return line->system_user->string;
}

regex_t *
baton_ident_regex(IdentLine *line)
{
	return line->system_user->regex;
}

const char *
baton_ident_role(IdentLine *line)
{
	return line->pg_user->string;
}

AuthToken *
baton_ident_role_token(IdentLine *line)
{
	return line->pg_user;
}

void
baton_ident_line_free(IdentLine *line)
{
	if (line->system_user->regex != NULL)
		pg_regfree(line->system_user->regex);
	if (line->pg_user->regex != NULL)
		pg_regfree(line->pg_user->regex);
}

#else

const char *
baton_ident_system_user(IdentLine *line)
{
	return line->ident_user;
}

regex_t *
baton_ident_regex(IdentLine *line)
{
	return line->ident_user[0] == '/' ? &line->re : NULL;
}

const char *
baton_ident_role(IdentLine *line)
{
	return line->pg_role;
}

AuthToken *
baton_ident_role_token(IdentLine *line)
{
	return NULL;
}

void
baton_ident_line_free(IdentLine *line)
{
	if (line->ident_user[0] == '/')
		pg_regfree(&line->re);
}

#endif
