/*-------------------------------------------------------------------------
 *
 * start_settings.h
 *		What backends take from the configuration only when they start.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_START_SETTINGS_H
#define BATON_START_SETTINGS_H

struct config_generic;

/* Is this parameter for a starting backend alone to take? */
extern bool baton_counts_at_start(const struct config_generic *record);

/* All of it, as text to be compared with the last time's; palloc'd. */
extern char *baton_start_settings(void);

#endif							/* BATON_START_SETTINGS_H */
