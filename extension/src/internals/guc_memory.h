/*-------------------------------------------------------------------------
 *
 * guc_memory.h
 *		The memory that guc.c keeps values in.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_GUC_MEMORY_H
#define BATON_GUC_MEMORY_H

/* The allocator that guc.c frees with. */
extern char *baton_guc_strdup(const char *string);
extern void baton_guc_free(void *pointer);

#endif							/* BATON_GUC_MEMORY_H */
