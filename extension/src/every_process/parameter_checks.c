/*-------------------------------------------------------------------------
 *
 * parameter_checks.c
 *		Which texts our parameters of type string take.
 *
 * Called by guc.c in any process, with or without a transaction: nothing here
 * reads catalogs.  A value of a configuration file that is refused leaves the
 * one before in force, with a word in the log.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "parser/scansup.h"
#include "utils/guc.h"
#include "utils/varlena.h"

#include "parameter_checks.h"

/* The dispatcher's levels (log.rs). */
static const char *const levels[] =
{
	"off", "error", "warn", "info", "debug", "trace"
};

static bool
is_list(const char *value, bool (*split) (char *, char, List **))
{
	char	   *copy = pstrdup(value);
	List	   *names;
	bool		valid = split(copy, ',', &names);

	list_free(names);
	pfree(copy);
	if (!valid)
		GUC_check_errdetail("List syntax is invalid.");
	return valid;
}

bool
baton_check_names(char **value, void **extra, GucSource source)
{
	return is_list(*value, SplitIdentifierString);
}

/* As PostmasterMain (postmaster.c) reads listen_addresses. */
bool
baton_check_list(char **value, void **extra, GucSource source)
{
	return is_list(*value, SplitGUCList);
}

/*
 * A name of a list of database/user, as parameters.rs reads it: in quotes, where two
 * stand for one, or up to what separates.  What comes after it and blanks; NULL
 * if there is none.
 */
static const char *
skip_name(const char *at)
{
	const char *begin;

	while (scanner_isspace(*at))
		at++;
	begin = at;
	if (*at == '"')
	{
		do
		{
			at = strchr(at + 1, '"');
			if (at == NULL)
				return NULL;
			at++;
		} while (*at == '"');
		if (at - begin == 2)
			return NULL;
	}
	else
	{
		at += strcspn(at, ",/\" \t\n\r");
		if (at == begin)
			return NULL;
	}
	while (scanner_isspace(*at))
		at++;
	return at;
}

bool
baton_check_dbuser_names(char **value, void **extra, GucSource source)
{
	const char *at = *value;

	while (scanner_isspace(*at))
		at++;
	while (*at != '\0')
	{
		at = skip_name(at);
		if (at != NULL)
			at = *at == '/' ? skip_name(at + 1) : NULL;
		if (at == NULL || (*at != '\0' && (*at != ',' || *++at == '\0')))
		{
			GUC_check_errdetail("Entries are of the form database/user, with commas between; * or _ stands for any.");
			return false;
		}
	}
	return true;
}

static bool
is_level(const char *word)
{
	for (int i = 0; i < (int) lengthof(levels); i++)
	{
		if (pg_strcasecmp(word, levels[i]) == 0)
			return true;
	}
	return false;
}

/* Levels, or module=level, with commas between. */
bool
baton_check_log(char **value, void **extra, GucSource source)
{
	char	   *copy = pstrdup(*value);
	char	   *rest = copy;
	bool		valid = true;

	while (rest != NULL && valid)
	{
		char	   *word = rest;
		char	   *equals;

		rest = strchr(rest, ',');
		if (rest != NULL)
			*rest++ = '\0';
		while (scanner_isspace(*word))
			word++;
		for (char *end = word + strlen(word); end > word && scanner_isspace(end[-1]);)
			*--end = '\0';
		equals = strchr(word, '=');
		valid = equals != word && is_level(equals ? equals + 1 : word);
		if (!valid)
			GUC_check_errdetail("\"%s\" is neither a level nor of the form module=level.", word);
	}
	if (!valid)
		GUC_check_errhint("Levels are off, error, warn, info, debug and trace.");
	pfree(copy);
	return valid;
}
