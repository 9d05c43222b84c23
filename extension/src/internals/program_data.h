/*-------------------------------------------------------------------------
 *
 * program_data.h
 *		Where the server program keeps its variables.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_PROGRAM_DATA_H
#define BATON_PROGRAM_DATA_H

/* From start to before end; both are aligned for a pointer. */
typedef struct BatonProgramData
{
	uintptr_t	start;
	uintptr_t	end;
} BatonProgramData;

/* False if it was not found. */
extern bool baton_program_data(BatonProgramData *data);

/* Is it the server program's own code, and no library's? */
extern bool baton_is_program_code(const void *address);

#endif							/* BATON_PROGRAM_DATA_H */
