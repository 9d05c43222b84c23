/*-------------------------------------------------------------------------
 *
 * monitor.h
 *		The monitor's process: its program, its ports, and what it asks the
 *		launcher.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_MONITOR_H
#define BATON_MONITOR_H

#include "utils/guc.h"

extern int	baton_monitor_port;
extern char *baton_monitor_listen_addresses;

/* Takes IP addresses, "localhost" and "*". */
extern bool baton_monitor_check_addresses(char **value, void **extra, GucSource source);

/*
 * Starts, moves or ends the monitor, if that is due.  Returns whether its
 * channel is another one now.
 */
extern bool baton_monitor_look(void);

/* When baton_monitor_look() has something to do, in ms; -1: unknown. */
extern long baton_monitor_next_ms(void);

/* The channel to the monitor, or -1. */
extern int	baton_monitor_channel(void);

/* Answers the monitor's questions; 0: there is no dispatcher. */
extern void baton_monitor_answer(int dispatcher_pid);

#endif							/* BATON_MONITOR_H */
