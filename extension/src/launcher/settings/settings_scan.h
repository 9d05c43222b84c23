/*-------------------------------------------------------------------------
 *
 * settings_scan.h
 *		The rows of pg_db_role_setting, for a process without a database.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_SETTINGS_SCAN_H
#define BATON_SETTINGS_SCAN_H

#include "access/htup.h"

/*
 * Calls `visit` for each row that a new backend would see.  In a transaction;
 * the row is a page's own, which is locked: no catalog may be read.
 */
extern void baton_settings_scan(void (*visit) (HeapTuple row, void *argument),
								void *argument);

#endif							/* BATON_SETTINGS_SCAN_H */
