/*-------------------------------------------------------------------------
 *
 * later_functions.h
 *		Built-in functions that came after 15, for majors that lack them.
 *
 * Files that replace functions (pg_program.c) name them on all majors; an
 * entry with InvalidOid is ignored, and its replacement is never called.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_LATER_FUNCTIONS_H
#define BATON_LATER_FUNCTIONS_H

#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"

#if PG_VERSION_NUM < 160000
#define F_SYSTEM_USER InvalidOid
#define system_user ((PGFunction) NULL)
#define F_PG_STAT_GET_BACKEND_SUBXACT InvalidOid
#define pg_stat_get_backend_subxact ((PGFunction) NULL)
#define F_PG_STAT_GET_XACT_TUPLES_NEWPAGE_UPDATED InvalidOid
#define pg_stat_get_xact_tuples_newpage_updated ((PGFunction) NULL)
#endif

#if PG_VERSION_NUM < 180000
#define F_PG_STAT_GET_BACKEND_IO InvalidOid
#define pg_stat_get_backend_io ((PGFunction) NULL)
#define F_PG_STAT_GET_BACKEND_WAL InvalidOid
#define pg_stat_get_backend_wal ((PGFunction) NULL)
#define F_PG_STAT_RESET_BACKEND_STATS InvalidOid
#define pg_stat_reset_backend_stats ((PGFunction) NULL)
#define F_PG_GET_AIOS InvalidOid
#define pg_get_aios ((PGFunction) NULL)
#endif

#endif							/* BATON_LATER_FUNCTIONS_H */
