/*-------------------------------------------------------------------------
 *
 * program.h
 *		The dispatcher's program: where it is, of which build it is, and the
 *		one that was installed when the server started.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PROGRAM_H
#define BATON_PROGRAM_H

#include "baton_shared.h"

/* The program that is to be started. */
typedef struct BatonProgram
{
	int			fd;				/* to be executed by it, or -1: by its path */
	char		path[MAXPGPATH];
	BatonProgramFile file;
} BatonProgram;

/*
 * Postmaster only, called by _PG_init: opens the installed program, which
 * every process of the server inherits.
 */
extern void baton_program_keep(void);

/*
 * Decides which program is started: the installed one, or the one of the
 * server's start if the installed one is of another layout or is gone.  Returns
 * false if there is none.  Logs why it is not the installed one.
 */
extern bool baton_program_choose(BatonProgram *program);

/*
 * Finds another program in the directory of the installed dispatcher.  Returns
 * false, and why in *problem, if there is none of the library's layout.
 */
extern bool baton_program_beside(const char *name, BatonProgram *program, const char **problem);

/* Are these the same file, unchanged? */
extern bool baton_program_is_same(const BatonProgramFile *one, const BatonProgramFile *other);

#endif							/* BATON_PROGRAM_H */
