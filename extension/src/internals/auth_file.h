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
 * until baton_auth_file_close.  NULL if it cannot be opened.  What is wrong is
 * reported at that level.
 */
extern FILE *baton_auth_file_open(const char *name, List **lines, int level);
extern void baton_auth_file_close(FILE *file);

#endif							/* BATON_AUTH_FILE_H */
