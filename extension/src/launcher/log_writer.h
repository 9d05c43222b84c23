/*-------------------------------------------------------------------------
 *
 * log_writer.h
 *		The background worker that writes the dispatcher's lines to the
 *		server's log.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_LOG_WRITER_H
#define BATON_LOG_WRITER_H

/* Called by _PG_init, while the server preloads libraries. */
extern void baton_log_writer_register(void);

/* Called by emit_log_hook first: gives a line of the dispatcher its level. */
extern void baton_log_writer_level(ErrorData *edata);

#endif							/* BATON_LOG_WRITER_H */
