/*-------------------------------------------------------------------------
 *
 * question.h
 *		A question to the dispatcher (HELLO_QUERY), and its answer.
 *
 * Portions Copyright (c) 2026, the pg_baton developers
 *
 *-------------------------------------------------------------------------
 */
#ifndef BATON_QUESTION_H
#define BATON_QUESTION_H

#include "channel.h"

/* Begins the message of a question, BATON_QUERY_*. */
extern void baton_question_init(StringInfo message, uint32 what);

/*
 * The next frame of the answer; waits for it, open to interrupts.
 * BATON_RECEIVED_NOTHING: none has come in time.
 */
extern BatonReceived baton_answer_next(int fd, int timeout_ms, BatonIncoming *incoming);

#endif							/* BATON_QUESTION_H */
