/*-------------------------------------------------------------------------
 *
 * auth_file.h
 *		Reading pg_hba.conf and pg_ident.conf.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_AUTH_FILE_H
#define BATON_AUTH_FILE_H

#include "libpq/hba.h"
#include "nodes/pg_list.h"

/*
 * The file's lines as tokens (TokenizedAuthLine *), in the current context,
 * until baton_auth_file_close.  NULL, and logged, if it cannot be opened.
 */
extern FILE *baton_auth_file_open(const char *name, List **lines);
extern void baton_auth_file_close(FILE *file);

/*
 * Is it the token's text, or does the token's regular expression, which there
 * may be from 16 on, match it?
 */
extern bool baton_auth_token_matches(AuthToken *token, const char *name);

/*
 * Of a line of pg_ident.conf: the system user, with the slash before a regular
 * expression; the latter, or NULL; and the role, as text and, from 16 on, where
 * it may be more than that, as a token (NULL before).
 */
extern const char *baton_ident_system_user(IdentLine *line);
extern regex_t * baton_ident_regex(IdentLine *line);
extern const char *baton_ident_role(IdentLine *line);
extern AuthToken *baton_ident_role_token(IdentLine *line);

/* Frees what a parsed line holds outside memory contexts. */
extern void baton_ident_line_free(IdentLine *line);

#endif							/* BATON_AUTH_FILE_H */
