/*-------------------------------------------------------------------------
 *
 * context_report.h
 *		ParameterStatus: what each client has been told.
 *
 * See context_report.c.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_CONTEXT_REPORT_H
#define BATON_CONTEXT_REPORT_H

#include "lib/stringinfo.h"

#include "arena.h"

extern const char *baton_report_attach(void);

/*
 * The client has been told what the entry says (NULL: nothing); what differs
 * it is told with the next ReadyForQuery.  Parameters must be in place.
 */
extern void baton_report_install(const BatonStored *entry);

/* A ParameterStatus came before its time, and was thrown away. */
extern void baton_report_withhold(void);

/* The session's own message is about to be read. */
extern void baton_report_arm(void);

/* Tells a new client everything, and appends what it was told. */
extern void baton_report_greet(StringInfo reported);

/* Puts the REPORTED item if the client was told something; true if so. */
extern bool baton_report_capture(void);

/* A message of this type goes to the client. */
extern void baton_report_note_message(char type);

#endif							/* BATON_CONTEXT_REPORT_H */
